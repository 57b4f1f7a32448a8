//! Signals that end a verb, held back until its result is there.

use std::time::Duration;

use superhue::sys::process::SignalSet;

use crate::terminal::ENDING;

/// The signals in [`ENDING`], held back from the thread that made this.
pub struct EndingSignals {
    signals: SignalSet,
    before: SignalSet,
}

impl EndingSignals {
    /// Holds them back from now on.
    pub fn hold() -> Self {
        let signals = SignalSet::of(&ENDING);
        let before = signals.block();
        Self { signals, before }
    }

    /// Waits up to `pause` for one of them; returns true if one came.
    pub fn wait(&self, pause: Duration) -> bool {
        self.signals.wait(pause).is_some()
    }

    /// Lets them through again, without repeats of one that came.
    pub fn release(self) {
        self.signals.take_repeats();
        self.before.apply();
    }
}
