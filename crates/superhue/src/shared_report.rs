//! What a watch has to say of shared objects.

use std::collections::BTreeMap;

use serde::Serialize;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, ObjectId};

use crate::watch::KnownObject;

/// Objects that people are told of one by one, the largest first.
const SHOWN: usize = 5;

/// One shared object: a memfd, anonymous shared memory, a System V segment, a file on tmpfs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectReport {
    /// What the kernel calls it.
    pub name: String,
    /// Its device and inode.
    pub object: ObjectId,
    /// The most processes that mapped it at any look.
    pub mappers: u64,
    /// Resident memory of it, whoever mapped it.
    pub resident_bytes: ByteCount,
    /// Whether that is what the object holds; if not, it is what those mapped whose page tables were read: a lower bound.
    pub resident_is_exact: bool,
    /// By how much address and offset of a mapping disagree modulo 2 MiB, so that no superpage can map it; `None` if none is misaligned.
    pub misaligned_by_bytes: Option<u64>,
    /// What superpages map of it, by process; of up to 16 mappers.
    pub huge_mapped_bytes: BTreeMap<u32, ByteCount>,
    /// Page tables that these processes need less because of that.
    pub page_tables_saved_bytes: ByteCount,
    /// Regions that were collapsed.
    pub collapsed: u64,
    /// What that added: holes that were filled.
    pub growth_bytes: ByteCount,
}

/// The objects that ever had a superpage's worth of memory, largest first.
pub(crate) fn objects_report(known: &BTreeMap<ObjectId, KnownObject>) -> Vec<ObjectReport> {
    let mut reports: Vec<ObjectReport> = known.iter().filter_map(report).collect();
    reports.sort_by_key(|report| (std::cmp::Reverse(report.resident_bytes), report.object));
    reports
}

fn report((&object, known): (&ObjectId, &KnownObject)) -> Option<ObjectReport> {
    let look = known.last.as_ref()?;
    let resident = look.view.resident;
    let mut huge = BTreeMap::new();
    for (process, bytes) in &look.huge_mapped {
        *huge.entry(process.pid).or_default() += *bytes;
    }
    let all: ByteCount = huge.values().copied().sum();
    (resident.0 >= HUGE_PAGE_SIZE).then(|| ObjectReport {
        name: known.name.clone(),
        object,
        mappers: known.most_mappers as u64,
        resident_bytes: resident,
        resident_is_exact: look.is_exact,
        misaligned_by_bytes: known.misaligned_by,
        huge_mapped_bytes: huge,
        // One entry in the table above instead of a table of 512.
        page_tables_saved_bytes: ByteCount(all.0 / HUGE_PAGE_SIZE * BASE_PAGE_SIZE),
        collapsed: known.collapsed,
        growth_bytes: known.growth.bytes(),
    })
}

/// A line for each of the largest, and one for the others.
pub(crate) fn object_lines(objects: &[ObjectReport]) -> Vec<String> {
    let (shown, rest) = objects.split_at(objects.len().min(SHOWN));
    let mut lines: Vec<String> = shown.iter().map(ObjectReport::line).collect();
    if !rest.is_empty() {
        let bytes: ByteCount = rest.iter().map(|object| object.resident_bytes).sum();
        lines.push(format!("shared: {} more objects, {bytes}", rest.len()));
    }
    lines
}

impl ObjectReport {
    fn line(&self) -> String {
        let most = self.huge_mapped_bytes.values().max().copied();
        let mut line = format!(
            "shared: {}: {} resident, mapped by {}; superpages map at most {}",
            self.name,
            self.resident_bytes,
            self.mappers,
            most.unwrap_or_default()
        );
        if self.page_tables_saved_bytes.0 > 0 {
            line += &format!("; page tables: {} less", self.page_tables_saved_bytes);
        }
        if self.growth_bytes.0 > 0 {
            line += &format!("; it grew by {}", self.growth_bytes);
        }
        if let Some(by) = self.misaligned_by_bytes {
            line += &format!(
                "; misaligned by {by:#x}: no superpage can map it there. Start the program while shmem_enabled is `advise` \
                 (superhue run --system shmem_enabled=advise), or have it ask for huge pages by itself"
            );
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(resident: u64, off: Option<u64>) -> ObjectReport {
        ObjectReport {
            name: "/memfd:x (deleted)".to_owned(),
            object: ObjectId {
                device: (0, 1),
                inode: resident,
            },
            mappers: 3,
            resident_bytes: ByteCount(resident),
            resident_is_exact: true,
            misaligned_by_bytes: off,
            huge_mapped_bytes: BTreeMap::from([(1, ByteCount(2 << 20)), (2, ByteCount(4 << 20))]),
            page_tables_saved_bytes: ByteCount(3 * 4096),
            collapsed: 2,
            growth_bytes: ByteCount(0),
        }
    }

    #[test]
    fn the_largest_are_shown_and_the_others_summed_up() {
        let objects: Vec<_> = (0..7).map(|_| object(4 << 20, None)).collect();
        let lines = object_lines(&objects);
        assert_eq!(
            lines[0],
            "shared: /memfd:x (deleted): 4.0 MiB resident, mapped by 3; superpages map at most 4.0 MiB; page tables: 12 KiB less"
        );
        assert_eq!(
            lines[5],
            format!("shared: 2 more objects, {}", ByteCount(8 << 20))
        );
        let off = object(4 << 20, Some(0x16_f000)).line();
        assert!(off.contains("misaligned by 0x16f000"), "{off}");
        assert_eq!(object_lines(&[]), [""; 0]);
    }
}
