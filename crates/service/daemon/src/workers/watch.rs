//! The worker that watches processes of one tenant of a rule.
//!
//! One thread listens to the daemon and passes on what the watch's own thread says. Only the latter touches other processes, so only it can be held up.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use superhue::Config;
use superhue::live::{LiveCost, LiveWatch, WatchAccount};
use superhue_sys::busy;

use super::wire::{Said, Wanted, WatchTask};
use super::{Channel, WorkError, refused};
use crate::watches::config;

/// How often the daemon hears something at least, however little there is to say.
pub(crate) const BEAT: Duration = Duration::from_secs(10);

/// Watches until the daemon says no more.
pub(super) fn serve(channel: &mut Channel, task: &WatchTask) -> Result<(), WorkError> {
    let told = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let told = Arc::new(told.map_err(refused("be told of accounts"))?);
    let config = Config {
        has_advance: task.is_first,
        ..config(&task.placement, &task.roots)
    };
    let watch = LiveWatch::start(&config, &task.rule);
    let watch = watch.map_err(|error| WorkError::Malformed(format!("no thread: {error}")))?;
    let tells = Arc::clone(&told);
    watch.tell(move || {
        let _ = rustix::io::write(&*tells, &1_u64.to_ne_bytes());
    });
    let mut said = Shown::default();
    loop {
        for wanted in channel.receive().map_err(WorkError::Malformed)? {
            obey(&watch, wanted);
        }
        let _ = rustix::io::read(&*told, &mut [0_u8; 8]);
        if channel.pending.is_empty()
            && let Some(news) = said.news(watch.account())
        {
            channel.say(&news);
        }
        channel.flush();
        if channel.is_over || (watch.has_ended() && channel.pending.is_empty()) {
            return Ok(());
        }
        wait(channel, &told)?;
    }
}

fn obey(watch: &LiveWatch, wanted: Wanted) {
    // First: whoever is to be left alone may be a member.
    busy::leave_alone(wanted.leave_alone);
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

/// What the daemon knows.
#[derive(Debug, Default)]
struct Shown(Option<Arc<WatchAccount>>);

impl Shown {
    /// What it does not know yet. Always something: that it is heard at all says that this thread is well.
    fn news(&mut self, now: Arc<WatchAccount>) -> Option<Said> {
        let (at_seconds, own) = (now.at_seconds, now.own);
        match &self.0 {
            Some(before) if Arc::ptr_eq(before, &now) => None,
            Some(before) if is_as_before(before, &now) => {
                self.0 = Some(now);
                Some(Said::Beat { at_seconds, own })
            }
            _ => {
                let account = Box::new(WatchAccount::clone(&now));
                self.0 = Some(now);
                Some(Said::Account(account))
            }
        }
    }
}

/// Whether nothing has changed but the time and what was spent.
fn is_as_before(before: &WatchAccount, now: &WatchAccount) -> bool {
    let plain = |account: &WatchAccount| WatchAccount {
        at_seconds: 0.0,
        own: LiveCost {
            max_overhead: account.own.max_overhead,
            ..LiveCost::default()
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
        let mut shown = Shown::default();
        let account = |at_seconds, seen| {
            Arc::new(WatchAccount {
                at_seconds,
                processes_seen: seen,
                ..WatchAccount::default()
            })
        };
        let first = account(1.0, 1);
        assert!(matches!(shown.news(first.clone()), Some(Said::Account(_))));
        assert!(shown.news(first).is_none());
        let beat = shown.news(account(2.0, 1));
        assert!(matches!(
            beat,
            Some(Said::Beat {
                at_seconds: 2.0,
                ..
            })
        ));
        assert!(matches!(
            shown.news(account(3.0, 2)),
            Some(Said::Account(_))
        ));
    }
}
