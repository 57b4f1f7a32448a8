//! Shared objects: their mappers, and the huge pages that map them.

use std::collections::BTreeMap;

use serde::Serialize;
use superhue_model::{
    BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, ObjectId, ObjectPart, ProcessId, Vma, VmaKind,
};
use superhue_procfs::process::{
    MAPPERS_READ, Mapper, ObjectLook, all, identify, maps, named_maps, object_view,
};
use superhue_procfs::{ReadError, Roots};

/// Mappers whose maps are read for the name of an object.
const ASKED_FOR_NAME: usize = 4;

/// A shared object: a memfd, anonymous shared memory, a System V segment, a file on tmpfs; or a mapped file on a local disk, where the kernel
/// makes huge pages of files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SharedObject {
    /// Name that the kernel shows for it.
    pub name: String,
    /// Device and inode of the object.
    pub object: ObjectId,
    /// Processes that map it.
    pub mappers: u64,
    /// True for a file on a disk, whose pages are cached.
    pub is_file: bool,
    /// Resident memory of it, mapped by any process.
    pub resident_bytes: ByteCount,
    /// True if `resident_bytes` is all that the object holds; otherwise it is a lower bound, from the page tables of the mappers that were read.
    pub resident_is_exact: bool,
    /// Distance of a mapping's address from its offset modulo 2 MiB, so that no huge page can map it; `None` if no mapping is misaligned.
    pub misaligned_by_bytes: Option<u64>,
    /// Bytes of it that huge pages map, by process; of up to 16 mappers.
    pub huge_mapped_bytes: BTreeMap<u32, ByteCount>,
    /// Page tables that these processes save by that.
    pub page_tables_saved_bytes: ByteCount,
}

impl SharedObject {
    pub(crate) fn of(
        name: &str,
        mappers: usize,
        misaligned_by: Option<u64>,
        look: &ObjectLook,
    ) -> Self {
        let mut huge = BTreeMap::new();
        for (process, bytes) in &look.huge_mapped {
            *huge.entry(process.pid).or_default() += *bytes;
        }
        let all: ByteCount = huge.values().copied().sum();
        Self {
            name: name.to_owned(),
            object: look.view.id,
            mappers: mappers as u64,
            is_file: look.view.is_file,
            resident_bytes: look.view.resident,
            resident_is_exact: look.is_exact,
            misaligned_by_bytes: misaligned_by,
            huge_mapped_bytes: huge,
            // A huge page takes one entry in the table above instead of a table of 512 entries.
            page_tables_saved_bytes: ByteCount(all.0 / HUGE_PAGE_SIZE * BASE_PAGE_SIZE),
        }
    }

    /// Returns the most bytes of it that huge pages map in any one process.
    #[must_use]
    pub fn most_huge_mapped(&self) -> ByteCount {
        let most = self.huge_mapped_bytes.values().max();
        most.copied().unwrap_or_default()
    }
}

/// Returns the mappers of each object, for mappings that are at least as large as a huge page.
pub(crate) fn mappers_by_object<'a>(
    processes: impl Iterator<Item = (ProcessId, &'a [Vma])>,
) -> BTreeMap<ObjectId, Vec<Mapper>> {
    let mut found: BTreeMap<ObjectId, Vec<Mapper>> = BTreeMap::new();
    for (process, vmas) in processes {
        for vma in vmas {
            if let Some(part) = vma.kind.part()
                && is_large_object(vma)
            {
                found.entry(part.object).or_default().push(Mapper {
                    process,
                    range: vma.range,
                    part,
                    is_file: matches!(vma.kind, VmaKind::File(_)),
                });
            }
        }
    }
    found
}

/// Returns true for a mapping of a shared object or a file that is at least as large as a huge page.
fn is_large_object(vma: &Vma) -> bool {
    vma.kind.part().is_some() && vma.range.len().0 >= HUGE_PAGE_SIZE
}

/// Returns the number of processes of these mappings, which are sorted by process.
pub(crate) fn processes_of(mappers: &[Mapper]) -> usize {
    let mut processes: Vec<ProcessId> = mappers.iter().map(|it| it.process).collect();
    processes.dedup();
    processes.len()
}

/// Returns the misalignment of the first misaligned mapping.
pub(crate) fn misaligned_by(mappers: &[Mapper]) -> Option<u64> {
    let off = |it: &Mapper| it.part.misaligned_by(it.range.start);
    mappers.iter().map(off).find(|&by| by != 0)
}

/// Returns the kernel's name for an object, from the first of a few mappers whose maps can be read.
pub(crate) fn name_of(roots: &Roots, mappers: &[Mapper]) -> String {
    let name = mappers.iter().take(ASKED_FOR_NAME).find_map(|mapper| {
        let maps = named_maps(roots, mapper.process.pid).ok()?;
        let is_it = |part: ObjectPart| part.object == mapper.part.object;
        let vma = maps
            .into_iter()
            .find(|named| named.vma.kind.part().is_some_and(is_it))?;
        vma.name
    });
    name.unwrap_or_else(|| "unnamed".to_owned())
}

/// Returns the shared objects that processes map, largest first, each with all its mappers; only objects of `pids` if any is named.
///
/// Leaves out objects and mappings smaller than a huge page, and processes that the caller may not inspect: each takes ptrace read access.
///
/// # Errors
/// The list of processes itself cannot be read.
pub fn shared_objects(roots: &Roots, pids: &[u32]) -> Result<Vec<SharedObject>, ReadError> {
    let maps_some = |pid: &u32| {
        let vmas = maps(roots, *pid).unwrap_or_default();
        vmas.iter().any(is_large_object)
    };
    // Without such a mapping there is no reason to read the maps of all processes.
    if !pids.is_empty() && !pids.iter().any(maps_some) {
        return Ok(Vec::new());
    }
    let mut processes = Vec::new();
    for pid in all(roots)? {
        if let (Ok(id), Ok(vmas)) = (identify(roots, pid), maps(roots, pid)) {
            processes.push((id, vmas));
        }
    }
    processes.sort_by_key(|(id, _)| *id);
    let found = mappers_by_object(processes.iter().map(|(id, vmas)| (*id, vmas.as_slice())));
    let wanted = |mappers: &Vec<Mapper>| {
        pids.is_empty() || mappers.iter().any(|it| pids.contains(&it.process.pid))
    };
    let objects = found.into_iter().filter(|(_, mappers)| wanted(mappers));
    let objects = objects.filter_map(|(id, mappers)| {
        let look = object_view(roots, id, &mappers, MAPPERS_READ).ok()?;
        let is_large = look.view.resident.0 >= HUGE_PAGE_SIZE;
        is_large.then(|| {
            let (count, off) = (processes_of(&mappers), misaligned_by(&mappers));
            SharedObject::of(&name_of(roots, &mappers), count, off, &look)
        })
    });
    let mut objects: Vec<SharedObject> = objects.collect();
    objects.sort_by_key(|shown| (std::cmp::Reverse(shown.resident_bytes), shown.object));
    Ok(objects)
}
