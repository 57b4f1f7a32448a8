//! Other users of accessed bits.
//!
//! Two users that clear the same bits hide accesses from each other. The possible ones:
//!
//! | user | effect on the bits | found by | verdict |
//! |---|---|---|---|
//! | another superhue | clears all of a target's | the lock on its target | blinds |
//! | DAMON on virtual addresses | clears some of its target's | its sysfs tree | blinds, if it is the same target |
//! | DAMON on physical addresses | clears those of few pages of the whole machine | its sysfs tree, module parameters | distorts a little |
//! | a user of page_idle | clears those of any page it marks | its open bitmap | blinds |
//! | reclaim, multi-generational LRU | clear them when memory is short | not found: this is normal use | documented |
//!
//! **DAMON on physical addresses** watches all memory, and yet is no reason to refuse: it clears the bit of *one* page of each of its ranges per
//! sampling interval, and has 1,000 ranges at most by default. With its default interval of 5 ms those are at most 200,000 pages/s, anywhere in the
//! machine's memory: in a sample of 50 ms, one page in 400 of 16 GiB; with a common setting (10 ranges) one in 40,000. A sample misses such a page
//! only if the program does not touch it again before the sample ends. One page in 400 does not decide whether a region is active. But a huge page
//! has a single bit, so a cold one may look idle a sample too early.
//!
//! **A user of page_idle** may mark any frames, and its choice cannot be seen. Working-set estimators mark all of memory. Superhue finds such a
//! user by its open bitmap, which only root can open. It ignores a superhue that has the bitmap open for another target; that one is known by its
//! lock.
//!
//! The check must come before our own tracker is set up, because it would find that one.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use superhue_model::ProcessId;
use superhue_procfs::Roots;
use superhue_procfs::system::{hint, numbered};

use super::TrackError;
use super::target_lock::{TargetLock, target};

/// Effect of another user of accessed bits on samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The other user hides enough accesses to make the samples of both users useless.
    Blinds,
    /// The other user hides few accesses; worth knowing.
    Distorts,
}

/// Another user of the accessed bits of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessedBitUser {
    /// Description of the user, as far as it is known.
    pub by: String,
    /// Severity.
    pub effect: Effect,
    /// Remedy.
    pub remedy: String,
}

impl From<AccessedBitUser> for TrackError {
    fn from(onlooker: AccessedBitUser) -> Self {
        Self::Foreign {
            by: onlooker.by,
            remedy: onlooker.remedy,
        }
    }
}

/// Returns the obstacle to tracking `process`: the first of [`onlookers`] that blinds, or another superhue.
///
/// No superhue holds the lock of a process that has exited. The answer may be out of date at once, so a tracker holds a [`TargetLock`] as long as
/// it tracks.
#[must_use]
pub fn foreign(roots: &Roots, process: ProcessId) -> Option<TrackError> {
    if let Err(taken @ TrackError::Foreign { .. }) = TargetLock::take(roots, process) {
        return Some(taken);
    }
    let mut onlookers = onlookers(roots, process).into_iter();
    onlookers
        .find(|onlooker| onlooker.effect == Effect::Blinds)
        .map(TrackError::from)
}

/// Returns all other users of the accessed bits of `process`, except superhues.
///
/// Sees only what the caller may read: the sysfs tree of DAMON and other users' open files are for root only, and unreadable files count as
/// absent.
#[must_use]
pub fn onlookers(roots: &Roots, process: ProcessId) -> Vec<AccessedBitUser> {
    let mut found = damon_threads(&roots.sys, process.pid);
    found.extend(damon_modules(&roots.sys));
    found.extend(page_idle_users(roots));
    found
}

/// Returns the entries of a sysfs directory that are named by a number.
fn entries(directory: &Path) -> Vec<(u64, PathBuf)> {
    numbered(directory, "", "").unwrap_or_default()
}

fn damon_threads(sys: &Path, pid: u32) -> Vec<AccessedBitUser> {
    let mut found = Vec::new();
    let kdamonds = sys.join("kernel/mm/damon/admin/kdamonds");
    for (number, kdamond) in entries(&kdamonds) {
        if hint(&kdamond.join("state")).as_deref() != Some("on") {
            continue;
        }
        let state = kdamond.join("state");
        let remedy = format!("write `off` to {}", state.display());
        for (_, context) in entries(&kdamond.join("contexts")) {
            let operations = hint(&context.join("operations")).unwrap_or_default();
            let (what, effect) = match operations.as_str() {
                "vaddr" | "fvaddr" if watches(&context, pid) => {
                    ("watching this process".to_owned(), Effect::Blinds)
                }
                "paddr" => (watching_everything(&context), Effect::Distorts),
                _ => continue,
            };
            found.push(AccessedBitUser {
                by: format!("DAMON (kdamond {number}, {what})"),
                effect,
                remedy: remedy.clone(),
            });
        }
    }
    found
}

fn watches(context: &Path, pid: u32) -> bool {
    entries(&context.join("targets"))
        .iter()
        .filter_map(|(_, target)| hint(&target.join("pid_target")))
        .any(|target| target.parse() == Ok(pid))
}

/// Describes the effect on all memory, from the settings of the context.
fn watching_everything(context: &Path) -> String {
    let attributes = context.join("monitoring_attrs");
    let number = |name| -> Option<u64> { hint(&attributes.join(name))?.parse().ok() };
    let settings = number("nr_regions/max").zip(number("intervals/sample_us"));
    match settings {
        Some((pages, micros)) => {
            format!("watching all memory: clears the bits of up to {pages} pages every {micros} us")
        }
        None => "watching all memory".to_owned(),
    }
}

/// Finds modules of the kernel that run DAMON on physical addresses by themselves.
fn damon_modules(sys: &Path) -> Vec<AccessedBitUser> {
    let modules = ["damon_reclaim", "damon_lru_sort", "damon_stat"];
    let running = modules.iter().filter_map(|module| {
        let enabled = sys.join("module").join(module).join("parameters/enabled");
        (hint(&enabled).as_deref() == Some("Y")).then(|| AccessedBitUser {
            by: format!("DAMON (the kernel's {module}, watching all memory)"),
            effect: Effect::Distorts,
            remedy: format!("write `N` to {}", enabled.display()),
        })
    });
    running.collect()
}

fn page_idle_users(roots: &Roots) -> Vec<AccessedBitUser> {
    const BITMAP: &str = "kernel/mm/page_idle/bitmap";
    let Some(owner) = owner(&roots.sys.join(BITMAP)) else {
        return Vec::new();
    };
    let processes = entries(&roots.proc).into_iter();
    let users = processes.filter(|(pid, process)| {
        // Any user can open a file of such a name, but only processes of the bitmap's owner can open the bitmap.
        if *pid == u64::from(std::process::id()) || self::owner(process) != Some(owner) {
            return false;
        }
        let (mut marks, mut is_superhue) = (false, false);
        for (_, descriptor) in entries(&process.join("fd")) {
            if let Ok(link) = fs::read_link(descriptor) {
                marks |= link.ends_with(BITMAP);
                is_superhue |= target(&link).is_some();
            }
        }
        marks && !is_superhue
    });
    users
        .map(|(pid, process)| {
            let name = hint(&process.join("comm"));
            let name = name.as_deref().unwrap_or("its name is hidden");
            AccessedBitUser {
                by: format!("process {pid} ({name}), which has the page_idle bitmap open,"),
                effect: Effect::Blinds,
                remedy: format!("end process {pid}, or have it close {}", shown(BITMAP)),
            }
        })
        .collect()
}

fn owner(path: &Path) -> Option<u32> {
    fs::metadata(path).ok().map(|found| found.uid())
}

fn shown(name: &str) -> String {
    Path::new(OsStr::new("/sys"))
        .join(name)
        .display()
        .to_string()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    const PROCESS: ProcessId = ProcessId {
        pid: 4711,
        start_ticks: 99,
    };

    /// A machine on which process 4711 runs, without other users of accessed bits.
    struct Machine {
        folder: tempfile::TempDir,
        roots: Roots,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let roots = Roots::under(folder.path());
            let machine = Self { folder, roots };
            let fields = "0 ".repeat(17);
            machine.write(
                "proc/4711/stat",
                &format!("4711 (db) S {fields}0 99 1 2 3\n"),
            );
            machine.write("proc/4711/personality", "00000000\n");
            machine.write("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0\n");
            machine
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Adds a thread of DAMON with one context and one target.
        fn damon(&self, number: u32, state: &str, operations: &str, target: &str) {
            let kdamond = format!("sys/kernel/mm/damon/admin/kdamonds/{number}");
            let context = format!("{kdamond}/contexts/0");
            self.write(&format!("{kdamond}/state"), &format!("{state}\n"));
            self.write(&format!("{context}/operations"), &format!("{operations}\n"));
            self.write(&format!("{context}/targets/nr_targets"), "1\n");
            self.write(
                &format!("{context}/targets/0/pid_target"),
                &format!("{target}\n"),
            );
            self.write(
                &format!("{context}/monitoring_attrs/nr_regions/max"),
                "1000\n",
            );
            self.write(
                &format!("{context}/monitoring_attrs/intervals/sample_us"),
                "5000\n",
            );
        }

        /// Makes process `pid` have these files open.
        fn opens(&self, pid: u32, name: &str, links: &[&str]) {
            self.write(&format!("proc/{pid}/comm"), &format!("{name}\n"));
            let fd = self.folder.path().join(format!("proc/{pid}/fd"));
            fs::create_dir_all(&fd).unwrap();
            for (number, link) in links.iter().enumerate() {
                symlink(link, fd.join(number.to_string())).unwrap();
            }
        }

        fn onlookers(&self) -> Vec<AccessedBitUser> {
            onlookers(&self.roots, PROCESS)
        }

        fn foreign(&self) -> Option<String> {
            foreign(&self.roots, PROCESS).map(|error| error.to_string())
        }
    }

    #[test]
    fn nobody_is_nobody() {
        let machine = Machine::new();
        assert_eq!(machine.onlookers(), []);
        assert_eq!(machine.foreign(), None);
        let empty = tempfile::tempdir().unwrap();
        assert!(foreign(&Roots::under(empty.path()), PROCESS).is_none());
    }

    #[test]
    fn damon_on_the_same_process_blinds() {
        let machine = Machine::new();
        machine.damon(0, "off", "vaddr", "4711");
        machine.damon(1, "on", "vaddr", "4712");
        assert_eq!(machine.foreign(), None, "off, or on another");
        machine.damon(2, "on", "vaddr", "4711");
        let error = machine.foreign().unwrap();
        assert!(error.contains("kdamond 2"), "{error}");
        assert!(error.contains("kdamonds/2/state"), "{error}");
        machine.damon(2, "on", "fvaddr", "4711");
        assert!(machine.foreign().is_some());
    }

    #[test]
    fn damon_on_all_memory_is_told_but_no_reason_to_refuse() {
        let machine = Machine::new();
        machine.damon(0, "on", "paddr", "0");
        machine.write("sys/module/damon_reclaim/parameters/enabled", "Y\n");
        machine.write("sys/module/damon_lru_sort/parameters/enabled", "N\n");
        let [thread, module] = machine.onlookers().try_into().unwrap();
        assert_eq!(
            (thread.effect, module.effect),
            (Effect::Distorts, Effect::Distorts)
        );
        assert!(thread.by.contains("1000 pages every 5000 us"), "{thread:?}");
        assert!(module.by.contains("damon_reclaim"), "{module:?}");
        assert_eq!(machine.foreign(), None);
    }

    #[test]
    fn damon_half_set_up_is_nothing() {
        let machine = Machine::new();
        machine.write("sys/kernel/mm/damon/admin/kdamonds/0/state", "on\n");
        machine.damon(1, "on", "vaddr", "x");
        machine.damon(2, "on", "future", "4711");
        machine.damon(3, "", "vaddr", "4711");
        assert_eq!(machine.onlookers(), []);
    }

    #[test]
    fn who_has_the_page_idle_bitmap_open_blinds() {
        let machine = Machine::new();
        machine.opens(20, "wss", &["/dev/null", "/sys/kernel/mm/page_idle/bitmap"]);
        assert_eq!(machine.foreign(), None, "the kernel has none");
        machine.write("sys/kernel/mm/page_idle/bitmap", "");
        let error = machine.foreign().unwrap();
        assert!(error.contains("process 20 (wss)"), "{error}");
        if superhue_testing::is_root() {
            // A file of that name somewhere else, opened by a user who wants to interfere.
            let process = machine.folder.path().join("proc/20");
            std::os::unix::fs::chown(process, Some(superhue_testing::NOBODY), None).unwrap();
            assert_eq!(machine.foreign(), None);
        } else {
            superhue_testing::skip("root", "cannot make a process of another user");
        }
    }

    #[test]
    fn a_superhue_with_another_target_is_not_in_the_way() {
        let machine = Machine::new();
        machine.write("sys/kernel/mm/page_idle/bitmap", "");
        let links = ["/sys/kernel/mm/page_idle/bitmap", "/proc/55/personality"];
        machine.opens(21, "superhue", &links);
        machine.opens(std::process::id(), "this", &links[..1]);
        assert_eq!(machine.foreign(), None);
    }

    #[test]
    fn another_superhue_is_in_the_way_as_long_as_it_lives() {
        let machine = Machine::new();
        let file = File::open(machine.folder.path().join("proc/4711/personality")).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let error = machine.foreign().unwrap();
        assert!(error.contains("superhue"), "{error}");
        let other = ProcessId {
            start_ticks: 100,
            ..PROCESS
        };
        assert!(
            foreign(&machine.roots, other).is_none(),
            "that process is gone"
        );
        // A child of another test may have inherited the file a moment ago.
        flock(&file, FlockOperation::Unlock).unwrap();
        drop(file);
        assert_eq!(machine.foreign(), None);
    }
}
