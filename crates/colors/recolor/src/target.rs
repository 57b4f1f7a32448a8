//! A process whose pages get other frames, inspected and changed from outside.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use superhue_model::{BASE_PAGE_SHIFT, BASE_PAGE_SIZE, Pfn, ProcessId, VirtAddr, VirtRange};
use superhue_procfs::process::{PageWord, VmFlags, page_words, still_is, vma_uses};
use superhue_procfs::system::PageFlagsFile;
use superhue_procfs::{ReadError, Roots};
use superhue_sys::advise::{process_page_out, process_will_need};
use superhue_sys::busy;

use crate::KeptReason;
use crate::error::RecolorError;

/// Bytes in a word of `pagemap`.
const WORD: usize = 8;

/// Shortest time for which a check for userfaultfds is valid; and that time as a multiple of the duration of the check.
const MIN_CHECK_LIFETIME: Duration = Duration::from_secs(1);
const PACE: u32 = 50;

/// Time for which the open files of a process are not looked at again; and most files that are looked at. More are checked in the long way each time.
const FILES_CHECK_LIFETIME: Duration = Duration::from_millis(100);
const MAX_FILES: usize = 4096;

/// Target of the link of a userfaultfd below `/proc/PID/fd`.
const USERFAULTFD: &str = "anon_inode:[userfaultfd]";

/// Words read at a time.
const RUN: usize = 512;

/// A process and its files, open while it is being recolored. After an `exec` they show the old memory, which is gone.
#[derive(Debug)]
pub struct Target {
    pidfd: OwnedFd,
    pagemap: File,
    /// Time until which the last check is valid that found no userfaultfd on its memory.
    unwatched_until: Option<Instant>,
    /// Time until which no open file of it has to be looked at.
    files_until: Option<Instant>,
}

/// A page that may be taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovablePage {
    /// Frame that holds the page now.
    pub frame: Pfn,
    /// True for private anonymous memory, false for shared memory.
    pub private: bool,
}

impl Target {
    /// Opens the files of a process, and ensures that they belong to the process meant.
    ///
    /// # Errors
    /// [`RecolorError::Gone`]; [`RecolorError::NotPermitted`].
    pub fn open(roots: &Roots, id: ProcessId) -> Result<Self, RecolorError> {
        let pid = i32::try_from(id.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(RecolorError::Gone)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| RecolorError::Gone)?;
        let open = |name| {
            let path = roots.of_process(id.pid, name);
            File::open(&path).map_err(|error| match ReadError::of_process(id.pid, &path, error) {
                ReadError::Vanished { .. } => RecolorError::Gone,
                error => RecolorError::NotPermitted(error.to_string()),
            })
        };
        let target = Self {
            pidfd,
            pagemap: open("pagemap")?,
            unwatched_until: None,
            files_until: None,
        };
        if still_is(roots, id) {
            Ok(target)
        } else {
            Err(RecolorError::Gone)
        }
    }

    /// Ensures that no userfaultfd watches memory of the process. This concerns its whole memory: `UFFDIO_MOVE` takes
    /// pages from anywhere.
    ///
    /// Linux 6.18 moves a page that is in swap, but fails that call with `EAGAIN`, and the next one with `EEXIST`
    /// (seen; pages that the kernel takes out by itself have the same effect). So no page of such a process is taken
    /// out. A check is valid for a second, or longer if it takes long (50 times as long: 10 s for some 20 GiB of base pages). A userfaultfd that
    /// the process opens meanwhile shows among its open files, which are looked at ten times a second. One that it passes on to another process and
    /// closes within that time is found by the next check only. Callers ask before each round of pages, of 512 at most.
    ///
    /// # Errors
    /// [`RecolorError::Userfaultfd`] if one does; [`RecolorError::Gone`]; [`RecolorError::NotPermitted`].
    pub fn is_unwatched(&mut self, roots: &Roots, id: ProcessId) -> Result<(), RecolorError> {
        let begun = Instant::now();
        busy::note(id.pid);
        let is_valid = self.unwatched_until.is_some_and(|until| begun < until);
        if is_valid && self.files_until.is_some_and(|until| begun < until) {
            return Ok(());
        }
        self.files_until = Some(begun + FILES_CHECK_LIFETIME);
        if is_valid && !may_have_userfaultfd(roots, id) {
            return Ok(());
        }
        // A failure below must not leave an earlier result valid.
        self.unwatched_until = None;
        let vmas = vma_uses(roots, id.pid).map_err(|error| match error {
            ReadError::Vanished { .. } => RecolorError::Gone,
            error => RecolorError::NotPermitted(error.to_string()),
        })?;
        if (vmas.iter().filter_map(|vma| vma.flags))
            .any(|flags| flags.intersects(VmFlags::USERFAULTFD))
        {
            return Err(RecolorError::Userfaultfd);
        }
        let now = Instant::now();
        let pause = (now - begun) * PACE;
        self.unwatched_until = Some(now + MIN_CHECK_LIFETIME.max(pause));
        // Where the open files do not settle it, the long way must not be taken ten times a second.
        self.files_until = Some(now + FILES_CHECK_LIFETIME.max(pause));
        Ok(())
    }

    /// Returns the `pagemap` words of some pages, in their order.
    ///
    /// # Errors
    /// [`RecolorError::Gone`].
    pub fn words(&self, pages: &[VirtAddr]) -> Result<Vec<PageWord>, RecolorError> {
        let mut words = Vec::with_capacity(pages.len());
        let mut buffer = [0; RUN * WORD];
        while let Some(rest) = pages.get(words.len()..)
            && let Some(&first) = rest.first()
        {
            // Pages that follow each other are read in one call.
            let follows =
                |(index, page): (u64, &VirtAddr)| page.0 == first.0 + index * BASE_PAGE_SIZE;
            let run = (0_u64..)
                .zip(rest.iter().take(RUN))
                .take_while(|it| follows(*it))
                .count();
            let bytes = buffer.get_mut(..run * WORD).unwrap_or_default();
            let offset = (first.0 >> BASE_PAGE_SHIFT) * WORD as u64;
            let read = self.pagemap.read_at(bytes, offset);
            match read {
                // The memory is gone: the process has ended, or executes another program.
                Ok(0) | Err(_) => return Err(RecolorError::Gone),
                Ok(read) => words.extend(page_words(bytes.get(..read).unwrap_or_default())),
            }
        }
        Ok(words)
    }

    /// Returns whether a page may be taken out, by its word and the flags of its frame.
    ///
    /// The kernel decides again when the page is taken out; this refuses pages for which that would fail, or would
    /// change more than the frame. A part of a larger folio may be taken out only with `may_split`: the kernel then
    /// splits the whole folio into base pages first.
    ///
    /// # Errors
    /// [`RecolorError::NotPermitted`] if frames or their flags are hidden.
    pub fn movable(
        word: PageWord,
        flags: &PageFlagsFile,
        may_split: bool,
    ) -> Result<Result<MovablePage, KeptReason>, RecolorError> {
        if !word.is_present() {
            return Ok(Err(KeptReason::Absent));
        }
        let Some(frame) = word.frame() else {
            let hidden = "frame numbers are hidden: CAP_SYS_ADMIN shows them (run as root)";
            return Err(RecolorError::NotPermitted(hidden.to_owned()));
        };
        let unreadable = |error: ReadError| RecolorError::NotPermitted(error.to_string());
        let Some(flags) = flags.of(frame).map_err(unreadable)? else {
            return Ok(Err(KeptReason::Other));
        };
        // Linux 6.12 shows the flag of KSM on all anonymous pages. A page that KSM really merged is usually mapped more than once.
        let kept = if flags.is_zero_page() {
            Some(KeptReason::Absent)
        } else if flags.is_part_of_larger() && !may_split {
            Some(KeptReason::Large)
        } else if flags.is_locked() {
            Some(KeptReason::Locked)
        } else if !word.is_exclusive() {
            Some(if flags.is_merged() && !word.is_file() {
                KeptReason::Merged
            } else {
                KeptReason::Shared
            })
        } else if flags.is_anonymous() && !flags.is_swap_backed() {
            Some(KeptReason::FreedLazily)
        } else if !flags.is_swap_backed() {
            Some(KeptReason::Other)
        } else {
            None
        };
        Ok(match kept {
            Some(kept) => Err(kept),
            None => Ok(MovablePage {
                frame,
                private: !word.is_file(),
            }),
        })
    }

    /// Has the kernel take one page out.
    ///
    /// # Errors
    /// The reason why it stays where it is.
    pub fn page_out(&self, page: VirtAddr) -> Result<(), KeptReason> {
        process_page_out(&self.pidfd, one_page(page)).map_err(|errno| match errno {
            Errno::INVAL => KeptReason::Locked,
            Errno::NOMEM | Errno::SRCH => KeptReason::Absent,
            _ => KeptReason::InUse,
        })
    }

    /// Has the kernel bring one page into memory again, if it is out, on the CPU of the calling thread.
    ///
    /// The page enters the swap cache, and the program's next use maps it. A read through `/proc/PID/mem` would map it at once, but would
    /// also map a page of zeroes if the program has just given the page back: a userfaultfd would get an event for that, and a
    /// `UFFDIO_MOVE` to that place would fail (seen). This advice adds no page where there is none.
    pub fn page_in(&self, page: VirtAddr) {
        // A page that the program has given back meanwhile needs none.
        let _ = process_will_need(&self.pidfd, one_page(page));
    }
}

/// Returns false if no open file of a process is a userfaultfd. True if one is, if there are too many to look at, or if they cannot be read.
fn may_have_userfaultfd(roots: &Roots, id: ProcessId) -> bool {
    let Ok(files) = fs::read_dir(roots.of_process(id.pid, "fd")) else {
        return true;
    };
    let mut count = 0;
    for file in files {
        count += 1;
        let Ok(file) = file else { return true };
        if count > MAX_FILES {
            return true;
        }
        // A file that was closed meanwhile is none.
        if fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == USERFAULTFD) {
            return true;
        }
    }
    false
}

const fn one_page(page: VirtAddr) -> VirtRange {
    VirtRange {
        start: page,
        end: VirtAddr(page.0 + BASE_PAGE_SIZE),
    }
}
