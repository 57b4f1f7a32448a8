//! Splitting a huge page into base pages, by every available way.
//!
//! ```text
//!   from inside    madvise(MADV_COLD) of one base page       programs that link the library
//!   from outside   process_madvise(MADV_COLD), likewise      attach, run; CAP_SYS_NICE
//!   debugfs        PID,0xSTART,0xEND to split_huge_pages     where the advice does not work
//! ```
//!
//! `superhue_sys::advise::Operation::advice` explains the advice;
//! `Documentation/admin-guide/mm/transhuge.rst` the file. The probe finds debugfs at any mount point.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use superhue_model::{ByteCount, HUGE_PAGE_SIZE};
use superhue_sys::collapse::own_collapse;
use superhue_sys::scratch::Scratch;
use superhue_sys::scratch_child::{Backing, ScratchChild};
use superhue_sys::seccomp::RiskyCall;
use superhue_sys::split::{own_split, process_split};
use superhue_sys::thp::ThpSwitch;

use super::finding::{Finding, Trial, errno_of, symbol};
use super::look::ProcessFiles;
use super::surroundings::ProbeEnvironment;
use super::{Availability, Probe};

pub(super) const SPLIT: Probe = Probe {
    id: "split",
    name: "Split a huge page",
    how: "collapsed 2 MiB of own memory and of a scratch child, called one base page cold \
          (MADV_COLD), named own memory to debugfs' split_huge_pages; looked at page tables and \
          bytes, and whether pages of zeroes returned",
    used_for: "splits, which free memory that collapses added",
    run: split,
};

const SEED: u64 = 0x5b11;

fn split(around: &ProbeEnvironment) -> Trial {
    let look = ProcessFiles::own(&around.roots);
    Ok(join(
        around,
        SplitFindings {
            inside: inside(&look).unwrap_or_else(|early| early),
            outside: outside(around).unwrap_or_else(|early| early),
            debugfs: by_debugfs(around, &look).unwrap_or_else(|early| early),
        },
    ))
}

/// Result of each way.
struct SplitFindings {
    inside: Finding,
    outside: Finding,
    debugfs: Finding,
}

/// Joins three findings into one: outside and debugfs each suffice for everything that Superhue does;
/// only programs that link the library split from inside.
fn join(around: &ProbeEnvironment, ways: SplitFindings) -> Finding {
    let SplitFindings {
        inside,
        outside,
        debugfs,
    } = ways;
    let all = [&outside, &inside, &debugfs];
    let availability = if all.iter().any(|way| way.found.contains(LOST)) {
        Availability::No
    } else if [&outside, &debugfs]
        .map(|way| way.availability)
        .contains(&Availability::Yes)
    {
        Availability::Yes
    } else if inside.availability == Availability::Yes {
        Availability::Partial
    } else if all.iter().all(|way| way.availability == Availability::No) {
        Availability::No
    } else if all
        .iter()
        .any(|way| way.availability == Availability::Partial)
    {
        Availability::Partial
    } else {
        Availability::Unknown
    };
    let found = format!(
        "from outside: {}; from inside: {}; by debugfs: {}",
        outside.found, inside.found, debugfs.found
    );
    let remedy = match availability {
        Availability::Yes => None,
        _ if outside.remedy.is_some() => outside.remedy,
        _ => debugfs
            .remedy
            .or_else(|| Some(around.permit(CapabilitySet::SYS_NICE, RiskyCall::ProcessMadvise))),
    };
    Finding {
        availability,
        found,
        remedy,
    }
}

/// Part of the finding when bytes were lost.
const LOST: &str = "lost bytes: do not use this kernel";

/// Tries the advice on own memory, and checks whether pages of zeroes return.
fn inside(look: &ProcessFiles) -> Trial {
    let mut scratch = huge_page(look, |scratch| scratch.fill(SEED))?;
    if let Err(errno) = own_split(scratch.region()) {
        return Ok(Finding::no(symbol(errno)).remedy("Linux 5.4 or later"));
    }
    let huge = look.is_huge(scratch.region()).map_err(Finding::unseen)?;
    let mut finding = conclude(huge, scratch.is_intact(SEED));
    if finding.availability == Availability::Yes {
        // The next huge page has one used byte.
        scratch = huge_page(look, Scratch::touch)?;
        let start = scratch.range().start;
        let before = look.smaps(start, "Rss").map_err(Finding::unseen)?;
        let taken = own_split(scratch.region());
        let after = look.smaps(start, "Rss").map_err(Finding::unseen)?;
        let returned = ByteCount(before.0.saturating_sub(after.0));
        finding.found += &match taken {
            Ok(()) if returned.0 >= HUGE_PAGE_SIZE / 2 => {
                format!(", {returned} of zeroes returned")
            }
            _ => ", pages of zeroes stay (before Linux 6.12)".to_owned(),
        };
    }
    Ok(finding)
}

/// Tries the advice on another process's memory.
fn outside(around: &ProbeEnvironment) -> Trial {
    around.survive(RiskyCall::ProcessMadvise)?;
    let child = ScratchChild::start().map_err(Finding::no_child)?;
    // The child inherits the caller's own ban on huge pages, which this trial is not about.
    let _ = child.set_thp_switch(ThpSwitch::System);
    let region = child.map(Backing::BasePages).map_err(Finding::no_child)?;
    child.fill(SEED).map_err(Finding::no_child)?;
    child
        .collapse()
        .map_err(|errno| Finding::not_tried(NOTHING_TO_SPLIT, errno))?;
    let look = ProcessFiles::at(&around.roots, child.pid());
    if !look.is_huge(region).map_err(Finding::unseen)? {
        return Err(Finding::unknown(format!(
            "could not be tried: {NOTHING_TO_SPLIT}"
        )));
    }
    Ok(match process_split(&child, region) {
        Ok(()) => {
            let huge = look.is_huge(region).map_err(Finding::unseen)?;
            conclude(huge, child.is_intact(SEED).map_err(Finding::no_child)?)
        }
        Err(errno @ (Errno::PERM | Errno::ACCESS)) => Finding::no(symbol(errno))
            .remedy(around.permit(CapabilitySet::SYS_NICE, RiskyCall::ProcessMadvise)),
        Err(errno @ Errno::NOSYS) => Finding::no(symbol(errno)).remedy(
            "Linux 5.10 or later; in a container, a seccomp profile that allows process_madvise",
        ),
        Err(errno) => Finding::no(symbol(errno)),
    })
}

const NOTHING_TO_SPLIT: &str = "no huge page to split";

/// Makes a huge page of own memory, after `write` has filled its bytes.
fn huge_page(look: &ProcessFiles, write: impl FnOnce(&mut Scratch)) -> Result<Scratch, Finding> {
    let mut scratch =
        Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    write(&mut scratch);
    let region = scratch.region();
    own_collapse(region).map_err(|errno| Finding::not_tried(NOTHING_TO_SPLIT, errno))?;
    if look.is_huge(region).map_err(Finding::unseen)? {
        Ok(scratch)
    } else {
        Err(Finding::unknown(format!(
            "could not be tried: {NOTHING_TO_SPLIT}"
        )))
    }
}

fn conclude(huge: bool, intact: bool) -> Finding {
    match (huge, intact) {
        (_, false) => Finding::no(LOST),
        (false, true) => Finding::yes("split, bytes intact"),
        (true, true) => Finding::partial("accepted, but the huge page stayed whole"),
    }
}

fn by_debugfs(around: &ProbeEnvironment, look: &ProcessFiles) -> Trial {
    let mounts = fs::read_to_string(around.roots.proc.join("self/mounts"))
        .map_err(|error| Finding::not_tried("no mount table", errno_of(&error)))?;
    let Some(mount) = debugfs(&mounts) else {
        return Ok(
            Finding::no("not mounted").remedy("as root: mount -t debugfs none /sys/kernel/debug")
        );
    };
    let file = around
        .roots
        .below(Path::new(&mount))
        .join("split_huge_pages");
    trial(&file, look)
}

fn trial(file: &Path, look: &ProcessFiles) -> Trial {
    // Opening changes nothing, so it shows first whether writing is allowed.
    let mut file = OpenOptions::new()
        .write(true)
        .open(file)
        .map_err(|error| closed(file, &error))?;
    let scratch = huge_page(look, |scratch| scratch.fill(SEED))?;
    let range = scratch.range();
    let order = format!(
        "{},{:#x},{:#x}",
        std::process::id(),
        range.start.0,
        range.end.0
    );
    // In one write(2): the file reads one order from each.
    if let Err(error) = file.write_all(order.as_bytes()) {
        return Ok(Finding::no(format!(
            "refused: {}",
            symbol(errno_of(&error))
        )));
    }
    let huge = look.is_huge(scratch.region()).map_err(Finding::unseen)?;
    Ok(conclude(huge, scratch.is_intact(SEED)))
}

fn closed(file: &Path, error: &io::Error) -> Finding {
    let errno = errno_of(error);
    let finding = Finding::no(format!("{}: {}", file.display(), symbol(errno)));
    match errno {
        Errno::ACCESS => finding.remedy("run as root"),
        Errno::PERM => {
            finding.remedy("no kernel lockdown: boot with lockdown=none (Secure Boot may force it)")
        }
        Errno::NOENT => finding.remedy("a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y"),
        _ => finding,
    }
}

/// Returns the mount point of debugfs, from `/proc/PID/mounts` (`fstab(5)`).
fn debugfs(mounts: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        // The kernel writes blanks in the path as octal escapes; a debugfs mount point has no other character that it escapes.
        (kind == "debugfs").then(|| place.replace("\\040", " "))
    })
}

#[cfg(test)]
mod tests {
    use superhue_procfs::Roots;

    use super::*;

    #[test]
    fn debugfs_is_found_wherever_it_is_mounted() {
        let mounts = "sysfs /sys sysfs rw 0 0\nnone /mnt/my\\040debug debugfs rw 0 0\n";
        assert_eq!(debugfs(mounts).as_deref(), Some("/mnt/my debug"));
        assert_eq!(debugfs("debugfs /sys tracefs rw 0 0\n"), None);
        assert_eq!(debugfs(""), None);
        let roots = Roots::under(Path::new("/recorded"));
        let seen = |path| roots.below(Path::new(path));
        assert_eq!(
            seen("/sys/kernel/debug"),
            Path::new("/recorded/sys/kernel/debug")
        );
        assert_eq!(seen("/debug"), Path::new("/debug"));
    }

    #[test]
    fn one_way_that_reaches_all_is_enough() {
        let around = ProbeEnvironment::of(&Roots::default(), super::super::ProbeOptions::default());
        let availability = |outside, inside, debugfs| {
            let way = |availability| Finding {
                availability,
                found: String::new(),
                remedy: None,
            };
            let ways = SplitFindings {
                inside: way(inside),
                outside: way(outside),
                debugfs: way(debugfs),
            };
            join(&around, ways).availability
        };
        use Availability::{No, Partial, Unknown, Yes};
        assert_eq!(availability(Yes, No, No), Yes);
        assert_eq!(availability(No, No, Yes), Yes);
        assert_eq!(
            availability(No, Yes, No),
            Partial,
            "only in programs that link the library"
        );
        assert_eq!(availability(No, No, No), No);
        assert_eq!(availability(No, Unknown, No), Unknown);
        assert_eq!(availability(Partial, No, No), Partial);
        let mut lost = SplitFindings {
            inside: Finding::no(LOST),
            outside: Finding::yes(""),
            debugfs: Finding::yes(""),
        };
        lost.outside.found = conclude(false, true).found;
        assert_eq!(join(&around, lost).availability, No);
    }

    #[test]
    fn a_file_that_takes_the_order_and_does_nothing_is_no_yes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("split_huge_pages");
        let look = ProcessFiles::own(&Roots::default());
        assert_eq!(
            trial(&file, &look).unwrap_err().availability,
            Availability::No,
            "no such file"
        );
        fs::write(&file, "").unwrap();
        let finding = trial(&file, &look).unwrap_or_else(|early| early);
        assert_ne!(finding.availability, Availability::Yes, "{finding:?}");
        if finding.availability == Availability::Partial {
            let order = fs::read_to_string(&file).unwrap();
            let words: Vec<_> = order.split(',').collect();
            let address =
                |word: &str| u64::from_str_radix(word.strip_prefix("0x").unwrap(), 16).unwrap();
            assert_eq!(words.len(), 3);
            assert_eq!(words[0], std::process::id().to_string());
            assert_eq!(address(words[2]) - address(words[1]), HUGE_PAGE_SIZE);
        }
    }
}
