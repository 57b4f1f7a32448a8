//! The steps. Each runs in its own process, writes its rows as lines to standard output, and keeps its time limit.

mod collapse;
mod colors;
mod daemon;
mod looks;
mod programs;
mod shootdown;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use superhue::model::ByteCount;

use crate::StepOptions;
use crate::document::Line;
use crate::machine;
use crate::plan::StepName;

/// Environment of a step.
#[derive(Debug)]
pub struct Context {
    /// Path of this program.
    pub own: PathBuf,
    tools: PathBuf,
    /// Folder for files, which the driver removes after the step; `None` if it could not make one.
    pub scratch: Option<PathBuf>,
    /// Processors that the step may use at once.
    pub cpus: usize,
    /// Memory that the step may fill.
    pub usable: ByteCount,
    until: Instant,
}

/// Mount points of cgroup v2.
pub const CGROUP_ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Prefix of the names of control groups that this program makes.
pub const GROUP: &str = "superhue-big-";

/// Reason why a step measures nothing at all.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

impl Context {
    /// Writes a result.
    pub fn row(&self, row: Value) -> Result<()> {
        say(&Line::Row(rounded(row)))
    }

    /// Writes a remark for readers of the results.
    pub fn note(&self, note: impl Into<String>) -> Result<()> {
        say(&Line::Note(note.into()))
    }

    /// Returns the time at which the step must have ended.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Returns the time left.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Returns true if that many seconds are left; else writes a note that names the omitted part.
    pub fn has_time_for(&self, seconds: f64, what: &str) -> Result<bool> {
        let left = self.left().as_secs_f64();
        if left < seconds {
            self.note(format!("left out for want of time: {what}"))?;
        }
        Ok(left >= seconds)
    }

    /// Returns a command that runs `superhue`.
    pub fn superhue(&self) -> Command {
        Command::new(self.tools.join("superhue"))
    }

    /// Returns the path of `superhue-workload`.
    pub fn workload_path(&self) -> PathBuf {
        self.tools.join("superhue-workload")
    }
}

/// Rounds each number with a fraction to six digits, which is more than was measured.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let digits = number
                .as_f64()
                .and_then(|value| format!("{value:.5e}").parse::<f64>().ok());
            digits.map_or(Value::Null, Value::from)
        }
        Value::Array(values) => values.into_iter().map(rounded).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, rounded(value)))
            .collect(),
        other => other,
    }
}

fn say(line: &Line) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(line)?)?;
    Ok(out.flush()?)
}

/// Runs a step.
pub fn run(options: &StepOptions) -> Result<()> {
    let context = Context {
        own: std::env::current_exe()?,
        tools: options.tools.clone(),
        scratch: options.scratch.clone(),
        cpus: machine::cpus(),
        usable: machine::usable(options.memory),
        until: Instant::now() + Duration::from_secs_f64(options.seconds.clamp(0.0, 86_400.0)),
    };
    let step = match options.name {
        StepName::Colors => colors::run,
        StepName::Shootdown => shootdown::run,
        StepName::Looks => looks::run,
        StepName::Daemon => daemon::run,
        StepName::Collapse => collapse::run,
        StepName::Programs => programs::run,
    };
    match step(&context) {
        Err(error) if error.is::<Skip>() => say(&Line::Skip(error.to_string())),
        ended => ended,
    }
}

/// Converts a size to GiB, for documents.
#[allow(clippy::cast_precision_loss, reason = "no memory has 2^53 bytes")]
pub fn gib(size: ByteCount) -> f64 {
    size.0 as f64 / f64::from(1 << 30)
}

/// Returns a rate per second; `None` if no time has passed.
#[allow(clippy::cast_precision_loss, reason = "counts of minutes")]
pub fn per_second(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then_some(count as f64 / seconds)
}

/// Returns the median, the smallest and the largest of some numbers; null without numbers.
pub fn spread(values: &[f64]) -> Value {
    let mut values = values.to_vec();
    let Some(median) = superhue_workloads::access::median(&mut values) else {
        return Value::Null;
    };
    json!({"median": median, "lowest": values.first(), "highest": values.last(), "count": values.len()})
}

/// Returns the CPU seconds of the calling thread so far.
#[allow(clippy::cast_precision_loss, reason = "counts of minutes")]
pub fn own_cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded_and_summed_up() {
        let row = json!({"a": [1.234_567_89, 12_345_678], "b": {"c": 0.0, "d": null}, "e": 1.5e9});
        assert_eq!(
            rounded(row),
            json!({"a": [1.234_57, 12_345_678], "b": {"c": 0.0, "d": null}, "e": 1.5e9})
        );
        assert_eq!(spread(&[]), Value::Null);
        assert_eq!(
            spread(&[3.0, 1.0, 2.0]),
            json!({"median": 2.0, "lowest": 1.0, "highest": 3.0, "count": 3})
        );
        assert_eq!(
            (per_second(10, 2.0), per_second(10, 0.0)),
            (Some(5.0), None)
        );
    }
}
