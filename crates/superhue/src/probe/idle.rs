//! Idle page tracking: `/sys/kernel/mm/page_idle/bitmap`.
//!
//! One bit per page frame, in 64-bit words of native byte order. Writing ones marks pages idle,
//! zeros change nothing; a page accessed since reads as zero. See
//! `Documentation/admin-guide/mm/idle_page_tracking.rst`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, Pfn, VirtAddr};
use superhue_sys::scratch::Scratch;

use super::Probe;
use super::finding::{Finding, Trial, errno_of, symbol};
use super::look::ProcessFiles;
use super::surroundings::ProbeEnvironment;

pub(super) const PAGE_IDLE: Probe = Probe {
    id: "page-idle",
    name: "Idle page tracking",
    how: "marked a page of own memory idle in the bitmap and read the mark back",
    used_for: "heat tracker `idle`",
    run: page_idle,
};

fn page_idle(around: &ProbeEnvironment) -> Trial {
    let path = around.roots.sys.join("kernel/mm/page_idle/bitmap");
    let bitmap = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|error| cannot_open(&path, errno_of(&error)))?;
    let mut scratch =
        Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    scratch.fill(1);
    Ok(conclude(mark_some(
        &bitmap,
        &scratch,
        &ProcessFiles::own(&around.roots),
    )?))
}

fn cannot_open(path: &Path, errno: Errno) -> Finding {
    match errno {
        Errno::NOENT => Finding::no(format!("{} does not exist", path.display()))
            .remedy("a kernel with CONFIG_IDLE_PAGE_TRACKING=y"),
        Errno::ACCESS | Errno::PERM => {
            Finding::no(format!("{}: {}", path.display(), symbol(errno))).remedy("run as root")
        }
        _ => Finding::no(format!("{}: {}", path.display(), symbol(errno))),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MarkOutcome {
    Seen,
    NotSeen,
    /// The bitmap exists, but the kernel hides which bit belongs to the page.
    FramesHidden,
}

fn conclude(marked: MarkOutcome) -> Finding {
    match marked {
        MarkOutcome::Seen => Finding::yes("a page was marked idle and reads so"),
        MarkOutcome::NotSeen => Finding::no("marks are accepted, but none reads back"),
        MarkOutcome::FramesHidden => {
            Finding::partial("the bitmap is there, but page frame numbers are hidden")
                .remedy("CAP_SYS_ADMIN: run as root or grant it")
        }
    }
}

/// Marks pages of the scratch until one mark is seen.
///
/// A page takes a mark only once it is on an LRU list, for which fresh pages wait in small batches;
/// so this tries pages all over the scratch.
fn mark_some(
    bitmap: &File,
    scratch: &Scratch,
    look: &ProcessFiles,
) -> Result<MarkOutcome, Finding> {
    let start = scratch.range().start.0;
    for page in (0..HUGE_PAGE_SIZE / BASE_PAGE_SIZE).step_by(64) {
        let entry = look
            .entry(VirtAddr(start + page * BASE_PAGE_SIZE))
            .map_err(Finding::unknown)?;
        let Some(frame) = entry.frame() else {
            return Ok(MarkOutcome::FramesHidden);
        };
        match mark(bitmap, frame) {
            Ok(true) => return Ok(MarkOutcome::Seen),
            Ok(false) => {}
            Err(errno) => return Err(Finding::no(format!("using the bitmap: {}", symbol(errno)))),
        }
    }
    Ok(MarkOutcome::NotSeen)
}

fn mark(bitmap: &File, frame: Pfn) -> Result<bool, Errno> {
    let (offset, bit) = (frame.0 / 64 * 8, 1_u64 << (frame.0 % 64));
    let io = |error: std::io::Error| errno_of(&error);
    bitmap
        .write_all_at(&bit.to_ne_bytes(), offset)
        .map_err(io)?;
    let mut word = [0; 8];
    bitmap.read_exact_at(&mut word, offset).map_err(io)?;
    Ok(u64::from_ne_bytes(word) & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::super::Availability;
    use super::*;

    #[test]
    fn the_bit_of_a_frame_is_found_in_its_word() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(mark(&file, Pfn(64 * 3 + 5)), Ok(true));
        let mut words = [0; 32];
        file.read_exact_at(&mut words, 0).unwrap();
        let words: Vec<u64> = words
            .as_chunks()
            .0
            .iter()
            .map(|word| u64::from_ne_bytes(*word))
            .collect();
        assert_eq!(words, [0, 0, 0, 1 << 5]);
    }

    #[test]
    fn a_bitmap_that_forgets_is_not_one() {
        let null = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/zero")
            .unwrap();
        assert_eq!(mark(&null, Pfn(7)), Ok(false));
        assert_eq!(
            conclude(MarkOutcome::NotSeen).availability,
            Availability::No
        );
        assert_eq!(
            conclude(MarkOutcome::FramesHidden).availability,
            Availability::Partial
        );
    }
}
