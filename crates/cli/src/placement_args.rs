//! Options for the placement of memory.

use std::time::Duration;

use clap::Args;
use superhue::act::Setting;
use superhue::model::{ByteCount, ColorRequest, Share};
use superhue::trackers::TrackerKind;
use superhue::{
    AllocatorAdvice, ColorPlacement, Config, MIN_ACTIVE_DEFAULT, MIN_RESIDENT_DEFAULT, Pages,
    PlacementOptions, PolicyOption, parse,
};

use crate::named::{allocator_advice, pages, placements, trackers};

/// Placement of memory: options of `run`, `attach`, `trial` and the arms of `compare`.
#[derive(Debug, Clone, Args)]
pub struct PlacementArgs {
    /// Policy that selects the memory for huge pages of 2 MiB (transparent huge pages, THP).
    /// [default: auto]
    #[arg(long, value_name = "POLICY", value_parser = pages())]
    pub pages: Option<Pages>,
    /// Largest amount of memory that huge pages may add: a size (256M) or a share of the anonymous memory (5%), for all
    /// processes together.
    /// With 0, only regions without a hole become huge. [default: 1% for auto, 5% for hot and
    /// resident, no bound for always]
    #[arg(long, value_name = "SIZE|PERCENT", allow_hyphen_values = true, value_parser = parse::budget)]
    pub budget: Option<Share>,
    /// With --pages resident, and with auto where accesses cannot be tracked: the share of a region's pages that must be in memory.
    #[arg(long, value_name = "PERCENT", default_value_t = MIN_RESIDENT_DEFAULT, value_parser = parse::percent)]
    pub min_resident: u8,
    /// With --pages resident, and with auto where accesses cannot be tracked: time for which a region that is not full must not have grown.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse::time)]
    pub settle: Duration,
    /// With --pages auto or hot: the share of a region's pages that must be accessed. Under auto, regions that are full or lack at most 16 of their
    /// 512 pages need no access.
    #[arg(long, value_name = "PERCENT", default_value_t = MIN_ACTIVE_DEFAULT, value_parser = parse::percent)]
    pub min_active: u8,
    /// With --pages auto or hot: split a huge page of mostly zeroes after this time without an access. Only observed time counts.
    /// --max-overhead limits it, so the split takes several times longer. Before Linux 6.12 a split gives no memory back.
    ///
    /// With auto, observation begins after a third of this time. It leaves out huge pages that superhue made of full or nearly full regions.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse::time)]
    pub cold_after: Duration,
    #[command(flatten)]
    pub tracking: TrackingArgs,
    /// Collapses may hold a process up for this long in every 100 ms: 100us to 100ms; 0: no bound. [default: 10ms; none in the first 30 s of `run`
    /// (with auto only where accesses can be tracked) and while the process grows fast]
    ///
    /// During a collapse the process can neither map nor fault in memory. A collapse takes about 1 ms (0.44 s at most, as measured). A collapse that
    /// takes longer than the bound is not cut short: a rest in proportion follows it, and the report shows the longest time reached. The bound applies
    /// separately to private memory and to each shared object. For a server that maps memory for each answer, try 100us; its huge pages then come late (3 MiB/s).
    ///
    /// A sample of accesses holds the same lock once, for 20 to 110 ns per base page. Superhue does not sample a process that this would hold
    /// up for longer than the bound (100 ms without the option): `hot` makes none of its memory huge, and `auto` only full and nearly full regions.
    ///
    /// A process grows fast if it grows by an eighth beyond its largest size within a second.
    #[arg(long, value_name = "TIME", value_parser = parse::max_stall)]
    pub max_stall: Option<Duration>,
    /// Largest amount of memory to collapse per second, of all processes together: at least 2M. [default: 2G]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_rate)]
    pub rate: Option<ByteCount>,
    /// Leave child processes alone.
    #[arg(long)]
    pub no_follow: bool,
    /// Print the planned actions and change no page. Accesses may be tracked.
    #[arg(long)]
    pub dry_run: bool,
}

/// Tracking of accesses.
#[derive(Debug, Clone, Copy, Args)]
pub struct TrackingArgs {
    /// Method of finding out which pages are accessed. [default: the first that works]
    #[arg(long, value_name = "TRACKER", value_parser = trackers())]
    pub tracker: Option<TrackerKind>,
    /// Largest cost of watching: a share of one CPU for superhue itself, and a share of a process's time for the tracking of its
    /// accesses. The share of the first 10 s may be spent at once (0.1 s of CPU time at 1%). Collapses, with the checks right before each, are not
    /// part of it.
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = parse::max_overhead)]
    pub max_overhead: f64,
}

/// Options for commands that superhue starts.
#[derive(Debug, Clone, Args)]
pub struct SystemArgs {
    /// Change this setting of the machine while the command runs: a file below
    /// /sys/kernel/mm/transparent_hugepage and its value, e.g. enabled=always. Superhue restores it afterwards; after a
    /// kill, `superhue restore` does. Needs root. Repeatable.
    #[arg(long, value_name = "KNOB=VALUE")]
    pub system: Vec<Setting>,
    /// With `ask`, set the variable by which the command's own memory allocator asks for huge pages. Page faults then make them, sooner than
    /// superhue could. Superhue finds glibc (2.35 or later), jemalloc, mimalloc and the JVM by what the program links. It works under the
    /// system-wide mode `madvise` only. A variable that is set already stays; programs with set-ID bits or capabilities get none. The report
    /// shows the variable.
    #[arg(long, value_name = "ask|leave", default_value = "leave", value_parser = allocator_advice())]
    pub allocator: AllocatorAdvice,
    #[command(flatten)]
    pub colors: ColorArgs,
    /// With --colors: refuse to run the command (exit status 125) if colors cannot be found here. Where the kernel places memory,
    /// fail an allocation, which may end the command, instead of giving it a page of another color.
    #[arg(long, requires = "colors")]
    pub strict: bool,
}

/// Page colors of memory, and the mechanism that places it.
#[derive(Debug, Clone, Args)]
pub struct ColorArgs {
    /// Page colors for private anonymous and shared memory: off, spread, a list or a share.
    ///
    /// spread: the hottest pages, as many as the L2 cache holds, evenly on all colors.
    ///
    /// A list such as 0-3,8: all accessed memory, on these colors only. Programs with disjoint lists do not evict each other from the L2.
    ///
    /// A share such as 50%: the same with the lowest half of the colors. A list or share that leaves colors out excludes huge pages, which span
    /// all colors.
    ///
    /// Without a tracker, superhue takes all resident pages: for spread up to 4 times the L2; for a list or share up to 64 MiB. `superhue
    /// colors` shows the number of colors.
    #[arg(long, value_name = "off|spread|LIST|PERCENT", default_value = "off", value_parser = parse::colors)]
    pub colors: ColorRequest,
    /// With --colors: the mechanism that places memory.
    #[arg(long, value_name = "MECHANISM", default_value = "auto", requires = "colors", value_parser = placements())]
    pub placement: ColorPlacement,
    /// With --colors: where no swap in memory is on, make a small compressed one (zram, 64 MiB) while superhue runs. Recoloring
    /// swaps a page of a running program out and in again, which is fast enough only with swap in memory. When memory is short, the kernel may swap other programs' memory to it, too. Superhue removes it at the
    /// end; after a kill, `superhue restore` does. Needs root.
    #[arg(long, requires = "colors")]
    pub swap: bool,
}

impl ColorArgs {
    /// Adds these options to a configuration.
    pub fn add_to(&self, config: &mut Config) {
        config.options.colors = self.colors.clone();
        config.options.placement = self.placement;
        config.options.swap = self.swap;
    }
}

impl SystemArgs {
    /// Adds these options to a configuration.
    pub fn add_to(self, config: &mut Config) {
        self.colors.add_to(config);
        config.allocator = self.allocator;
        config.settings = self.system;
        config.strict = self.strict;
    }
}

impl PlacementArgs {
    /// Returns the options of a policy beside `--pages` that are not at their defaults, as one types them; a rule of the daemon has the same names.
    pub fn beside_pages(&self) -> Vec<(&'static str, String)> {
        let usual = PlacementOptions::default();
        let time = |time: Duration| match time.as_micros() {
            micros if micros % 1_000_000 == 0 => format!("{}s", micros / 1_000_000),
            micros if micros % 1000 == 0 => format!("{}ms", micros / 1000),
            micros => format!("{micros}us"),
        };
        let budget = |budget: Share| match budget {
            Share::Bytes(bytes) => bytes.0.to_string(),
            Share::BasisPoints(_) => budget.to_string(),
        };
        let tracker = self.tracking.tracker.map(|tracker| tracker.to_string());
        let given = [
            ("--budget", self.budget.map(budget)),
            ("--max-stall", self.max_stall.map(time)),
            ("--rate", self.rate.map(|rate| rate.0.to_string())),
            ("--tracker", tracker),
            (
                "--min-resident",
                (self.min_resident != usual.min_resident)
                    .then(|| format!("{}%", self.min_resident)),
            ),
            (
                "--settle",
                (self.settle != usual.settle).then(|| time(self.settle)),
            ),
            (
                "--min-active",
                (self.min_active != usual.min_active).then(|| format!("{}%", self.min_active)),
            ),
            (
                "--cold-after",
                (self.cold_after != usual.cold_after).then(|| time(self.cold_after)),
            ),
            (
                "--max-overhead",
                (self.tracking.max_overhead - usual.max_overhead)
                    .abs()
                    .gt(&f64::EPSILON)
                    .then(|| {
                        let percent = format!("{:.6}", self.tracking.max_overhead * 100.0);
                        format!("{}%", percent.trim_end_matches('0').trim_end_matches('.'))
                    }),
            ),
        ];
        let given = given.into_iter();
        given
            .filter_map(|(option, value)| Some((option, value?)))
            .collect()
    }

    /// Refuses an option that the policy does not use, as a rule of the daemon does. An option at its default passes.
    ///
    /// # Errors
    /// The option, the policy, and the policies that use the option.
    pub fn check_effect(&self, colors: &ColorRequest) -> Result<(), String> {
        let usual = PlacementOptions::default();
        let policy = self.pages.unwrap_or(Pages::Auto);
        let colored = *colors != ColorRequest::Off;
        let given = [
            (
                PolicyOption::MinResident,
                self.min_resident != usual.min_resident,
            ),
            (PolicyOption::Settle, self.settle != usual.settle),
            (PolicyOption::MinActive, self.min_active != usual.min_active),
            (PolicyOption::ColdAfter, self.cold_after != usual.cold_after),
            (PolicyOption::Tracker, self.tracking.tracker.is_some()),
        ];
        for (option, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            if let Some(users) = option.users_without(policy, colored) {
                let (key, policy) = (option.key(), policy.name());
                return Err(format!(
                    "--{key} has no effect with --pages {policy} (only {users}): remove it"
                ));
            }
        }
        Ok(())
    }

    /// Returns the configuration of these options.
    pub fn config(&self) -> Config {
        let options = PlacementOptions {
            pages: self.pages,
            budget: self.budget,
            min_resident: self.min_resident,
            settle: self.settle,
            min_active: self.min_active,
            cold_after: self.cold_after,
            tracker: self.tracking.tracker,
            max_overhead: self.tracking.max_overhead,
            max_stall: self.max_stall,
            rate: self.rate,
            ..PlacementOptions::default()
        };
        Config {
            follow: !self.no_follow,
            dry_run: self.dry_run,
            ..Config::from(&options)
        }
    }
}

/// Reads a rate of at least one huge page a second.
fn parse_rate(text: &str) -> Result<ByteCount, String> {
    superhue::parse::rate(text).map_err(|why| match text.parse::<ByteCount>() {
        Ok(_) => format!("{why}; to make no huge pages: --pages kernel"),
        Err(_) => why,
    })
}
