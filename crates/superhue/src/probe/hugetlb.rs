//! Pages reserved for hugetlbfs, which no other memory can use.

use rustix::io::Errno;
use superhue_procfs::system::{HugetlbPool, read_hugetlb_pools};
use superhue_sys::hugetlb::borrow_page;

use super::Probe;
use super::finding::{Finding, symbol};

pub(super) const HUGETLB: Probe = Probe {
    id: "hugetlb",
    name: "Explicit huge page pools (hugetlb)",
    how: "read the pools; where one has a free page, mapped it (MAP_HUGETLB) and gave it back",
    used_for: "the memory reserved for hugetlbfs, which no policy can use",
    run: |around| match read_hugetlb_pools(&around.roots) {
        Ok(pools) => Ok(conclude(&pools, |pool| borrow_page(pool.page_size))),
        Err(error) => Err(Finding::no(error.to_string())
            .remedy("a kernel with CONFIG_HUGETLBFS=y; Superhue does not need it")),
    },
};

fn conclude(pools: &[HugetlbPool], borrow: impl Fn(&HugetlbPool) -> Result<(), Errno>) -> Finding {
    let mut borrowed = false;
    let mut found = Vec::new();
    for pool in pools {
        let (Some(pages), Some(free)) = (pool.pages, pool.free) else {
            continue;
        };
        let mut text = format!("{}: {free} of {pages} free", pool.page_size);
        // Free pages may be promised to mappings that exist; the trial must not take those.
        if free > pool.reserved.unwrap_or(0) {
            match borrow(pool) {
                Ok(()) => {
                    borrowed = true;
                    text += " (mapped one)";
                }
                Err(errno) => text += &format!(" (mapping one: {})", symbol(errno)),
            }
        }
        found.push(text);
    }
    if found.is_empty() {
        return Finding::unknown("no pool can be read");
    }
    let found = found.join("; ");
    if borrowed {
        return Finding::yes(found);
    }
    Finding::no(found).remedy(
        "nothing, Superhue needs none; for other programs, as root: echo 1 > \
         /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use superhue_model::ByteCount;

    use super::super::Availability;
    use super::*;

    fn pool(free: u64, reserved: u64) -> HugetlbPool {
        HugetlbPool {
            page_size: ByteCount(2 << 20),
            pages: Some(4),
            free: Some(free),
            reserved: Some(reserved),
            surplus: None,
            overcommit: None,
            gaps: superhue_procfs::system::Gaps::default(),
        }
    }

    #[test]
    fn only_a_free_page_that_is_not_promised_is_borrowed() {
        let asked = Cell::new(0);
        let borrow = |_: &HugetlbPool| {
            asked.set(asked.get() + 1);
            Ok(())
        };
        assert_eq!(
            conclude(&[pool(0, 0)], borrow).availability,
            Availability::No
        );
        assert_eq!(
            conclude(&[pool(2, 2)], borrow).availability,
            Availability::No
        );
        assert_eq!(asked.get(), 0);
        let finding = conclude(&[pool(2, 1)], borrow);
        assert_eq!(finding.availability, Availability::Yes);
        assert_eq!(finding.found, "2.0 MiB: 2 of 4 free (mapped one)");
        assert_eq!(asked.get(), 1);
        let refused = conclude(&[pool(2, 1)], |_| Err(Errno::FAULT));
        assert_eq!(refused.availability, Availability::No);
        assert!(refused.found.contains("EFAULT"), "{refused:?}");
        assert_eq!(conclude(&[], borrow).availability, Availability::Unknown);
    }
}
