//! A `serve` process, as seen by a step.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;
use superhue::model::{ByteCount, ProcessId, Region, VirtAddr, VirtRange};
use superhue::procfs::{Roots, process};

use crate::serve::Times;

/// Size of the pages that a target fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Base pages.
    Base,
    /// Huge pages, where the kernel gives them.
    Huge,
}

impl Kind {
    /// Returns its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Huge => "huge",
        }
    }
}

/// Process with memory. Dropping it kills the process.
#[derive(Debug)]
pub struct Target {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// All memory that it maps for the measurement.
    range: VirtRange,
    filled: u64,
    kind: Kind,
}

impl Target {
    /// Starts this program as a target that maps `size` bytes.
    pub fn start(program: &Path, size: ByteCount) -> Result<Self> {
        let mut command = Command::new(program);
        command
            .args(["serve", &size.0.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            bail!("a process without pipes")
        };
        let empty = VirtRange {
            start: VirtAddr(0),
            end: VirtAddr(0),
        };
        let mut target = Self {
            child,
            input,
            output: BufReader::new(output),
            range: empty,
            filled: 0,
            kind: Kind::Base,
        };
        let told = target.answer()?;
        let address = |name: &str| {
            told[name]
                .as_u64()
                .map(VirtAddr)
                .context("it did not say where its memory is")
        };
        target.range = VirtRange {
            start: address("start")?,
            end: address("end")?,
        };
        Ok(target)
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its process ID together with its start time.
    pub fn id(&self) -> Result<ProcessId> {
        Ok(process::identify(&Roots::default(), self.pid())?)
    }

    /// Opens a pidfd of the process.
    pub fn pidfd(&self) -> Result<OwnedFd> {
        let pid = i32::try_from(self.pid())
            .ok()
            .and_then(Pid::from_raw)
            .context("no such number")?;
        pidfd_open(pid, PidfdFlags::empty())
            .context("no descriptor of a process can be had (pidfd_open)")
    }

    /// Sends a command, and returns the answer.
    pub fn ask(&mut self, line: &str) -> Result<Value> {
        writeln!(self.input, "{line}").with_context(|| format!("the target is gone: {line}"))?;
        self.input.flush()?;
        self.answer().with_context(|| line.to_owned())
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the target ended ({:?})", self.child.wait());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Fills memory up to `size`, with `threads` threads, for at most `most`. Returns the seconds it took.
    pub fn fill(
        &mut self,
        size: ByteCount,
        threads: usize,
        most: Duration,
        kind: Kind,
    ) -> Result<f64> {
        let told = self.ask(&format!(
            "fill {} {threads} {:.3} {}",
            size.0,
            most.as_secs_f64(),
            kind.name()
        ))?;
        self.filled = told["filled"].as_u64().unwrap_or(0);
        self.kind = kind;
        number(&told, "seconds")
    }

    /// Returns the number of filled bytes.
    pub fn filled(&self) -> ByteCount {
        ByteCount(self.filled)
    }

    /// Returns the range of the filled memory.
    pub fn range(&self) -> VirtRange {
        VirtRange {
            start: self.range.start,
            end: VirtAddr(self.range.start.0 + self.filled),
        }
    }

    /// Returns the regions that lie wholly in the filled memory.
    pub fn regions(&self) -> Vec<Region> {
        self.range().regions().collect()
    }

    /// Returns the touches since stirring began.
    pub fn touches(&mut self) -> Result<u64> {
        self.ask("count")?["touches"].as_u64().context("no count")
    }

    /// Ends stirring. Returns the pauses between timed touches.
    pub fn still(&mut self) -> Result<Times> {
        let told = self.ask("still")?;
        Ok(serde_json::from_value(told["pauses"].clone())?)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a number from an answer.
pub fn number(told: &Value, name: &str) -> Result<f64> {
    told[name]
        .as_f64()
        .with_context(|| format!("no {name} in {told}"))
}
