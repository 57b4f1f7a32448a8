//! A process to track, which follows orders.

use std::env;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use superhue_heat::{PtwalkTracker, Reading, RegionBits, Scope, TrackError, Tracker};
use superhue_model::{PageSet, ProcessId, VirtAddr, VirtRange};
use superhue_procfs::{Roots, process};
use superhue_testing::{shared, skip};

/// First address of the memory that a chaotic target changes; see `target.c`.
pub(crate) const ARENA: u64 = 0x1000_0000_0000;

/// Returns the number of attempts at a sample before a page that is missing in it counts.
///
/// Another user's DAMON on physical memory clears accessed bits of pages that it picks at random. Where one runs, a sample may lack some pages
/// through no fault of the tracker.
pub(crate) fn attempts() -> usize {
    let kdamonds = std::fs::read_dir("/sys/kernel/mm/damon/admin/kdamonds");
    let is_disturbed = kdamonds.is_ok_and(|kdamonds| {
        let states = kdamonds
            .flatten()
            .map(|kdamond| kdamond.path().join("state"));
        states
            .map(std::fs::read_to_string)
            .any(|state| state.is_ok_and(|state| state.trim() == "on"))
    });
    if is_disturbed { 5 } else { 1 }
}

/// Makes a tracker; `None`, with a visible skip, where that is impossible.
pub(crate) fn tracker(scope: Scope) -> Option<PtwalkTracker> {
    match PtwalkTracker::new(&Roots::default(), scope) {
        Ok(tracker) => Some(tracker),
        Err(why) => {
            skip("ptwalk", &why.to_string());
            None
        }
    }
}

/// Returns the path of the compiled `target.c`; where there is no compiler, that of `ptwalk-target` in the folder `SUPERHUE_TEST_PROGRAMS` (see
/// `scripts/vm`).
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(folder) = env::var_os("SUPERHUE_TEST_PROGRAMS") {
            return Path::new(&folder).join("ptwalk-target");
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/ptwalk/target.c");
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let program = place.join("ptwalk-target");
        // Other test processes may be running the existing program: replace it, and never write to it.
        let fresh = place.join(format!("ptwalk-target.{}", std::process::id()));
        let status = Command::new("cc")
            .args(["-O1", "-pthread", "-o"])
            .arg(&fresh)
            .arg(source)
            .status()
            .unwrap();
        assert!(status.success());
        std::fs::rename(&fresh, &program).unwrap();
        program
    })
}

/// A running target; killed and waited for at the end of the test.
pub(crate) struct Target {
    pub(crate) child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) id: ProcessId,
}

impl Target {
    pub(crate) fn start() -> Self {
        let mut command = Command::new(program());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = {
            // The child inherits the huge page switch of this process.
            let _shared = shared();
            command.spawn().unwrap()
        };
        let id = process::identify(&Roots::default(), child.id()).unwrap();
        let mut target = Self {
            orders: child.stdin.take().unwrap(),
            answers: BufReader::new(child.stdout.take().unwrap()),
            child,
            id,
        };
        // The target answers only once it runs its own program.
        target.order("ready");
        target
    }

    /// Gives an order without waiting for an answer.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// Gives an order and waits until it is done.
    pub(crate) fn order(&mut self, order: &str) -> u64 {
        self.tell(order);
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        let number = answer.trim().strip_prefix("ok").unwrap_or_else(|| {
            panic!("`{order}` was answered `{answer}`");
        });
        number.trim().parse().unwrap_or(0)
    }

    /// Begins a sample in which every access counts.
    ///
    /// If the kernel gives the tracker no way to flush the TLB, the target flushes it itself, so that the reading is exact, too. (Other tests show
    /// that the flush is needed, and that it works where there is one.)
    pub(crate) fn arm(&mut self, tracker: &mut PtwalkTracker) {
        if !tracker.arm(self.id).unwrap().flushed {
            self.order("forget");
        }
    }

    /// Maps memory; see `target.c`.
    pub(crate) fn map(&mut self, mib: u64, kind: &str) -> VirtRange {
        let start = self.order(&format!("map {mib} {kind}"));
        range(start, mib << 20)
    }

    pub(crate) fn touch(&mut self, pages: impl IntoIterator<Item = u64>) {
        let mut order = "touch".to_owned();
        for page in pages {
            write!(order, " {page}").unwrap();
        }
        self.order(&order);
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn range(start: u64, length: u64) -> VirtRange {
    VirtRange::new(VirtAddr(start), VirtAddr(start + length)).unwrap()
}

/// Returns all ranges that the process maps.
pub(crate) fn mapped(id: ProcessId) -> Vec<VirtRange> {
    let maps = process::maps(&Roots::default(), id.pid).unwrap();
    maps.iter().map(|vma| vma.range).collect()
}

pub(crate) fn read(
    tracker: &mut PtwalkTracker,
    id: ProcessId,
    ranges: &[VirtRange],
) -> Result<Vec<RegionBits>, TrackError> {
    let Reading::Pages(found) = tracker.read(id, ranges)? else {
        panic!("ptwalk reads pages");
    };
    assert!(found.is_sorted_by(|a, b| a.region < b.region));
    for bits in &found {
        assert!(!bits.present.is_empty(), "{bits:?}");
        assert_eq!(bits.accessed.and(&bits.present), bits.accessed, "{bits:?}");
        if bits.huge {
            assert_eq!(bits.present, PageSet::FULL);
        }
        let inside = |range: &VirtRange| {
            range.start < bits.region.range().end && bits.region.start() < range.end
        };
        assert!(ranges.iter().any(inside), "{bits:?} was not asked for");
    }
    Ok(found)
}

/// Returns the indexes of the pages of `range` that are in the chosen sets of `found`.
pub(crate) fn pages(
    found: &[RegionBits],
    range: VirtRange,
    set: impl Fn(&RegionBits) -> PageSet,
) -> Vec<u64> {
    let mut pages = Vec::new();
    for bits in found {
        for page in set(bits).iter() {
            let at = bits.region.start().0 + page as u64 * 4096;
            if range.start.0 <= at && at < range.end.0 {
                pages.push((at - range.start.0) / 4096);
            }
        }
    }
    pages
}
