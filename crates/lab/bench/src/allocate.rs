//! Allocation of a buffer, placed by an arm.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, ColorSet, HUGE_PAGE_SIZE, VirtAddr, VirtRange};
use superhue_sys::collapse::own_collapse;

use crate::BenchError;
use crate::arm::Arm;
use crate::buffer::Buffer;
use crate::painter::{FillCounts, Painter};

/// Allocates `size` bytes, all resident, placed by `arm`.
///
/// ```text
///              0           2 MiB        4 MiB
///   kernel     |....................|               base pages as dealt
///   superpage  |===========|===========|            huge pages, the last one larger than needed
///   colored    |0123456789012345678|                base pages, each of the next color
///   both       |===========|0123456|                whole regions, and the rest
/// ```
///
/// # Errors
/// If there is no memory, no huge page at all, or no page of any color.
pub fn allocate(
    arm: Arm,
    size: ByteCount,
    painter: Option<&mut (dyn Painter + '_)>,
    rng: &mut Xoshiro256PlusPlus,
) -> Result<(Buffer, FillCounts), BenchError> {
    let mut buffer =
        Buffer::new(size).map_err(|error| BenchError::during("cannot map a buffer", error))?;
    let mut filled = FillCounts::default();
    let (range, mapped) = (buffer.range(), buffer.mapped());
    let huge = match arm {
        Arm::Kernel | Arm::Colored => 0,
        Arm::Superpage => mapped.len().0,
        Arm::Both => range.len().0 / HUGE_PAGE_SIZE * HUGE_PAGE_SIZE,
    };
    let border = VirtAddr(mapped.start.0 + huge);
    let (above, below) = (
        VirtRange {
            start: mapped.start,
            end: border,
        },
        VirtRange {
            start: border,
            end: mapped.end,
        },
    );
    // The kernel may lack huge pages altogether: then there is nothing to forbid.
    if !below.is_empty() {
        let _ = buffer.advise_superpages(below, false);
    }
    if !above.is_empty() {
        filled.superpages = superpages(&mut buffer, above)?;
    }
    if arm.is_colored() && border < range.end {
        let painter = painter.ok_or_else(|| {
            BenchError(
                "no oracle finds page colors here; `superhue colors` shows the reasons".to_owned(),
            )
        })?;
        let all = ColorSet::all(painter.colors());
        let rest = VirtRange {
            start: border,
            end: range.end,
        };
        filled.add(&painter.fill(rest, &all, rng.random_range(0..all.colors()))?);
    }
    buffer.touch();
    filled.dealt =
        (range.len().0.saturating_sub(huge) / BASE_PAGE_SIZE).saturating_sub(filled.placed);
    Ok((buffer, filled))
}

/// Allocates `size` bytes of base pages whose colors are those of `set` in turn. If `shuffled`, each page has a random
/// one of all colors: this uses as many pages of the same pool and partitions nothing.
///
/// # Errors
/// If there is no memory or no page of these colors.
pub fn allocate_set(
    size: ByteCount,
    set: &ColorSet,
    shuffled: bool,
    painter: &mut dyn Painter,
    rng: &mut Xoshiro256PlusPlus,
) -> Result<(Buffer, FillCounts), BenchError> {
    let mut buffer =
        Buffer::new(size).map_err(|error| BenchError::during("cannot map a buffer", error))?;
    let (range, mapped) = (buffer.range(), buffer.mapped());
    let _ = buffer.advise_superpages(mapped, false);
    let filled = if shuffled {
        let all = ColorSet::all(painter.colors());
        let mut filled = FillCounts::default();
        let mut start = range.start;
        while start < range.end {
            let end = VirtAddr(start.0 + BASE_PAGE_SIZE);
            let page = VirtRange { start, end };
            filled.add(&painter.fill(page, &all, rng.random_range(0..all.colors()))?);
            start = end;
        }
        filled
    } else {
        painter.fill(range, set, rng.random_range(0..set.len()))?
    };
    buffer.touch();
    Ok((buffer, filled))
}

/// Backs `range`, whole regions, with huge pages, and counts them. The fault handler gives them where it has free ones;
/// a collapse asks again for the others. Fails unless all are huge: the figures would be those of a mixture.
fn superpages(buffer: &mut Buffer, range: VirtRange) -> Result<u64, BenchError> {
    let lacking = |error| BenchError::during("no huge pages", error);
    buffer.advise_superpages(range, true).map_err(lacking)?;
    buffer.populate(range).map_err(lacking)?;
    let mut count = 0;
    for region in range.regions() {
        // The call succeeds at once for a region that is a huge page already.
        own_collapse(region).map_err(|error| {
            BenchError::during(&format!("no huge pages after the first {count}"), error)
        })?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    /// Leaves every page to the kernel and records the requests.
    struct Pretender(Vec<(u64, usize)>);

    impl Painter for Pretender {
        fn colors(&self) -> usize {
            8
        }

        fn oracle(&self) -> String {
            "pretended".to_owned()
        }

        fn fill(
            &mut self,
            range: VirtRange,
            set: &ColorSet,
            start: usize,
        ) -> Result<FillCounts, BenchError> {
            assert!(start < set.len());
            let placed = range.len().0 / BASE_PAGE_SIZE;
            self.0.push((placed, set.len()));
            Ok(FillCounts {
                placed,
                ..FillCounts::default()
            })
        }
    }

    fn rng() -> Xoshiro256PlusPlus {
        Xoshiro256PlusPlus::seed_from_u64(1)
    }

    #[test]
    fn the_rest_beyond_whole_regions_is_colored() {
        let mut painter = Pretender(Vec::new());
        let size = ByteCount(HUGE_PAGE_SIZE + 3 * BASE_PAGE_SIZE);
        match allocate(Arm::Both, size, Some(&mut painter), &mut rng()) {
            Ok((_, filled)) => {
                assert_eq!((filled.placed, filled.superpages, filled.dealt), (3, 1, 0));
                assert_eq!(painter.0, [(3, 8)]);
            }
            Err(trouble) => superhue_testing::skip("superpages", &trouble.to_string()),
        }
        let small = ByteCount(5 * BASE_PAGE_SIZE);
        painter.0.clear();
        let (_, filled) = allocate(Arm::Both, small, Some(&mut painter), &mut rng()).unwrap();
        assert_eq!((filled.placed, filled.superpages), (5, 0));
        let (_, filled) = allocate(Arm::Kernel, small, None, &mut rng()).unwrap();
        assert_eq!((filled.placed, filled.dealt), (0, 5));
        assert!(allocate(Arm::Colored, small, None, &mut rng()).is_err());
    }

    #[test]
    fn a_shuffled_set_takes_each_page_from_all_colors() {
        let mut painter = Pretender(Vec::new());
        let half = "50%".parse::<superhue_model::ColorRequest>().unwrap();
        let half = half.of(8).unwrap().unwrap();
        let size = ByteCount(4 * BASE_PAGE_SIZE);
        let (_, filled) = allocate_set(size, &half, true, &mut painter, &mut rng()).unwrap();
        assert_eq!(filled.placed, 4);
        assert_eq!(painter.0, [(1, 8); 4]);
        painter.0.clear();
        allocate_set(size, &half, false, &mut painter, &mut rng()).unwrap();
        assert_eq!(painter.0, [(4, 4)]);
    }
}
