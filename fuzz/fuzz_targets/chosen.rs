//! `always [madvise] never`: the choice is a word of the text, in brackets.
#![no_main]

use libfuzzer_sys::fuzz_target;
use superhue_procfs::system::chosen;
use superhue_procfs::system::thp::{MthpMode, ShmemMode, ThpDefrag, ThpMode};

fuzz_target!(|text: &str| {
    match chosen(text) {
        Ok(word) => {
            assert!(!word.is_empty() && !word.contains(char::is_whitespace));
            assert!(text.contains(&format!("[{word}]")));
            if let Ok(mode) = ThpMode::parse(text) {
                assert_eq!(mode.word(), word);
            }
        }
        Err(_) => {
            assert!(ThpMode::parse(text).is_err() && MthpMode::parse(text).is_err());
            assert!(ThpDefrag::parse(text).is_err() && ShmemMode::parse(text).is_err());
        }
    }
});
