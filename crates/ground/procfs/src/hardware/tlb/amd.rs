//! TLBs as AMD reports them: one row per level and page size, with data and instructions side by
//! side.

use super::{PageSizes, TlbArray, TlbKind, TlbWays};
use crate::hardware::Cpuid;

/// Returns every array that exists.
pub(super) fn arrays(cpuid: &Cpuid) -> Vec<TlbArray> {
    let highest = cpuid.ask(0x8000_0000, 0).unwrap_or_default().eax;
    let ask = |leaf| {
        let answer = (highest >= leaf).then(|| cpuid.ask(leaf, 0)).flatten();
        answer.unwrap_or_default()
    };
    let (first, second, gigantic) = (ask(0x8000_0005), ask(0x8000_0006), ask(0x8000_0019));
    let rows = [
        (1, PageSizes::K4, first_level(first.ebx)),
        (1, PageSizes::M2, first_level(first.eax)),
        (1, PageSizes::G1, coded(gigantic.eax)),
        (2, PageSizes::K4, coded(second.ebx)),
        (2, PageSizes::M2, coded(second.eax)),
        (2, PageSizes::G1, coded(gigantic.ebx)),
    ];
    rows.into_iter()
        .flat_map(|(level, pages, [data, instruction])| {
            let row = move |kind, half: Option<(u32, Option<TlbWays>)>| {
                half.map(|(entries, ways)| TlbArray {
                    level,
                    kind,
                    pages,
                    entries,
                    ways,
                })
            };
            [
                row(TlbKind::Data, data),
                row(TlbKind::Instruction, instruction),
            ]
        })
        .flatten()
        .collect()
}

/// Entries and ways; `None` for an array that does not exist.
type Half = Option<(u32, Option<TlbWays>)>;

/// Decodes the data (upper half) and instruction array of a first level: 8 bits of ways above 8 of entries.
fn first_level(register: u32) -> [Half; 2] {
    [register >> 16, register & 0xffff].map(|half| {
        let ways = match half >> 8 {
            0 => return None,
            0xff => TlbWays::Full,
            ways => TlbWays::Exactly(u16::try_from(ways).ok()?),
        };
        let entries = half & 0xff;
        (entries > 0).then_some((entries, Some(ways)))
    })
}

/// Decodes the data (upper half) and instruction array of the other levels: 4 bits of coded ways above 12 of entries.
fn coded(register: u32) -> [Half; 2] {
    [register >> 16, register & 0xffff].map(|half| {
        let ways = match half >> 12 {
            0 => return None,
            few @ 1..=3 => Some(TlbWays::Exactly(u16::try_from(few).ok()?)),
            4 => Some(TlbWays::AtLeast(4)),
            5 => Some(TlbWays::AtLeast(6)),
            6 => Some(TlbWays::AtLeast(8)),
            8 => Some(TlbWays::AtLeast(16)),
            0xa => Some(TlbWays::AtLeast(32)),
            0xb => Some(TlbWays::AtLeast(48)),
            0xc => Some(TlbWays::AtLeast(64)),
            0xd => Some(TlbWays::AtLeast(96)),
            0xe => Some(TlbWays::AtLeast(128)),
            0xf => Some(TlbWays::Full),
            _ => None,
        };
        let entries = half & 0xfff;
        (entries > 0).then_some((entries, ways))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_255_entries_for_gigantic_pages_are_read() {
        let [data, instruction] = coded(0x6400_0000);
        assert_eq!(data, Some((1024, Some(TlbWays::AtLeast(8)))));
        assert_eq!(instruction, None);
    }

    #[test]
    fn ways_are_exact_on_the_first_level_and_a_range_behind_it() {
        assert_eq!(
            first_level(0x0648_ff40)[0],
            Some((72, Some(TlbWays::Exactly(6))))
        );
        assert_eq!(first_level(0x0648_ff40)[1], Some((64, Some(TlbWays::Full))));
        assert_eq!(
            coded(0x5c00_2200)[0],
            Some((3072, Some(TlbWays::AtLeast(6))))
        );
        assert_eq!(
            coded(0x5c00_2200)[1],
            Some((512, Some(TlbWays::Exactly(2))))
        );
        assert_eq!(
            coded(0x9800_0000)[0],
            Some((2048, None)),
            "a code that means: not told here"
        );
        assert_eq!(
            coded(0x0800_6000),
            [None, None],
            "disabled, and without entries"
        );
    }
}
