//! `/proc/PID/stat`: the text after the last parenthesis decides, whatever the name holds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::parse_stat;

fuzz_target!(|text: &[u8]| {
    let Ok(stat) = parse_stat(text) else { return };
    assert!(!stat.comm.contains(char::is_control));
    let close = text.iter().rposition(|&byte| byte == b')').unwrap();
    let renamed = [format!("{} (x", stat.pid).as_bytes(), &text[close..]].concat();
    let mut again = parse_stat(&renamed).unwrap();
    again.comm.clone_from(&stat.comm);
    assert_eq!(again, stat);
});
