//! Everything a user can configure about the watching of processes.

use std::ffi::OsString;
use std::time::Duration;

use superhue_act::Setting;
use superhue_model::ByteCount;
use superhue_policy::StallBound;
use superhue_procfs::Roots;

use crate::allocator::AllocatorAdvice;
use crate::options::PlacementOptions;
use crate::pages::Pages;

/// Time that collapses may take out of every 100 ms of a process.
pub const MAX_STALL_DEFAULT: Duration = Duration::from_millis(10);

/// Longest time for which a sample of accesses may hold `mmap_lock` of a process, where no bound on stalls was chosen.
///
/// Clearing an accessed bit takes 20 to 110 ns, so this allows 3.5 to 19 GiB of base pages.
const MAX_LOCK_DEFAULT: Duration = Duration::from_millis(100);

/// Time after a program is first seen in which the default bound on collapses does not hold: regions collapsed then need no collapse later, when
/// clients wait for the program's answers.
const STARTING: Duration = Duration::from_secs(30);

/// Configuration of the watching of processes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Options of placement.
    pub options: PlacementOptions,
    /// True if the watch may use at its start what [`PlacementOptions::max_overhead`] allows in 10 s. False for a watch that replaces another one: that
    /// one has used it.
    pub has_advance: bool,
    /// Growth that an earlier watch of these processes has charged to the budget.
    pub carried: ByteCount,
    /// True if clients may wait for the processes' answers from the start: then the default bound on collapses has no exemption while they start.
    pub serves: bool,
    /// True if descendants are watched too.
    pub follow: bool,
    /// True if plans are only listed.
    pub dry_run: bool,
    /// True if a program ends rather than gets memory of another color.
    pub strict: bool,
    /// Machine-wide settings of huge pages to hold while the command runs.
    pub settings: Vec<Setting>,
    /// Variables of the command's environment, name and value; all others are those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// Treatment of the command's own memory allocator.
    pub allocator: AllocatorAdvice,
    /// Folders of the kernel's files.
    pub roots: Roots,
}

impl Config {
    /// Returns the configured policy, or [`Pages::Auto`], which is set up in the same way as the policy that it will choose.
    pub(crate) fn likely_pages(&self) -> Pages {
        self.options.pages.unwrap_or(Pages::Auto)
    }

    /// Returns the same for processes that run already: clients may wait for their answers, so the bound on stalls holds from the start.
    pub(crate) fn for_running(&self) -> Self {
        Self {
            serves: true,
            ..self.clone()
        }
    }

    /// Returns the bound on collapses: the one that was chosen, without exemptions, or else [`MAX_STALL_DEFAULT`], except while a program starts or fills
    /// its memory; `None` is no bound.
    #[must_use]
    pub fn stall_bound(&self) -> Option<StallBound> {
        match self.options.max_stall {
            Some(Duration::ZERO) => None,
            Some(allowed) => Some(StallBound::always(allowed)),
            None => Some(StallBound {
                allowed: MAX_STALL_DEFAULT,
                grace: match self.serves {
                    true => Duration::ZERO,
                    false => STARTING,
                },
                while_growing: false,
            }),
        }
    }

    /// Returns the longest time for which a sample of accesses may hold `mmap_lock`: the chosen bound on stalls, or else 100 ms; `None`
    /// is no bound.
    #[must_use]
    pub fn lock_bound(&self) -> Option<Duration> {
        lock_bound(self.options.max_stall)
    }

    /// Returns true if it names a policy or a tracker, which may turn out to be impossible.
    pub(crate) const fn asks_for_something(&self) -> bool {
        self.options.pages.is_some() || self.options.tracker.is_some()
    }
}

/// Returns the longest time for which a sample may hold `mmap_lock` under this `--max-stall`; `None` is no bound.
#[must_use]
pub fn lock_bound(max_stall: Option<Duration>) -> Option<Duration> {
    let allowed = max_stall.unwrap_or(MAX_LOCK_DEFAULT);
    (!allowed.is_zero()).then_some(allowed)
}

impl From<&PlacementOptions> for Config {
    /// Makes the configuration of a watch with these options.
    fn from(options: &PlacementOptions) -> Self {
        Self {
            options: options.clone(),
            ..Self::default()
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            options: PlacementOptions::default(),
            has_advance: true,
            carried: ByteCount(0),
            serves: false,
            follow: true,
            dry_run: false,
            strict: false,
            settings: Vec::new(),
            environment: Vec::new(),
            allocator: AllocatorAdvice::Leave,
            roots: Roots::default(),
        }
    }
}
