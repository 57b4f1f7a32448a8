//! What agents are asked about page colors, and what they say of them.
//!
//! Beside every [`Slot`](crate::Slot) lies a [`ColorSlot`] of the same number. The agent counts there what it
//! does as it does it, so that a program that ends at any moment, by whatever, is reported up to that moment.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// The most colors that can be asked for.
pub const MOST_COLORS: usize = 1024;

/// [`ColorHeader::flags`]: nothing may be placed on a page of another color; the program ends instead.
pub const COLOR_STRICT: u32 = 1 << 0;

/// [`ColorHeader::flags`]: superpages are left whole and count as right: all colors are wanted.
pub const COLOR_SUPERPAGES: u32 = 1 << 1;

/// [`ColorHeader::oracle`]: timing, by the palette file.
pub const ORACLE_MEASURED: u32 = 1;

/// [`ColorHeader::oracle`]: frame numbers modulo the number of colors. No cache was asked: for tests of the
/// agent, which must not depend on timing.
pub const ORACLE_FRAMES: u32 = 2;

/// [`ColorHeader::oracle`]: numbers dealt out to pages in turn, which mean nothing: for tests of the agent as
/// a user who may not see frame numbers.
pub const ORACLE_DEALT: u32 = 3;

/// [`ColorHeader::oracle`]: as [`ORACLE_DEALT`], but no page ever has the last color: for tests of what happens without
/// any page that is wanted.
pub const ORACLE_POOR: u32 = 4;

/// [`ColorHeader::oracle`]: as [`ORACLE_FRAMES`], until it says that colors are no longer what they were: for tests of
/// that.
pub const ORACLE_DRIFTING: u32 = 5;

/// Which colors are wanted.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ColorHeader {
    /// How many colors there are.
    pub colors: AtomicU32,
    /// `COLOR_*` bits.
    pub flags: AtomicU32,
    /// `ORACLE_*`.
    pub oracle: AtomicU32,
    /// Number, in Superhue, of the descriptor of the palette file.
    pub palette: AtomicI32,
    /// Pages that a pool may hold at most.
    pub pool_pages: AtomicU64,
    /// Where walks through the colors begin comes from this and the process number.
    pub seed: AtomicU64,
    /// Percent of one CPU that an agent may take to place again what was there before it.
    pub effort: AtomicU32,
    /// Seccomp filters that Superhue itself runs under; a program with more has some of its own.
    pub filters: AtomicU32,
    _reserved: [AtomicU32; 4],
    /// The colors wanted, lowest first.
    pub set: [AtomicU64; MOST_COLORS / 64],
}

/// What stopped an agent's coloring of its process, or kept it from all that was wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Aside {
    /// The program makes a userfaultfd of its own.
    OwnUserfaultfd = 1,
    /// The program installs a seccomp filter, or was started under one of its own.
    Seccomp = 2,
    /// There is too little memory, or the address space is limited.
    Memory = 3,
    /// The kernel gives no userfaultfd, or has no `UFFDIO_MOVE`.
    NoUserfaultfd = 4,
    /// The palette could not be opened, or is not what it was.
    NoPalette = 5,
    /// Pages no longer have the colors that were measured.
    Refuted = 6,
    /// The agent did not answer, and was stopped from outside.
    Stuck = 7,
    /// Something that should not happen.
    Failed = 8,
    /// `--strict`, and no page of a wanted color was left.
    Strict = 9,
    /// The program closed the agent's descriptors or otherwise broke its tools.
    Broken = 10,
    /// The program locks all its memory, which pages of a pool that is not locked cannot become part of.
    LocksAll = 11,
}

impl Aside {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::OwnUserfaultfd,
        Self::Seccomp,
        Self::Memory,
        Self::NoUserfaultfd,
        Self::NoPalette,
        Self::Refuted,
        Self::Stuck,
        Self::Failed,
        Self::Strict,
        Self::Broken,
        Self::LocksAll,
    ];

    /// The one with this number; `None` for 0, which is none, and for nonsense.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|aside| *aside as u32 == number)
    }

    /// For reports.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::OwnUserfaultfd => "it uses userfaultfd itself",
            Self::Seccomp => "it runs under a seccomp filter",
            Self::Memory => "too little memory, or a limit on its address space",
            Self::NoUserfaultfd => "the kernel gives no userfaultfd that moves pages (Linux 6.8)",
            Self::NoPalette => "the palette could not be opened",
            Self::Refuted => "pages no longer have the colors that were measured",
            Self::Stuck => "the agent in it did not answer and was stopped",
            Self::Failed => "the agent failed",
            Self::Strict => "--strict: no page of its colors was left",
            Self::LocksAll => "it locks all its memory (mlockall)",
            Self::Broken => "it closed or changed what the agent works with",
        }
    }
}

/// Why pages were left where they are, in the order of [`ColorSlot::left`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Left {
    /// The pool had none of the colors wanted.
    NoPage,
    /// Shared since a fork, or pinned.
    SharedOrPinned,
    /// Locked in memory.
    Locked,
    /// Not private anonymous memory.
    NotAnonymous,
    /// Part of a superpage.
    Superpage,
    /// The mapping went away or changed meanwhile.
    Changed,
    /// The oracle is not sure.
    Unsure,
    /// Needs a privilege.
    NotPermitted,
    /// The program ended first, or there was no time yet.
    NotYet,
    /// Not both readable and writable, or executable too.
    Protected,
    /// Holds what the kernel writes when a thread ends.
    ThreadControl,
    /// Watched by a userfaultfd of the program's own.
    Watched,
    /// Something else.
    Other,
}

impl Left {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 13] = [
        Self::NoPage,
        Self::SharedOrPinned,
        Self::Locked,
        Self::NotAnonymous,
        Self::Superpage,
        Self::Changed,
        Self::Unsure,
        Self::NotPermitted,
        Self::NotYet,
        Self::Protected,
        Self::ThreadControl,
        Self::Watched,
        Self::Other,
    ];

    /// For reports.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::NoPage => "no page of the colors was left in the pool",
            Self::SharedOrPinned => "shared since a fork, or pinned",
            Self::Locked => "locked in memory",
            Self::NotAnonymous => "not private anonymous memory",
            Self::Superpage => "part of a superpage",
            Self::Changed => "unmapped or changed meanwhile",
            Self::Unsure => "color not sure",
            Self::NotPermitted => {
                "in use already: needs CAP_SYS_PTRACE or vm.unprivileged_userfaultfd=1"
            }
            Self::NotYet => "not looked at before the end",
            Self::Protected => "not plain readable and writable memory",
            Self::ThreadControl => "holds what the kernel writes when a thread ends",
            Self::Watched => "watched by a userfaultfd of the program",
            Self::Other => "other reasons",
        }
    }
}

/// What an agent did and found in its process.
///
/// Events add up over the programs that a process executes one after the other; states are those of the look that
/// saw most memory, or nearly. Pages are base pages.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ColorSlot {
    /// An [`Aside`], or 0.
    pub aside: AtomicU32,
    /// 1 when the agent is told of page faults, 2 when it can only be ahead of them; 0 when it never began.
    pub mode: AtomicU32,
    /// Changes whenever the thread goes round.
    pub round: AtomicU32,
    /// The thread's number; 0 while there is none.
    pub thread: AtomicU32,
    /// Number of its userfaultfd in its own table of descriptors, or -1.
    pub userfault: AtomicI32,
    /// 1 while memory is registered for faults, so that a thread that stands still holds others up.
    pub armed: AtomicU32,
    /// Event: page faults answered with a page of the color wanted.
    pub faults: AtomicU64,
    /// Event: pages placed into holes, those of faults included.
    pub placed: AtomicU64,
    /// Event: pages in use that were moved to another color.
    pub replaced: AtomicU64,
    /// Event: holes filled without regard to color, so that the program goes on.
    pub uncolored: AtomicU64,
    /// Event: pages that were given back, program and pool having no use for them.
    pub released: AtomicU64,
    /// Nanoseconds of CPU time of the thread, over all programs.
    pub cpu_ns: AtomicU64,
    /// State: resident pages of private anonymous memory.
    pub resident: AtomicU64,
    /// State: of these, how many are on a wanted color, by what was placed and found.
    pub right: AtomicU64,
    /// State: of these, how many belong to superpages.
    pub superpages: AtomicU64,
    /// Event: pages taken at random, moved out, measured again at other lines, and moved back.
    pub tested: AtomicU64,
    /// Event: of these, how many were on a wanted color.
    pub confirmed: AtomicU64,
    /// State: the pages that the pool holds.
    pub pool: AtomicU64,
    /// State: pages left by the last look, by [`Left`].
    pub left: [AtomicU64; Left::ALL.len()],
    /// Name of the program, as the kernel shortens it (`PR_GET_NAME`).
    pub name: [AtomicU64; 2],
    _reserved: [AtomicU64; 2],
}

/// A copy of a [`ColorSlot`], for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(
    missing_docs,
    reason = "each field is described where it is copied from: ColorSlot"
)]
pub struct ColorCounts {
    pub aside: Option<Aside>,
    pub mode: u32,
    pub faults: u64,
    pub placed: u64,
    pub replaced: u64,
    pub uncolored: u64,
    pub cpu_ns: u64,
    pub resident: u64,
    pub right: u64,
    pub superpages: u64,
    pub tested: u64,
    pub confirmed: u64,
    pub left: [u64; Left::ALL.len()],
}

impl ColorSlot {
    /// Its state now.
    #[must_use]
    pub fn counts(&self) -> ColorCounts {
        let mut left = [0; Left::ALL.len()];
        for (to, from) in left.iter_mut().zip(&self.left) {
            *to = from.load(Relaxed);
        }
        ColorCounts {
            aside: Aside::of_number(self.aside.load(Relaxed)),
            mode: self.mode.load(Relaxed),
            faults: self.faults.load(Relaxed),
            placed: self.placed.load(Relaxed),
            replaced: self.replaced.load(Relaxed),
            uncolored: self.uncolored.load(Relaxed),
            cpu_ns: self.cpu_ns.load(Relaxed),
            resident: self.resident.load(Relaxed),
            right: self.right.load(Relaxed),
            superpages: self.superpages.load(Relaxed),
            tested: self.tested.load(Relaxed),
            confirmed: self.confirmed.load(Relaxed),
            left,
        }
    }

    /// The program's name; bytes that are no text are replaced.
    #[must_use]
    pub fn name(&self) -> String {
        let words = self.name.each_ref().map(|word| word.load(Relaxed));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = bytes.iter().position(|&byte| byte == 0);
        let text = bytes.get(..length.unwrap_or(bytes.len()));
        String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
    }

    /// Makes it as new, for the next process.
    pub fn clear(&self) {
        let events = [
            &self.faults,
            &self.placed,
            &self.replaced,
            &self.uncolored,
            &self.released,
            &self.cpu_ns,
            &self.tested,
            &self.confirmed,
        ];
        events.iter().for_each(|count| count.store(0, Relaxed));
        self.clear_states();
        self.aside.store(0, Relaxed);
        self.mode.store(0, Relaxed);
        self.round.store(0, Relaxed);
    }

    /// Forgets what held for the program before.
    pub fn clear_states(&self) {
        let states = [&self.resident, &self.right, &self.superpages, &self.pool];
        let states = states.into_iter().chain(&self.left);
        states.for_each(|count| count.store(0, Relaxed));
        self.armed.store(0, Relaxed);
        self.thread.store(0, Relaxed);
        self.userfault.store(-1, Relaxed);
    }
}

const _: () = assert!(size_of::<ColorHeader>() == 192);
const _: () = assert!(size_of::<ColorSlot>() == 256);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_orders_agree() {
        for aside in Aside::ALL {
            assert_eq!(Aside::of_number(aside as u32), Some(aside));
        }
        assert_eq!(Aside::of_number(0), None);
        for (place, left) in Left::ALL.into_iter().enumerate() {
            assert_eq!(left as usize, place);
        }
    }
}
