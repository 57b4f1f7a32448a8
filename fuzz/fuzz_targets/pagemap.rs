//! Words of `/proc/PID/pagemap`: one for every eight bytes, each bit where the kernel puts it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::process::page_words;

fuzz_target!(|bytes: &[u8]| {
    let words: Vec<_> = page_words(bytes).collect();
    assert_eq!(words.len(), bytes.len() / 8);
    for (word, raw) in words.iter().zip(bytes.chunks_exact(8)) {
        let top = if cfg!(target_endian = "little") {
            raw[7]
        } else {
            raw[0]
        };
        assert_eq!(word.is_present(), top & 0x80 != 0);
        assert_eq!(word.is_swapped(), top & 0x40 != 0);
        assert_eq!(word.is_file(), top & 0x20 != 0);
        assert_eq!(word.is_exclusive(), top & 0x01 != 0);
    }
});
