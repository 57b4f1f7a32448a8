//! The part of a watch's report about shared objects.

use std::collections::BTreeMap;

use serde::Serialize;
use superhue_model::{ByteCount, HUGE_PAGE_SIZE, ObjectId, counted};

use crate::objects::SharedObject;
use crate::watch::KnownObject;
use crate::why::{Backing, how_to_align};

/// Objects that the lines for people list one by one, the largest first.
const SHOWN: usize = 5;

/// One shared object as of the last look at it; `mappers` is the most that it had at any look.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectReport {
    /// The object.
    #[serde(flatten)]
    pub object: SharedObject,
    /// Regions that were collapsed.
    pub collapsed: u64,
    /// Memory that collapses added: holes that they filled.
    pub growth_bytes: ByteCount,
}

/// Returns the objects whose last look showed at least a huge page's worth of memory, largest first.
pub(crate) fn objects_report(known: &BTreeMap<ObjectId, KnownObject>) -> Vec<ObjectReport> {
    let mut reports: Vec<ObjectReport> = known.values().filter_map(report).collect();
    reports.sort_by_key(|report| {
        let object = &report.object;
        (std::cmp::Reverse(object.resident_bytes), object.object)
    });
    reports
}

fn report(known: &KnownObject) -> Option<ObjectReport> {
    let look = known.last.as_ref()?;
    let is_large = look.view.resident.0 >= HUGE_PAGE_SIZE;
    is_large.then(|| ObjectReport {
        object: SharedObject::of(&known.name, known.most_mappers, known.misaligned_by, look),
        collapsed: known.collapsed,
        growth_bytes: known.growth.bytes(),
    })
}

/// Returns a line for each of the largest, and one for the rest.
pub(crate) fn object_lines(objects: &[ObjectReport]) -> Vec<String> {
    let (shown, rest) = objects.split_at(objects.len().min(SHOWN));
    let mut lines: Vec<String> = shown.iter().map(ObjectReport::line).collect();
    if !rest.is_empty() {
        let bytes: ByteCount = rest.iter().map(|it| it.object.resident_bytes).sum();
        let more = counted(rest.len() as u64, "more object");
        lines.push(format!("shared: {more}, {bytes}"));
    }
    lines
}

impl ObjectReport {
    fn line(&self) -> String {
        let object = &self.object;
        let mut line = format!(
            "shared: {}: {} resident, mapped by {}; huge pages map at most {}",
            object.name,
            object.resident_bytes,
            object.mappers,
            object.most_huge_mapped()
        );
        if object.page_tables_saved_bytes.0 > 0 {
            line += &format!("; page tables: {} less", object.page_tables_saved_bytes);
        }
        if self.growth_bytes.0 > 0 {
            line += &format!("; it grew by {}", self.growth_bytes);
        }
        if let Some(by) = object.misaligned_by_bytes {
            let how = how_to_align(Backing::of_object(&object.name));
            line += &format!(
                "; misaligned by {by:#x}: no huge page can map it there. To align it, {how}"
            );
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(resident: u64, off: Option<u64>) -> ObjectReport {
        let object = SharedObject {
            is_file: false,
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
        };
        ObjectReport {
            object,
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
            "shared: /memfd:x (deleted): 4.0 MiB resident, mapped by 3; huge pages map at most 4.0 MiB; page tables: 12 KiB less"
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
