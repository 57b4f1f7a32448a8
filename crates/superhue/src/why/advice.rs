//! Advice to the user for each reason, as pure functions.

use superhue_procfs::system::thp::{ShmemMode, ThpMode};

use super::{Backing, Machine, Reason};

/// Returns advice about memory that is not huge for this reason, in process `pid`.
pub(super) fn advice(reason: Reason, backing: Backing, pid: u32, machine: &Machine) -> String {
    let fixed = match reason {
        Reason::Hugetlb => "nothing to do: these pages are huge already",
        Reason::Special => "nothing: no huge page can map it",
        Reason::NotWhole => {
            "map memory in larger pieces: start and end at multiples of 2 MiB \
             (aligned_alloc, an allocator with huge arenas)"
        }
        Reason::Misaligned => how_to_align(backing),
        Reason::File => {
            "a file is huge if it was read so into the page cache: on a file system with large folios (XFS, ext4 since Linux 6.16) \
             the program calls madvise(MADV_HUGEPAGE) after mmap and before its first use, with the file out of the cache by then \
             (posix_fadvise(POSIX_FADV_DONTNEED)); or it is copied to a file in /dev/shm"
        }
        Reason::Stack => "nothing: its mapping moves while it grows",
        Reason::ReadOnly => {
            "superhue leaves it alone (guard pages, sealed code); the program can call \
             MADV_COLLAPSE itself"
        }
        Reason::Forbidden => {
            "madvise(MADV_NOHUGEPAGE): look for an option of the program or its allocator. For the stacks of threads \
             the kernel sets it itself (Linux 6.7): nothing to do there"
        }
        Reason::Disabled => {
            "start it without PR_SET_THP_DISABLE: a parent process or a service manager may have \
             set it, and so does `superhue run --pages never`"
        }
        Reason::Userfaultfd => {
            "it is possible when the process that watches the memory has unregistered it (live migration, \
             snapshots, a garbage collector)"
        }
        Reason::Interleaved => {
            "superhue leaves it alone, for the kernel puts a huge page on one node; huge pages from the first touch keep taking turns by 2 MiB \
             (madvise(MADV_HUGEPAGE) by the program, or --system enabled=always)"
        }
        Reason::Guarded => {
            "nothing: the guard pages would be lost (MADV_GUARD_INSTALL); an allocator that sets fewer of them, or larger \
             chunks between them, leaves whole 2 MiB"
        }
        Reason::Merged => {
            "superhue leaves it alone, for a copy takes back what merging saved; memory that is accessed often need not be merged \
             (MADV_UNMERGEABLE by the program, or the settings of ksmtuned)"
        }
        Reason::FreedLazily => {
            "nothing: the program has given these pages back, and the kernel takes them when memory is short; a collapse would \
             keep them"
        }
        Reason::NoRoom => {
            "raise the limit of its control group (memory.max), or let it use less: a huge page takes 2 MiB for a moment before the \
             pages that it replaces are given back"
        }
        Reason::CopyOnWrite => {
            "superhue leaves it alone, for others keep the old pages; it is free when they have \
             ended or written, so fill such memory after the fork"
        }
        Reason::NotCached => {
            "read the file once, in order (cat FILE >/dev/null): superhue makes huge pages of what is in memory and written to the disk"
        }
        Reason::Sparse if backing.is_shared_memory() => {
            "this process has touched few of its pages; superhue goes by what all who map it have touched"
        }
        Reason::Sparse => {
            return format!(
                "a lower threshold takes it and pays the growth: `superhue attach --pages resident \
                 --min-resident PERCENT {pid}`; whether it is accessed tells `superhue heat {pid}`"
            );
        }
        Reason::Swapped => {
            "give the machine more free memory; the pages come back when the program touches them"
        }
        Reason::Possible => return possible(backing, pid, machine),
    };
    fixed.to_owned()
}

/// Returns the way to make address and offset of a mapping agree.
pub(crate) const fn how_to_align(backing: Backing) -> &'static str {
    match backing {
        Backing::SharedMemory => {
            "start the program while shmem_enabled is `advise` (superhue run --system \
             shmem_enabled=advise): the kernel then aligns such mappings; or use the program's own \
             huge page setting"
        }
        Backing::Tmpfs => {
            "mount the tmpfs with huge=advise before the program starts (mount -o \
             remount,huge=advise /dev/shm): the kernel then aligns such mappings; or use the \
             program's own huge page setting"
        }
        _ => {
            "address and offset must agree modulo 2 MiB: for a program's text, link it with -Wl,-z,\
             max-page-size=0x200000, on a file system with large folios"
        }
    }
}

fn possible(backing: Backing, pid: u32, machine: &Machine) -> String {
    let mut text = if backing.is_shared_memory() {
        shared(backing, pid, machine)
    } else {
        let kernel = match machine.enabled {
            Some(ThpMode::Always) => "the kernel makes it huge in its own time (khugepaged)",
            Some(ThpMode::Madvise) => {
                "the kernel makes only huge what the program marks (enabled=madvise)"
            }
            Some(ThpMode::Never) => "the kernel makes nothing huge by itself (enabled=never)",
            None => "what the kernel does by itself is not known",
        };
        format!(
            "run `superhue attach {pid}`; {kernel}; whether it is accessed tells `superhue heat {pid}`"
        )
    };
    if machine.free_huge_pages == Some(0) {
        text += "; no 2 MiB block is free: free memory, or have it compacted \
                 (echo 1 > /proc/sys/vm/compact_memory, as root)";
    }
    text
}

fn shared(backing: Backing, pid: u32, machine: &Machine) -> String {
    let setting = match (backing, machine.shmem_enabled) {
        (_, Some(ShmemMode::Deny)) => {
            return "no shared memory may be huge (shmem_enabled=deny): set \
                    /sys/kernel/mm/transparent_hugepage/shmem_enabled to advise, as root"
                .to_owned();
        }
        (Backing::Tmpfs, _) => "the tmpfs's mount option huge= decides what the kernel makes huge",
        (_, Some(ShmemMode::Never)) => {
            "the kernel makes no shared memory huge by itself (shmem_enabled=never)"
        }
        (_, Some(ShmemMode::Advise)) => {
            "the kernel makes only huge what the program marks (shmem_enabled=advise)"
        }
        (_, Some(_)) => "the kernel makes new shared memory huge (shmem_enabled)",
        (_, None) => "what the kernel does by itself is not known",
    };
    format!("run `superhue attach {pid}`; {setting}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_advice_and_what_could_be_huge_says_what_is_missing() {
        let machine = Machine {
            enabled: Some(ThpMode::Never),
            shmem_enabled: Some(ShmemMode::Never),
            free_huge_pages: Some(0),
            khugepaged: None,
            unknown_because: Vec::new(),
        };
        for reason in Reason::ALL {
            let text = advice(reason, Backing::Anonymous, 7, &machine);
            assert!(!text.is_empty() && !text.contains('\n') && !text.contains("  "));
        }
        let text = advice(Reason::Possible, Backing::Anonymous, 7, &machine);
        for words in ["superhue attach 7", "enabled=never", "compact_memory"] {
            assert!(text.contains(words), "{text}");
        }
        let text = advice(Reason::Possible, Backing::SharedMemory, 7, &machine);
        assert!(text.contains("shmem_enabled=never") && text.contains("attach"));
        let deny = Machine {
            shmem_enabled: Some(ShmemMode::Deny),
            ..machine.clone()
        };
        let text = advice(Reason::Possible, Backing::Tmpfs, 7, &deny);
        assert!(text.contains("shmem_enabled=deny"), "{text}");
        let text = advice(Reason::Sparse, Backing::Tmpfs, 7, &machine);
        assert!(!text.contains("attach"), "{text}");
        let text = advice(Reason::Misaligned, Backing::Tmpfs, 7, &machine);
        assert!(text.contains("huge=advise"), "{text}");
    }
}
