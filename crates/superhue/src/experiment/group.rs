//! A control group for one run: the kernel's charge to it is the run's memory.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use superhue_model::ByteCount;
use superhue_procfs::Roots;
use superhue_sys::cgroup::{charged, groups, peak_charged};

/// First part of a group's name; the number of the process that made the group and a serial number follow.
const NAME: &str = "superhue-compare";

/// The time that the last processes of a run have to leave its group.
const GROUP_EMPTY_TIMEOUT: Duration = Duration::from_millis(200);

/// Looks for processes in a group that is to be empty. Each ends what the look found.
const KILLING_LOOKS: u32 = 100;

/// The group of a run, or the reason why it has none.
pub(super) type RunGroupResult = Result<RunGroup, &'static str>;

/// An empty group below that of this process or beside it, removed when this value is dropped.
#[derive(Debug)]
pub(super) struct RunGroup {
    folder: PathBuf,
    door: File,
}

impl RunGroup {
    /// Makes a group; the error is the reason why there is none.
    ///
    /// Below its own group, a process can make one that counts memory under version 1; under version 2, as a rule only beside it: a group
    /// with processes passes no controllers on ("no internal process constraint" of cgroup-v2.rst).
    pub(super) fn new(roots: &Roots) -> RunGroupResult {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{NAME}-{}-{number}", std::process::id());
        let own = groups(&roots.proc, &roots.sys, "self").unwrap_or_default();
        let mut own = own
            .iter()
            .filter(|folder| folder.join("cgroup.procs").exists());
        let below = own.next();
        // A run beside a group with bounds would escape them.
        let beside = own
            .next()
            .filter(|_| below.is_some_and(|own| !is_bounded(own)));
        for parent in [below, beside].into_iter().flatten() {
            remove_stale(parent);
            let folder = parent.join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let door = OpenOptions::new()
                .write(true)
                .open(folder.join("cgroup.procs"));
            match door {
                Ok(door) if peak_charged(&folder).is_some() && charged(&folder).is_some() => {
                    return Ok(Self { folder, door });
                }
                _ => {
                    let _ = fs::remove_dir(&folder);
                }
            }
        }
        Err("no control group that counts memory can be made here (as root, or in a delegated one)")
    }

    /// Returns its `cgroup.procs`.
    pub(super) const fn door(&self) -> &File {
        &self.door
    }

    /// Ends all processes of the run at once, also those that are no descendants of its command any more.
    pub(super) fn kill(&self) {
        // Version 2, Linux 5.14 (cgroup-v2.rst).
        let whole = OpenOptions::new()
            .write(true)
            .open(self.folder.join("cgroup.kill"))
            .and_then(|mut file| file.write_all(b"1"));
        if whole.is_ok() {
            return;
        }
        for _ in 0..KILLING_LOOKS {
            let opened: Vec<(Pid, OwnedFd)> = (self.members().into_iter())
                .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
                .collect();
            if opened.is_empty() {
                return;
            }
            // A number that is still in the list is that of the process that was opened.
            let members = self.members();
            for (pid, process) in opened {
                if members.contains(&pid) {
                    let _ = pidfd_send_signal(&process, Signal::KILL);
                }
            }
            std::thread::sleep(GROUP_EMPTY_TIMEOUT / 40);
        }
    }

    /// Returns the processes in the group.
    fn members(&self) -> Vec<Pid> {
        let list = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        let numbers = list.lines().filter_map(|line| line.trim().parse().ok());
        // 0 is a process of another PID namespace.
        numbers.filter_map(Pid::from_raw).collect()
    }

    /// Returns the most that was charged to it at once; `None` if it is gone.
    pub(super) fn peak(&self) -> Option<ByteCount> {
        peak_charged(&self.folder)
    }
}

impl Drop for RunGroup {
    fn drop(&mut self) {
        let begun = Instant::now();
        // Processes that outlive their run keep the group; the next run tries again.
        while let Err(error) = fs::remove_dir(&self.folder)
            && error.kind() == ErrorKind::ResourceBusy
            && begun.elapsed() < GROUP_EMPTY_TIMEOUT
        {
            std::thread::sleep(GROUP_EMPTY_TIMEOUT / 40);
        }
    }
}

/// Returns true if a group of version 2 bounds the resources of its processes ("cgroup-v2.rst").
fn is_bounded(folder: &Path) -> bool {
    const BOUNDS: [&str; 7] = [
        "memory.max",
        "memory.high",
        "memory.swap.max",
        "cpu.max",
        "pids.max",
        "cpuset.cpus",
        "cpuset.mems",
    ];
    BOUNDS.iter().any(|name| {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        !text.trim().is_empty() && !text.starts_with("max")
    })
}

/// Removes empty groups below `parent` that remain from runs of this process, or of one that has ended.
fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            name.strip_prefix(NAME)?
                .strip_prefix('-')?
                .split('-')
                .next()
        });
        let Some(pid) = pid else { continue };
        let is_others =
            pid != std::process::id().to_string() && Path::new("/proc").join(pid).exists();
        if !is_others {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
