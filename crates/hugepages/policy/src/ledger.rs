//! The account a policy gives of itself.

use serde::{Deserialize, Serialize};
use superhue_model::{ByteCount, PageCount};

/// What a policy has planned, what became of it, and what it waits for.
///
/// Every planned action ends up in exactly one place: `planned` is the sum of `done`, `listed`,
/// `failed`, `skipped`, `vanished`, `expired` and `in_flight`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// The growth that may be charged, by the last look; `None` if there is no limit.
    pub budget: Option<ByteCount>,
    /// The growth that promotion has caused and that is still there, plans in flight included.
    /// Above `budget` only if the programs have shrunk since, or by an outcome that came after it
    /// had been given up.
    pub charged: ByteCount,
    /// The highest `charged` there was.
    pub peak_charged: ByteCount,
    /// Actions planned.
    pub planned: u64,
    /// Actions the kernel has carried out.
    pub done: u64,
    /// Actions only listed (`--dry-run`).
    pub listed: u64,
    /// Actions the kernel refused.
    pub failed: u64,
    /// Actions not tried: not visited, cancelled.
    pub skipped: u64,
    /// Actions whose process or region was gone.
    pub vanished: u64,
    /// Actions whose outcome did not come in time.
    pub expired: u64,
    /// Actions whose outcome is awaited.
    pub in_flight: u64,
    /// Processes given up for good.
    pub given_up: GivenUp,
    /// Regions that the last look found fit for promotion but for one thing.
    pub waiting: Waiting,
    /// What is remembered between looks.
    pub tracked: Tracked,
    /// Superpages split by us that a later look has shown to be split. The splits themselves are
    /// among the actions counted above.
    #[serde(default)]
    pub demoted: u64,
    /// Pages those splits gave back, by the first look after each.
    #[serde(default)]
    pub returned: PageCount,
    /// What only the program itself could bring together.
    #[serde(default)]
    pub compaction: Compaction,
}

/// Regions that the last look found accessed all the time, but in too few pages for a superpage.
///
/// Moved to one place by the program (see the library), their active pages would fill a few
/// superpages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Compaction {
    /// Such regions.
    pub regions: u64,
    /// Their active pages.
    pub active: PageCount,
}

impl Compaction {
    pub(crate) fn add(&mut self, active: u16) {
        self.regions += 1;
        self.active.0 += u64::from(active);
    }
}

/// Processes given up for good, by reason; counted when given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GivenUp {
    /// Neither from outside nor from inside is it allowed (`EPERM`, `EACCES`, `ENOSYS`).
    pub not_permitted: u64,
    /// The caller may not act from outside, and something that will not pass keeps visits away.
    pub not_visited: u64,
}

/// Regions that wait, by the first thing they wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Waiting {
    /// Full enough, but the number of resident pages changed a moment ago.
    pub settling: u64,
    /// A failure of the region, its process or the whole machine has to pass.
    pub backing_off: u64,
    /// The growth does not fit the budget.
    pub budget: u64,
    /// The rate limit is used up.
    pub rate: u64,
    /// Collapses have held the process up for as long as they may.
    #[serde(default)]
    pub stall: u64,
}

/// The size of a policy's memory; bounded by what the last snapshot showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tracked {
    /// Processes.
    pub processes: u64,
    /// Regions, over all processes.
    pub regions: u64,
}
