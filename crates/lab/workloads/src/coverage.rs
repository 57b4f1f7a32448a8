//! Share of a mapping that huge pages map, measured often and cheaply.

use std::fs::{self, File};

use anyhow::{Context, Result};
use rustix::io::Errno;
use superhue_model::{ByteCount, Region, VirtAddr, VirtRange};
use superhue_sys::pagemap::{PAGE_IS_HUGE, PageRegion, pagemap_scan};

use crate::memory::Mapping;

/// Meter of the huge-mapped share of one of this process's own mappings.
///
/// One entry or 512 entries map a region, so its first page answers for all of it: one `PAGEMAP_SCAN` of 4 KiB per
/// region takes less than a microsecond. It does not walk the 512 entries and does not delay collapses. Before Linux
/// 6.7 the meter reads `smaps` instead, which walks every page table of the process.
#[derive(Debug)]
pub struct CoverageMeter<'a> {
    mapping: &'a Mapping,
    pagemap: File,
}

impl<'a> CoverageMeter<'a> {
    /// Makes a meter for `mapping`.
    ///
    /// # Errors
    /// If `/proc/self/pagemap` cannot be opened.
    pub fn new(mapping: &'a Mapping) -> Result<Self> {
        let path = "/proc/self/pagemap";
        let pagemap = File::open(path).with_context(|| format!("cannot open {path}"))?;
        Ok(Self { mapping, pagemap })
    }

    /// The huge-mapped share of the mapping, 0 to 1.
    ///
    /// # Errors
    /// If the kernel supports neither way.
    pub fn share(&self) -> Result<f64> {
        let (huge, all) = self.count(u64::MAX)?;
        Ok(ratio(huge, all))
    }

    /// Returns true if the huge-mapped share is at least `share`. Stops looking once that is impossible, so the call
    /// costs next to nothing while most of the mapping is still base pages.
    ///
    /// # Errors
    /// If the kernel supports neither way.
    pub fn reaches(&self, share: f64) -> Result<bool> {
        let regions = self.mapping.range().regions().count();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a number of regions between 0 and `regions`"
        )]
        let may_miss = (regions as f64 * (1.0 - share.clamp(0.0, 1.0))) as u64;
        let (huge, all) = self.count(may_miss)?;
        Ok(ratio(huge, all) >= share)
    }

    /// The huge-mapped share of some regions of the mapping, by number; `None` before Linux 6.7, where `smaps` reports
    /// whole mappings only.
    ///
    /// # Errors
    /// If the kernel refuses `PAGEMAP_SCAN`.
    pub fn share_of(&self, regions: impl IntoIterator<Item = u32>) -> Result<Option<f64>> {
        let start = self.mapping.range().start.0;
        let (mut huge, mut all) = (0, 0);
        for number in regions {
            let address = VirtAddr(start + u64::from(number) * superhue_model::HUGE_PAGE_SIZE);
            all += 1;
            match self.is_huge(Region::containing(address)) {
                Ok(is_huge) => huge += u64::from(is_huge),
                Err(Errno::NOTTY) => return Ok(None),
                Err(error) => return Err(error).context("PAGEMAP_SCAN of own memory failed"),
            }
        }
        Ok(Some(ratio(huge, all)))
    }

    /// Counts huge-mapped regions and all regions; stops after more than `may_miss` regions of base pages.
    fn count(&self, may_miss: u64) -> Result<(u64, u64)> {
        let range = self.mapping.range();
        let all = range.regions().count() as u64;
        let (mut huge, mut missed) = (0, 0);
        for region in range.regions() {
            match self.is_huge(region) {
                Ok(true) => huge += 1,
                Ok(false) => missed += 1,
                Err(Errno::NOTTY) => return Ok((huge_by_smaps(range)?, all)),
                Err(error) => return Err(error).context("PAGEMAP_SCAN of own memory failed"),
            }
            if missed > may_miss {
                break;
            }
        }
        Ok((huge, all))
    }

    fn is_huge(&self, region: Region) -> rustix::io::Result<bool> {
        let start = region.start();
        let first_page = VirtRange {
            start,
            end: VirtAddr(start.0 + superhue_model::BASE_PAGE_SIZE),
        };
        let mut found = [PageRegion::default()];
        let (runs, _) = rustix::io::retry_on_intr(|| {
            pagemap_scan(
                &self.pagemap,
                first_page,
                PAGE_IS_HUGE,
                PAGE_IS_HUGE,
                &mut found,
            )
        })?;
        Ok(runs > 0)
    }
}

/// Huge-mapped regions of `range`, from `/proc/self/smaps`.
fn huge_by_smaps(range: VirtRange) -> Result<u64> {
    let path = "/proc/self/smaps";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let ByteCount(bytes) = crate::procfs::smaps_huge(&text, range);
    Ok(bytes >> superhue_model::HUGE_PAGE_SHIFT)
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a share of region counts below 2^23"
)]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_sys::collapse::own_collapse;

    #[test]
    fn collapsed_regions_are_counted_alike_by_scan_and_smaps() {
        let mapping = Mapping::new(ByteCount(16 << 20)).unwrap();
        mapping.fill();
        let regions: Vec<_> = mapping.range().regions().collect();
        let collapsed = regions[..4].iter().filter(|r| own_collapse(**r).is_ok());
        let collapsed = collapsed.count() as u64;
        if collapsed == 0 {
            return superhue_testing::skip("collapse", "MADV_COLLAPSE does not work here");
        }
        let meter = CoverageMeter::new(&mapping).unwrap();
        let (huge, all) = meter.count(u64::MAX).unwrap();
        assert_eq!(all, 8);
        assert!(huge >= collapsed, "{huge} huge, {collapsed} collapsed");
        assert_eq!(huge, huge_by_smaps(mapping.range()).unwrap());
        let share = meter.share().unwrap();
        if let Some(all) = meter.share_of(0..8).unwrap() {
            assert_eq!(all, share);
            let halves = [0..4, 4..8].map(|half| meter.share_of(half).unwrap().unwrap());
            assert_eq!(halves.iter().sum::<f64>(), 2.0 * share);
        }
        assert!(meter.reaches(share).unwrap());
        assert!(!meter.reaches(share + 0.01).unwrap());
    }

    #[test]
    fn untouched_memory_is_not_huge() {
        let mapping = Mapping::new(ByteCount(4 << 20)).unwrap();
        let meter = CoverageMeter::new(&mapping).unwrap();
        assert_eq!(meter.share().unwrap(), 0.0);
        assert!(!meter.reaches(0.01).unwrap());
        assert!(meter.reaches(0.0).unwrap());
    }
}
