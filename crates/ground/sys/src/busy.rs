//! Record of the other process with which each thread of this one is busy, for the parent process.
//!
//! A read of `/proc/PID`, or a call that changes a process, can wait for that process for as long as its owner likes, and this process cannot
//! end the wait itself. Another process can. So [`note`] writes the number of the process into a page of memory, the [`BusyBoard`], which is
//! shared with a parent that watches this process:
//!
//! ```text
//!   worker   note(7): board[thread] = (7, count + 1)        then reads /proc/7/...
//!   parent   board[thread] is (7, the same count) and the thread sleeps in the kernel: 7 holds it up
//! ```
//!
//! A process without a board pays only for reading a pointer. The function that makes the paths of processes
//! (`superhue_procfs::Roots::of_process`) also checks which processes to leave alone ([`leave_alone`]).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::thread::gettid;

/// Maximum number of threads with a place; further threads do not show.
const SLOTS: usize = 128;

/// Size of a board in bytes.
const SIZE: usize = size_of::<Board>();

/// Process with which a thread is busy.
#[derive(Debug, Default)]
struct Slot {
    /// Thread id; 0 for a free place.
    thread: AtomicU32,
    /// Process id; 0 for none.
    process: AtomicU32,
    /// Number of notes so far.
    count: AtomicU32,
}

type Slots = [Slot; SLOTS];

/// Memory of a board.
#[derive(Debug)]
struct Board {
    slots: Slots,
    /// Bytes charged to a budget by the process that writes.
    charged: AtomicU64,
}

/// Board on which this process writes.
static OWN_BOARD: AtomicPtr<Board> = AtomicPtr::new(std::ptr::null_mut());

/// Number of boards that this process has had: a place on an earlier board is not valid any more.
static BOARD_GENERATION: AtomicU32 = AtomicU32::new(0);

/// Processes to leave alone; below, true if there are any.
static LEFT_ALONE: RwLock<BTreeSet<u32>> = RwLock::new(BTreeSet::new());
static IS_ANY_LEFT: AtomicBool = AtomicBool::new(false);

/// Place of a thread, which it gives back when it ends.
struct Place(Cell<(u32, Option<usize>)>);

impl Drop for Place {
    fn drop(&mut self) {
        if let (turn, Some(index)) = self.0.get()
            && turn == BOARD_GENERATION.load(Ordering::Relaxed)
            && let Some(slot) = slots().and_then(|slots| slots.get(index))
        {
            slot.process.store(0, Ordering::Relaxed);
            slot.thread.store(0, Ordering::Release);
        }
    }
}

thread_local! {
    static PLACE: Place = const { Place(Cell::new((0, None))) };
}

/// Thread of another process, as its board shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyThread {
    /// Thread id.
    pub thread: u32,
    /// Process with which the thread is busy.
    pub process: u32,
    /// Count that changes with each note.
    pub count: u32,
}

/// Memory shared with a process that records the processes with which it is busy.
#[derive(Debug)]
pub struct BusyBoard(NonNull<Board>);

// SAFETY: the memory is mapped until the board is dropped, and holds atomics only.
unsafe impl Send for BusyBoard {}
// SAFETY: as above.
unsafe impl Sync for BusyBoard {}

impl BusyBoard {
    /// Makes a board for forked children.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), SIZE, protection, MapFlags::SHARED)? };
        NonNull::new(start.cast()).map(Self).ok_or(Errno::NOMEM)
    }

    /// Makes a board for a program that is executed, and the file to pass to it (see [`tell`]).
    ///
    /// # Errors
    /// Errors of `memfd_create(2)` and `mmap(2)`.
    pub fn in_file() -> Result<(Self, OwnedFd), Errno> {
        let file = memfd_create("superhue-board", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, SIZE as u64)?;
        Ok((Self::of_file(&file)?, file))
    }

    fn of_file(file: impl AsFd) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses. Any process with the file may change it at any time: it holds atomics.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                SIZE,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        NonNull::new(start.cast()).map(Self).ok_or(Errno::NOMEM)
    }

    /// Makes this process write on the board from now on. A child calls it right after the fork.
    pub fn write_here(&self) {
        OWN_BOARD.store(self.0.as_ptr(), Ordering::Release);
        BOARD_GENERATION.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the bytes that the processes with this board have charged to their budget ([`note_charged`]).
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.board().charged.load(Ordering::Relaxed)
    }

    /// Clears the board for another process, which continues with the bytes charged so far.
    pub fn clear(&self) {
        for slot in self.slots() {
            slot.process.store(0, Ordering::Relaxed);
            slot.thread.store(0, Ordering::Release);
        }
    }

    /// Returns the threads that are busy with a process.
    #[must_use]
    pub fn busy(&self) -> Vec<BusyThread> {
        let busy = |slot: &Slot| {
            let found = BusyThread {
                thread: slot.thread.load(Ordering::Acquire),
                process: slot.process.load(Ordering::Acquire),
                count: slot.count.load(Ordering::Acquire),
            };
            (found.thread != 0 && found.process != 0).then_some(found)
        };
        self.slots().iter().filter_map(busy).collect()
    }

    const fn board(&self) -> &Board {
        // SAFETY: mapped until the drop, large enough, aligned to a page; all-zero bytes are atomics.
        unsafe { self.0.as_ref() }
    }

    const fn slots(&self) -> &Slots {
        &self.board().slots
    }
}

impl Drop for BusyBoard {
    fn drop(&mut self) {
        if OWN_BOARD.load(Ordering::Acquire) == self.0.as_ptr() {
            // This process writes on the board: the memory has to stay mapped.
            return;
        }
        // SAFETY: no code in this process has another reference to it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

/// Writes on the board in this file ([`BusyBoard::in_file`]) from now on.
///
/// # Errors
/// `EINVAL` for a file that is too short; those of `mmap(2)`.
pub fn tell(file: impl AsFd) -> Result<(), Errno> {
    let about = rustix::fs::fstat(&file)?;
    if u64::try_from(about.st_size).unwrap_or_default() < SIZE as u64 {
        // A touch of the missing part would end the process with SIGBUS.
        return Err(Errno::INVAL);
    }
    let board = BusyBoard::of_file(file)?;
    board.write_here();
    // The board stays mapped until the process ends.
    std::mem::forget(board);
    Ok(())
}

/// Records that this thread is busy with process `pid` from now on; 0 means none.
pub fn note(pid: u32) {
    let Some(slots) = slots() else { return };
    let turn = BOARD_GENERATION.load(Ordering::Relaxed);
    // A thread has no place any more when its local variables are gone.
    let _ = PLACE.try_with(|place| {
        if place.0.get().0 != turn {
            place.0.set((turn, take_place(slots)));
        }
        if let (_, Some(index)) = place.0.get()
            && let Some(slot) = slots.get(index)
        {
            slot.count.fetch_add(1, Ordering::Relaxed);
            slot.process.store(pid, Ordering::Release);
        }
    });
}

/// Records the bytes that this process has charged to its budget, for one that takes its place after it was killed.
pub fn note_charged(bytes: u64) {
    if let Some(board) = own_board() {
        board.charged.store(bytes, Ordering::Relaxed);
    }
}

/// Sets the processes to leave alone from now on: their files then look as if they had ended.
pub fn leave_alone(pids: BTreeSet<u32>) {
    IS_ANY_LEFT.store(!pids.is_empty(), Ordering::Relaxed);
    *LEFT_ALONE.write().unwrap_or_else(PoisonError::into_inner) = pids;
}

/// Returns true if a process is to be left alone.
#[must_use]
pub fn is_left_alone(pid: u32) -> bool {
    IS_ANY_LEFT.load(Ordering::Relaxed)
        && (LEFT_ALONE.read())
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&pid)
}

fn slots() -> Option<&'static Slots> {
    own_board().map(|board| &board.slots)
}

fn own_board() -> Option<&'static Board> {
    let here = NonNull::new(OWN_BOARD.load(Ordering::Acquire))?;
    // SAFETY: the memory stays mapped: a board on which this process writes is never unmapped.
    Some(unsafe { here.as_ref() })
}

fn take_place(slots: &Slots) -> Option<usize> {
    let thread = u32::try_from(gettid().as_raw_nonzero().get()).unwrap_or(u32::MAX);
    let take = |slot: &Slot| {
        let taken = slot
            .thread
            .compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    };
    slots.iter().position(take)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single test, because a process has only one board.
    #[test]
    fn a_board_shows_who_is_busy_with_whom() {
        note(7);
        let (board, file) = BusyBoard::in_file().unwrap();
        assert_eq!(board.busy(), []);
        note_charged(1);
        tell(&file).unwrap();
        assert_eq!(board.charged(), 0);
        note_charged(4096);
        board.clear();
        assert_eq!(board.charged(), 4096, "the next process goes on with it");
        note(7);
        let own = u32::try_from(gettid().as_raw_nonzero().get()).unwrap();
        let before = board.busy();
        let [first] = before[..] else {
            panic!("{before:?}")
        };
        assert_eq!((first.thread, first.process), (own, 7));
        note(7);
        assert_ne!(
            board.busy()[0].count,
            first.count,
            "another read of the same one"
        );
        let other = std::thread::spawn(|| note(8));
        other.join().unwrap();
        assert_eq!(
            board.busy().len(),
            1,
            "a thread that has ended is busy with nobody"
        );
        note(0);
        assert_eq!(board.busy(), []);
        // More threads than there are places.
        let wait = std::sync::Barrier::new(SLOTS + 3);
        std::thread::scope(|scope| {
            for pid in 0..SLOTS + 2 {
                let wait = &wait;
                scope.spawn(move || {
                    note(u32::try_from(pid).unwrap() + 1);
                    wait.wait();
                    wait.wait();
                });
            }
            wait.wait();
            assert_eq!(board.busy().len(), SLOTS - 1, "all but that of this thread");
            wait.wait();
        });
        let short = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(tell(&short), Err(Errno::INVAL));
    }

    #[test]
    fn processes_to_leave_alone_are_known() {
        assert!(!is_left_alone(u32::MAX));
        leave_alone([u32::MAX].into());
        assert!(is_left_alone(u32::MAX) && !is_left_alone(1));
        leave_alone(BTreeSet::new());
        assert!(!is_left_alone(u32::MAX));
    }
}
