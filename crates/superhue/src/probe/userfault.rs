//! userfaultfd: moving pages.

use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use superhue_model::BASE_PAGE_SIZE;
use superhue_sys::scratch::Scratch;
use superhue_sys::seccomp::RiskyCall;
use superhue_sys::userfaultfd::{FEATURE_MOVE, Userfault};

use super::Probe;
use super::finding::{Finding, Trial, symbol};
use super::surroundings::ProbeEnvironment;

pub(super) const MOVE: Probe = Probe {
    id: "uffd-move",
    name: "Move pages (UFFDIO_MOVE)",
    how: "moved one page of own memory into a hole, looked at the bytes at both ends",
    used_for: "giving pages of one's own memory frames of other colors (superhue::color)",
    run: move_page,
};

const SEED: u64 = 0x0fa1;
/// Attempts at a move before a busy page counts as a failure.
const ATTEMPTS: u32 = 5;

/// Opens a userfaultfd, which needs no privilege, and returns the features that it lists.
fn open(around: &ProbeEnvironment) -> Result<(Userfault, u64), Finding> {
    around.survive(RiskyCall::Userfaultfd)?;
    let userfault = Userfault::open().map_err(|errno| {
        let finding = failed("userfaultfd(2)", errno);
        match errno {
            // The call needs no capability, so only a filter can refuse it.
            Errno::PERM | Errno::ACCESS => {
                finding.remedy(around.permit(CapabilitySet::empty(), RiskyCall::Userfaultfd))
            }
            Errno::INVAL => finding.remedy("Linux 5.11 or later"),
            Errno::NOSYS => finding.remedy("a kernel with CONFIG_USERFAULTFD=y"),
            _ => finding,
        }
    })?;
    let features = userfault
        .handshake()
        .map_err(|errno| failed("UFFDIO_API", errno))?;
    Ok((userfault, features))
}

fn move_page(around: &ProbeEnvironment) -> Trial {
    let (userfault, features) = open(around)?;
    if features & FEATURE_MOVE == 0 {
        return Ok(
            Finding::no("the kernel does not list UFFD_FEATURE_MOVE").remedy("Linux 6.8 or later")
        );
    }
    let hole = page().map_err(Finding::no_scratch)?;
    let mut source = page().map_err(Finding::no_scratch)?;
    source.fill(SEED);
    userfault
        .register(hole.range())
        .map_err(|errno| failed("UFFDIO_REGISTER", errno))?;
    let mut moved = userfault.move_pages(&hole, &mut source);
    for _ in 1..ATTEMPTS {
        match moved {
            // The page is locked or being migrated at the moment.
            Err(Errno::AGAIN | Errno::BUSY) => moved = userfault.move_pages(&hole, &mut source),
            _ => break,
        }
    }
    Ok(match moved {
        Err(errno) => failed("listed, but refused", errno),
        Ok(()) if hole.is_intact(SEED) && source.is_zero() => {
            Finding::yes("a page was moved, bytes intact, a hole left behind")
        }
        Ok(()) => Finding::no("the move lost bytes: do not use this kernel"),
    })
}

fn page() -> Result<Scratch, Errno> {
    Scratch::untouched(BASE_PAGE_SIZE as usize)
}

fn failed(step: &str, errno: Errno) -> Finding {
    Finding::no(format!("{step}: {}", symbol(errno)))
}
