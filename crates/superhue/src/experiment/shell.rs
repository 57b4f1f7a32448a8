//! Commands of the user's beside the measured one, by `sh -c`: the load of a server, and the preparation of a run.

use std::io;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use superhue_measure::RunnerError;

use super::capture::Capture;
use super::{Experiment, end_now};
use crate::launch::shell;
use crate::supervise::{End, INTERRUPTS, SupervisionEvent};

/// Time within which a signal to the whole process group reaches superhue, too.
const SAME_SIGNAL: Duration = Duration::from_millis(100);

impl Experiment {
    /// Starts a command without input; all its output goes to `output`.
    pub(super) fn shell(&self, command: &str, output: &Capture) -> io::Result<Child> {
        let copy = || output.file().try_clone().map(Stdio::from);
        let signals = self.preserved.blocked.unwrap_or(self.signals.before);
        shell(command, signals)
            .stdin(Stdio::null())
            .stdout(copy()?)
            .stderr(copy()?)
            .spawn()
    }

    /// Runs the preparation of a run to its end, if there is such a command.
    ///
    /// # Errors
    /// Fails if the preparation failed: no run is then the one that the user wants to measure. Also fails on an interrupt.
    pub(super) fn prepare(&self, arm: usize) -> Result<(), RunnerError> {
        match &self.prepare {
            Some(command) => self.aside("preparation", &self.assignment(arm).fill_text(command)),
            None => Ok(()),
        }
    }

    /// Runs a command beside the measured one to its end, by `sh -c`; `what` names its purpose for people: a preparation, a test.
    ///
    /// # Errors
    /// [`RunnerError::Abort`] if it failed, with the last line of its output; or an interrupt.
    pub fn aside(&self, what: &str, command: &str) -> Result<(), RunnerError> {
        let trouble = |error: io::Error| {
            RunnerError::Abort(format!("cannot run the {what} `{command}`: {error}"))
        };
        let output = Capture::new().map_err(trouble)?;
        let mut child = self.shell(command, &output).map_err(trouble)?;
        let ending = loop {
            let hour = Duration::from_secs(3600);
            match self.signals.step_to_end(child.id(), hour) {
                SupervisionEvent::Nothing => {}
                SupervisionEvent::Interrupted => {
                    end_now(child.id());
                    let _ = child.wait();
                    return Err(RunnerError::Interrupted);
                }
                SupervisionEvent::Ended(ending, _) => break ending,
            }
        };
        let said = output.text().map_err(trouble)?;
        self.show(&said);
        let how = match ending {
            End::Exited(0) => return Ok(()),
            // The terminal's Ctrl-C reaches it as well, and may end it first. A signal to it alone is a failure of its own.
            End::Killed(signal) if INTERRUPTS.contains(&signal) && self.is_interrupted_soon() => {
                return Err(RunnerError::Interrupted);
            }
            End::Exited(status) => format!("exit status {status}"),
            End::Killed(signal) => format!("killed by signal {signal}"),
        };
        let last = said.lines().last().unwrap_or("(nothing)");
        Err(RunnerError::Abort(format!(
            "the {what} `{command}` failed ({how}); last line of output: {last}"
        )))
    }

    /// Returns true if superhue itself receives a signal that asks for its end, now or within a moment.
    fn is_interrupted_soon(&self) -> bool {
        let until = Instant::now() + SAME_SIGNAL;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if self.signals.step(u32::MAX, left) == SupervisionEvent::Interrupted {
                return true;
            }
            if left.is_zero() {
                return false;
            }
        }
    }
}
