//! The `VmFlags` line of `/proc/PID/smaps`: properties of a VMA, in two letters each.

use std::fmt;

/// Flags of a VMA that affect operations on its pages.
///
/// Source: `show_smap_vma_flags` in `fs/proc/task_mmu.c`, `Documentation/filesystems/proc.rst`.
/// Other flags (permissions, accounting) are left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VmFlags(u32);

macro_rules! flags {
    ($($(#[$meta:meta])* $name:ident = $bit:literal, $letters:literal;)*) => {
        impl VmFlags {
            $($(#[$meta])* pub const $name: Self = Self(1 << $bit);)*

            /// Table of every flag with the kernel's two letters.
            const TABLE: &[(Self, &str)] = &[$((Self::$name, $letters)),*];
        }
    };
}

flags! {
    /// `hg`: the program requested huge pages here (`MADV_HUGEPAGE`).
    HUGEPAGE = 0, "hg";
    /// `nh`: the program forbade huge pages here (`MADV_NOHUGEPAGE`).
    NO_HUGEPAGE = 1, "nh";
    /// `ht`: hugetlbfs; its pages are huge from the start and are not swapped or collapsed.
    HUGETLB = 2, "ht";
    /// `io`: device memory.
    IO = 3, "io";
    /// `pf`: page frames mapped directly, without `struct page`.
    PFN_MAP = 4, "pf";
    /// `mm`: such frames among ordinary pages.
    MIXED_MAP = 5, "mm";
    /// `lo`: locked (`mlock(2)`).
    LOCKED = 6, "lo";
    /// `de`: cannot grow by `mremap(2)`.
    DONT_EXPAND = 7, "de";
    /// `dc`: not inherited by `fork(2)` (`MADV_DONTFORK`).
    DONT_COPY = 8, "dc";
    /// `gd`: grows downwards: a stack.
    GROWS_DOWN = 9, "gd";
    /// `mg`: pages may be merged with equal ones (KSM).
    MERGEABLE = 10, "mg";
    /// `um`: userfaultfd receives faults on missing pages.
    UFFD_MISSING = 11, "um";
    /// `uw`: userfaultfd receives writes to protected pages.
    UFFD_WRITE = 12, "uw";
    /// `ss`: shadow stack.
    SHADOW_STACK = 13, "ss";
    /// `sl`: sealed (`mseal(2)`).
    SEALED = 14, "sl";
    /// `ui`: userfaultfd receives faults on pages that are in the page cache and not mapped by this VMA.
    UFFD_MINOR = 15, "ui";
    /// `gu`: guard pages may lie in the VMA (`MADV_GUARD_INSTALL`, Linux 6.15 shows it).
    GUARD = 16, "gu";
}

impl VmFlags {
    /// Flags of memory that a userfaultfd watches.
    pub const USERFAULTFD: Self = Self::UFFD_MISSING
        .union(Self::UFFD_WRITE)
        .union(Self::UFFD_MINOR);

    /// Returns true if every flag of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if any flag of `other` is set.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the flags of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Parses the letters; skips unknown ones.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut flags = Self::default();
        for letters in text.split(|&byte| byte == b' ') {
            for (flag, name) in Self::TABLE {
                if letters == name.as_bytes() {
                    flags.0 |= flag.0;
                }
            }
        }
        flags
    }
}

impl fmt::Display for VmFlags {
    /// Writes the letters, separated by blanks.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (flag, name) in Self::TABLE {
            if self.contains(*flag) {
                write!(f, "{separator}{name}")?;
                separator = " ";
            }
        }
        Ok(())
    }
}

impl fmt::Debug for VmFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VmFlags({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_and_shown() {
        let flags = VmFlags::parse(b"rd wr mr mw me dc ac sd hg ");
        assert!(flags.contains(VmFlags::HUGEPAGE) && flags.contains(VmFlags::DONT_COPY));
        assert!(!flags.contains(VmFlags::NO_HUGEPAGE));
        let either = VmFlags::NO_HUGEPAGE.union(VmFlags::HUGEPAGE);
        assert!(flags.intersects(either) && !flags.contains(either));
        assert_eq!(flags.to_string(), "hg dc");
        assert_eq!(format!("{flags:?}"), "VmFlags(hg dc)");
        assert_eq!(VmFlags::parse(b""), VmFlags::default());
    }

    #[test]
    fn every_flag_has_a_bit_of_its_own() {
        let all: String = VmFlags::TABLE
            .iter()
            .map(|(_, name)| format!("{name} "))
            .collect();
        let flags = VmFlags::parse(all.as_bytes());
        assert_eq!(flags.0.count_ones() as usize, VmFlags::TABLE.len());
        assert_eq!(flags.to_string(), all.trim_end());
    }
}
