//! How much of a superpage holds nothing but zeroes: what splitting it would give back.
//!
//! A program that touches one byte of a superpage makes 2 MiB resident. What it never wrote is still
//! zero, and since Linux 6.12 a split returns such pages. The only way to know is to read the bytes:
//! the page table has one entry for all of them.
//!
//! Read is `/proc/PID/mem`, and not by `process_vm_readv(2)`, which would be as fast: that call
//! *pins* pages, and to pin a page that is shared since a `fork` the kernel unshares it first
//! (`gup_must_unshare` in `mm/internal.h`). The superpage would be split and copied by our looking at
//! it, as was measured on 6.18. The file also stays with the memory it was opened on when
//! the number passes to another process.
//!
//! ```text
//!   open mem ── still the one meant? ── one superpage? ── 32 samples ── all 2 MiB ── still one?
//!                      no: Vanished         no: NotHuge     clearly too       │         no: NotHuge
//!                                                           few zeroes: Few   └── count
//! ```
//!
//! Only regions that one superpage maps are read, because reading a page that is *not there* has
//! effects: it maps the shared zero page, brings memory back from swap, or, in memory under
//! `userfaultfd(2)`, waits for the process's own handler, which has been told of a fault that the
//! process never made. An entry for the whole region has no holes. Should the process discard the
//! memory between the check and the read, the read may still meet one and wait; so a thread of
//! its own reads, and after [`PATIENCE`] it is left to itself.
//!
//! Reading sets the accessed bit of the superpage. Whoever tracks accesses reads just before the bit
//! is cleared for the next interval anyway.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use superhue_model::{
    BASE_PAGE_SIZE, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount, ProcessId, Region,
};

use crate::{ReadError, Roots};

use super::identity::still_is;
use super::pages::is_huge_mapped;

/// How long a read may take that takes a third of a millisecond.
const PATIENCE: Duration = Duration::from_secs(1);

/// Threads that may be stuck in reads at the same time before nothing is read any more.
const STUCK_AT_MOST: usize = 4;

/// Samples of a region, and the length of each: a cache line.
const SAMPLES: u64 = 32;
const SAMPLE: usize = 64;

/// What was found in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeroes {
    /// So many of its 512 base pages hold only zeroes.
    Counted(PageCount),
    /// Clearly fewer than were wanted, by samples; not counted.
    Few,
}

/// Why a region's zeroes are not known.
#[derive(Debug, thiserror::Error)]
pub enum UnreadZeroes {
    /// The process is gone or may not be read (`/proc/PID/mem` wants ptrace attach rights).
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Not one superpage, or not any more, or the kernel does not tell (before Linux 6.7).
    #[error("process {pid}: {} is not mapped by one huge page, as far as can be seen", region.range())]
    NotHuge {
        /// Whose memory.
        pid: u32,
        /// Where.
        region: Region,
    },
    /// The read did not come to an end.
    #[error(
        "process {pid}: reading {} did not end: it may wait for a userfaultfd(2) handler that is \
         stopped, or for swap", region.range()
    )]
    Stuck {
        /// Whose memory.
        pid: u32,
        /// Where.
        region: Region,
    },
    /// No thread to read from.
    #[error("cannot start a thread to read memory from: {0}")]
    Thread(io::Error),
}

/// How many of the base pages in `bytes` hold only zeroes. An incomplete page at the end does not count.
#[must_use]
pub fn zero_pages(bytes: &[u8]) -> PageCount {
    let pages = bytes.chunks_exact(BASE_PAGE_SIZE as usize);
    PageCount(pages.filter(|page| is_zero(page)).count() as u64)
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|word| u64::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}

/// Reads superpages of processes and counts their zeroes, one at a time.
#[derive(Debug)]
pub struct ZeroPages {
    roots: Roots,
    reader: Option<Reader>,
    /// Held by every reader's thread, the stuck ones' too.
    living: Arc<()>,
}

impl ZeroPages {
    /// One that looks under `roots`; the 2 MiB buffer and the thread come with the first count.
    #[must_use]
    pub fn new(roots: Roots) -> Self {
        Self {
            roots,
            reader: None,
            living: Arc::new(()),
        }
    }

    /// How many of the 512 base pages of `region` hold only zeroes.
    ///
    /// When 32 samples make it plain that there are fewer than `wanted`, the rest is not read
    /// (20 microseconds instead of 400); `wanted` of 0 counts always. Samples may be wrong
    /// about a region that has just enough; they are never wrong about a count.
    ///
    /// The caller names only regions that a look found mapped by a superpage in private anonymous
    /// memory; that the superpage is still there is made sure of before and after.
    ///
    /// # Errors
    /// See [`UnreadZeroes`].
    pub fn count(
        &mut self,
        id: ProcessId,
        region: Region,
        wanted: PageCount,
    ) -> Result<Zeroes, UnreadZeroes> {
        let pid = id.pid;
        let path = self.roots.of_process(pid, "mem");
        let sort = |error| ReadError::of_process(pid, &path, error);
        let memory = File::open(&path).map_err(sort)?;
        // From here on the open file belongs to one process, whatever becomes of its number.
        if !still_is(&self.roots, id) {
            return Err(ReadError::Vanished { pid }.into());
        }
        self.must_be_huge(id, region)?;
        let job = Job {
            memory,
            region,
            wanted,
        };
        let found = match self.reader()?.read(job) {
            Some(Ok(found)) => found,
            // The memory went away (the process exited) or is not readable after all.
            Some(Err(error)) => {
                let is_gone = !still_is(&self.roots, id) || error.raw_os_error().is_none();
                return Err(match is_gone {
                    true => ReadError::Vanished { pid },
                    false => sort(error),
                }
                .into());
            }
            None => {
                self.reader = None;
                return Err(UnreadZeroes::Stuck { pid, region });
            }
        };
        // What was split or discarded meanwhile was not what was counted.
        self.must_be_huge(id, region)?;
        Ok(found)
    }

    fn must_be_huge(&self, id: ProcessId, region: Region) -> Result<(), UnreadZeroes> {
        match is_huge_mapped(&self.roots, id, region)? {
            Some(true) => Ok(()),
            _ => Err(UnreadZeroes::NotHuge {
                pid: id.pid,
                region,
            }),
        }
    }

    fn reader(&mut self) -> Result<&Reader, UnreadZeroes> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None if Arc::strong_count(&self.living) > STUCK_AT_MOST => {
                let error = io::Error::other("too many of them are stuck in reads");
                return Err(UnreadZeroes::Thread(error));
            }
            None => Reader::start(Arc::clone(&self.living)).map_err(UnreadZeroes::Thread)?,
        };
        Ok(self.reader.insert(reader))
    }
}

/// A region to count.
struct Job {
    memory: File,
    region: Region,
    wanted: PageCount,
}

/// A thread that reads, and can be left to itself.
#[derive(Debug)]
struct Reader {
    jobs: SyncSender<Job>,
    found: Receiver<io::Result<Zeroes>>,
}

impl Reader {
    fn start(alive: Arc<()>) -> io::Result<Self> {
        let (jobs, to_do) = sync_channel::<Job>(1);
        let (done, found) = sync_channel(1);
        thread::Builder::new()
            .name("superhue-zeroes".to_owned())
            .spawn(move || {
                let _alive = alive;
                let mut buffer = vec![0; HUGE_PAGE_SIZE as usize];
                // Ends with the counter, or when nobody waits for the answer any more.
                while let Ok(job) = to_do.recv() {
                    if done.send(look(&job, &mut buffer)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { jobs, found })
    }

    /// `None` when it takes too long.
    fn read(&self, job: Job) -> Option<io::Result<Zeroes>> {
        self.jobs.try_send(job).ok()?;
        self.found.recv_timeout(PATIENCE).ok()
    }
}

fn look(job: &Job, buffer: &mut [u8]) -> io::Result<Zeroes> {
    let start = job.region.start().0;
    if job.wanted > PageCount(0) {
        let mut zero = 0;
        for page in sampled_pages() {
            let sample = &mut buffer[..SAMPLE];
            job.memory
                .read_exact_at(sample, start + page * BASE_PAGE_SIZE)?;
            zero += u64::from(is_zero(sample));
        }
        if are_clearly_few(zero, job.wanted) {
            return Ok(Zeroes::Few);
        }
    }
    job.memory.read_exact_at(buffer, start)?;
    Ok(Zeroes::Counted(zero_pages(buffer)))
}

/// One page out of every 16, at another place in each: programs use every second page, or every
/// sixteenth, and all of those alike.
fn sampled_pages() -> impl Iterator<Item = u64> {
    const EACH: u64 = PAGES_PER_REGION / SAMPLES;
    (0..SAMPLES).map(|index| index * EACH + (index * 7 + 3) % EACH)
}

/// Whether even four times as many zeroes as the samples promise would be too few.
///
/// Of a region with just enough, half of it, this is said once in a million times.
const fn are_clearly_few(zero_samples: u64, wanted: PageCount) -> bool {
    zero_samples * (PAGES_PER_REGION / SAMPLES) * 4 < wanted.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = BASE_PAGE_SIZE as usize;

    proptest! {
        #[test]
        fn one_byte_anywhere_makes_a_page_count_no_more(
            used in proptest::collection::btree_map(0..8_usize, 0..PAGE, 0..8),
            rest in 0..PAGE,
        ) {
            let mut bytes = vec![0; 8 * PAGE + rest];
            for (page, offset) in &used {
                bytes[page * PAGE + offset] = 1;
            }
            prop_assert_eq!(zero_pages(&bytes), PageCount(8 - used.len() as u64));
        }
    }

    #[test]
    fn samples_are_spread_over_all_places() {
        let pages: Vec<u64> = sampled_pages().collect();
        assert_eq!(pages.len() as u64, SAMPLES);
        assert!(pages.is_sorted() && pages.iter().all(|&page| page < PAGES_PER_REGION));
        let mut places: Vec<u64> = pages.iter().map(|page| page % 16).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 16, "no place in 16 is left out");
    }

    #[test]
    fn only_what_is_plain_is_left_uncounted() {
        let half = PageCount(PAGES_PER_REGION / 2);
        assert!(are_clearly_few(0, half) && are_clearly_few(3, half));
        assert!(!are_clearly_few(4, half));
        assert!(!are_clearly_few(0, PageCount(0)));
        assert!(are_clearly_few(0, PageCount(1)));
    }
}
