//! Clearing the accessed bits of a process, `/proc/PID/clear_refs`.

use std::fs;

use rustix::io::Errno;
use superhue_model::ByteCount;
use superhue_sys::scratch_child::{Backing, ScratchChild};

use super::Probe;
use super::finding::{Finding, Trial, errno_of, symbol};
use super::look::ProcessFiles;
use super::surroundings::ProbeEnvironment;

pub(super) const CLEAR_REFS: Probe = Probe {
    id: "clear-refs",
    name: "Clear accessed bits",
    how: "had a scratch child touch 2 MiB, wrote 1 to its clear_refs, compared ReferencedMemory in its \
          smaps",
    used_for: "heat trackers: what is accessed from now on (ptwalk)",
    run: clear_refs,
};

/// ReferencedMemory bytes of the child's mapping before and after the trial.
#[derive(Debug, Clone, Copy)]
struct ReferencedMemory {
    before: ByteCount,
    after: ByteCount,
}

fn clear_refs(around: &ProbeEnvironment) -> Trial {
    let child = ScratchChild::start().map_err(Finding::no_child)?;
    let region = child.map(Backing::BasePages).map_err(Finding::no_child)?;
    child.fill(1).map_err(Finding::no_child)?;
    let look = ProcessFiles::at(&around.roots, child.pid());
    let referenced = || {
        look.smaps(region.start(), "Referenced")
            .map_err(Finding::unseen)
    };
    let before = referenced()?;
    if let Err(error) = fs::write(look.file("clear_refs"), "1") {
        return Ok(refused(errno_of(&error)));
    }
    Ok(conclude(ReferencedMemory {
        before,
        after: referenced()?,
    }))
}

fn refused(errno: Errno) -> Finding {
    let name = symbol(errno);
    match errno {
        Errno::NOENT => Finding::no(format!("{name}: no such file"))
            .remedy("a kernel with CONFIG_PROC_PAGE_MONITOR=y"),
        Errno::ROFS => {
            Finding::no(format!("{name}: /proc is read-only")).remedy("a /proc mounted writable")
        }
        Errno::ACCESS | Errno::PERM => {
            Finding::no(name).remedy("run as the process's owner or as root")
        }
        _ => Finding::no(name),
    }
}

fn conclude(ReferencedMemory { before, after }: ReferencedMemory) -> Finding {
    if before.0 == 0 {
        Finding::unknown("memory just written does not show as referenced")
    } else if after < before {
        Finding::yes(format!("Referenced fell from {before} to {after}"))
    } else {
        Finding::no(format!("accepted, but {after} still show as referenced"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Availability;
    use super::*;

    #[test]
    fn bits_count_as_cleared_only_when_seen_to_be() {
        let availability = |before, after| {
            let [before, after] = [before, after].map(ByteCount::from_kib);
            conclude(ReferencedMemory { before, after }).availability
        };
        assert_eq!(availability(2048, 0), Availability::Yes);
        assert_eq!(availability(2048, 2048), Availability::No);
        assert_eq!(availability(0, 0), Availability::Unknown);
    }
}
