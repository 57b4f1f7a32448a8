//! Notifications to systemd (`sd_notify(3)`); none if the service manager wants none.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The service manager that started the daemon, if it wants notifications.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// Interval of watchdog messages: half of the manager's limit.
    every: Option<Duration>,
    next: Duration,
}

impl Notifier {
    pub(crate) fn new() -> Self {
        Self {
            every: sd_notify::watchdog_enabled().map(|limit| limit / 2),
            next: Duration::ZERO,
        }
    }

    /// Returns the time of the next watchdog message.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.every.map(|_| self.next)
    }

    /// Sends a watchdog message, if one is due.
    pub(crate) fn alive(&mut self, begun: Instant) {
        let at = begun.elapsed();
        if let Some(every) = self.every.filter(|_| at >= self.next) {
            tell(&[NotifyState::Watchdog]);
            self.next = at + every;
        }
    }

    pub(crate) fn ready(&self, status: &str) {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    pub(crate) fn status(&self, status: &str) {
        tell(&[NotifyState::Status(status)]);
    }

    pub(crate) fn reloading(&self) {
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            tell(&[NotifyState::Reloading, now]);
        }
    }

    pub(crate) fn stopping(&self) {
        tell(&[NotifyState::Stopping]);
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd could not be told");
    }
}
