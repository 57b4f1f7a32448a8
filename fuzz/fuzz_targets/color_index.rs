//! Masks of physical address bits: any accepted masks make a power of two of colors, and survive printing and
//! parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_model::{ColorIndex, Pfn};

fuzz_target!(|text: &str| {
    if let Ok(index) = ColorIndex::parse(text) {
        assert!(index.colors().is_power_of_two());
        let frame = Pfn(text.len() as u64 * 0x9e37_79b9);
        assert!(usize::from(index.color_of(frame).0) < index.colors());
        let lines: Vec<String> = index.masks().map(|mask| format!("{mask:x}")).collect();
        assert_eq!(ColorIndex::parse(&lines.join("\n")), Ok(index));
    }
});
