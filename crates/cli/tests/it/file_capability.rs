//! A copy of superhue with `CAP_SYS_NICE` from its file: the actions that it allows an ordinary user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{StatVfsMountFlags, XattrFlags, setxattr, statvfs};
use rustix::thread::{CapabilitySet, capability_is_in_bounding_set};
use serde_json::Value;

use crate::support::{
    self, ChildGuard, FILLING, NOBODY, copy_program, is_root, python, skip, text, until,
};

/// `struct vfs_cap_data` of `linux/capability.h`, version 2, little endian: `CAP_SYS_NICE`, permitted and effective.
const SYS_NICE: [u32; 5] = [0x0200_0001, 1 << 23, 0, 0, 0];

/// Makes a copy with the capability, in a folder of its own; `None`, with a visible skip, where that is impossible.
fn capable() -> Option<(tempfile::TempDir, PathBuf)> {
    if !is_root() {
        skip("root", "only root can give a file a capability");
        return None;
    }
    if !support::collapse_works() {
        return None;
    }
    let folder = support::folder();
    let program = folder.path().join("superhue");
    copy_program(&support::installed().join("superhue"), &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let bytes: Vec<u8> = SYS_NICE.into_iter().flat_map(u32::to_le_bytes).collect();
    let given = setxattr(&program, "security.capability", &bytes, XattrFlags::empty());
    let mount = statvfs(&program).unwrap().f_flag;
    let reason = match given {
        Err(errno) => Some(format!(
            "{} takes no capability: {errno}",
            program.display()
        )),
        Ok(()) if mount.contains(StatVfsMountFlags::NOSUID) => {
            Some("the folder is mounted nosuid".to_owned())
        }
        Ok(()) if capability_is_in_bounding_set(CapabilitySet::SYS_NICE) != Ok(true) => {
            Some("CAP_SYS_NICE is not in the bounding set".to_owned())
        }
        Ok(()) => None,
    };
    if let Some(reason) = reason {
        skip("file-capability", &reason);
        return None;
    }
    Some((folder, program))
}

/// The copy, run by an ordinary user.
fn run(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null());
    // No daemon may help.
    command.env("SUPERHUE_USERS_SOCKET", "/nowhere");
    command.uid(NOBODY).gid(NOBODY);
    command
}

fn said(output: &Output) -> String {
    text(&output.stderr)
}

/// A Python program that fills memory, announces that, and checks it when its input ends.
fn script(mebibytes: u64) -> String {
    format!(
        "{FILLING}\nimport sys\nmemory = fill({mebibytes})\nprint('ready', flush=True)\nsys.stdin.read()\nassert whole(memory)"
    )
}

#[test]
fn an_ordinary_users_programs_get_huge_pages() {
    let (Some((folder, program)), Some(python)) = (capable(), python()) else {
        return;
    };
    let report = folder.path().join("report");
    let arguments = ["run", "--quiet", "--pages", "resident", "--report"];
    let mut command = run(&program, &arguments);
    command.arg(&report).args(["--", python, "-c"]);
    // Waits until nearly all of it is huge, however slow the machine is.
    let waits = format!(
        "{FILLING}\nimport os, re, time\nassert 'CapEff:\\t0000000000000000' in open('/proc/self/status').read()\n\
         memory = fill(256)\n\
         def huge(): return int(re.search(r'AnonHugePages: *(\\d+)', open('/proc/self/smaps_rollup').read())[1])\n\
         deadline = time.monotonic() + 100\n\
         while huge() < 0.95 * (256 << 10) and time.monotonic() < deadline: time.sleep(0.02)\n\
         assert whole(memory)"
    );
    let output = support::output(command.arg(&waits));
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let coverage = report["coverage"]["peak"].as_f64();
    let notes = report["mechanism"]["notes"].to_string();
    assert!(!notes.contains("CAP_SYS_NICE"), "{notes}");
    let done = report["collapses"]["done"].as_u64().unwrap();
    assert!(done * 2 >= 256 * 95 / 100, "{done} {coverage:?} {report}");
}

#[test]
fn the_command_gets_what_a_start_with_capabilities_takes_from_superhue() {
    let Some((_folder, program)) = capable() else {
        return;
    };
    let prints = "echo $LD_LIBRARY_PATH $TMPDIR $OWN; ulimit -S -s";
    let ours = format!(
        "ulimit -S -s 65536 && {} run --quiet -- sh -c '{prints}'; exit $?",
        program.display()
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &ours])
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .env("SUPERHUE_USERS_SOCKET", "/nowhere");
    command
        .env("LD_LIBRARY_PATH", "/libraries")
        .env("TMPDIR", "/scratch")
        .env("OWN", "as before");
    let output = support::output(&mut command);
    assert_eq!(
        text(&output.stdout),
        "/libraries /scratch as before\n65536\n",
        "{}",
        said(&output)
    );
}

#[test]
fn other_users_programs_are_out_of_reach() {
    let (Some((_folder, program)), Some(python)) = (capable(), python()) else {
        return;
    };
    let mut command = Command::new(python);
    command.args(["-c", &script(8)]).stdin(Stdio::piped());
    let mut roots = ChildGuard::start(command.stdout(Stdio::piped()));
    let pid = roots.pid().to_string();
    until("it has filled its memory", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))?;
        let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        (kib >= 8 << 10).then_some(())
    });
    let output = support::output(&mut run(&program, &["attach", "--for", "1s", &pid]));
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    let heard = said(&output);
    assert!(heard.contains("may not open"), "{heard}");
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let huge = rollup
        .lines()
        .find_map(|line| line.strip_prefix("AnonHugePages:"));
    assert_eq!(huge.unwrap().trim(), "0 kB");
    drop(roots.0.stdin.take());
    assert!(roots.wait().success());
}

#[test]
fn it_sees_what_it_may_do_and_nobody_sees_into_it() {
    let (Some((_folder, program)), Some(python)) = (capable(), python()) else {
        return;
    };
    let output = support::output(&mut run(&program, &["check", "--json"]));
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    for one in checked["capabilities"].as_array().unwrap() {
        let (id, verdict) = (one["id"].as_str().unwrap(), &one["verdict"]);
        if ["remote-collapse", "collapse", "pagemap-scan"].contains(&id) {
            assert!(verdict == "yes" || verdict == "partial", "{one}");
        }
        // It can read all of its own state.
        assert!(
            !one["found"]
                .as_str()
                .unwrap()
                .contains("/proc/self/pagemap: EACCES"),
            "{one}"
        );
    }
    // Its user may read it no more than a process of root.
    let mut command = run(
        &program,
        &["run", "--quiet", "--", python, "-c", &script(4)],
    );
    let mut superhue = ChildGuard::start(command.stdin(Stdio::piped()).stdout(Stdio::null()));
    let pid = superhue.pid();
    until("it has its capability", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.contains("CapEff:\t0000000000800000").then_some(())
    });
    let look = format!("open('/proc/{pid}/mem', 'rb').read(1)");
    for look in [
        look.replace("mem", "environ"),
        look.replace("mem", "maps"),
        look,
    ] {
        let mut command = Command::new(python);
        command.args(["-c", &look]).uid(NOBODY).gid(NOBODY);
        let output = support::output(command.stdin(Stdio::null()));
        assert!(
            said(&output).contains("PermissionError"),
            "{look}: {}",
            said(&output)
        );
    }
    drop(superhue.0.stdin.take());
    assert!(superhue.wait().success());
}
