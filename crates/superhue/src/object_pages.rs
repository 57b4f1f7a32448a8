//! Check of the pages of a shared object or a file right before a collapse: still mapped there, and in memory as the plan counted them.
//!
//! A look may be seconds old. Meanwhile the program may have mapped something else at the same address, or punched holes into the object
//! (`MADV_REMOVE`, `fallocate`), which the collapse would fill again.
//!
//! Of a mapped file only a region that is in memory in full and written to the disk may be collapsed. The kernel collapses clean pages of a file.
//! It first writes dirty pages and waits for the disk, and it reads missing pages (`collapse_file`, `collapse_single_pmd` in `mm/khugepaged.c`).
//! The program has requested neither. So Superhue asks the page cache right before each collapse (`cachestat(2)`), and where it may not ask, it
//! does not collapse files. Shared memory that it may not open it collapses as planned: page tables of one process do not show all its pages.

use superhue_act::Target;
use superhue_model::{PAGES_PER_REGION, SkipReason, VmaKind};
use superhue_procfs::process::{Mapper, cached_region, maps};
use superhue_procfs::{ReadError, Roots};

/// Returns the objection to the collapse of `target` if it is a part of an object.
pub(crate) fn objection(roots: &Roots, target: &Target) -> Option<SkipReason> {
    let object = target.object?;
    let region = target.region.range();
    let mut maps = match maps(roots, target.process.pid) {
        Ok(maps) => maps.into_iter(),
        // The collapse itself reports a process that is gone.
        Err(ReadError::Vanished { .. }) => return None,
        // What is mapped there is not known.
        Err(_) => return Some(SkipReason::Unmapped),
    };
    let vma = maps.find(|vma| vma.range.contains(&region));
    let mapper = vma.and_then(|vma| {
        Some(Mapper {
            process: target.process,
            range: vma.range,
            part: vma.kind.part()?,
            is_file: matches!(vma.kind, VmaKind::File(_)),
        })
    });
    // Something else was mapped there since the look.
    let Some(mapper) = mapper
        .filter(|mapper| mapper.part.object == object && mapper.region_at(target.region).is_some())
    else {
        return Some(SkipReason::Unmapped);
    };
    let cached = cached_region(roots, &mapper, target.region);
    let is_file = mapper.is_file;
    let growth = if is_file { 0 } else { target.growth.0 };
    match cached {
        Some(cached) if is_file && cached.unwritten.0 > 0 => Some(SkipReason::NotWritten),
        Some(cached) if cached.pages.0.saturating_add(growth) < PAGES_PER_REGION => {
            Some(SkipReason::GivenBack)
        }
        None if is_file => Some(SkipReason::NotWritten),
        Some(_) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
    use superhue_model::{HUGE_PAGE_SIZE, PageCount, Region, VirtAddr};
    use superhue_procfs::process::identify;

    use super::*;

    /// One region of a memfd, full of pages, mapped at an aligned address of this process.
    struct Mapped {
        file: File,
        start: *mut std::ffi::c_void,
        aligned: usize,
    }

    const LENGTH: usize = HUGE_PAGE_SIZE as usize;

    impl Mapped {
        fn new() -> Self {
            let file: File = memfd_create("superhue-object", MemfdFlags::CLOEXEC)
                .unwrap()
                .into();
            ftruncate(&file, HUGE_PAGE_SIZE).unwrap();
            file.write_all_at(&vec![1; LENGTH], 0).unwrap();
            let flags = MapFlags::PRIVATE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let start = unsafe {
                mmap_anonymous(std::ptr::null_mut(), 2 * LENGTH, ProtFlags::empty(), flags)
            };
            let start = start.unwrap();
            let aligned = (start as usize).next_multiple_of(LENGTH);
            let mapped = Self {
                file,
                start,
                aligned,
            };
            mapped.map_object();
            mapped
        }

        fn map_object(&self) {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let at = self.aligned as *mut _;
            // SAFETY: replaces a part of the mapping made above, which no other code uses.
            unsafe { mmap(at, LENGTH, protection, flags, &self.file, 0) }.unwrap();
        }

        fn map_private(&self) {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: as above.
            unsafe { mmap_anonymous(self.aligned as *mut _, LENGTH, protection, flags) }.unwrap();
        }

        /// A collapse that adds `growth` pages, as a look has planned it.
        fn target(&self, growth: u64) -> Target {
            let roots = Roots::default();
            let process = identify(&roots, std::process::id()).unwrap();
            let region = Region::containing(VirtAddr(self.aligned as u64));
            let maps = maps(&roots, process.pid).unwrap();
            let vma = maps
                .into_iter()
                .find(|vma| vma.range.contains(&region.range()));
            Target {
                process,
                region,
                growth: PageCount(growth),
                object: vma.unwrap().kind.part().map(|part| part.object),
            }
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: no code uses the memory any more.
            unsafe { munmap(self.start, 2 * LENGTH) }.unwrap();
        }
    }

    #[test]
    fn memory_at_the_place_of_an_object_is_not_the_object() {
        let (mapped, roots) = (Mapped::new(), Roots::default());
        let target = mapped.target(0);
        assert!(target.object.is_some());
        assert_eq!(objection(&roots, &target), None);
        mapped.map_private();
        assert_eq!(objection(&roots, &target), Some(SkipReason::Unmapped));
        mapped.map_object();
        assert_eq!(objection(&roots, &target), None);
        let of_memory = Target {
            object: None,
            ..target
        };
        assert_eq!(objection(&roots, &of_memory), None);
    }

    #[test]
    fn holes_that_were_punched_since_the_look_stay() {
        let (mapped, roots) = (Mapped::new(), Roots::default());
        let (full, sparse) = (mapped.target(0), mapped.target(2));
        assert_eq!(objection(&roots, &full), None);
        let may_open = {
            let maps = maps(&roots, std::process::id()).unwrap();
            let range = full.region.range();
            let vma = maps.iter().find(|vma| vma.range.contains(&range)).unwrap();
            std::fs::File::open(format!("/proc/self/map_files/{}", vma.range)).is_ok()
        };
        if !may_open {
            superhue_testing::skip("capabilities", "map_files needs CAP_CHECKPOINT_RESTORE");
            return;
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&mapped.file, flags, 4096, 2 * 4096).unwrap();
        assert_eq!(objection(&roots, &full), Some(SkipReason::GivenBack));
        assert_eq!(objection(&roots, &sparse), None, "they were planned");
        fallocate(&mapped.file, flags, 0, 4096).unwrap();
        assert_eq!(objection(&roots, &sparse), Some(SkipReason::GivenBack));
    }
}
