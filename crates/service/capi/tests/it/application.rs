//! C programs built against `include/hps.h` and libsuperhue, with a service whose heat is made up.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use superhue_client::Page;

use crate::compile::compile;
use crate::support::{Service, TEST_TIMEOUT, base, patient, until};

/// The application, built once; `None` where there is no compiler.
fn application() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("application");
        let compiler = ["cc", "-std=gnu11", "-g", "-rdynamic"];
        compile(&compiler, "application.c", &path).then_some((folder, path))
    });
    built.as_ref().map(|(_, path)| path.as_path())
}

struct ApplicationProcess {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl ApplicationProcess {
    fn start(role: &str, socket: &Path) -> Option<Self> {
        Some(Self::of(Command::new(application()?).arg(role), socket))
    }

    fn of(program: &mut Command, socket: &Path) -> Self {
        let mut child = program
            .env("SUPERHUE_TRACK_SOCKET", socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn go(&mut self) {
        self.child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"go\n")
            .unwrap();
    }

    fn succeeds(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}; see its standard error above");
    }
}

#[test]
fn the_header_is_c99_and_cpp() {
    let folder = tempfile::tempdir().unwrap();
    compile(&["cc", "-std=c99"], "layout.c", &folder.path().join("c"));
    let cpp = ["c++", "-x", "c++", "-std=c++11"];
    compile(&cpp, "layout.c", &folder.path().join("cpp"));
}

/// Tests the example at the head of the library's source: users copy it.
#[test]
fn the_example_works() {
    let head = include_str!("../../src/lib.rs");
    let lines = head.lines().map(|line| line.strip_prefix("//!"));
    let lines = lines.map_while(|line| Some(line?.trim_start_matches(' ')));
    let example = lines.skip_while(|line| *line != "```c").skip(1);
    let example: Vec<&str> = example.take_while(|line| *line != "```").collect();
    let folder = tempfile::tempdir().unwrap();
    let [source, program] = ["example.c", "example"].map(|name| folder.path().join(name));
    std::fs::write(&source, example.join("\n")).unwrap();
    if !compile(&["cc", "-std=gnu11"], source.to_str().unwrap(), &program) {
        return;
    }
    let service = Service::start();
    service.set(base(1000, 10, 100));
    let mut running = ApplicationProcess::of(&mut Command::new(program), &service.path);
    assert_eq!(running.line(), "10 pages are active");
    service.stop();
    assert_eq!(running.child.wait().unwrap().code(), Some(1));
}

#[test]
fn without_a_service() {
    let Some(running) = ApplicationProcess::start("alone", Path::new("/nonexistent/x")) else {
        return;
    };
    running.succeeds();
}

#[test]
fn regions_are_decided_about() {
    let service = Service::start();
    let Some(mut running) = ApplicationProcess::start("decisions", &service.path) else {
        return;
    };
    let address: u64 = running.line().parse().unwrap();
    let mut pages = base(address >> 12, 128, 100);
    let sparse = base((address >> 12) + 512, 3, 100);
    pages.extend(
        sparse
            .iter()
            .zip([200, 100, 900])
            .map(|(page, heat)| Page { heat, ..*page }),
    );
    service.set(pages);
    running.succeeds();
}

#[test]
fn by_signal_into_a_buffer_too_small() {
    let service = Service::start();
    let Some(mut running) = ApplicationProcess::start("by_signal", &service.path) else {
        return;
    };
    assert_eq!(running.line(), "ready");
    for round in 0..3 {
        service.set(base(round * 1000, 10 + round, 100));
        assert_eq!(running.line(), "next");
    }
    running.succeeds();
}

#[test]
fn a_child_is_not_tracked_until_it_asks() {
    let service = Service::start();
    let Some(mut running) = ApplicationProcess::start("forked", &service.path) else {
        return;
    };
    assert_eq!(running.line(), "ready");
    service.set(base(0, 10, 100));
    running.succeeds();
}

#[test]
fn a_callback_that_never_returns_blocks_nobody_else() {
    let service = Service::start();
    let Some(mut running) = ApplicationProcess::start("stuck", &service.path) else {
        return;
    };
    service.set(base(0, 10, 100));
    assert_eq!(running.line(), "stuck");
    service.set(base(5000, 20, 100));
    running.go();
    running.succeeds();
}

#[test]
fn a_callback_that_crashes_takes_only_its_program() {
    use std::os::unix::process::ExitStatusExt;
    let service = Service::start();
    let Some(mut running) = ApplicationProcess::start("crashed", &service.path) else {
        return;
    };
    assert_eq!(running.line(), "ready");
    let other = superhue_client::Tracking::enable(&service.options()).unwrap();
    until("both are watched", || service.watched() == 2);
    service.set(base(0, 10, 100));
    let status = running.child.wait().unwrap();
    assert_eq!(status.signal(), Some(11), "{status}");
    until("the dead one is let go", || service.watched() == 1);
    assert!(other.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
    assert_eq!(other.fetch_all().unwrap(), base(0, 10, 100));
}

#[test]
fn disabling_wakes_every_thread() {
    let service = Service::start();
    let Some(running) = ApplicationProcess::start("woken", &service.path) else {
        return;
    };
    running.succeeds();
}

#[test]
fn a_restart_is_reported_and_survived() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("track.sock");
    let service = Service::at(&path, patient());
    let Some(mut running) = ApplicationProcess::start("restarted", &path) else {
        return;
    };
    assert_eq!(running.line(), "ready");
    service.stop();
    running.go();
    assert_eq!(running.line(), "gone");
    let heir = Service::at(&path, patient());
    heir.set(base(0, 10, 100));
    running.go();
    running.succeeds();
}
