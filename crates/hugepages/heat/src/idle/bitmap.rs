//! `/sys/kernel/mm/page_idle/bitmap`: one bit per page frame, in words of 64.
//!
//! If the number of frames is no multiple of 64, the kernel does not count the last word: a write marks its frames and returns 0, a read returns
//! nothing (`mm/page_idle.c`). So the state of these frames is unknown.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::frames::read_words;

/// Bytes in a word.
const WORD: u64 = 8;
/// Number of words without a wanted bit that one system call may include to avoid a second call: for each the kernel checks 64 bits in a loop. They
/// are written as zero, which changes nothing.
const BRIDGE: u64 = 16;
/// Words per system call at most: sysfs transfers one page at a time.
const MAX_WORDS_PER_CALL: usize = 512;

/// Words of the bitmap in one piece.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    first: u64,
    words: Vec<u64>,
}

/// Returns the words that hold the bits of `frames` (ascending), in few pieces.
fn runs(frames: &[u64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &frame in frames {
        let (word, bit) = (frame / 64, 1 << (frame % 64));
        match runs.last_mut() {
            Some(run)
                if word < run.first + run.words.len() as u64 + BRIDGE
                    && word < run.first + MAX_WORDS_PER_CALL as u64 =>
            {
                let index = (word - run.first) as usize;
                if index >= run.words.len() {
                    run.words.resize(index + 1, 0);
                }
                run.words[index] |= bit;
            }
            _ => runs.push(Run {
                first: word,
                words: vec![bit],
            }),
        }
    }
    runs
}

/// Marks frames (ascending) idle: the kernel clears their accessed bits in all page tables that map them.
pub(super) fn mark(bitmap: &File, frames: &[u64]) -> io::Result<()> {
    for run in runs(frames) {
        let bytes: Vec<u8> = run
            .words
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        write(bitmap, &bytes, run.first * WORD)?;
    }
    Ok(())
}

/// Writes until all is written or the bitmap ends.
fn write(bitmap: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        match bitmap.write_at(&bytes[written..], offset + written as u64) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Past the last frame of ordinary memory.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns for each of `frames` (ascending) whether it is still idle, in the same order; `None` where the bitmap does not show it.
pub(super) fn are_idle(bitmap: &File, frames: &[u64]) -> io::Result<Vec<Option<bool>>> {
    let mut idle = Vec::with_capacity(frames.len());
    let mut rest = frames;
    for run in runs(frames) {
        let words = read_words(bitmap, run.first, run.words.len() as u64)?;
        let end = (run.first + run.words.len() as u64) * 64;
        let inside = rest.partition_point(|&frame| frame < end);
        let (here, behind) = rest.split_at(inside);
        idle.extend(here.iter().map(|frame| {
            let word = words.get((frame / 64 - run.first) as usize);
            word.map(|word| word >> (frame % 64) & 1 == 1)
        }));
        rest = behind;
    }
    Ok(idle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn near_words_go_in_one_call_and_far_ones_do_not() {
        let lengths = |frames: &[u64]| {
            let runs = runs(frames);
            let found: Vec<_> = runs
                .iter()
                .map(|run| (run.first, run.words.len()))
                .collect();
            found
        };
        assert_eq!(lengths(&[]), []);
        assert_eq!(lengths(&[64, 65, 127, 128]), [(1, 2)]);
        assert_eq!(lengths(&[0, 64 * 16]), [(0, 17)]);
        assert_eq!(lengths(&[0, 64 * 17]), [(0, 1), (17, 1)]);
        let many: Vec<u64> = (0..1024 * 64).collect();
        assert_eq!(lengths(&many), [(0, 512), (512, 512)]);
    }

    proptest! {
        #[test]
        fn exactly_the_marked_frames_are_idle(
            marked in proptest::collection::btree_set(0_u64..19_968, 0..300),
            asked in proptest::collection::btree_set(0_u64..30_000, 0..300),
        ) {
            let file = tempfile::tempfile().unwrap();
            file.set_len(20_000 / 64 * WORD).unwrap();
            let marked: Vec<u64> = marked.into_iter().collect();
            mark(&file, &marked).unwrap();
            let asked: Vec<u64> = asked.into_iter().collect();
            // The file has 312 words of 64 bits; frames behind them are unknown.
            let expected: Vec<Option<bool>> = asked
                .iter()
                .map(|frame| (*frame < 19_968).then(|| marked.contains(frame)))
                .collect();
            prop_assert_eq!(are_idle(&file, &asked).unwrap(), expected);
        }
    }
}
