//! Base pages of a huge page that hold only zeroes: the memory that a split would give back.
//!
//! A program that touches one byte of a huge page makes 2 MiB resident. The parts that it never wrote are still
//! zero, and since Linux 6.12 a split returns such pages. The only way to find them is to read the bytes:
//! the page table has one entry for all of them.
//!
//! The code reads `/proc/PID/mem` and does not use `process_vm_readv(2)`, which would be as fast. That call
//! *pins* pages, and before pinning a page that is shared since a `fork` the kernel unshares it
//! (`gup_must_unshare` in `mm/internal.h`). A read would then split and copy the huge page,
//! as was measured on 6.18. The file also stays with the memory on which it was opened when
//! the number passes to another process.
//!
//! ```text
//!   open mem -- same process? -- one huge page? -- 32 samples -- all 2 MiB -- still one?
//!                  no: Vanished      no: NotHuge     clearly too       |         no: NotHuge
//!                                                    few zeroes: Few   `-- count
//! ```
//!
//! The code reads only regions that one huge page maps, because reading a page that is *not present* has
//! effects. It maps the shared zero page, or brings memory back from swap. In memory under
//! `userfaultfd(2)` it waits for the process's own handler, which receives a fault that the
//! process never caused. An entry for the whole region has no holes. If the process discards the
//! memory between the check and the read, the read may still meet a hole and wait. So a thread of
//! its own reads, and after [`READ_TIMEOUT`] the caller abandons that thread.
//!
//! Reading sets the accessed bit of the huge page. A tracker of accesses should call it just before it
//! clears the bit for the next interval.

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
use superhue_sys::process::thread_cpu_time;

use crate::{ReadError, Roots};

use super::identity::still_is;
use super::pages::is_huge_mapped;

/// Maximum time of a read; usually it takes a third of a millisecond.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of stuck reader threads at which reading stops permanently.
const STUCK_AT_MOST: usize = 4;

/// Number of samples of a region, and the length of each in bytes: a cache line.
const SAMPLES: u64 = 32;
const SAMPLE: usize = 64;

/// Result for a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeroes {
    /// Number of its 512 base pages that hold only zeroes.
    Counted(PageCount),
    /// Clearly fewer than the caller wanted, by samples; not counted.
    Few,
}

/// Reason why a region's zeroes are not known.
#[derive(Debug, thiserror::Error)]
pub enum UnreadZeroes {
    /// The process is gone or may not be read (`/proc/PID/mem` requires ptrace attach rights).
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Not one huge page, or not any more, or the kernel does not show it (before Linux 6.7).
    #[error("process {pid}: {} is not mapped by one huge page, as far as can be seen", region.range())]
    NotHuge {
        /// Process id.
        pid: u32,
        /// Region.
        region: Region,
    },
    /// The read did not finish.
    #[error(
        "process {pid}: reading {} did not end: it may wait for a userfaultfd(2) handler that is \
         stopped, or for swap", region.range()
    )]
    Stuck {
        /// Process id.
        pid: u32,
        /// Region.
        region: Region,
    },
    /// The reader thread did not start.
    #[error("cannot start a thread to read memory from: {0}")]
    Thread(io::Error),
}

/// Counts the base pages in `bytes` that hold only zeroes. An incomplete page at the end does not count.
#[must_use]
pub fn zero_pages(bytes: &[u8]) -> PageCount {
    let pages = bytes.chunks_exact(BASE_PAGE_SIZE as usize);
    PageCount(pages.filter(|page| is_zero(page)).count() as u64)
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().all(|word| u64::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}

/// Counter of zero pages in huge pages of processes, one region at a time.
#[derive(Debug)]
pub struct ZeroPages {
    roots: Roots,
    reader: Option<Reader>,
    /// Clone held by every reader thread, including the stuck ones.
    living: Arc<()>,
    /// CPU time of the reader threads that no caller has collected yet.
    spent: Duration,
}

impl ZeroPages {
    /// Makes a counter that reads under `roots`. The first count allocates the 2 MiB buffer and starts the thread.
    #[must_use]
    pub fn new(roots: Roots) -> Self {
        Self {
            roots,
            reader: None,
            living: Arc::new(()),
            spent: Duration::ZERO,
        }
    }

    /// Returns the CPU time that reading has taken since the last call. It is that of another thread than the caller's.
    pub fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }

    /// Counts those of the 512 base pages of `region` that hold only zeroes.
    ///
    /// If 32 samples show clearly fewer than `wanted`, it does not read the rest
    /// (20 microseconds instead of 400); a `wanted` of 0 always counts. Samples may be wrong
    /// about a region that has just enough; a count is never wrong.
    ///
    /// The caller passes only regions that a scan found mapped by a huge page in private anonymous
    /// memory. The function checks before and after that the huge page is still there.
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
        // From here on the open file belongs to one process, even if its number is reused.
        if !still_is(&self.roots, id) {
            return Err(ReadError::Vanished { pid }.into());
        }
        self.must_be_huge(id, region)?;
        let job = Job {
            memory,
            region,
            wanted,
        };
        let answer = self.reader()?.read(job);
        let found = answer.map(|(found, spent)| {
            self.spent += spent;
            found
        });
        let found = match found {
            Some(Ok(found)) => found,
            // The memory is gone (the process exited), or is not readable after all.
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
        // If the huge page was split or discarded meanwhile, the count is of other memory.
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

/// Region to count.
struct Job {
    memory: File,
    region: Region,
    wanted: PageCount,
}

/// Reader thread, which the caller can abandon.
#[derive(Debug)]
struct Reader {
    jobs: SyncSender<Job>,
    /// Result of the reads, and the CPU time that they took.
    found: Receiver<(io::Result<Zeroes>, Duration)>,
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
                // Ends with the counter, or when the counter has abandoned this thread.
                while let Ok(job) = to_do.recv() {
                    let before = thread_cpu_time();
                    let found = look(&job, &mut buffer);
                    let spent = thread_cpu_time().saturating_sub(before);
                    if done.send((found, spent)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { jobs, found })
    }

    /// Reads a region; `None` if that takes longer than [`READ_TIMEOUT`].
    fn read(&self, job: Job) -> Option<(io::Result<Zeroes>, Duration)> {
        self.jobs.try_send(job).ok()?;
        self.found.recv_timeout(READ_TIMEOUT).ok()
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

/// Returns one page out of every 16, at a different offset in each: programs may use every second page, or every
/// sixteenth, at the same offset.
fn sampled_pages() -> impl Iterator<Item = u64> {
    const EACH: u64 = PAGES_PER_REGION / SAMPLES;
    (0..SAMPLES).map(|index| index * EACH + (index * 7 + 3) % EACH)
}

/// Returns true if even four times as many zeroes as the samples suggest would be too few.
///
/// For a region with just enough, half of it, this is true about once in a million times.
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
