//! Requests to a running watch to end or to look again.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use superhue_sys::busy;

/// Request to the loop, from another thread, to end or to wake.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<(Mutex<StopState>, Condvar)>);

/// State of such requests.
#[derive(Debug, Default)]
struct StopState {
    to_end: bool,
    /// A sleeping loop must look again before its time.
    to_wake: bool,
}

impl Stop {
    pub(crate) fn now(&self) {
        self.asked().to_end = true;
        self.0.1.notify_all();
    }

    /// Ends the sleep of the loop, or the next one.
    pub(crate) fn nudge(&self) {
        self.asked().to_wake = true;
        self.0.1.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.asked().to_end
    }

    fn asked(&self) -> MutexGuard<'_, StopState> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps for `time`, or until a request to end or to wake; returns true if it was woken.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        // A sleeping thread is not busy with any process.
        busy::note(0);
        let sleeps = |asked: &mut StopState| !asked.to_end && !asked.to_wake;
        let slept = self.0.1.wait_timeout_while(self.asked(), time, sleeps);
        let (mut asked, _) = slept.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut asked.to_wake)
    }
}
