//! `memory.pressure` of a control group: a percentage or nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_sys::cgroup::some_average;

fuzz_target!(|text: &str| {
    if let Some(percent) = some_average(text) {
        assert!((0.0..=100.0).contains(&percent));
        let printed = format!("some avg10={percent} avg60=0.00 avg300=0.00 total=0\n");
        assert_eq!(some_average(&printed), Some(percent));
    }
});
