//! `/proc/vmstat`: what the memory management has done since boot, and how things stand now.
//!
//! The file mixes two kinds of number: *counters*, which only grow and whose difference over a run
//! tells what the run caused, and *levels* (`nr_*`), whose difference would have to be signed and
//! tells little. They are kept apart here, so that [`Counters::delta`] cannot be asked for the
//! difference of a level.
//!
//! Names are the kernel's (`mm/vmstat.c`, `vmstat_text`); meanings of the `thp_*` ones are in
//! `Documentation/admin-guide/mm/transhuge.rst`. A kernel built without superpages has no `thp_*`
//! lines at all, older kernels have fewer: every field is an `Option`.

use serde::Serialize;

use super::parse::quote;
use super::{ParseError, file};
use crate::{ReadError, Roots};

/// A struct of `Option<u64>` whose fields are named as in the file.
macro_rules! fields {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])+ $field:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
        pub struct $name {
            $($(#[$doc])+ pub $field: Option<u64>,)+
        }

        impl $name {
            fn slot(&mut self, name: &str) -> Option<&mut Option<u64>> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)+
                    _ => None,
                }
            }
        }
    };
}

fields! {
    /// How things stand: pages of each sort at the moment of reading.
    Levels {
        /// Free base pages.
        nr_free_pages,
        /// Free base pages in wholly free pageblocks, the ones that can become superpages at once.
        nr_free_pages_blocks,
        /// Base pages of anonymous memory mapped by some process.
        nr_anon_pages,
        /// Anonymous superpages mapped whole. In superpages, not base pages.
        nr_anon_transparent_hugepages,
        /// Pages that hold user page tables.
        nr_page_table_pages,
        /// Locked base pages.
        nr_mlock,
    }
}

/// Declares the counters once; the list serves the struct and the difference.
macro_rules! counters {
    ($($(#[$doc:meta])+ $field:ident,)+) => {
        fields! {
            /// What has happened since boot.
            Counters { $($(#[$doc])+ $field,)+ }
        }

        impl Counters {
            /// What happened between an earlier reading and this one.
            ///
            /// `None` where either reading lacks the counter, and where it went backwards (the two
            /// readings are not of one boot).
            #[must_use]
            pub fn delta(&self, earlier: &Self) -> Self {
                let since = |later: Option<u64>, earlier: Option<u64>| later?.checked_sub(earlier?);
                Self { $($field: since(self.$field, earlier.$field),)+ }
            }
        }
    };
}

counters! {
    /// Page faults, minor and major.
    pgfault,
    /// Page faults that had to wait for I/O.
    pgmajfault,
    /// Base pages moved to another frame.
    pgmigrate_success,
    /// Base pages that could not be moved.
    pgmigrate_fail,
    /// Base pages moved between nodes by NUMA balancing; each move may change a page's color.
    numa_pages_migrated,
    /// Base pages read back from swap.
    pswpin,
    /// Base pages written to swap.
    pswpout,
    /// Times a process had to compact memory itself before its allocation could go on.
    compact_stall,
    /// Such compactions that found no block large enough.
    compact_fail,
    /// Such compactions that did.
    compact_success,
    /// Times the background compactor was woken.
    compact_daemon_wake,
    /// Superpages given out by a page fault.
    thp_fault_alloc,
    /// Page faults that wanted a superpage and got base pages.
    thp_fault_fallback,
    /// The part of `thp_fault_fallback` refused by the memory cgroup's limit.
    thp_fault_fallback_charge,
    /// Superpages allocated for a collapse, by khugepaged or `MADV_COLLAPSE`.
    thp_collapse_alloc,
    /// Collapses that found no free superpage.
    thp_collapse_alloc_failed,
    /// Collapses given up because of more unmapped base pages than `max_ptes_none` allows.
    thp_scan_exceed_none_pte,
    /// Collapses given up because of more swapped base pages than `max_ptes_swap` allows.
    thp_scan_exceed_swap_pte,
    /// Collapses given up because of more shared base pages than `max_ptes_shared` allows.
    thp_scan_exceed_share_pte,
    /// Superpages broken up into base pages for good.
    thp_split_page,
    /// Superpages that could not be broken up (pinned, usually).
    thp_split_page_failed,
    /// Superpages queued for breaking up because part of them was unmapped.
    thp_deferred_split_page,
    /// Superpages broken up by the kernel because most of their base pages were zero (Linux 6.12).
    thp_underused_split_page,
    /// Page-table entries that mapped a whole superpage, replaced by 512 of base pages; the
    /// superpage itself may live on.
    thp_split_pmd,
    /// Huge zero pages allocated; counts allocations, not mappings.
    thp_zero_page_alloc,
    /// Huge zero pages that could not be allocated.
    thp_zero_page_alloc_failed,
    /// Superpages swapped out whole.
    thp_swpout,
    /// Superpages split before they were swapped out.
    thp_swpout_fallback,
    /// Superpages moved to another frame whole.
    thp_migration_success,
    /// Superpages that could not be moved.
    thp_migration_fail,
    /// Superpages split in order to be moved.
    thp_migration_split,
}

/// One reading of `/proc/vmstat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct VmStat {
    /// How things stand now.
    pub now: Levels,
    /// What has happened since boot.
    pub since_boot: Counters,
}

impl VmStat {
    /// Reads `/proc/vmstat`.
    ///
    /// # Errors
    /// When the file is missing, may not be read or is malformed.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        file::read(
            &roots.proc.join("vmstat"),
            "procfs is not mounted here",
            Self::parse,
        )
    }

    /// Reads lines of a name and a number. Names this crate does not know are passed over.
    ///
    /// # Errors
    /// When a line is not a name and a number.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut stat = Self::default();
        for (index, line) in text.lines().enumerate() {
            let (name, value) = line
                .split_once(' ')
                .and_then(|(name, value)| Some((name, value.trim().parse::<u64>().ok()?)))
                .ok_or_else(|| {
                    ParseError::in_line(index, format!("{} is no name and number", quote(line)))
                })?;
            let slot = stat.now.slot(name).or_else(|| stat.since_boot.slot(name));
            if let Some(slot) = slot {
                *slot = Some(value);
            }
        }
        Ok(stat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_lines_are_kept_and_unknown_ones_passed_over() {
        let stat = VmStat::parse("nr_free_pages 7\nthp_split_pmd 3\nbrand_new 1\n").unwrap();
        assert_eq!(stat.now.nr_free_pages, Some(7));
        assert_eq!(stat.since_boot.thp_split_pmd, Some(3));
        assert_eq!(stat.since_boot.pgfault, None);
        assert_eq!(VmStat::parse("").unwrap(), VmStat::default());
    }

    #[test]
    fn malformed_lines_are_named() {
        let error = VmStat::parse("pgfault 1\npgmajfault many\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2: \"pgmajfault many\" is no name and number"
        );
        for text in [
            "pgfault",
            "pgfault -1",
            "pgfault 99999999999999999999",
            "\n",
        ] {
            assert!(VmStat::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_delta_needs_both_readings_and_one_boot() {
        let at = |text| VmStat::parse(text).unwrap().since_boot;
        let earlier = at("pgfault 10\nthp_fault_alloc 5\npgmajfault 3\n");
        let later = at("pgfault 25\nthp_fault_alloc 4\ncompact_stall 1\n");
        let delta = later.delta(&earlier);
        assert_eq!(delta.pgfault, Some(15));
        assert_eq!(delta.thp_fault_alloc, None, "went backwards");
        assert_eq!(delta.pgmajfault, None, "gone in the later reading");
        assert_eq!(delta.compact_stall, None, "absent from the earlier reading");
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = VmStat::parse(&text);
        }

        #[test]
        fn deltas_add_up(a: u32, b: u32, c: u32) {
            let at = |n: u64| Counters { pgfault: Some(n), ..Counters::default() };
            let (first, second) = (at(a.into()), at(u64::from(a) + u64::from(b)));
            let third = at(u64::from(a) + u64::from(b) + u64::from(c));
            let whole = third.delta(&first).pgfault.unwrap();
            let parts = second.delta(&first).pgfault.unwrap() + third.delta(&second).pgfault.unwrap();
            prop_assert_eq!(whole, parts);
        }
    }
}
