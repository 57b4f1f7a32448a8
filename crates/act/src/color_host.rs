//! Superhue's end of the color part of the mailbox: what agents are to do, and what they say they did.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use superhue_mailbox::{
    Aside, COLOR_STRICT, COLOR_SUPERPAGES, ColorCounts, Mailbox, ORACLE_DEALT, ORACLE_DRIFTING,
    ORACLE_FRAMES, ORACLE_MEASURED, ORACLE_POOR, WISH_COLOR,
};
use superhue_model::{ColorSet, PageCount};

use crate::rescue;

/// What tells agents the colors of pages.
#[derive(Debug)]
pub enum OracleWish {
    /// Timing, with the palette in this file.
    Measured(OwnedFd),
    /// The number of a page's frame modulo the number of colors, whatever the cache. For tests.
    Frames,
    /// Numbers dealt out in turn, which mean nothing. For tests.
    Dealt,
    /// The same, but no page has the last color. For tests.
    Poor,
    /// Frame numbers until it says that they are no longer what they were. For tests.
    Drifting,
}

/// What agents are to do about page colors.
#[derive(Debug)]
pub struct ColorWish {
    /// The colors wanted.
    pub set: ColorSet,
    /// Whether a program rather ends than gets a page of another color.
    pub strict: bool,
    /// What tells colors.
    pub oracle: OracleWish,
    /// Pages a process's pool may hold at most.
    pub pool: PageCount,
    /// Where walks through the colors begin depends on it.
    pub seed: u64,
    /// Percent of one CPU that an agent may take to place again what was there before it.
    pub effort: u32,
}

/// What agents said of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColoredProcess {
    /// Its number while it lived.
    pub pid: u32,
    /// Name of the program it last executed, as the kernel shortens it.
    pub name: String,
    /// What was done and found.
    pub counts: ColorCounts,
}

/// The processes that have ended, and what keeps files open for those that have not.
#[derive(Debug, Default)]
pub(crate) struct ColorHost {
    /// Open for as long as agents may come for it.
    _palette: Option<OwnedFd>,
    wanted: bool,
    ended: Mutex<Vec<ColoredProcess>>,
    /// How often each agent's thread had gone round at the last look.
    rounds: Mutex<BTreeMap<u32, u32>>,
}

impl ColorHost {
    /// Enters a wish; to be done before the first agent starts.
    pub(crate) fn enter(mailbox: &Mailbox, wish: ColorWish) -> Self {
        let header = &mailbox.color;
        let (oracle, palette) = match wish.oracle {
            OracleWish::Measured(file) => (ORACLE_MEASURED, Some(file)),
            OracleWish::Frames => (ORACLE_FRAMES, None),
            OracleWish::Dealt => (ORACLE_DEALT, None),
            OracleWish::Poor => (ORACLE_POOR, None),
            OracleWish::Drifting => (ORACLE_DRIFTING, None),
        };
        let flag = |on, bit| if on { bit } else { 0 };
        let flags = flag(wish.strict, COLOR_STRICT) | flag(wish.set.is_all(), COLOR_SUPERPAGES);
        let number = palette.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let colors = u32::try_from(wish.set.colors()).unwrap_or(u32::MAX);
        header.colors.store(colors, Relaxed);
        header.flags.store(flags, Relaxed);
        header.oracle.store(oracle, Relaxed);
        header.palette.store(number, Relaxed);
        header.pool_pages.store(wish.pool.0, Relaxed);
        header.seed.store(wish.seed, Relaxed);
        header.effort.store(wish.effort, Relaxed);
        for (place, word) in header.set.iter().zip(wish.set.to_words()) {
            place.store(word, Relaxed);
        }
        header.filters.store(own_filters(), Relaxed);
        mailbox.header.wishes.fetch_or(WISH_COLOR, Release);
        Self {
            _palette: palette,
            wanted: true,
            ended: Mutex::default(),
            rounds: Mutex::default(),
        }
    }

    /// Looks whether agents that hold memory stand still, as they did at the last look.
    pub(crate) fn rescue(&self, mailbox: &Mailbox) {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *rounds);
        for (slot, colors) in mailbox.slots.iter().zip(&mailbox.color_slots) {
            let (pid, thread) = (slot.owner.load(Acquire), colors.thread.load(Relaxed));
            if !self.wanted || pid == 0 || thread == 0 || colors.armed.load(Relaxed) == 0 {
                continue;
            }
            let round = colors.round.load(Relaxed);
            if before.get(&thread) == Some(&round) && rescue::is_held(pid, thread) {
                // First, so that who rings the agent's bell does not wait for it either.
                colors.aside.store(Aside::Stuck as u32, Release);
                let _ = rescue::set_free(pid, thread);
            } else {
                rounds.insert(thread, round);
            }
        }
    }

    /// Keeps what was counted in slot `number`, whose process `pid` has ended.
    pub(crate) fn keep(&self, mailbox: &Mailbox, number: usize, pid: u32) {
        if !self.wanted {
            return;
        }
        if let Some(process) = read(mailbox, number, pid) {
            self.lock().push(process);
        }
        if let Some(slot) = mailbox.color_slots.get(number) {
            slot.clear();
        }
    }

    /// What was counted in every process so far, ended or not.
    pub(crate) fn all(&self, mailbox: &Mailbox) -> Vec<ColoredProcess> {
        let mut all = self.lock().clone();
        for (number, slot) in mailbox.slots.iter().enumerate() {
            let pid = slot.owner.load(Acquire);
            if pid != 0 {
                all.extend(read(mailbox, number, pid));
            }
        }
        all
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<ColoredProcess>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What slot `number` says of `pid`; `None` if nothing was entered.
fn read(mailbox: &Mailbox, number: usize, pid: u32) -> Option<ColoredProcess> {
    let slot = mailbox.color_slots.get(number)?;
    let counts = slot.counts();
    let has_begun = counts.mode != 0 || counts.aside.is_some();
    has_begun.then(|| ColoredProcess {
        pid,
        name: slot.name(),
        counts,
    })
}

/// Seccomp filters that this process runs under; 0 before Linux 5.9, which does not tell.
fn own_filters() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix("Seccomp_filters:"));
    value
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0)
}
