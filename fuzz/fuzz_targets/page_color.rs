//! `/proc/page_color`: the parsed values are consistent, and the geometry survives printing and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::system::PageColors;

fuzz_target!(|text: &str| {
    let Ok(read) = PageColors::parse(text) else {
        return;
    };
    let colors = read.colors();
    assert!(read.zones.iter().all(|zone| zone.colors.len() == colors));
    assert_eq!(
        read.by_color().len(),
        if read.zones.is_empty() { 0 } else { colors }
    );
    let head = format!(
        "enabled {}\ngeometry {}\ncolors {colors}\n",
        u8::from(read.enabled),
        read.geometry()
    );
    let again = PageColors::parse(&head).expect("what was shown is read again");
    assert_eq!((again.enabled, again.index), (read.enabled, read.index));
});
