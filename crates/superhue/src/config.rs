//! Everything a user can configure about the watching of processes.

use std::ffi::OsString;
use std::time::Duration;

use superhue_act::Setting;
use superhue_heat::TrackerKind;
use superhue_model::{ByteCount, ColorRequest, Share};
use superhue_policy::StallBound;
use superhue_procfs::Roots;

use crate::allocator::AllocatorAdvice;
use crate::{ColorPlacement, Pages};

/// Share of a region's base pages that must be resident before `resident` promotes it, in percent.
pub const MIN_RESIDENT_DEFAULT: u8 = 75;

/// Share of a region's base pages that must be active before `hot` promotes it, in percent: a
/// quarter, as in the HPS paper.
pub const MIN_ACTIVE_DEFAULT: u8 = 25;

/// Time that collapses may take out of every 100 ms of a process.
pub const MAX_STALL_DEFAULT: Duration = Duration::from_millis(10);

/// Time after a program is first seen in which the default bound on collapses does not hold: regions collapsed then need no collapse later, when
/// clients wait for the program's answers.
const STARTING: Duration = Duration::from_secs(30);

/// Returns the bound on collapses where nobody chose one: [`MAX_STALL_DEFAULT`] of every 100 ms, except while a program starts or fills its memory.
#[must_use]
pub const fn default_stall_bound() -> StallBound {
    StallBound {
        allowed: MAX_STALL_DEFAULT,
        grace: STARTING,
        while_filling: false,
    }
}

/// Returns the bound on collapses that a user chose, without an exemption; `None` is the default, zero is no bound.
#[must_use]
pub fn chosen_stall_bound(allowed: Option<Duration>) -> Option<StallBound> {
    match allowed {
        None => Some(default_stall_bound()),
        Some(allowed) => Some(StallBound::always(allowed)).filter(|_| !allowed.is_zero()),
    }
}

/// Configuration of the watching of processes.
#[derive(Debug, Clone)]
pub struct Config {
    /// Memory that gets huge pages; `None` is [`Pages::Auto`].
    pub pages: Option<Pages>,
    /// Resident memory that promotion may add; `None` is the policy's own default (1 % of anonymous memory for `auto`, 5 % for `resident` and `hot`, no limit
    /// for `always`).
    pub budget: Option<Share>,
    /// Percent of a region that must be resident before `resident` promotes it, 1 to 100.
    pub min_resident: u8,
    /// Time for which a partly resident region must have stopped growing.
    pub settle: Duration,
    /// Percent of a region that must be active before `hot` promotes it, 1 to 100.
    pub min_active: u8,
    /// Time for which a huge page must have been idle before `hot` splits it, if it holds mostly zeroes.
    pub cold_after: Duration,
    /// Tracker of accesses; `None` is the best tracker that works.
    pub tracker: Option<TrackerKind>,
    /// Cost that looking and tracking may have in the long run, as a share of one CPU's time and, for tracking, of the target's: 0 to 1.
    pub max_overhead: f64,
    /// Allows looks a second of CPU time in advance, beyond `max_overhead`, while programs fill their memory. False for a watch that replaces another
    /// one, which has used the advance.
    pub has_advance: bool,
    /// Time that collapses may take out of every 100 ms of a process, and its exemptions; `None` for no bound.
    pub max_stall: Option<StallBound>,
    /// Bytes that may be collapsed per second; `None` is the policy's own default.
    pub rate: Option<ByteCount>,
    /// True if descendants are watched too.
    pub follow: bool,
    /// True if plans are only listed.
    pub dry_run: bool,
    /// Page colors on which memory is placed.
    pub colors: ColorRequest,
    /// Mechanism that places memory on colors.
    pub placement: ColorPlacement,
    /// True if Superhue may make a small swap in memory where none is on: pages of running programs get frames of other colors through swap.
    pub swap: bool,
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
        self.pages.unwrap_or(Pages::Auto)
    }

    /// Returns the same for processes that run already: clients may wait for their answers, so the bound on stalls holds from the start.
    pub(crate) fn for_running(&self) -> Self {
        let mut config = self.clone();
        if let Some(bound) = &mut config.max_stall {
            bound.grace = Duration::ZERO;
        }
        config
    }

    /// Returns true if it names a policy or a tracker, which may turn out to be impossible.
    pub(crate) const fn asks_for_something(&self) -> bool {
        self.pages.is_some() || self.tracker.is_some()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pages: None,
            budget: None,
            min_resident: MIN_RESIDENT_DEFAULT,
            settle: Duration::from_millis(100),
            min_active: MIN_ACTIVE_DEFAULT,
            cold_after: Duration::from_secs(30),
            tracker: None,
            max_overhead: 0.01,
            has_advance: true,
            max_stall: Some(default_stall_bound()),
            rate: None,
            follow: true,
            dry_run: false,
            colors: ColorRequest::Off,
            placement: ColorPlacement::Auto,
            swap: false,
            strict: false,
            settings: Vec::new(),
            environment: Vec::new(),
            allocator: AllocatorAdvice::Leave,
            roots: Roots::default(),
        }
    }
}
