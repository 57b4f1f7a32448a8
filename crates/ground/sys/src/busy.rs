//! Which other process each thread of this one is busy with, told to whoever started this one.
//!
//! A read of `/proc/PID`, or a call that changes a process, can wait for that process for as long as its owner likes, and can not be ended from
//! inside. So that it can be from outside, [`note`] writes the number of the process into a page of memory, the [`Board`], which is shared with
//! a parent that watches over this process:
//!
//! ```text
//!   worker   note(7): board[thread] = (7, count + 1)        then reads /proc/7/...
//!   parent   board[thread] is (7, the same count) and the thread sleeps in the kernel: 7 holds it up
//! ```
//!
//! A process without a board pays for a look at a pointer. What must be left alone ([`leave_alone`]) is asked for in the same place, where paths of
//! processes are made (`superhue_procfs::Roots::of_process`).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::thread::gettid;

/// Threads that have a place; further ones are not seen.
const SLOTS: usize = 128;

/// Bytes of a board.
const SIZE: usize = size_of::<Slots>();

/// What a thread is busy with.
#[derive(Debug, Default)]
struct Slot {
    /// The thread; 0 for a place that is free.
    thread: AtomicU32,
    /// The process; 0 for none.
    process: AtomicU32,
    /// Counts up with each note.
    count: AtomicU32,
}

type Slots = [Slot; SLOTS];

/// The board that this process writes on.
static HERE: AtomicPtr<Slots> = AtomicPtr::new(std::ptr::null_mut());

/// Counts the boards that this process has had: places on others do not hold.
static TURN: AtomicU32 = AtomicU32::new(0);

/// Processes that are to be left alone; and whether there are any.
static LEFT_ALONE: RwLock<BTreeSet<u32>> = RwLock::new(BTreeSet::new());
static IS_ANY_LEFT: AtomicBool = AtomicBool::new(false);

/// The place of a thread, which it gives back at its end.
struct Place(Cell<(u32, Option<usize>)>);

impl Drop for Place {
    fn drop(&mut self) {
        if let (turn, Some(index)) = self.0.get()
            && turn == TURN.load(Ordering::Relaxed)
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

/// A thread of another process, as its board shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// The thread's number.
    pub thread: u32,
    /// The process that it is busy with.
    pub process: u32,
    /// Another one with each note.
    pub count: u32,
}

/// Memory that is shared with a process that tells what it is busy with.
#[derive(Debug)]
pub struct Board(NonNull<Slots>);

// SAFETY: the memory is mapped until the board is dropped, and holds atomics only.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// A board for children that are forked.
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

    /// A board for a program that is executed, and the file that it is to be given (see [`tell`]).
    ///
    /// # Errors
    /// Those of `memfd_create(2)` and `mmap(2)`.
    pub fn in_file() -> Result<(Self, OwnedFd), Errno> {
        let file = memfd_create("superhue-board", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, SIZE as u64)?;
        Ok((Self::of_file(&file)?, file))
    }

    fn of_file(file: impl AsFd) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses. Whoever has the file may change it at any time: it holds atomics.
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

    /// Has this process write on it from now on. To be called by a child right after the fork.
    pub fn write_here(&self) {
        HERE.store(self.0.as_ptr(), Ordering::Release);
        TURN.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets what is on it: another process is to write there.
    pub fn clear(&self) {
        for slot in self.slots() {
            slot.process.store(0, Ordering::Relaxed);
            slot.thread.store(0, Ordering::Release);
        }
    }

    /// The threads that are busy with a process.
    #[must_use]
    pub fn busy(&self) -> Vec<Busy> {
        let busy = |slot: &Slot| {
            let found = Busy {
                thread: slot.thread.load(Ordering::Acquire),
                process: slot.process.load(Ordering::Acquire),
                count: slot.count.load(Ordering::Acquire),
            };
            (found.thread != 0 && found.process != 0).then_some(found)
        };
        self.slots().iter().filter_map(busy).collect()
    }

    const fn slots(&self) -> &Slots {
        // SAFETY: mapped until the drop, large enough, aligned to a page; all-zero bytes are atomics.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        if HERE.load(Ordering::Acquire) == self.0.as_ptr() {
            // This process tells somebody else: the memory has to stay.
            return;
        }
        // SAFETY: nobody in this process has another reference to it.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), SIZE) };
    }
}

/// Tells whoever gave us this file ([`Board::in_file`]) from now on.
///
/// # Errors
/// `EINVAL` for a file that is too short; those of `mmap(2)`.
pub fn tell(file: impl AsFd) -> Result<(), Errno> {
    let about = rustix::fs::fstat(&file)?;
    if u64::try_from(about.st_size).unwrap_or_default() < SIZE as u64 {
        // Touching it would end the process.
        return Err(Errno::INVAL);
    }
    let board = Board::of_file(file)?;
    board.write_here();
    // It stays until the process ends.
    std::mem::forget(board);
    Ok(())
}

/// Says that this thread is busy with process `pid` from now on; 0 is for none.
pub fn note(pid: u32) {
    let Some(slots) = slots() else { return };
    let turn = TURN.load(Ordering::Relaxed);
    // At its very end a thread has no place any more.
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

/// The processes that are to be left alone from now on: their files are as if they had ended.
pub fn leave_alone(pids: BTreeSet<u32>) {
    IS_ANY_LEFT.store(!pids.is_empty(), Ordering::Relaxed);
    *LEFT_ALONE.write().unwrap_or_else(PoisonError::into_inner) = pids;
}

/// Whether a process is to be left alone.
#[must_use]
pub fn is_left_alone(pid: u32) -> bool {
    IS_ANY_LEFT.load(Ordering::Relaxed)
        && (LEFT_ALONE.read())
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&pid)
}

fn slots() -> Option<&'static Slots> {
    let here = NonNull::new(HERE.load(Ordering::Acquire))?;
    // SAFETY: what is here stays mapped: a board that this process writes on is never unmapped.
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

    /// In one test: the board is one for the process.
    #[test]
    fn a_board_shows_who_is_busy_with_whom() {
        note(7);
        let (board, file) = Board::in_file().unwrap();
        assert_eq!(board.busy(), []);
        tell(&file).unwrap();
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
    fn whoever_is_to_be_left_alone_is_known() {
        assert!(!is_left_alone(u32::MAX));
        leave_alone([u32::MAX].into());
        assert!(is_left_alone(u32::MAX) && !is_left_alone(1));
        leave_alone(BTreeSet::new());
        assert!(!is_left_alone(u32::MAX));
    }
}
