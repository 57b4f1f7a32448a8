//! The tracker on a tree of ordinary files, which already hold the kernel's answers.

use std::fs;
use std::path::PathBuf;

use superhue_model::VirtAddr;
use superhue_procfs::process::identify;
use superhue_testing::recorded_file;

use super::*;

const BOOT: &str = "6b1c2f6e-0000-4000-8000-000000000001";

struct Tree {
    folder: tempfile::TempDir,
    process: ProcessId,
}

impl Tree {
    /// A machine on which DAMON is unused and can watch `operations`.
    fn new(operations: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        put(
            &path.join("proc/700/stat"),
            &recorded_file("processes/linux-6.18", "proc/700/stat"),
        );
        put(&path.join("proc/700/pagemap"), "12345678");
        put(&path.join("proc/sys/kernel/random/boot_id"), BOOT);
        let process = identify(&Roots::under(path), 700).unwrap();
        let tree = Self { folder, process };
        put(&tree.damon("nr_kdamonds"), "0\n");
        for index in 0..ROOM {
            let own = tree.damon(&index.to_string());
            put(&own.join("state"), "off\n");
            // No test needs the other kdamonds in full.
            if index > 0 {
                continue;
            }
            put(&own.join("pid"), "-1\n");
            for name in [
                "contexts/nr_contexts",
                "contexts/0/operations",
                "contexts/0/monitoring_attrs/intervals/sample_us",
                "contexts/0/monitoring_attrs/intervals/aggr_us",
                "contexts/0/monitoring_attrs/intervals/update_us",
                "contexts/0/monitoring_attrs/nr_regions/min",
                "contexts/0/monitoring_attrs/nr_regions/max",
                "contexts/0/targets/nr_targets",
                "contexts/0/targets/0/pid_target",
                "contexts/0/schemes/nr_schemes",
                "contexts/0/schemes/0/action",
                "contexts/0/schemes/0/tried_regions/total_bytes",
                "contexts/0/schemes/0/access_pattern/sz/min",
                "contexts/0/schemes/0/access_pattern/sz/max",
                "contexts/0/schemes/0/access_pattern/nr_accesses/min",
                "contexts/0/schemes/0/access_pattern/nr_accesses/max",
                "contexts/0/schemes/0/access_pattern/age/min",
                "contexts/0/schemes/0/access_pattern/age/max",
            ] {
                put(&own.join(name), "0\n");
            }
            put(&own.join("contexts/0/avail_operations"), operations);
        }
        tree
    }

    fn damon(&self, name: &str) -> PathBuf {
        let kdamonds = self
            .folder
            .path()
            .join("sys/kernel/mm/damon/admin/kdamonds");
        kdamonds.join(name)
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn words(&self) -> String {
        fs::read_to_string(self.state().join("damon")).unwrap()
    }

    fn get(&self, name: &str) -> String {
        fs::read_to_string(self.damon(name)).unwrap().trim().into()
    }

    fn tracker(&self) -> Result<DamonTracker, TrackError> {
        DamonTracker::with_state(&Roots::under(self.folder.path()), &self.state())
    }

    fn end_left(&self) -> DamonCleanup {
        left::end_left(&Roots::under(self.folder.path()), &self.state()).unwrap()
    }

    fn found(&self, ranges: &[(u64, u64, u64)]) {
        for (index, (start, end, accesses)) in ranges.iter().enumerate() {
            let region = self.damon(&format!("0/contexts/0/schemes/0/tried_regions/{index}"));
            put(&region.join("start"), &format!("{start}\n"));
            put(&region.join("end"), &format!("{end}\n"));
            put(&region.join("nr_accesses"), &format!("{accesses}\n"));
        }
    }
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn ranges(list: &[(u64, u64)]) -> Vec<VirtRange> {
    let range = |&(start, end)| VirtRange::new(VirtAddr(start), VirtAddr(end)).unwrap();
    list.iter().map(range).collect()
}

#[test]
fn a_process_is_watched_and_everything_is_taken_away_after() {
    let tree = Tree::new("vaddr\nfvaddr\npaddr\n");
    let mut tracker = tree.tracker().unwrap();
    assert_eq!(tree.get("nr_kdamonds"), ROOM.to_string());
    assert!(tree.words().starts_with(BOOT));

    assert!(!tracker.arm(tree.process).unwrap().flushed);
    assert_eq!(tree.get("0/state"), "on");
    assert_eq!(tree.get("0/contexts/0/operations"), "vaddr");
    assert_eq!(tree.get("0/contexts/0/targets/0/pid_target"), "700");
    let most = tree.get("0/contexts/0/schemes/0/access_pattern/sz/max");
    assert_eq!(most, u64::MAX.to_string());
    // The kernel lists them by number, which is not always the order of addresses.
    tree.found(&[
        (0x9000, 0xc000, 5),
        (0x1000, 0x9000, 20),
        (0xc000, 0xd000, 40),
    ]);
    let Reading::Ranges(rates) = tracker
        .read(tree.process, &ranges(&[(0x2000, 0x4000), (0x8000, 0xa000)]))
        .unwrap()
    else {
        panic!("ranges")
    };
    let rates: Vec<_> = rates
        .iter()
        .map(|rate| (rate.range.start.0, rate.range.end.0, rate.rate))
        .collect();
    assert_eq!(
        rates,
        [
            (0x2000, 0x4000, 1.0),
            (0x8000, 0x9000, 1.0),
            (0x9000, 0xa000, 0.25)
        ]
    );
    assert_eq!(tree.get("0/state"), "update_schemes_tried_regions");

    drop(tracker);
    assert_eq!(tree.get("0/state"), "off");
    assert_eq!(tree.get("nr_kdamonds"), "0");
    assert_eq!(tree.words(), "");
}

#[test]
fn what_others_set_up_is_left_alone() {
    let tree = Tree::new("vaddr\n");
    put(&tree.damon("nr_kdamonds"), "1\n");
    put(&tree.damon("0/state"), "on\n");
    let error = tree.tracker().unwrap_err();
    assert!(matches!(error, TrackError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("nr_kdamonds"), "{error}");
    assert_eq!(tree.get("nr_kdamonds"), "1");
    assert_eq!(tree.get("0/state"), "on");

    // The same holds if there are as many as we make, and a superhue died: they are not like ours.
    put(&tree.damon("nr_kdamonds"), &ROOM.to_string());
    put(&tree.state().join("damon"), &format!("{BOOT} 1\n"));
    assert!(matches!(tree.tracker(), Err(TrackError::Foreign { .. })));
    assert_eq!(tree.get("0/state"), "on");
}

#[test]
fn what_a_killed_superhue_left_is_cleared_and_only_that() {
    let tree = Tree::new("vaddr\n");
    let mut tracker = tree.tracker().unwrap();
    tracker.arm(tree.process).unwrap();
    // As after SIGKILL: the lock is gone, all else stays.
    let left = tree.words();
    let DamonTracker { claim, .. } = &tracker;
    assert!(matches!(
        Claim::take(&tree.state(), BOOT),
        Err(ClaimError::Taken(Some(pid))) if pid == std::process::id()
    ));
    let error = tree.tracker().unwrap_err();
    assert!(error.to_string().contains("another superhue"), "{error}");
    claim.forget_lock();
    std::mem::forget(tracker);
    assert_eq!(tree.get("0/state"), "on");
    assert_eq!(tree.words(), left);

    // The words are from before a reboot, so another user set this up.
    put(&tree.state().join("damon"), "another-boot 1\n");
    assert!(matches!(tree.tracker(), Err(TrackError::Foreign { .. })));
    assert_eq!(tree.end_left(), DamonCleanup::Nothing);
    assert_eq!(tree.get("0/state"), "on");

    put(&tree.state().join("damon"), &left);
    let again = tree.tracker().unwrap();
    assert_eq!(tree.get("0/state"), "off");
    drop(again);
    assert_eq!(tree.get("nr_kdamonds"), "0");
}

#[test]
fn what_was_left_can_be_ended_without_using_damon() {
    let tree = Tree::new("vaddr\n");
    assert_eq!(tree.end_left(), DamonCleanup::Nothing);
    assert!(!tree.state().exists(), "it made what it looked for");

    let mut tracker = tree.tracker().unwrap();
    tracker.arm(tree.process).unwrap();
    let words = tree.words();
    let in_use = DamonCleanup::InUse(Some(std::process::id()));
    assert_eq!(
        (tree.end_left(), tree.get("0/state")),
        (in_use, "on".into())
    );
    tracker.claim.forget_lock();
    std::mem::forget(tracker);

    // One setting differs: another user has set up kdamonds since.
    let other = tree.damon("0/contexts/0/monitoring_attrs/intervals/update_us");
    let ours = fs::read(&other).unwrap();
    put(&other, "1000000\n");
    assert_eq!(tree.end_left(), DamonCleanup::Foreign);
    assert_eq!((tree.get("0/state"), tree.words()), ("on".into(), words));

    fs::write(&other, ours).unwrap();
    assert_eq!(tree.end_left(), DamonCleanup::Ended(1));
    assert_eq!(tree.get("0/state"), "off");
    assert_eq!(tree.get("nr_kdamonds"), "0");
    assert_eq!(tree.words(), "");
    assert_eq!(tree.end_left(), DamonCleanup::Nothing);
}

#[test]
fn a_claim_that_others_can_have_made_or_hold_is_none() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let tree = Tree::new("vaddr\n");
    drop(tree.tracker().unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let claim = tree.state().join("damon");
    assert_eq!((mode(&tree.state()), mode(&claim)), (0o755, 0o600));
    // Words that claim the kdamonds for a dead superhue.
    let words = format!("{BOOT} 1\n");
    let refused = |what: &str| {
        let error = tree.tracker().unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        let error = left::end_left(&Roots::under(tree.folder.path()), &tree.state()).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        fs::remove_file(&claim).unwrap();
    };
    fs::write(&claim, &words).unwrap();
    fs::set_permissions(&claim, PermissionsExt::from_mode(0o644)).unwrap();
    refused("others may open it");
    let elsewhere = tree.folder.path().join("elsewhere");
    fs::write(&elsewhere, &words).unwrap();
    symlink(&elsewhere, &claim).unwrap();
    refused("symbolic link");
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), words);
    if superhue_testing::is_root() {
        fs::write(&claim, &words).unwrap();
        chown(&claim, Some(superhue_testing::NOBODY), None).unwrap();
        refused("belongs to user");
    } else {
        superhue_testing::skip("root", "cannot make a file of another user");
    }
}

#[test]
fn a_kernel_that_cannot_watch_processes_is_left_as_it_was() {
    let tree = Tree::new("paddr\n");
    let error = tree.tracker().unwrap_err();
    assert!(error.to_string().contains("CONFIG_DAMON_VADDR"), "{error}");
    assert_eq!(tree.get("nr_kdamonds"), "0");
    assert_eq!(tree.words(), "");

    fs::remove_dir_all(tree.damon("")).unwrap();
    let error = tree.tracker().unwrap_err();
    assert!(error.to_string().contains("CONFIG_DAMON_SYSFS"), "{error}");
}

#[test]
fn who_takes_over_keeps_it() {
    let tree = Tree::new("vaddr\n");
    let mut tracker = tree.tracker().unwrap();
    tracker.arm(tree.process).unwrap();
    put(
        &tree.damon("0/contexts/0/monitoring_attrs/intervals/sample_us"),
        "7000\n",
    );
    let error = tracker.read(tree.process, &[]).unwrap_err();
    assert!(matches!(error, TrackError::Foreign { .. }), "{error}");
    let error = tracker.arm(tree.process).unwrap_err();
    assert!(matches!(error, TrackError::Foreign { .. }), "{error}");
    put(&tree.damon("nr_kdamonds"), "2\n");
    drop(tracker);
    assert_eq!(tree.get("0/state"), "on");
    assert_eq!(tree.get("nr_kdamonds"), "2");
    assert_eq!(tree.words(), "");
}

#[test]
fn a_process_that_is_gone_is_let_go() {
    let tree = Tree::new("vaddr\n");
    let mut tracker = tree.tracker().unwrap();
    assert!(matches!(
        tracker.read(tree.process, &[]),
        Err(TrackError::Replaced(_))
    ));
    tracker.arm(tree.process).unwrap();
    fs::write(tree.folder.path().join("proc/700/pagemap"), "").unwrap();
    assert!(matches!(
        tracker.read(tree.process, &[]),
        Err(TrackError::Replaced(_))
    ));
    assert_eq!(tree.get("0/state"), "off");
    fs::remove_dir_all(tree.folder.path().join("proc/700")).unwrap();
    let error = tracker.arm(tree.process).unwrap_err();
    assert!(matches!(error, TrackError::Read(error) if error.is_vanished()));
}

#[test]
fn more_processes_than_it_takes_are_refused() {
    let tree = Tree::new("vaddr\n");
    let mut tracker = tree.tracker().unwrap();
    for index in 0..ROOM {
        let process = ProcessId {
            pid: 700,
            start_ticks: index + 1_000_000,
        };
        let watched = Target {
            index,
            memory: Memory::of(&Roots::under(tree.folder.path()), tree.process).unwrap(),
            thread: None,
            charged: Duration::ZERO,
        };
        tracker.processes.insert(process, watched);
    }
    let error = tracker.arm(tree.process).unwrap_err();
    assert!(error.to_string().contains("32 processes"), "{error}");
}
