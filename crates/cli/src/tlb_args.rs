//! Option of verbs that need the TLB.

use clap::Args;
use superhue::tlb::TlbSetting;

/// Source of the facts on the TLB.
#[derive(Debug, Args)]
pub struct TlbArgs {
    /// Source of the TLB's entries: cpuid (the processor's report), measure (timing, now), auto (cpuid, and timing where the processor reports none,
    /// as in many virtual machines), or the entries themselves.
    ///
    /// Timing takes less than a second of CPU time; auto keeps the result in /var/cache/superhue, or superhue below XDG_CACHE_HOME (~/.cache) for
    /// ordinary users, as long as processor, microcode, hypervisor and kernel stay the same. Entries are given as those of the first and of the last
    /// level for base pages, and after a colon, if they are known, those of the last level for huge pages: 64,1536 or 64,1536:1536.
    #[arg(long, value_name = "auto|cpuid|measure|L1,L2[:HUGE]", default_value = "auto", value_parser = parse)]
    pub tlb: TlbSetting,
}

fn parse(text: &str) -> Result<TlbSetting, String> {
    text.parse().map_err(|error| format!("{error}"))
}
