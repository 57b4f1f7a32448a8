//! Options that say how memory is to be placed: those of `run`, `attach`, `trial` and the arms of `compare`.

use std::time::Duration;

use clap::Args;
use superhue::act::Setting;
use superhue::model::{ByteCount, ColorRequest, Share};
use superhue::trackers::TrackerKind;
use superhue::{
    ColorPlacement, Config, MIN_ACTIVE_DEFAULT, MIN_RESIDENT_DEFAULT, Pages, parse, stall_bound,
};

use crate::named::{pages, placements, trackers};
use crate::values::parse_time;

/// How memory is to be placed: what `run`, `attach` and the arms of `compare` have in common.
#[derive(Debug, Clone, Args)]
pub struct PlacementArgs {
    /// Which memory gets huge pages of 2 MiB (transparent huge pages, THP; superpages).
    /// [default: auto]
    #[arg(long, value_name = "POLICY", value_parser = pages())]
    pub pages: Option<Pages>,
    /// How much resident memory huge pages may add: a size (256M) or a share of the anonymous memory (5%).
    /// With 0, only regions without a hole become huge pages. [default: 5%, no bound for always]
    #[arg(long, value_name = "SIZE|PERCENT", allow_hyphen_values = true, value_parser = parse::budget)]
    pub budget: Option<Share>,
    /// With --pages resident: the share of a region's pages that must be in memory.
    #[arg(long, value_name = "PERCENT", default_value_t = MIN_RESIDENT_DEFAULT,
          value_parser = clap::value_parser!(u8).range(1..=100))]
    pub min_resident: u8,
    /// With --pages resident: for how long a region that is not full must not have grown.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_time)]
    pub settle: Duration,
    /// With --pages auto or hot: the share of a region's pages that must be accessed.
    #[arg(long, value_name = "PERCENT", default_value_t = MIN_ACTIVE_DEFAULT,
          value_parser = clap::value_parser!(u8).range(1..=100))]
    pub min_active: u8,
    /// With --pages auto or hot: for how long a huge page that holds mostly zeroes must not have been accessed to be taken back. Only that time
    /// counts in which its accesses were watched, which --max-overhead makes a part of all time; on the clock it takes some times as long.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    pub cold_after: Duration,
    #[command(flatten)]
    pub tracking: TrackingArgs,
    /// How much of every 100 ms of a process may go to making huge pages, 100us to 100ms; 0 for no bound. To make one takes 0.3 to
    /// 5 ms, in which the process can neither map nor fault in memory, nor use those 2 MiB. They are made one at a time, or some in
    /// a row up to a fifth of this, and spread out accordingly. A process that fills its memory (larger than ever by an eighth in a
    /// second) is not held to it, nor is one that `run` started less than 30 s ago. For a server that maps memory for each answer, try
    /// 100us: 99.9 % of its answers come as soon as without, and its huge pages late (4 MiB/s).
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = parse::max_stall)]
    pub max_stall: Duration,
    /// How much memory may be put on huge pages per second. [default: 2G]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_rate)]
    pub rate: Option<ByteCount>,
    /// Leave processes that the process starts alone.
    #[arg(long)]
    pub no_follow: bool,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
}

/// How accesses are tracked.
#[derive(Debug, Clone, Copy, Args)]
pub struct TrackingArgs {
    /// How superhue finds out which pages are accessed. [default: the first that works]
    #[arg(long, value_name = "TRACKER", value_parser = trackers())]
    pub tracker: Option<TrackerKind>,
    /// A ceiling on what watching costs. Superhue itself takes no more than this share of one CPU, on average over 10 s.
    /// And tracking the accesses of a process slows that process down by no more than this share.
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = parse::max_overhead)]
    pub max_overhead: f64,
}

/// What only a command that superhue starts can have.
#[derive(Debug, Clone, Args)]
pub struct SystemArgs {
    /// Change this setting of the machine for as long as the command runs: a file below
    /// /sys/kernel/mm/transparent_hugepage and its value, e.g. enabled=always. It is put back afterwards; if superhue
    /// is killed, `superhue restore` puts it back. Needs root. Repeatable.
    #[arg(long, value_name = "KNOB=VALUE")]
    pub system: Vec<Setting>,
    #[command(flatten)]
    pub colors: ColorArgs,
    /// With --colors: if colors cannot be told here, do not run the command (exit status 125) instead of running it
    /// without; and if the kernel places memory, let an allocation fail, which may end the command, rather than give it a
    /// page of another color.
    #[arg(long, requires = "colors")]
    pub strict: bool,
}

/// On which page colors memory is placed, and by whom.
#[derive(Debug, Clone, Args)]
pub struct ColorArgs {
    /// Which page colors private anonymous and shared memory is placed on: off; spread (the hottest pages, as many as the L2 cache
    /// holds, evenly on all colors); a list such as 0-3,8 (all memory that is accessed, on these colors only: programs
    /// with disjoint lists do not evict each other from the L2); or a share such as 50% (the lowest half of the colors).
    /// A list or share that leaves colors out excludes huge pages, which span all colors. Where accesses cannot be
    /// tracked, pages are taken because they are in memory: for spread if no more than 4 times what the L2 holds is in
    /// memory; for a list or share, up to 64 MiB. `superhue colors` says how many colors there are.
    #[arg(long, value_name = "off|spread|LIST|PERCENT", default_value = "off", value_parser = parse::colors)]
    pub colors: ColorRequest,
    /// With --colors: who places memory.
    #[arg(long, value_name = "WHO", default_value = "auto", requires = "colors", value_parser = placements())]
    pub placement: ColorPlacement,
    /// With --colors: where no swap in memory is on, make a small compressed one (zram, 64 MiB) for as long as superhue runs. Pages
    /// of a running program get frames of other colors by being taken out to swap and in again, and only swap in memory is
    /// fast enough for that. While memory is short, the kernel may swap other programs' memory to it, too. It is removed at the
    /// end; if superhue is killed, `superhue restore` removes it. Needs root.
    #[arg(long, requires = "colors")]
    pub swap: bool,
}

impl ColorArgs {
    /// Adds what these options ask for.
    pub fn add_to(&self, config: &mut Config) {
        config.colors = self.colors.clone();
        config.placement = self.placement;
        config.swap = self.swap;
    }
}

impl SystemArgs {
    /// Adds what these options ask for.
    pub fn add_to(self, config: &mut Config) {
        self.colors.add_to(config);
        config.settings = self.system;
        config.strict = self.strict;
    }
}

impl PlacementArgs {
    /// The configuration these options ask for.
    pub fn config(&self) -> Config {
        Config {
            pages: self.pages,
            budget: self.budget,
            min_resident: self.min_resident,
            settle: self.settle,
            min_active: self.min_active,
            cold_after: self.cold_after,
            tracker: self.tracking.tracker,
            max_overhead: self.tracking.max_overhead,
            max_stall: Some(self.max_stall)
                .filter(|bound| !bound.is_zero())
                .map(stall_bound),
            rate: self.rate,
            follow: !self.no_follow,
            dry_run: self.dry_run,
            ..Config::default()
        }
    }
}

/// Enough that something is done now and then: one huge page a second.
fn parse_rate(text: &str) -> Result<ByteCount, String> {
    superhue::parse::rate(text).map_err(|why| match text.parse::<ByteCount>() {
        Ok(_) => format!("{why}; --pages never promotes none"),
        Err(_) => why,
    })
}
