//! Telling systemd how it goes (`sd_notify(3)`); nothing where nobody asked.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Whoever started the daemon, if he wants to know.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// How often a sign of life is given: half of what would be too late.
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

    /// When the next sign of life is due.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.every.map(|_| self.next)
    }

    /// Gives a sign of life, if that is due.
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
