//! The worker that watches processes of one tenant of a rule.
//!
//! One thread takes the daemon's messages and sends it the accounts of the watch's own thread. Only the latter touches other processes, so only it
//! can be held up.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use superhue::live::{LiveWatch, OwnCost, WatchAccount};
use superhue::{Config, cpu_time};
use superhue_model::ByteCount;
use superhue_procfs::Roots;
use superhue_procfs::process::memory_use;
use superhue_sys::{busy, heap};

use super::wire::{WatchMessage, WatchTask, WatchUpdate};
use super::{Channel, WorkError, refused};
use crate::rules::config_of;

/// Longest time between two messages to the daemon.
pub(crate) const BEAT: Duration = Duration::from_secs(10);

/// Shortest time between two returns of free memory to the kernel.
pub(crate) const TRIM_INTERVAL: Duration = Duration::from_secs(60);

/// Watches until the daemon closes the connection, or the watch has ended.
pub(super) fn serve(channel: &mut Channel, task: &WatchTask) -> Result<(), WorkError> {
    let told = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let told = Arc::new(told.map_err(refused("be told of accounts"))?);
    let config = Config {
        has_advance: task.is_first,
        carried: task.carried,
        ..config_of(&task.placement, &task.roots)
    };
    let watch = LiveWatch::start(&config, &task.rule);
    let watch = watch.map_err(|error| WorkError::Malformed(format!("no thread: {error}")))?;
    let tells = Arc::clone(&told);
    watch.tell(move || {
        let _ = rustix::io::write(&*tells, &1_u64.to_ne_bytes());
    });
    let mut said = LastReport::default();
    let mut measured: Option<Instant> = None;
    let mut trimmed = Instant::now();
    let mut counted = cpu_time();
    loop {
        for wanted in channel.receive().map_err(WorkError::Malformed)? {
            obey(&watch, wanted);
        }
        // Before the account is taken: the last one may have the reason for the end.
        let has_ended = watch.has_ended();
        let _ = rustix::io::read(&*told, &mut [0_u8; 8]);
        if channel.pending.is_empty()
            && let Some(news) = said.news(watch.account(), Instant::now())
        {
            channel.say(&news);
            if measured.is_none_or(|at| at.elapsed() >= BEAT) {
                measured = Some(Instant::now());
                if let Some(memory) = own_memory(&task.roots) {
                    channel.say(&WatchMessage::Memory(memory));
                }
            }
        }
        // There are many workers, and looks have left gaps in their heaps.
        if trimmed.elapsed() >= TRIM_INTERVAL {
            trimmed = Instant::now();
            heap::trim();
        }
        channel.flush();
        if channel.is_over {
            // The watch may be held up permanently, and its processes get another worker.
            watch.stop();
            superhue_heat::release_target_locks();
        }
        if channel.is_over || (has_ended && channel.pending.is_empty()) {
            return Ok(());
        }
        if !has_ended && watch.has_ended() {
            // It may have reported why since: the next round takes that.
            continue;
        }
        // Accounts of many services are long.
        let now = cpu_time();
        watch.spend(now.saturating_sub(counted));
        counted = now;
        wait(channel, &told)?;
    }
}

/// Returns the memory that [`WatchMessage::Memory`] is about.
fn own_memory(roots: &Roots) -> Option<ByteCount> {
    let memory = memory_use(roots, std::process::id());
    busy::note(0);
    memory.ok()?.pss_anon
}

fn obey(watch: &LiveWatch, wanted: WatchUpdate) {
    // First: a process that is to be left alone may be a member.
    busy::leave_alone(wanted.leave_alone);
    watch.hold(wanted.held);
    watch.pause(wanted.paused);
    watch.limit(wanted.max_overhead);
    if let Some(budget) = wanted.budget {
        watch.allow(budget);
    }
    if let Some(members) = wanted.members {
        watch.feed(members.into());
    }
}

fn wait(channel: &Channel, told: &OwnedFd) -> Result<(), WorkError> {
    let mut wanted = PollFlags::IN;
    if !channel.pending.is_empty() {
        wanted |= PollFlags::OUT;
    }
    let mut descriptors = [
        PollFd::new(&channel.socket, wanted),
        PollFd::new(told, PollFlags::IN),
    ];
    let beat = Timespec::try_from(BEAT).unwrap_or_default();
    match poll(&mut descriptors, Some(&beat)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(refused("wait")(errno)),
    }
}

/// The account that the daemon knows, and the time of the last message.
#[derive(Debug, Default)]
struct LastReport {
    account: Option<Arc<WatchAccount>>,
    at: Option<Instant>,
}

impl LastReport {
    /// Returns news for the daemon. At times there is a message without any change: it shows that this thread is well.
    fn news(&mut self, now: Arc<WatchAccount>, at: Instant) -> Option<WatchMessage> {
        let said = match &self.account {
            // A watch with a small ceiling publishes seldom: the daemon must not take that for silence.
            Some(before) if Arc::ptr_eq(before, &now) || is_as_before(before, &now) => {
                if self.at.is_some_and(|heard| at < heard + BEAT) {
                    return None;
                }
                WatchMessage::Beat {
                    at_seconds: now.at_seconds,
                    own: now.own,
                }
            }
            _ => WatchMessage::Account(Box::new(WatchAccount::clone(&now))),
        };
        (self.account, self.at) = (Some(now), Some(at));
        Some(said)
    }
}

/// Returns true if only the time and the cost have changed.
fn is_as_before(before: &WatchAccount, now: &WatchAccount) -> bool {
    let plain = |account: &WatchAccount| WatchAccount {
        at_seconds: 0.0,
        own: OwnCost {
            max_overhead: account.own.max_overhead,
            ..OwnCost::default()
        },
        ..account.clone()
    };
    plain(before) == plain(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_says_nothing_new_is_not_sent_again() {
        let mut shown = LastReport::default();
        let account = |at_seconds, seen| {
            Arc::new(WatchAccount {
                at_seconds,
                processes_seen: seen,
                ..WatchAccount::default()
            })
        };
        let begun = Instant::now();
        let first = account(1.0, 1);
        let said = shown.news(first.clone(), begun);
        assert!(matches!(said, Some(WatchMessage::Account(_))));
        assert!(shown.news(first.clone(), begun + BEAT / 2).is_none());
        assert!(shown.news(account(2.0, 1), begun + BEAT / 2).is_none());
        // The watch has published nothing since.
        let beat = shown.news(first, begun + BEAT);
        assert!(matches!(beat, Some(WatchMessage::Beat { .. })));
        let beat = shown.news(account(3.0, 1), begun + 2 * BEAT);
        assert!(matches!(
            beat,
            Some(WatchMessage::Beat {
                at_seconds: 3.0,
                ..
            })
        ));
        let said = shown.news(account(4.0, 2), begun + 2 * BEAT);
        assert!(matches!(said, Some(WatchMessage::Account(_))));
    }
}
