//! The part of each VMA that huge pages can fill, and spans that cover many VMAs with few calls.

use superhue_model::{BASE_PAGE_SIZE, PAGES_PER_REGION, VirtRange, Vma};

/// Maximum number of unwanted bytes that a walk crosses instead of stopping: walking the page-table entries
/// of one region takes about as long as entering the kernel again.
const BRIDGE: u64 = PAGES_PER_REGION * BASE_PAGE_SIZE;

/// Returns the whole regions inside `vma`, if it is promotable and has any.
///
/// ```text
///   VMA      |-------------------------------------|
///   regions  :    |          |          |          |    :
///   window        |================================|
/// ```
pub(super) fn window(vma: &Vma) -> Option<VirtRange> {
    if !vma.is_promotable() {
        return None;
    }
    let mut regions = vma.range.regions();
    let first = regions.next()?;
    let last = regions.next_back().unwrap_or(first);
    VirtRange::new(first.start(), last.range().end)
}

/// Windows walked in one call, and the range that holds all of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) range: VirtRange,
    pub(super) windows: Vec<VirtRange>,
}

/// Groups the windows of `vmas` into spans.
///
/// Unmapped space between two windows costs a walk nothing. Mapped memory that is not wanted
/// costs time, because the kernel reads and reports its pages. A walk crosses up to [`BRIDGE`] bytes of it: guard
/// pages, unaligned heads and tails, small VMAs. Beyond that a new walk begins behind it.
pub(super) fn spans(vmas: &[Vma]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut unwanted = 0_u64;
    for vma in vmas {
        let Some(window) = window(vma) else {
            unwanted = unwanted.saturating_add(vma.range.len().0);
            continue;
        };
        let head = window.start.0 - vma.range.start.0;
        let tail = vma.range.end.0 - window.end.0;
        match spans.last_mut() {
            Some(span) if unwanted.saturating_add(head) <= BRIDGE => {
                span.range.end = window.end;
                span.windows.push(window);
            }
            _ => spans.push(Span {
                range: window,
                windows: vec![window],
            }),
        }
        unwanted = tail;
    }
    spans
}

#[cfg(test)]
mod tests {
    use superhue_model::{VirtAddr, VmaKind};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn vma(start: u64, end: u64, kind: VmaKind) -> Vma {
        Vma {
            range: VirtRange::new(VirtAddr(start), VirtAddr(end)).unwrap(),
            kind,
            writable: true,
        }
    }

    fn ranges(vmas: &[Vma]) -> Vec<(u64, u64, usize)> {
        spans(vmas)
            .iter()
            .map(|span| {
                (
                    span.range.start.0 / MIB,
                    span.range.end.0 / MIB,
                    span.windows.len(),
                )
            })
            .collect()
    }

    #[test]
    fn a_window_holds_whole_regions_only() {
        let at = |start, end| {
            window(&vma(start, end, VmaKind::Anonymous))
                .map(|window| (window.start.0 / MIB, window.end.0 / MIB))
        };
        assert_eq!(at(MIB, 9 * MIB), Some((2, 8)));
        assert_eq!(at(2 * MIB, 4 * MIB), Some((2, 4)));
        assert_eq!(at(2 * MIB + 4096, 6 * MIB - 4096), None);
        assert_eq!(window(&vma(0, 8 * MIB, VmaKind::Stack)), None);
    }

    #[test]
    fn a_guard_page_is_crossed_and_a_big_file_is_not() {
        use VmaKind::{Anonymous, Shared};
        let guarded = [
            vma(2 * MIB, 4 * MIB, Anonymous),
            vma(4 * MIB, 4 * MIB + 4096, Shared),
            vma(4 * MIB + 4096, 8 * MIB, Anonymous),
        ];
        assert_eq!(ranges(&guarded), [(2, 8, 2)]);

        let divided = [
            vma(2 * MIB, 4 * MIB, Anonymous),
            vma(4 * MIB, 8 * MIB, Shared),
            vma(8 * MIB, 10 * MIB, Anonymous),
        ];
        assert_eq!(ranges(&divided), [(2, 4, 1), (8, 10, 1)]);
    }

    #[test]
    fn a_hole_is_crossed_however_large() {
        let far = [
            vma(2 * MIB, 4 * MIB, VmaKind::Heap),
            vma(1 << 46, (1 << 46) + 2 * MIB, VmaKind::Anonymous),
        ];
        assert_eq!(ranges(&far), [(2, (1 << 26) + 2, 2)]);
        assert_eq!(spans(&[]), []);
    }

    #[test]
    fn heads_and_tails_count_as_unwanted() {
        // 1 MiB + tail 1 MiB + head 1 MiB = more than one region between the windows.
        let vmas = [
            vma(2 * MIB, 5 * MIB, VmaKind::Anonymous),
            vma(5 * MIB, 6 * MIB, VmaKind::Shared),
            vma(7 * MIB, 10 * MIB, VmaKind::Anonymous),
        ];
        assert_eq!(ranges(&vmas), [(2, 4, 1), (8, 10, 1)]);
        // With one less a single walk covers both.
        let vmas = [
            vma(2 * MIB, 5 * MIB, VmaKind::Anonymous),
            vma(7 * MIB, 10 * MIB, VmaKind::Anonymous),
        ];
        assert_eq!(ranges(&vmas), [(2, 10, 2)]);
    }
}
