use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use super::*;

/// A program that every Debian system has, linked to glibc.
const PROGRAM: &str = "/usr/bin/env";

/// Reads `program`'s allocator with nothing preloaded, in an environment that has `set`.
fn request(program: &Path, set: &[&str]) -> Result<AllocatorRequest, NoRequest> {
    let is_set = |name: &str| set.contains(&name);
    AllocatorRequest::for_program(&Roots::default(), program, OsStr::new(""), is_set)
}

/// Writes an executable file.
fn executable(folder: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn a_program_of_glibc_is_asked_by_its_tunable() {
    let request = request(Path::new(PROGRAM), &["MALLOC_CONF"]).unwrap();
    assert_eq!(request.to_string(), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1");
}

#[test]
fn what_the_user_set_stays() {
    let found = request(Path::new(PROGRAM), &["GLIBC_TUNABLES"]);
    assert!(matches!(found, Err(NoRequest::AlreadySet(name)) if name == "GLIBC_TUNABLES"));
}

#[test]
fn a_process_is_asked_as_it_was_started() {
    let sys = tempfile::tempdir().unwrap();
    let folder = sys.path().join("kernel/mm/transparent_hugepage");
    fs::create_dir_all(&folder).unwrap();
    let roots = Roots {
        sys: sys.path().to_owned(),
        ..Roots::default()
    };
    let of = |mode: &str, set: Option<&str>| {
        fs::write(folder.join("enabled"), mode).unwrap();
        let mut command = std::process::Command::new("sleep");
        command
            .arg("60")
            .env_remove("GLIBC_TUNABLES")
            .env_remove("LD_PRELOAD");
        command.envs(set.map(|name| (name, "1")));
        let child = superhue_testing::ChildGuard(command.spawn().unwrap());
        // The kernel shows the environment once it has loaded the program, which is after it lets the parent continue.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let environment = format!("/proc/{}/environ", child.pid());
        while fs::read(&environment).unwrap().is_empty() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        AllocatorRequest::for_process(&roots, child.pid())
    };
    let asked = of("always [madvise] never", None).unwrap();
    assert_eq!(asked.to_string(), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1");
    let set = of("always [madvise] never", Some("GLIBC_TUNABLES"));
    assert!(matches!(set, Err(NoRequest::AlreadySet(_))), "{set:?}");
    let always = of("[always] madvise never", None);
    assert!(matches!(always, Err(NoRequest::Mode(_))), "{always:?}");
    let gone = AllocatorRequest::for_process(&roots, 1 << 22);
    assert!(gone.is_err(), "{gone:?}");
}

/// A script's interpreter is the program.
#[test]
fn scripts_and_links_lead_to_their_program() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("#! {PROGRAM} sh\n");
    let script = executable(folder.path(), "script", line.as_bytes(), 0o755);
    let line = format!("#!{}\n", script.display());
    let outer = executable(folder.path(), "outer", line.as_bytes(), 0o755);
    let link = folder.path().join("link");
    symlink(&outer, &link).unwrap();
    assert_eq!(request(&link, &[]).unwrap().allocator, Allocator::Glibc);
    let around = folder.path().join("around");
    fs::write(&around, format!("#!{}\n", around.display())).unwrap();
    assert!(matches!(
        request(&around, &[]),
        Err(NoRequest::Program(ProgramError::NotElf { .. }))
    ));
}

#[test]
fn privileged_programs_keep_their_environment() {
    let folder = tempfile::tempdir().unwrap();
    let content = fs::read(PROGRAM).unwrap();
    for mode in [0o4755, 0o2755] {
        let program = executable(folder.path(), "privileged", &content, mode);
        let found = request(&program, &[]);
        assert!(
            matches!(found, Err(NoRequest::Program(ProgramError::Privileged(_)))),
            "{found:?}"
        );
    }
}

/// None of these is a program that can take a request, and none may make the reader wait or fail.
#[test]
fn other_files_are_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(PROGRAM).unwrap();
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o755.into(),
        0,
    )
    .unwrap();
    let files = [
        executable(folder.path(), "empty", b"", 0o755),
        executable(folder.path(), "text", b"echo\n", 0o755),
        executable(folder.path(), "only", b"#!", 0o755),
        executable(folder.path(), "cut", &whole[..200], 0o755),
        fifo,
        folder.path().to_owned(),
    ];
    for file in files {
        let found = request(&file, &[]);
        let is_named = matches!(&found, Err(NoRequest::Program(ProgramError::NotElf { path, .. })) if *path == file);
        assert!(is_named, "{}: {found:?}", file.display());
    }
    let found = request(&folder.path().join("none"), &[]);
    assert!(matches!(
        found,
        Err(NoRequest::Program(ProgramError::NotFound))
    ));
}

/// Every cut of a program is read without a panic.
#[test]
fn damaged_programs_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(PROGRAM).unwrap();
    for step in 0..64 {
        let mut damaged = whole.clone();
        // Headers and tables lie at both ends.
        for at in (step..4096.min(damaged.len())).step_by(64) {
            damaged[at] ^= 0xff;
        }
        let cut = damaged.len() * (step + 1) / 64;
        let program = executable(folder.path(), "damaged", &damaged[..cut], 0o755);
        let _ = request(&program, &[]);
    }
}

#[test]
fn commands_are_found_as_execvp_finds_them() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    fs::create_dir(&first).unwrap();
    fs::create_dir(&second).unwrap();
    // Not executable, so the next folder counts.
    executable(&first, "tool", b"", 0o644);
    let tool = executable(&second, "tool", b"", 0o755);
    let path = std::env::join_paths([&first, &second]).unwrap();
    let find = |name: &str| path::find(OsStr::new(name), Some(&path));
    assert_eq!(find("tool").unwrap(), tool);
    assert!(find("other").is_err());
    assert!(find("").is_err());
    assert_eq!(find("./x/tool").unwrap(), PathBuf::from("./x/tool"));
    assert_eq!(
        path::find(OsStr::new("env"), None).unwrap(),
        PathBuf::from("/bin/env")
    );
}

#[test]
fn other_allocators_have_variables_of_their_own() {
    let of = |allocator| AllocatorRequest::of(allocator).map(|request| request.to_string());
    let prefix = "_RJEM_".to_owned();
    assert_eq!(
        of(Allocator::Jemalloc { prefix }).unwrap(),
        "_RJEM_MALLOC_CONF=thp:always"
    );
    assert_eq!(
        of(Allocator::Mimalloc).unwrap(),
        "MIMALLOC_LARGE_OS_PAGES=1"
    );
    assert_eq!(of(Allocator::Tcmalloc), None);
}

#[test]
fn what_the_user_decides_about_the_jvm_stays() {
    let jvm = AllocatorRequest::of(Allocator::Jvm).unwrap();
    assert!(jvm.other_names().contains(&"JAVA_TOOL_OPTIONS"));
    let arguments = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    for word in [
        "-XX:+UseLargePages",
        "-XX:-UseTransparentHugePages",
        "-XX:+UseHugeTLBFS",
    ] {
        let found = jvm.argument_against(&arguments(&["-Xmx1g", word, "Main"]));
        assert_eq!(found.as_deref(), Some(word));
    }
    assert_eq!(
        jvm.argument_against(&arguments(&["-Xmx1g", "LargePages"])),
        None
    );
    let glibc = AllocatorRequest::of(Allocator::Glibc).unwrap();
    assert_eq!(
        glibc.argument_against(&arguments(&["-XX:+UseLargePages"])),
        None
    );
}
