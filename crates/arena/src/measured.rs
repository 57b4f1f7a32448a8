//! Colors found by timing, for this process alone.

use rustix::process::{Pid, getpid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use superhue_color::Page;
use superhue_color::observe::{
    Agreement, DiscoverError, HardwareProbe, Oracle, OracleError, OracleKind, Palette, ProbeError,
    Search,
};
use superhue_model::{ByteCount, Color};
use superhue_sys::frames::{Frames, Grain};

use crate::heap::PAGE;
use crate::{ColorError, Judge};

/// Pages searched: of each of 32 colors some 250, for caches of up to 4 MiB a CPU.
const SEARCHED: ByteCount = ByteCount(32 << 20);
/// Searches until it is given up: other programs and hypervisors disturb some.
const ATTEMPTS: usize = 3;

/// Eviction sets in memory of this process, and what times accesses.
#[derive(Debug)]
pub struct Measured {
    probe: HardwareProbe,
    palette: Palette,
    /// Holds the eviction sets.
    #[allow(dead_code, reason = "keeps them mapped")]
    memory: Frames,
    /// Children of `fork` do not have the eviction sets.
    process: Pid,
}

impl Measured {
    /// Finds the colors: takes up to a second.
    ///
    /// # Errors
    /// [`ColorError::Unknown`] with the reason; [`ColorError::Memory`].
    pub fn find() -> Result<Self, ColorError> {
        let mut probe = HardwareProbe::new().map_err(|error: ProbeError| unknown(&error))?;
        let bytes = SEARCHED;
        let no_memory = |errno| ColorError::Memory { bytes, errno };
        let memory = Frames::map(SEARCHED, Grain::Base).map_err(no_memory)?;
        memory.populate().map_err(no_memory)?;
        let _pinned = Pinned::here();
        let (start, end) = (memory.range().start.0, memory.range().end.0);
        let addresses = (start..end)
            .step_by(PAGE)
            .filter_map(|at| usize::try_from(at).ok());
        // SAFETY: of a mapping that lives as long as what the pages are kept in.
        let pages: Vec<Page> = addresses.filter_map(|at| unsafe { Page::at(at) }).collect();
        let mut attempts = 0;
        let palette = loop {
            attempts += 1;
            match Palette::discover(&mut probe, &pages, &Search::default()) {
                Ok(palette) => break palette,
                Err(DiscoverError::Incomplete { .. }) if attempts < ATTEMPTS => {}
                Err(error) => return Err(unknown(&error)),
            }
        };
        let found = Self {
            probe,
            palette,
            memory,
            process: getpid(),
        };
        found.give_back(&pages);
        Ok(found)
    }

    /// Gives the pages that no eviction set needs back to the kernel.
    fn give_back(&self, pages: &[Page]) {
        let mut kept: Vec<Page> = self.palette.sets().iter().flatten().copied().collect();
        kept.sort_unstable();
        for page in pages {
            if kept.binary_search(page).is_err() {
                let start = page.start();
                let end = superhue_model::VirtAddr(start.0 + PAGE as u64);
                let _ = self
                    .memory
                    .discard(superhue_model::VirtRange { start, end });
            }
        }
    }

    fn here(&self) -> Result<(), OracleError> {
        if self.process == getpid() {
            return Ok(());
        }
        let why = "they were measured in the parent of this process: open them here";
        Err(OracleError::Unavailable(why.to_owned()))
    }
}

fn unknown(why: &impl ToString) -> ColorError {
    ColorError::Unknown(why.to_string())
}

impl Oracle for Measured {
    fn kind(&self) -> OracleKind {
        OracleKind::Measured
    }

    fn colors(&self) -> usize {
        self.palette.colors()
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        colors.fill(None);
        self.here()?;
        let _pinned = Pinned::here();
        self.palette.classify(&mut self.probe, pages, colors);
        Ok(())
    }
}

impl Judge for Measured {
    fn agreement(&mut self, pages: &[(Page, Color)]) -> Result<Agreement, OracleError> {
        self.here()?;
        let _pinned = Pinned::here();
        Ok(self.palette.agreement(&mut self.probe, pages))
    }

    fn retest(&mut self) -> Result<(), OracleError> {
        self.here()?;
        let _pinned = Pinned::here();
        let test = self.palette.self_test(&mut self.probe, 1);
        if test.passed() {
            return Ok(());
        }
        Err(OracleError::Drifted(format!(
            "of {} pages that should push each other out of the cache {} do not, of {} that should not {} do",
            test.own, test.own_kept, test.foreign, test.foreign_evicted
        )))
    }
}

/// Keeps the calling thread on its present CPU for a while: the next one's cache knows nothing of what was loaded.
struct Pinned(Option<CpuSet>);

impl Pinned {
    fn here() -> Self {
        let before = sched_getaffinity(None).ok();
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        let pinned = before.filter(|_| sched_setaffinity(None, &here).is_ok());
        Self(pinned)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}
