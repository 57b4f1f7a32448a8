//! Superhue's end of the mailbox: making it, telling a program where it is, asking agents.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use superhue_mailbox::{
    MAGIC, MAILBOX_SIZE, Mailbox, Operation, Slot, TICKET_VARIABLE, Ticket, WISH_ADVISE, WISH_SERVE,
};
use superhue_model::{Errno, HUGE_PAGE_SIZE, Region};
use superhue_sys::shared::{SharedMapping, futex_wait, futex_wake};

use crate::color_host::{ColorHost, ColorWish, ColoredProcess};

/// How long an agent may take over one request before it counts as silent. A collapse takes about
/// a millisecond; a process that is stopped or starved takes for ever.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a wait for an answer makes sure that there is still somebody who could give it: a
/// process that exits wakes nobody.
const GLANCE: Duration = Duration::from_millis(20);

/// What agents are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wishes {
    /// Serve requests to collapse and to split.
    pub serve: bool,
    /// Advise superpages for every mapping the program makes.
    pub advise: bool,
}

/// Why no mailbox could be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the shared memory through which the agent is asked: {0}")]
pub struct HostError(#[from] io::Error);

/// What an agent answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Failed(Errno),
    NoSuchAgent,
    Seccomp,
    Silent,
    Vanished,
}

/// The mailbox's owner.
#[derive(Debug)]
pub struct AgentHost {
    mailbox: SharedMapping<Mailbox>,
    memfd: OwnedFd,
    nonce: u64,
    colors: ColorHost,
}

impl AgentHost {
    /// Makes a mailbox.
    ///
    /// # Errors
    /// When the kernel gives no memfd or no memory.
    pub fn new(wishes: Wishes) -> Result<Self, HostError> {
        let memfd = memfd_create("superhue", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
        ftruncate(&memfd, MAILBOX_SIZE as u64).map_err(io::Error::from)?;
        let mailbox = SharedMapping::<Mailbox>::new(&memfd).map_err(io::Error::from)?;
        // Not a secret: it tells this mailbox from another one at the same descriptor number.
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let nonce =
            u64::from(since_epoch.subsec_nanos()) << 32 | since_epoch.as_secs() & 0xffff_ffff;
        let header = &mailbox.get().header;
        let wish = |on, bit| if on { bit } else { 0 };
        header.wishes.store(
            wish(wishes.serve, WISH_SERVE) | wish(wishes.advise, WISH_ADVISE),
            Relaxed,
        );
        header.nonce.store(nonce, Relaxed);
        header.magic.store(MAGIC, Release);
        Ok(Self {
            mailbox,
            memfd,
            nonce,
            colors: ColorHost::default(),
        })
    }

    /// Has the agents place memory by colors as well.
    #[must_use]
    pub fn with_colors(mut self, wish: ColorWish) -> Self {
        self.colors = ColorHost::enter(self.mailbox.get(), wish);
        self
    }

    /// What agents counted and found about colors, of every process that had one.
    #[must_use]
    pub fn colored(&self) -> Vec<ColoredProcess> {
        self.colors.all(self.mailbox.get())
    }

    /// Processes that found no free slot and run without an agent.
    #[must_use]
    pub fn turned_away(&self) -> u32 {
        self.mailbox.get().header.turned_away.load(Relaxed)
    }

    /// The environment variable by which an agent finds this mailbox.
    #[must_use]
    pub fn ticket(&self) -> (&'static str, String) {
        let fd = u32::try_from(self.memfd.as_raw_fd()).unwrap_or(u32::MAX);
        let ticket = Ticket {
            pid: std::process::id(),
            fd,
            nonce: self.nonce,
        };
        (TICKET_VARIABLE, ticket.to_string())
    }

    /// Shows the agents that Superhue still lives. To be called every few seconds.
    pub(crate) fn beat(&self) {
        self.mailbox.get().header.heartbeat.fetch_add(1, Relaxed);
    }

    /// Processes that have a live agent now.
    #[must_use]
    pub fn agents(&self) -> usize {
        self.slots()
            .filter(|slot| slot.owner.load(Relaxed) != 0)
            .count()
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.mailbox.get().slots.iter()
    }

    /// Has the agent in process `pid` do something to a region; `is_alive` says whether that process
    /// still runs.
    pub(crate) fn ask(
        &self,
        pid: u32,
        operation: Operation,
        region: Region,
        is_alive: impl Fn() -> bool,
    ) -> Answer {
        let Some(slot) = self.slots().find(|slot| slot.owner.load(Acquire) == pid) else {
            return Answer::NoSuchAgent;
        };
        // A filter may end the process for a call that it does not know.
        if has_seccomp_filter(pid) {
            return Answer::Seccomp;
        }
        let asked = slot.asked.load(Relaxed);
        if slot.answered.load(Acquire) != asked {
            // An earlier request is still open (the process was stopped then): its answer comes
            // first, and says nothing about this one.
            return Answer::Silent;
        }
        let request = asked.wrapping_add(1);
        slot.region
            .store(region.start().0 / HUGE_PAGE_SIZE, Relaxed);
        slot.operation.store(operation.number(), Relaxed);
        slot.asked.store(request, Release);
        futex_wake(&slot.asked);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answered = slot.answered.load(Acquire);
            if answered == request {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Answer::Silent;
            }
            futex_wait(&slot.answered, answered, left.min(GLANCE));
            // Its last answer may have come between the two looks at the slot.
            if !is_alive() && slot.answered.load(Acquire) != request {
                return Answer::Vanished;
            }
        }
        match slot.result.load(Relaxed) {
            0 => Answer::Done,
            errno => Answer::Failed(Errno(errno)),
        }
    }

    /// Sets programs free whose agent is held, so that they would wait for it for ever.
    pub(crate) fn rescue_the_held(&self) {
        self.colors.rescue(self.mailbox.get());
    }

    /// Frees slots whose process exited without saying so.
    pub(crate) fn free_slots_of_the_dead(&self) {
        for (number, slot) in self.slots().enumerate() {
            let owner = slot.owner.load(Acquire);
            if owner != 0 && !fs::exists(format!("/proc/{owner}")).unwrap_or(true) {
                // The next owner starts with nothing outstanding.
                slot.answered.store(slot.asked.load(Relaxed), Relaxed);
                self.colors.keep(self.mailbox.get(), number, owner);
                let _ = slot.owner.compare_exchange(owner, 0, Release, Relaxed);
            }
        }
    }
}

impl Drop for AgentHost {
    fn drop(&mut self) {
        let mailbox = self.mailbox.get();
        mailbox.header.closing.store(1, Release);
        for slot in &mailbox.slots {
            if slot.owner.load(Relaxed) != 0 {
                futex_wake(&slot.asked);
            }
        }
    }
}

/// Whether the process runs under a seccomp filter (`Seccomp: 2`) that Superhue itself does not.
fn has_seccomp_filter(pid: u32) -> bool {
    let filters = |path: &str| -> Option<u32> {
        let status = fs::read_to_string(path).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
        line.trim().parse().ok()
    };
    // In a container both run under the container's filter, which the agent's thread passed when
    // it was made; only filters that were added since count.
    match (
        filters(&format!("/proc/{pid}/status")),
        filters("/proc/self/status"),
    ) {
        (Some(target), Some(own)) => target > own,
        (Some(target), None) => target > 0,
        (None, _) => false,
    }
}
