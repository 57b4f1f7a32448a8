//! A daemon of a test's own, its configuration, and services in cgroups.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use superhue::procfs::Roots;
use superhue::procfs::cgroup::unified_mount;

use super::{ChildGuard, TEST_TIMEOUT, User, skip, superhue};

pub(crate) const OFF: &str = "[[rule]]\nname = \"all\"\nany = true\npages = \"off\"\n";

/// A folder for configuration and socket, and the daemon in it.
pub(crate) struct Machine {
    pub(crate) folder: tempfile::TempDir,
}

impl Machine {
    pub(crate) fn new(rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(folder.path().join("etc/conf.d")).unwrap();
        let machine = Self { folder };
        machine.write("superhue.toml", rules);
        machine
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.at("etc").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let (verb, more) = arguments.split_first().unwrap();
        let mut command = superhue(User::Same, &[verb, "--socket"]);
        command.arg(self.at("run/ctl.sock")).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The daemon, which may still be starting.
    pub(crate) fn start(&self) -> ChildGuard {
        let mut command = self.command(&["daemon", "--config"]);
        command
            .arg(self.at("etc"))
            .stderr(fs::File::create(self.at("log")).unwrap());
        ChildGuard::start(&mut command)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.at("log")).unwrap()
    }

    pub(crate) fn ctl(&self, arguments: &[&str]) -> Output {
        let arguments: Vec<&str> = ["ctl"].iter().chain(arguments).copied().collect();
        self.command(&arguments).output().unwrap()
    }

    pub(crate) fn json(&self, request: &str) -> Option<Value> {
        let output = self.ctl(&["--json", request]);
        (output.status.success()).then(|| documented("ctl", &output.stdout))
    }

    /// Returns the account, once `what` holds for it.
    pub(crate) fn status(&self, what: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let answer = self.json("status");
            if let Some(status) = answer
                .as_ref()
                .map(|it| &it["status"])
                .filter(|it| what(it))
            {
                return status.clone();
            }
            assert!(Instant::now() < deadline, "{answer:?}\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn is_up(&self) -> Value {
        self.status(|_| true)
    }
}

/// Returns a document, which must match the schema of that name in docs/schemas.
pub(crate) fn documented(name: &str, document: &[u8]) -> Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas");
    let schema = fs::read(format!("{folder}/{name}.schema.json")).unwrap();
    let schema: Value = serde_json::from_slice(&schema).unwrap();
    let schema = jsonschema::validator_for(&schema).unwrap();
    let answer: Value = serde_json::from_slice(document).unwrap();
    let errors = schema.iter_errors(&answer);
    let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}\n{answer}");
    answer
}

pub(crate) fn rule<'a>(status: &'a Value, name: &str) -> &'a Value {
    let rules = status["rules"].as_array().unwrap();
    let found = rules.iter().find(|rule| rule["name"] == name);
    found.unwrap_or(&Value::Null)
}

/// A cgroup of the test's own, removed at the end; `None`, with a visible skip, where it may not make any.
pub(crate) struct Slice(pub(crate) PathBuf);

impl Slice {
    pub(crate) fn new(name: &str) -> Option<Self> {
        let made = unified_mount(&Roots::default()).ok_or("no cgroup2 is mounted".to_owned());
        let made = made.and_then(|mount| {
            let folder = mount.join(format!("superhue-{name}-{}.slice", std::process::id()));
            let made = fs::create_dir(&folder);
            made.map(|()| Self(folder))
                .map_err(|error| error.to_string())
        });
        made.map_err(|reason| skip("cgroup", &reason)).ok()
    }

    pub(crate) fn name(&self) -> String {
        self.0.file_name().unwrap().to_string_lossy().into_owned()
    }

    /// Starts a process in the service `unit`, for which it makes the cgroup, as a service manager does.
    pub(crate) fn service(&self, unit: &str, command: &mut Command) -> ChildGuard {
        use std::os::unix::process::CommandExt;
        let folder = self.0.join(unit);
        fs::create_dir(&folder).unwrap();
        let processes = fs::File::options()
            .write(true)
            .open(folder.join("cgroup.procs"))
            .unwrap();
        // SAFETY: one write, of an open descriptor.
        unsafe {
            command.pre_exec(move || {
                rustix::io::write(&processes, b"0")
                    .map(drop)
                    .map_err(Into::into)
            });
        }
        ChildGuard::start(command.stdin(Stdio::null()))
    }

    pub(crate) fn end(&self, unit: &str) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while fs::remove_dir(self.0.join(unit)).is_err() {
            assert!(Instant::now() < deadline, "{unit} stays");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = fs::remove_dir(entry.path());
        }
        let _ = fs::remove_dir(&self.0);
    }
}
