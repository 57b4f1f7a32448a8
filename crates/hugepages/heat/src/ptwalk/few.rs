//! Samples of a few pages, for windows as short as some tens of microseconds.
//!
//! [`arm`](crate::Tracker::arm) clears the bits of a whole process, which takes 7 ms for each GiB. Then every page that is touched pays for setting
//! its bit again, several times the former cost of the access. A rate of accesses found in that way is the rate of a program slowed down by the
//! observation. This module picks some runs of neighbouring pages, and clears only their bits:
//!
//! ```text
//!   run 0   clear |<------------- lag ------------->| read
//!   run 1      clear |<---------- lag ------------->| read
//!   run 2         clear |<------- lag ------------->| read        a window: from the last clearing to the reading
//!   others  as they were
//! ```
//!
//! `MADV_COLD` from outside clears them, and flushes their translations, so that every touch shows. The advice would split a large folio that
//! contains a run, and so change the memory. So runs consist of base pages, and `kpageflags` must show that they are folios of their own. One
//! effect of the advice remains: the kernel treats the pages as inactive until they are touched.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use superhue_model::{
    BASE_PAGE_SHIFT, BASE_PAGE_SIZE, HUGE_PAGE_SIZE, ProcessId, Region, VirtRange,
};
use superhue_procfs::{ReadError, process};
use superhue_sys::advise::process_cool;

use super::decode;
use super::track::{PtwalkTracker, unusable};
use crate::few::{PAGES_PER_RUN, Run, RunTouches};
use crate::{RegionBits, TargetLock, TrackError, foreign};

/// `KPF_COMPOUND_HEAD` and `KPF_COMPOUND_TAIL` of `linux/kernel-page-flags.h`.
const COMPOUND: u64 = 1 << 15 | 1 << 16;
/// Mask of the frame in a word of `pagemap`, and the bit that shows that there is one.
const FRAME: u64 = (1 << 55) - 1;
const PRESENT: u64 = 1 << 63;

/// Number of base pages that one TLB entry can hold where they are contiguous (AMD's Zen: 16 KiB).
const PAGES_PER_TLB_ENTRY: usize = 4;

/// Longest window to wait for without sleeping: sleeping takes longer.
const SHORTEST_SLEEP: Duration = Duration::from_micros(200);

/// A process of which a few pages at a time are watched; no other tracker watches it meanwhile.
#[derive(Debug)]
pub struct FewPages {
    process: ProcessId,
    context: u64,
    pidfd: OwnedFd,
    pagemap: File,
    flags: File,
    _lock: TargetLock,
}

impl PtwalkTracker {
    /// Begins to watch a few pages at a time of `process`.
    ///
    /// # Errors
    /// [`TrackError::Foreign`] while another user clears accessed bits there; `Unusable` without `CAP_SYS_ADMIN` (frame numbers), `CAP_SYS_NICE`;
    /// those of a process that has exited.
    pub fn watch_few(&mut self, process: ProcessId) -> Result<FewPages, TrackError> {
        let roots = self.roots().clone();
        if let Some(error) = foreign(&roots, process) {
            return Err(error);
        }
        let lock = TargetLock::take(&roots, process)?;
        let pid = process.pid;
        let pidfd = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            .ok_or(ReadError::Vanished { pid })?;
        let open = |path: std::path::PathBuf| {
            File::open(&path).map_err(|error| ReadError::of_process(pid, &path, error))
        };
        let pagemap = open(roots.of_process(pid, "pagemap"))?;
        let flags = open(roots.proc.join("kpageflags"))?;
        let context = self.memory_now(process)?;
        // This check comes last, so that all opened files belong to this process.
        if !process::still_is(&roots, process) {
            return Err(ReadError::Vanished { pid }.into());
        }
        Ok(FewPages {
            process,
            context,
            pidfd,
            pagemap,
            flags,
            _lock: lock,
        })
    }

    /// Returns the bits that the page tables have now for the regions that `ranges` (ascending, disjoint) lie in.
    ///
    /// # Errors
    /// `Replaced` once the process has other memory than when [`watch_few`](Self::watch_few) began.
    pub fn look(
        &mut self,
        few: &FewPages,
        ranges: &[VirtRange],
    ) -> Result<Vec<RegionBits>, TrackError> {
        let spans = decode::spans(ranges, self.user_end());
        self.walk_now(few.process, few.context, &spans)
    }

    /// Clears the bits of `runs`, lets `window` pass, and returns their touched pages. `clock` returns the CPU time of the process so far. Leaves
    /// out runs that cannot be watched (no page there any more, parts of large folios, locked memory).
    ///
    /// # Errors
    /// `Replaced`; `Unusable` if the kernel refuses the advice or hides frame numbers; those of a process that has exited.
    pub fn sample_few(
        &mut self,
        few: &FewPages,
        runs: &[Run],
        window: Duration,
        clock: &mut dyn FnMut() -> Duration,
    ) -> Result<Vec<RunTouches>, TrackError> {
        let mut armed = Vec::with_capacity(runs.len());
        for &run in runs {
            match few.base_pages(run) {
                Ok(Some(together)) => armed.push((run, together, Instant::now())),
                Ok(None) => {}
                Err(error) => return Err(unusable(error)),
            }
        }
        let mut refused = None;
        let (begun, cpu_begun) = (Instant::now(), clock());
        armed.retain_mut(|(run, _, cleared)| {
            let result = process_cool(&few.pidfd, run.range());
            *cleared = Instant::now();
            match result {
                Ok(()) => true,
                Err(errno) => {
                    use rustix::io::Errno;
                    if matches!(errno, Errno::PERM | Errno::NOSYS) {
                        refused = Some(errno);
                    }
                    false
                }
            }
        });
        if let Some(errno) = refused {
            return Err(unusable(format!(
                "process_madvise(MADV_COLD) failed: {errno}; it needs CAP_SYS_NICE and Linux 5.10"
            )));
        }
        let (arming, cpu_armed) = (begun.elapsed(), clock());
        wait(window);
        let mut regions: Vec<Region> = armed.iter().map(|(run, ..)| run.region()).collect();
        regions.sort_unstable();
        regions.dedup();
        let spans: Vec<VirtRange> = regions.iter().map(|region| region.range()).collect();
        let cpu_read = clock();
        let found = self.walk_now(few.process, few.context, &spans)?;
        // Clearing takes some microseconds a run, one after the other. Assume that the process used the CPU evenly in that time.
        let cpu_while_arming = cpu_armed.saturating_sub(cpu_begun).as_secs_f64();
        let cpu_since = |cleared: Instant| {
            let part = cleared.saturating_duration_since(begun).as_secs_f64();
            let before = cpu_while_arming * (part / arming.as_secs_f64().max(1e-9)).min(1.0);
            let since = cpu_read.saturating_sub(cpu_begun).as_secs_f64() - before;
            Duration::from_secs_f64(since.max(0.0))
        };
        let touches = armed.iter().filter_map(|&(run, together, cleared)| {
            let bits = found
                .binary_search_by_key(&run.region(), |bits| bits.region)
                .ok()
                .and_then(|at| found.get(at))?;
            if bits.huge {
                return None;
            }
            let first = ((run.start.0 % HUGE_PAGE_SIZE) >> BASE_PAGE_SHIFT) as usize;
            let mut touches = RunTouches {
                run,
                cpu: cpu_since(cleared),
                present: 0,
                touched: 0,
                together,
            };
            for page in 0..PAGES_PER_RUN {
                touches.present |= u16::from(bits.present.contains(first + page)) << page;
                touches.touched |= u16::from(bits.accessed.contains(first + page)) << page;
            }
            (touches.present != 0).then_some(touches)
        });
        Ok(touches.collect())
    }
}

impl FewPages {
    /// Returns the contiguous pages of a run, if its present pages are folios of their own; `None` if they are not, or there is none.
    fn base_pages(&self, run: Run) -> Result<Option<u16>, String> {
        let mut words = [0_u8; PAGES_PER_RUN * 8];
        let offset = (run.start.0 / BASE_PAGE_SIZE) * 8;
        let failed = |error: io::Error| format!("frames of the process cannot be read: {error}");
        self.pagemap
            .read_exact_at(&mut words, offset)
            .map_err(failed)?;
        let mut frames = [None; PAGES_PER_RUN];
        let (words, _) = words.as_chunks::<8>();
        for (frame, word) in frames.iter_mut().zip(words) {
            let word = u64::from_ne_bytes(*word);
            if word & PRESENT == 0 {
                continue;
            }
            if word & FRAME == 0 {
                return Err(
                    "frame numbers are hidden, so large folios cannot be told from base pages: run with CAP_SYS_ADMIN"
                        .to_owned(),
                );
            }
            let mut flags = [0; 8];
            self.flags
                .read_exact_at(&mut flags, (word & FRAME) * 8)
                .map_err(failed)?;
            if u64::from_ne_bytes(flags) & COMPOUND != 0 {
                return Ok(None);
            }
            *frame = Some(word & FRAME);
        }
        let any = frames.iter().any(Option::is_some);
        Ok(any.then(|| side_by_side(&frames)))
    }
}

/// Bit n: page n is one of four neighbours whose frames follow each other from a multiple of four on.
fn side_by_side(frames: &[Option<u64>; PAGES_PER_RUN]) -> u16 {
    let (groups, _) = frames.as_chunks::<PAGES_PER_TLB_ENTRY>();
    let whole = |group: &[Option<u64>; PAGES_PER_TLB_ENTRY]| {
        group[0].is_some_and(|first| {
            first.is_multiple_of(PAGES_PER_TLB_ENTRY as u64)
                && (first..)
                    .zip(group)
                    .all(|(wanted, &frame)| frame == Some(wanted))
        })
    };
    groups.iter().enumerate().fold(0, |bits, (index, group)| {
        bits | if whole(group) {
            0xf << (index * PAGES_PER_TLB_ENTRY)
        } else {
            0
        }
    })
}

/// Waits for `window`, as exactly as possible.
fn wait(window: Duration) {
    let begun = Instant::now();
    if window > SHORTEST_SLEEP {
        std::thread::sleep(window.saturating_sub(SHORTEST_SLEEP / 2));
    }
    while begun.elapsed() < window {
        std::hint::spin_loop();
    }
}

/// For the tests of this module alone.
#[cfg(test)]
mod tests {
    use superhue_model::VirtAddr;

    use super::*;

    #[test]
    fn a_window_is_waited_for() {
        for window in [Duration::from_micros(50), Duration::from_millis(2)] {
            let begun = Instant::now();
            wait(window);
            assert!(begun.elapsed() >= window);
        }
    }

    #[test]
    fn neighbours_lie_side_by_side_in_whole_aligned_fours() {
        let mut frames: [Option<u64>; PAGES_PER_RUN] =
            std::array::from_fn(|page| Some(64 + page as u64));
        assert_eq!(side_by_side(&frames), 0xffff);
        frames[5] = None;
        frames[11] = Some(7);
        assert_eq!(side_by_side(&frames), 0xf00f);
        let from_odd = std::array::from_fn(|page| Some(65 + page as u64));
        assert_eq!(side_by_side(&from_odd), 0);
        let backwards = std::array::from_fn(|page| Some(80 - page as u64));
        assert_eq!(side_by_side(&backwards), 0);
    }

    #[test]
    fn runs_lie_in_one_region() {
        let run = Run {
            start: VirtAddr(0x7f00_001f_0000),
        };
        assert!(run.region().range().contains(&run.range()));
    }
}
