//! Checks that pages can be moved to swap that is in memory.

use superhue_act::{OWN_SWAP_SIZE, SwapError, SwapInUse, ZswapInUse};
use superhue_model::{BASE_PAGE_SIZE, ByteCount};
use superhue_procfs::cgroup::swap_room;
use superhue_sys::scratch::Scratch;

use super::finding::{Finding, Trial, symbol};
use super::look::ProcessFiles;
use super::surroundings::ProbeEnvironment;
use super::{Availability, Probe};

const NO_ZSWAP: &str = "this kernel has no zswap";

/// Pages that the trial moves out.
const PAGES: u64 = 16;

pub(super) const SWAP: Probe = Probe {
    id: "swap-in-memory",
    name: "Swap in memory (zram)",
    how: "read /proc/swaps; where swap in memory is on, took 16 pages of own memory out to it (MADV_PAGEOUT) and read them \
          back, and 32 that cannot be compressed to see whether zswap takes them; where none is, looked whether a zram may be made, and made none",
    used_for: "page colors of running programs (run, attach, compare --colors)",
    run: swap,
};

fn swap(around: &ProbeEnvironment) -> Trial {
    match SwapInUse::find(&around.roots) {
        Ok(found) => {
            let mut scratch = Scratch::untouched((PAGES * BASE_PAGE_SIZE) as usize)
                .map_err(Finding::no_scratch)?;
            let out = take_out(&mut scratch, &ProcessFiles::own(&around.roots))?;
            let room = swap_room(&around.roots, std::process::id());
            let finding = conclude(&found.describe(), out, scratch.is_intact(1), room);
            let zswap = match ZswapInUse::is_on(&around.roots) {
                Some(true) => ZswapInUse::try_out(&around.roots).map_err(|error| error.to_string()),
                Some(false) => Err("zswap is off".to_owned()),
                None => Err(NO_ZSWAP.to_owned()),
            };
            Ok(with_zswap(finding, zswap))
        }
        Err(error) => Ok(without(error, SwapInUse::may_make(&around.roots))),
    }
}

/// Turns a `Yes` into a `Partial` unless zswap, which has to be in front of the swap, is on and takes every page (see [`ZswapInUse`]).
fn with_zswap(mut finding: Finding, zswap: Result<(), String>) -> Finding {
    let Err(said) = zswap else { return finding };
    let remedy = match said.as_str() {
        NO_ZSWAP => "a kernel with CONFIG_ZSWAP",
        "zswap is off" => {
            "--swap switches zswap on meanwhile, as root; or echo Y >/sys/module/zswap/parameters/enabled"
        }
        _ => {
            "Linux 6.18, no limit on zswap (memory.zswap.max, max_pool_percent), or another compressor"
        }
    };
    if finding.availability == Availability::Yes {
        finding.availability = Availability::Partial;
        finding.found = format!("{}; {said}", finding.found);
        finding.remedy = Some(remedy.to_owned());
    }
    finding
}

/// Moves pages out, and returns the number of pages that left memory.
fn take_out(scratch: &mut Scratch, look: &ProcessFiles) -> Result<u64, Finding> {
    scratch.fill(1);
    scratch.page_out().map_err(|errno| {
        Finding::no(format!("MADV_PAGEOUT: {}", symbol(errno))).remedy("Linux 5.4")
    })?;
    let out = look.swapped(scratch.range()).map_err(Finding::unseen)?;
    Ok(out.0)
}

fn conclude(which: &str, out: u64, is_intact: bool, room: Option<ByteCount>) -> Finding {
    if !is_intact {
        return Finding::no(format!(
            "{which}; pages taken out came back with other bytes"
        ))
        .remedy("another zram: memory, or the kernel, is at fault");
    }
    let found = format!("{which}; of {PAGES} pages {out} went out and came back");
    if out == PAGES {
        return Finding::yes(found);
    }
    // A page may be in a per-CPU batch of the kernel, on its way to an LRU list, and stay.
    match room {
        Some(room) if room.0 < PAGES * BASE_PAGE_SIZE => Finding::partial(format!(
            "{found}: this control group may swap {room} more (memory.swap.max)"
        ))
        .remedy("raise memory.swap.max of the group (systemd: MemorySwapMax=); each program's own group counts"),
        _ if out > 0 => Finding::yes(found),
        _ => Finding::partial(found).remedy("try again: the pages were in use, or memory is locked (mlockall)"),
    }
}

/// Returns the finding where no swap in memory is in use: the swap there is instead, and whether Superhue can make some.
fn without(missing: SwapError, may_make: Result<(), SwapError>) -> Finding {
    let found = match &missing {
        SwapError::None => "no swap is on".to_owned(),
        SwapError::OnDisk { path } => {
            format!(
                "pages go to {} first, which is not in memory",
                path.display()
            )
        }
        SwapError::Full { left } => format!("swap in memory is almost full, {left} are left"),
        error => {
            return Finding::no(error.to_string())
                .remedy("a kernel with CONFIG_SWAP and CONFIG_ZRAM");
        }
    };
    match may_make {
        Ok(()) => Finding::partial(format!("{found}; --swap can make some"))
            .remedy(format!(
                "--swap, beside --colors, makes a zram of {OWN_SWAP_SIZE} for as long as superhue runs; or set one up for all programs \
                 (zram-generator; zramctl, mkswap, swapon)"
            )),
        Err(SwapError::NoZram { .. }) => {
            Finding::no(format!("{found}, and this kernel has no zram to make some"))
                .remedy("as root: modprobe zram num_devices=0; where there is no such module, a kernel with CONFIG_ZRAM")
        }
        Err(SwapError::Denied) => Finding::no(format!("{found}, and to make some is not permitted")).remedy(
            "CAP_SYS_ADMIN: run as root, where /sys can be written, with --swap; or have root set a zram up (zram-generator; zramctl, mkswap, \
             swapon)",
        ),
        Err(error) => Finding::no(format!("{found}; {error}")),
    }
}

#[cfg(test)]
mod tests {
    use superhue_procfs::Roots;

    use super::*;

    #[test]
    fn a_trial_is_judged_by_the_pages_that_went_out() {
        let judge = |out, is_intact, room: Option<u64>| {
            conclude("/dev/zram0", out, is_intact, room.map(ByteCount))
        };
        let all = judge(16, true, None);
        assert_eq!(all.availability, Availability::Yes);
        assert_eq!(
            all.found,
            "/dev/zram0; of 16 pages 16 went out and came back"
        );
        assert_eq!(judge(16, true, Some(0)).availability, Availability::Yes);
        assert_eq!(judge(12, true, None).availability, Availability::Yes);
        let bounded = judge(0, true, Some(0));
        assert_eq!(bounded.availability, Availability::Partial);
        assert!(bounded.remedy.unwrap().contains("memory.swap.max"));
        assert_eq!(judge(0, true, None).availability, Availability::Partial);
        assert_eq!(judge(16, false, None).availability, Availability::No);
    }

    #[test]
    fn what_is_missing_is_told_with_what_to_do() {
        let disk = || SwapError::OnDisk {
            path: "/dev/vda2".into(),
        };
        let can = without(SwapError::None, Ok(()));
        assert_eq!(can.availability, Availability::Partial);
        assert_eq!(can.found, "no swap is on; --swap can make some");
        assert!(can.remedy.unwrap().contains("zram of 64.0 MiB"));
        let on_disk = without(disk(), Ok(()));
        assert!(on_disk.found.contains("go to /dev/vda2 first"));
        let path = "/sys/class/zram-control/hot_add".into();
        for (why, remedy) in [
            (SwapError::NoZram { path }, "modprobe zram"),
            (SwapError::Denied, "CAP_SYS_ADMIN"),
        ] {
            let cannot = without(disk(), Err(why));
            assert_eq!(cannot.availability, Availability::No);
            assert!(cannot.found.contains("/dev/vda2"), "{cannot:?}");
            assert!(cannot.remedy.unwrap().contains(remedy));
        }
        let killed = without(SwapError::None, Err(SwapError::Killed { call: "swapon" }));
        assert!(killed.found.contains("swapon(2)"), "{killed:?}");
    }

    #[test]
    fn a_kernel_without_swap_is_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = ProbeEnvironment::of(&Roots::under(folder.path()), Default::default());
        let finding = swap(&nowhere).unwrap_or_else(|early| early);
        assert_eq!(finding.availability, Availability::No);
        assert!(finding.found.contains("CONFIG_SWAP"), "{finding:?}");
    }
}
