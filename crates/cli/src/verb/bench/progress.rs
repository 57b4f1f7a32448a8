//! Progress of a measurement, and its interruption.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use superhue::sys::process::SignalSet;
use superhue_bench::measure::Watcher;

use crate::terminal::ENDING;

/// A bar on a terminal.
pub(super) struct Progress {
    bar: ProgressBar,
    signals: SignalSet,
    stopped: bool,
}

impl Progress {
    /// Starts the bar. From here on signals are blocked and polled.
    pub(super) fn start() -> Self {
        let signals = SignalSet::of(&ENDING);
        let _ = signals.block();
        // Draws nothing if standard error is no terminal.
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self {
            bar,
            signals,
            stopped: false,
        }
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watcher for Progress {
    fn begin(&mut self, what: &str, steps: usize) {
        self.bar.reset();
        self.bar.set_length(steps as u64);
        self.bar.set_message(what.to_owned());
    }

    fn step(&mut self) {
        self.bar.inc(1);
    }

    fn stop(&mut self) -> bool {
        self.stopped = self.stopped || self.signals.wait(Duration::ZERO).is_some();
        self.stopped
    }
}
