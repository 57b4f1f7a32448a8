//! A service in this process, with heat that the test makes up.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "used by tests alone, of which none needs everything"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use superhue_client::{Page, PageFlags, TrackingOptions};
use superhue_model::ProcessId;
use superhue_serve::Listener;
use superhue_track::{Heat, Limits, SampleOutcome, Server, ServerCounters, TrackingLoss};

/// Far longer than anything here takes on a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Accesses that the test makes up.
#[derive(Debug, Default)]
pub struct Script {
    /// Pages by process number; other processes have `anyone`.
    pub pages: BTreeMap<u32, Vec<Page>>,
    pub anyone: Vec<Page>,
    pub watched: BTreeSet<ProcessId>,
    pub lost: BTreeMap<u32, TrackingLoss>,
    /// Bytes that the heat of a process takes, as the service sees it.
    pub held: BTreeMap<u32, u64>,
    pub steps: u64,
    /// True to take no more samples.
    pub still: bool,
}

/// Heat as the script says, a sample every few milliseconds.
pub struct Fake(Arc<Mutex<Script>>, Duration);

impl Heat for Fake {
    fn add(&mut self, process: ProcessId) {
        self.0.lock().unwrap().watched.insert(process);
    }
    fn remove(&mut self, process: ProcessId) {
        self.0.lock().unwrap().watched.remove(&process);
    }
    fn resample_soon(&mut self, _: ProcessId) {}
    fn step(&mut self, at: Duration) -> Vec<SampleOutcome> {
        self.1 = at + Duration::from_millis(2);
        let mut script = self.0.lock().unwrap();
        script.steps += 1;
        let result = |process: &ProcessId| match script.lost.get(&process.pid) {
            Some(lost) => Err(lost.clone()),
            None => Ok(()),
        };
        let of = |process: &ProcessId| SampleOutcome {
            process: *process,
            result: result(process),
        };
        script.watched.iter().map(of).collect()
    }
    fn due(&self) -> Option<Duration> {
        let script = self.0.lock().unwrap();
        (!script.watched.is_empty() && !script.still).then_some(self.1)
    }
    fn samples(&self, _: ProcessId) -> u64 {
        self.0.lock().unwrap().steps
    }
    fn held(&self, process: ProcessId) -> u64 {
        self.0
            .lock()
            .unwrap()
            .held
            .get(&process.pid)
            .copied()
            .unwrap_or(0)
    }
    fn active(&self, process: ProcessId, min_heat: u32, most: usize) -> Option<Vec<Page>> {
        let script = self.0.lock().unwrap();
        let pages = script.pages.get(&process.pid).unwrap_or(&script.anyone);
        let found = pages.iter().filter(|page| page.heat >= min_heat);
        let found: Vec<Page> = found.copied().collect();
        (found.len() <= most).then_some(found)
    }
}

/// A service that runs until dropped.
pub struct Service {
    pub path: PathBuf,
    pub script: Arc<Mutex<Script>>,
    stop: UnixStream,
    thread: Option<JoinHandle<ServerCounters>>,
    _folder: Option<tempfile::TempDir>,
}

impl Service {
    pub fn start() -> Self {
        Self::with(patient())
    }

    pub fn with(limits: Limits) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let mut service = Self::at(&folder.path().join("track.sock"), limits);
        service._folder = Some(folder);
        service
    }

    pub fn at(path: &Path, limits: Limits) -> Self {
        let script = Arc::new(Mutex::new(Script::default()));
        let listener = Listener::new(path).unwrap();
        let fake = Fake(script.clone(), Duration::ZERO);
        let mut server = Server::new(listener, fake, limits).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            server.run(&stopped).unwrap();
            server.served()
        });
        Self {
            path: path.to_owned(),
            script,
            stop,
            thread: Some(thread),
            _folder: None,
        }
    }

    pub fn options(&self) -> TrackingOptions {
        TrackingOptions {
            socket: self.path.clone(),
            timeout: TEST_TIMEOUT,
            ..TrackingOptions::default()
        }
    }

    pub fn set(&self, pages: Vec<Page>) {
        self.script.lock().unwrap().anyone = pages;
    }

    pub fn lose(&self, pid: u32, errno: Errno, text: &str) {
        let text = text.to_owned();
        self.script
            .lock()
            .unwrap()
            .lost
            .insert(pid, TrackingLoss { errno, text });
    }

    pub fn watched(&self) -> usize {
        self.script.lock().unwrap().watched.len()
    }

    /// Ends the service and returns its counters.
    pub fn stop(mut self) -> ServerCounters {
        self.end().unwrap()
    }

    fn end(&mut self) -> Option<ServerCounters> {
        let _ = self.stop.write_all(b"x");
        self.thread.take().map(|thread| thread.join().unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

/// Limits with a long greeting, for clients that wait for a CPU.
pub fn patient() -> Limits {
    Limits {
        greeting: TEST_TIMEOUT,
        ..Limits::default()
    }
}

/// Makes base pages from page number `first` on.
pub fn base(first: u64, count: u64, heat: u32) -> Vec<Page> {
    let page = |number| Page {
        address: number << 12,
        heat,
        flags: PageFlags::NONE,
    };
    (first..first + count).map(page).collect()
}

/// Waits until `holds` returns true.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(
            begun.elapsed() < TEST_TIMEOUT,
            "waited in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
