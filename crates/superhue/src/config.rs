//! Everything a user can say about how processes are to be watched.

use std::ffi::OsString;
use std::time::Duration;

use superhue_act::Setting;
use superhue_heat::TrackerKind;
use superhue_model::{ByteCount, ColorRequest, Share};
use superhue_policy::StallBound;
use superhue_procfs::Roots;

use crate::{ColorPlacement, Pages};

/// Share of a region's base pages that must be resident before `resident` promotes it, in percent.
pub const MIN_RESIDENT_DEFAULT: u8 = 75;

/// Share of a region's base pages that must be active before `hot` promotes it, in percent: a
/// quarter, as in the HPS paper.
pub const MIN_ACTIVE_DEFAULT: u8 = 25;

/// How long collapses may take out of every 100 ms of a process.
pub const MAX_STALL_DEFAULT: Duration = Duration::from_millis(10);

/// A program that has just been started is not held up by collapses for the first time: what is collapsed then need not be later, when
/// somebody waits for its answers.
const STARTING: Duration = Duration::from_secs(30);

/// The bound on collapses that comes to `allowed` of every 100 ms of processes that have been started by Superhue.
#[must_use]
pub const fn stall_bound(allowed: Duration) -> StallBound {
    StallBound {
        allowed,
        grace: STARTING,
    }
}

/// How processes are to be watched.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which memory gets huge pages; `None` is [`Pages::Auto`].
    pub pages: Option<Pages>,
    /// How much resident memory promotion may add; `None` is the policy's own default (5 % of
    /// anonymous memory for `auto`, `resident` and `hot`, no limit for `always`).
    pub budget: Option<Share>,
    /// Percent of a region that must be resident before `resident` promotes it, 1 to 100.
    pub min_resident: u8,
    /// How long a partly resident region must have stopped growing.
    pub settle: Duration,
    /// Percent of a region that must be active before `hot` promotes it, 1 to 100.
    pub min_active: u8,
    /// How long a superpage must have been idle before `hot` splits it, if it holds mostly zeroes.
    pub cold_after: Duration,
    /// How accesses are found out; `None` is the best tracker that works.
    pub tracker: Option<TrackerKind>,
    /// What looking and tracking may cost in the long run, as a share of one CPU's time and, for
    /// tracking, of the target's: 0 to 1.
    pub max_overhead: f64,
    /// Allows looks a second at once beyond `max_overhead`, for the time in which programs fill their memory. A watch that takes the place of
    /// another one has had it.
    pub has_advance: bool,
    /// How long collapses may take out of every 100 ms of a process that is not just filling its memory, and since when; `None` for no
    /// bound.
    pub max_stall: Option<StallBound>,
    /// Bytes that may be collapsed per second; `None` is the policy's own default.
    pub rate: Option<ByteCount>,
    /// Whether descendants are watched too.
    pub follow: bool,
    /// Whether plans are only listed.
    pub dry_run: bool,
    /// Which page colors memory is placed on.
    pub colors: ColorRequest,
    /// Who places it there.
    pub placement: ColorPlacement,
    /// Whether a small swap in memory is made where none is on: pages of programs that run get frames of other colors through swap.
    pub swap: bool,
    /// Whether a program rather ends than gets memory of another color.
    pub strict: bool,
    /// Superpage settings of the machine to hold while the command runs.
    pub settings: Vec<Setting>,
    /// Variables of the command's environment, name and value; all others are those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// Where the kernel's files are.
    pub roots: Roots,
}

impl Config {
    /// The policy if it is known, else one that is brought about in the same way.
    pub(crate) fn likely_pages(&self) -> Pages {
        self.pages.unwrap_or(Pages::Auto)
    }

    /// The same for processes that run already: somebody may wait for their answers, so none is spared the bound on stalls.
    pub(crate) fn for_running(&self) -> Self {
        let mut config = self.clone();
        if let Some(bound) = &mut config.max_stall {
            bound.grace = Duration::ZERO;
        }
        config
    }

    /// Whether it names a policy, or a tracker: something that may turn out to be impossible.
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
            max_stall: Some(stall_bound(MAX_STALL_DEFAULT)),
            rate: None,
            follow: true,
            dry_run: false,
            colors: ColorRequest::Off,
            placement: ColorPlacement::Auto,
            swap: false,
            strict: false,
            settings: Vec::new(),
            environment: Vec::new(),
            roots: Roots::default(),
        }
    }
}
