//! System calls made directly, and the mailbox's mapping.
//!
//! The agent's thread shares thread-local storage with the thread that made it, so it must not call
//! a libc function that may set `errno`: that would change the program's.

use std::arch::asm;
use std::ffi::{CStr, c_char};
use std::io::Write;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use superhue_mailbox::{
    ColorHeader, ColorSlot, Header, MAGIC, MAILBOX_SIZE, Mailbox, Slot, Ticket,
};
use superhue_model::VirtRange;

use crate::environment::TICKET;

/// Makes a system call; returns what the kernel returns (`-errno` on failure).
///
/// # Safety
/// That of the call `number` with these arguments.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller's promise; the kernel changes rax, rcx, r11 and what the call documents.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// Makes a system call; returns what the kernel returns (`-errno` on failure).
///
/// # Safety
/// That of the call `number` with these arguments.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller's promise; the kernel changes x0 and what the call documents.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3],
            in("x4") args[4], in("x5") args[5],
            options(nostack)
        );
    }
    result
}

/// Whose descriptors a thread has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Descriptors {
    /// Those of the process.
    Shared,
    /// Copies of them, in a table of its own.
    Copied,
}

/// Starts a thread on the stack that ends at `stack_top`, running `entry`, which never returns.
///
/// The thread is one of the process's (`CLONE_THREAD`), shares everything with it but perhaps descriptors, and is
/// unknown to libc. Returns its number, or `-errno`. `ended`, if given, holds the number while the thread lives: the
/// kernel clears it, and wakes who waits on it, once the thread has ended.
///
/// # Safety
/// `stack_top` is 16-byte aligned, ends enough writable memory that nothing else uses, and `entry`
/// calls no libc function. All signals should be blocked by the caller: the thread inherits that.
pub(crate) unsafe fn start_thread(
    stack_top: usize,
    descriptors: Descriptors,
    ended: Option<&'static AtomicU32>,
    entry: extern "C" fn() -> !,
) -> isize {
    const FLAGS: usize = (libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM) as usize;
    let flags = match descriptors {
        Descriptors::Shared => FLAGS | libc::CLONE_FILES as usize,
        Descriptors::Copied => FLAGS,
    };
    let (flags, word) = match ended {
        Some(word) => (
            flags | (libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_CLEARTID) as usize,
            word.as_ptr() as usize,
        ),
        None => (flags, 0),
    };
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise. In the new thread rax is 0 and the stack is the new one: it
    // goes to `entry` and never comes back here.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "call r9",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags, in("rsi") stack_top, in("rdx") word, in("r10") word, in("r8") 0,
            in("r9") entry,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above, with x0 being 0 in the new thread.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "blr x9",
            "brk #1",
            "2:",
            in("x8") libc::SYS_clone,
            inlateout("x0") flags as isize => result,
            in("x1") stack_top, in("x2") word, in("x3") 0, in("x4") word,
            in("x9") entry,
            lateout("x30") _,
        );
    }
    result
}

/// Sleeps while `word` holds `value`, at most `seconds`.
pub(crate) fn futex_wait(word: *const u32, value: u32, seconds: i64) {
    futex_wait_nanoseconds(word, value, seconds.saturating_mul(1_000_000_000));
}

/// Sleeps while `word` holds `value`, at most so long.
pub(crate) fn futex_wait_nanoseconds(word: *const u32, value: u32, nanoseconds: i64) {
    let timeout = libc::timespec {
        tv_sec: nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    };
    let operation = libc::FUTEX_WAIT as usize;
    // SAFETY: `word` lies in the mailbox, which stays mapped; the timeout outlives the call.
    unsafe {
        let timeout = &raw const timeout as usize;
        syscall(
            libc::SYS_futex,
            [word as usize, operation, value as usize, timeout, 0, 0],
        );
    }
}

/// Wakes whoever sleeps on `word`.
pub(crate) fn futex_wake(word: *const u32) {
    // SAFETY: `word` lies in the mailbox, which stays mapped.
    unsafe {
        syscall(
            libc::SYS_futex,
            [word as usize, libc::FUTEX_WAKE as usize, 1, 0, 0, 0],
        );
    }
}

/// Replaces the calling thread's signal mask and returns the former one.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel's signal set is eight bytes; both outlive the call.
    unsafe {
        syscall(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                &raw const mask as usize,
                &raw mut before as usize,
                size_of::<u64>(),
                0,
                0,
            ],
        );
    }
    before
}

/// The calling process's number, asked of the kernel (right after a fork too).
pub(crate) fn process_number() -> u32 {
    // SAFETY: takes nothing and touches no memory.
    let pid = unsafe { syscall(libc::SYS_getpid, [0; 6]) };
    u32::try_from(pid).unwrap_or(0)
}

/// Opens a file for reading, closed by exec; `-errno` on failure.
pub(crate) fn open(path: &CStr, flags: i32) -> isize {
    let at = libc::AT_FDCWD as usize;
    let flags = (flags | libc::O_CLOEXEC) as usize;
    // SAFETY: the path is a C string that outlives the call.
    unsafe {
        syscall(
            libc::SYS_openat,
            [at, path.as_ptr() as usize, flags, 0, 0, 0],
        )
    }
}

/// Opens, for reading, the file that has descriptor `number` in Superhue.
pub(crate) fn open_of_superhue(number: i32) -> Option<OwnedFd> {
    let text = TICKET.get().split(|&byte| byte == b'=').nth(1)?;
    let ticket: Ticket = std::str::from_utf8(text).ok()?.parse().ok()?;
    let mut path = [0_u8; 64];
    write!(path.get_mut(..63)?, "/proc/{}/fd/{number}", ticket.pid).ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}

/// Reads into `buffer` from the start of the file; how many bytes, or 0 on failure.
pub(crate) fn read_head(fd: usize, buffer: &mut [u8]) -> usize {
    let (at, length) = (buffer.as_mut_ptr() as usize, buffer.len());
    // SAFETY: the kernel writes at most the buffer's length.
    let read = unsafe { syscall(libc::SYS_pread64, [fd, at, length, 0, 0, 0]) };
    usize::try_from(read).unwrap_or(0)
}

/// Closes a descriptor that this library opened.
pub(crate) fn close(fd: usize) {
    // SAFETY: nobody else knows the descriptor.
    unsafe { syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
}

/// Maps memory as `mmap(2)`; `-errno` on failure.
///
/// # Safety
/// That of `mmap(2)`.
pub(crate) unsafe fn map(length: usize, protection: i32, flags: i32, fd: isize) -> isize {
    let (protection, flags) = (protection as usize, flags as usize);
    // SAFETY: the caller's promise; no fixed address is asked for.
    unsafe {
        syscall(
            libc::SYS_mmap,
            [0, length, protection, flags, fd as usize, 0],
        )
    }
}

/// Ends the calling thread, and nothing else.
pub(crate) fn end_thread() -> ! {
    loop {
        // SAFETY: ends this thread only.
        unsafe { syscall(libc::SYS_exit, [0; 6]) };
    }
}

/// Ends the process as `_exit` does.
pub(crate) fn end_process(status: usize) {
    // SAFETY: nothing runs afterwards.
    unsafe { syscall(libc::SYS_exit_group, [status, 0, 0, 0, 0, 0]) };
}

/// Closes every descriptor of the calling thread's table, which must be its own.
pub(crate) fn close_all() {
    // SAFETY: nobody else has this table.
    unsafe { syscall(libc::SYS_close_range, [0, u32::MAX as usize, 0, 0, 0, 0]) };
}

/// The calling thread's number.
pub(crate) fn thread_number() -> u32 {
    // SAFETY: takes nothing and touches no memory.
    let number = unsafe { syscall(libc::SYS_gettid, [0; 6]) };
    u32::try_from(number).unwrap_or(0)
}

/// Takes a mapping made by [`map`] away.
///
/// # Safety
/// Nobody uses the memory any more.
pub(crate) unsafe fn unmap(address: usize, length: usize) {
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_munmap, [address, length, 0, 0, 0, 0]) };
}

/// Has forks leave a mapping of ours out.
pub(crate) fn keep_from_forks(address: usize, length: usize) {
    let advice = libc::MADV_DONTFORK as usize;
    // SAFETY: changes what forks do, nothing here.
    unsafe { syscall(libc::SYS_madvise, [address, length, advice, 0, 0, 0]) };
}

/// Gives the pages of a range of ours up, so that the next access finds a hole.
pub(crate) fn make_hole(range: VirtRange) {
    let (start, length) = (range.start.0 as usize, range.len().0 as usize);
    let advice = libc::MADV_DONTNEED as usize;
    // SAFETY: callers name memory that they mapped themselves, and whose bytes mean nothing.
    unsafe { syscall(libc::SYS_madvise, [start, length, advice, 0, 0, 0]) };
}

/// Lets other threads run.
pub(crate) fn give_way() {
    // SAFETY: takes nothing and touches no memory.
    unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// The mapped mailbox. Never unmapped: the process's end does that.
#[derive(Clone, Copy)]
pub(crate) struct Shared(&'static Mailbox);

impl Shared {
    /// Maps the mailbox the ticket names, if it is there and is the right one.
    pub(crate) fn open(ticket: Ticket) -> Option<Self> {
        let mut path = [0_u8; 64];
        write!(&mut path[..63], "/proc/{}/fd/{}", ticket.pid, ticket.fd).ok()?;
        let path = CStr::from_bytes_until_nul(&path).ok()?;
        let fd = usize::try_from(open(path, libc::O_RDWR)).ok()?;
        let is_whole = size_of_file(fd) == Some(MAILBOX_SIZE);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let mapped = is_whole
            .then(|| unsafe { map(MAILBOX_SIZE, protection, libc::MAP_SHARED, fd as isize) });
        close(fd);
        let address = usize::try_from(mapped?).ok()?;
        // SAFETY: the mapping has the mailbox's size, is page aligned, lives as long as the process,
        // and every field is an atomic, for which any bytes are valid.
        let mailbox: &'static Mailbox = unsafe { &*(address as *const Mailbox) };
        let header = &mailbox.header;
        let is_right = header.magic.load(Acquire) == MAGIC
            && header.nonce.load(Relaxed) == ticket.nonce
            && header.closing.load(Relaxed) == 0;
        is_right.then_some(Self(mailbox))
    }

    /// The mailbox whose header lies at `address`.
    ///
    /// # Safety
    /// The address was taken from [`Shared::header`] in this process or the one it was forked from.
    pub(crate) unsafe fn at(address: usize) -> Self {
        // SAFETY: the header is the mailbox's first field, and the mapping is never removed.
        Self(unsafe { &*(address as *const Mailbox) })
    }

    pub(crate) fn wishes(self) -> u32 {
        self.0.header.wishes.load(Relaxed)
    }

    pub(crate) fn header(self) -> &'static Header {
        &self.0.header
    }

    /// What is wanted of page colors.
    pub(crate) fn color(self) -> &'static ColorHeader {
        &self.0.color
    }

    /// The slot this process holds for colors, claimed now if need be.
    pub(crate) fn claim_colors(self, pid: u32) -> Option<&'static ColorSlot> {
        let claimed: *const Slot = self.claim(pid)?;
        let mut pairs = self.0.slots.iter().zip(&self.0.color_slots);
        let pair = pairs.find(|(slot, _)| std::ptr::eq(*slot, claimed));
        pair.map(|(_, colors)| colors)
    }

    /// The slot this process holds, claimed now if need be.
    pub(crate) fn claim(self, pid: u32) -> Option<&'static Slot> {
        let held = self
            .0
            .slots
            .iter()
            .find(|slot| slot.owner.load(Relaxed) == pid);
        let slot = held.or_else(|| {
            self.0.slots.iter().find(|slot| {
                slot.owner
                    .compare_exchange(0, pid, Acquire, Relaxed)
                    .is_ok()
            })
        });
        if slot.is_none() {
            self.header().turned_away.fetch_add(1, Relaxed);
        }
        slot
    }
}

fn size_of_file(fd: usize) -> Option<usize> {
    let status = file_status(fd)?;
    usize::try_from(status.st_size).ok()
}

/// `fstat(2)`, without libc.
pub(crate) fn file_status(fd: usize) -> Option<libc::stat> {
    // SAFETY: all-zero is a valid `stat`.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel's and libc's `struct stat` are the same on 64-bit machines.
    let done = unsafe { syscall(libc::SYS_fstat, [fd, &raw mut status as usize, 0, 0, 0, 0]) };
    (done == 0).then_some(status)
}

/// The bytes of a C string, or `None` for a null pointer.
///
/// # Safety
/// `text` is null or a C string that stays unchanged while the result is used.
pub(crate) unsafe fn bytes_of<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}
