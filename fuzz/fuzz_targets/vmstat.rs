//! `/proc/vmstat`: lines of newer kernels do not disturb, and no time passes between equal readings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::system::VmStat;

fuzz_target!(|text: &str| {
    let Ok(stat) = VmStat::parse(text) else {
        return;
    };
    let unfinished = !text.is_empty() && !text.ends_with('\n');
    let more = format!(
        "{text}{}new_counter 7\n",
        if unfinished { "\n" } else { "" }
    );
    assert_eq!(VmStat::parse(&more), Ok(stat));
    let nothing = stat.since_boot.delta(&stat.since_boot);
    assert_eq!(nothing.pgfault, stat.since_boot.pgfault.map(|_| 0));
    assert_eq!(nothing.delta(&nothing), nothing);
});
