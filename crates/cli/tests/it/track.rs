//! `superhue track` from the view of applications and administrators.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use superhue::sys::anonymous::AnonymousMemory;
use superhue_client::{ClientError, Decision, Page, Tracking, TrackingOptions, act_on};
use superhue_testing::{alone, has_passed, only};

use crate::support::{
    self, NOBODY, TEST_TIMEOUT, User, is_root, skip, sticky_folder, superhue, text,
};

/// A service as a process, killed at the end.
struct Service {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Service {
    /// Starts one and waits until it serves; `None`, with a visible skip, where no page can be tracked.
    fn start(socket: &Path) -> Option<Self> {
        let mut command = superhue(
            User::Same,
            &["track", "--tracker", "ptwalk", "--max-overhead"],
        );
        let mut child = command
            .arg("50%")
            .arg("--socket")
            .arg(socket)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        if line.contains("serving at") {
            return Some(Self { child, said });
        }
        // Exit status 3, the reason and a remedy.
        assert_eq!(child.wait().unwrap().code(), Some(3), "{line}");
        skip("ptwalk", line.trim());
        None
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn options(socket: &Path) -> TrackingOptions {
    TrackingOptions {
        socket: socket.to_owned(),
        timeout: TEST_TIMEOUT,
        ..TrackingOptions::default()
    }
}

/// Keeps touching the first `pages` pages of a region until `done` accepts a list, and returns that list. The next list
/// may cover a time in which nothing was touched.
fn touch_until(
    tracking: &Tracking,
    region: u64,
    pages: u64,
    done: impl Fn(usize) -> bool,
) -> Vec<Page> {
    let begun = std::time::Instant::now();
    loop {
        assert!(begun.elapsed() < TEST_TIMEOUT, "the pages were never told");
        for page in 0..pages {
            let at = (region + page * 4096) as *mut u8;
            // SAFETY: memory of the test's own.
            unsafe { at.write_volatile(at.read_volatile().wrapping_add(1)) };
        }
        if tracking
            .wait(Some(Duration::from_millis(1)))
            .unwrap()
            .is_some()
        {
            let list = tracking.fetch_all().unwrap();
            let inside = list
                .iter()
                .filter(|page| page.address >> 21 == region >> 21);
            if done(inside.count()) {
                return list;
            }
        }
    }
}

#[test]
fn an_application_learns_what_it_touches() {
    let _alone = alone();
    let folder = sticky_folder();
    let socket = folder.path().join("track.sock");
    let Some(service) = Service::start(&socket) else {
        return;
    };
    let memory = AnonymousMemory::aligned(4 << 20).unwrap();
    let start = memory.range().start.0;
    // Base pages, whatever the machine's mode.
    // SAFETY: memory of the test's own.
    unsafe {
        rustix::mm::madvise(
            memory.start().as_ptr(),
            4 << 20,
            rustix::mm::Advice::LinuxNoHugepage,
        )
        .unwrap();
    }
    memory.populate().unwrap();
    let tracking = Tracking::enable(&options(&socket)).unwrap();
    // 40 of 512 pages of the first region, none of the second.
    let list = touch_until(&tracking, start, 40, |count| count == 40);
    let second = (start >> 21) + 1;
    assert!(
        list.iter().all(|page| page.address >> 21 != second),
        "untouched memory was told"
    );
    let own: Vec<_> = list
        .into_iter()
        .filter(|page| page.address >> 21 == start >> 21)
        .collect();
    let mut suggested = Vec::new();
    let decide = |region: &superhue_client::RegionPages<'_>| {
        suggested.push((region.address, region.suggestion));
        Decision::Compact
    };
    act_on(&own, decide, |sparse| assert_eq!(sparse.len(), 40)).unwrap();
    assert_eq!(suggested, [(start, Decision::Compact)]);
    // After a kill, the next service takes the path over, and the application gets an error.
    service.signal(rustix::process::Signal::KILL);
    let error = loop {
        match tracking.wait(Some(TEST_TIMEOUT)) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the death of the service was not told"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, ClientError::ServiceGone);
    assert!(socket.exists());
    drop(service);
    let mut heir = Service::start(&socket).unwrap();
    Tracking::enable(&options(&socket)).unwrap();
    // A second service at the same path.
    let second = superhue(User::Same, &["track", "--tracker", "ptwalk", "--socket"])
        .arg(&socket)
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains("in use"), "{said}");
    heir.signal(rustix::process::Signal::TERM);
    assert!(heir.child.wait().unwrap().success());
    assert!(!socket.exists(), "the socket was not removed");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut heir.said, &mut rest).unwrap();
    assert!(rest.contains("served 1 clients"), "{rest}");
}

/// Kills it before, while and after it takes the path: the next service always gets the path.
#[test]
fn a_service_killed_at_any_moment_leaves_the_path_to_the_next() {
    let _alone = alone();
    let folder = sticky_folder();
    let socket = folder.path().join("track.sock");
    if Service::start(&socket).is_none() {
        return;
    }
    for round in 0..16_u64 {
        let mut command = superhue(User::Same, &["track", "--tracker", "ptwalk", "--socket"]);
        let mut killed = command.arg(&socket).stderr(Stdio::null()).spawn().unwrap();
        // No synchronisation: any moment will do.
        std::thread::sleep(Duration::from_millis(round * round));
        assert_eq!(killed.try_wait().unwrap(), None, "round {round}");
        killed.kill().unwrap();
        killed.wait().unwrap();
    }
    let _heir = Service::start(&socket).unwrap();
    let memory = AnonymousMemory::aligned(2 << 20).unwrap();
    memory.populate().unwrap();
    let tracking = Tracking::enable(&options(&socket)).unwrap();
    touch_until(&tracking, memory.range().start.0, 512, |count| count >= 1);
}

#[test]
fn it_serves_ordinary_users_with_few_capabilities() {
    if !is_root() {
        return skip("root", "another user's process needs one");
    }
    let folder = sticky_folder();
    let socket = folder.path().join("track.sock");
    let Some(service) = Service::start(&socket) else {
        return;
    };
    let status = fs::read_to_string(format!("/proc/{}/status", service.child.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    // CAP_DAC_OVERRIDE, CAP_KILL, CAP_SYS_PTRACE, CAP_BPF.
    let few: u64 = 1 << 1 | 1 << 5 | 1 << 19 | 1 << 39;
    for set in ["CapPrm:", "CapEff:"] {
        let held = u64::from_str_radix(&field(set), 16).unwrap();
        assert_eq!(held & !few, 0, "{set} {held:x}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    // Runs this very test, as the user `nobody`.
    let path = std::env::var_os("SUPERHUE_TRACK_CHILD_OF");
    assert!(path.is_none());
    let program = folder.path().join("test");
    support::copy_program(&std::env::current_exe().unwrap(), &program);
    let passed = Command::new(&program)
        .args(only(module_path!(), "as_an_ordinary_user"))
        .env("SUPERHUE_TRACK_CHILD_OF", &socket)
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/")
        .output()
        .unwrap();
    let [said, errors] = [&passed.stdout, &passed.stderr].map(|bytes| text(bytes));
    assert!(has_passed(&passed), "{said}{errors}");
}

/// Run by the test above, as another user.
#[test]
fn as_an_ordinary_user() {
    let Some(socket) = std::env::var_os("SUPERHUE_TRACK_CHILD_OF") else {
        return;
    };
    let memory = AnonymousMemory::aligned(2 << 20).unwrap();
    memory.populate().unwrap();
    let tracking = Tracking::enable(&options(Path::new(&socket))).unwrap();
    touch_until(&tracking, memory.range().start.0, 512, |count| count >= 1);
    let other = TrackingOptions {
        pid: Some(1),
        ..options(Path::new(&socket))
    };
    let error = Tracking::enable(&other).unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::PERM);
}

#[test]
fn without_bpf_it_says_why_and_what_to_do() {
    let folder = sticky_folder();
    let socket = folder.path().join("track.sock");
    let output = superhue(
        User::Ordinary,
        &["track", "--tracker", "ptwalk", "--socket"],
    )
    .arg(&socket)
    .output()
    .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("CAP_BPF") || said.contains("root"), "{said}");
    assert!(!socket.exists());
}
