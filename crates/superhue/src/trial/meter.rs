//! Measurement of a block: readings at its start, its middle and its end, or throughout.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use superhue_measure::trial::MetricKind;
use superhue_model::ProcessId;
use superhue_sys::process::cpu_time_of;

use super::ask::{MetricError, Source};

/// Number of readings of a level in a block.
const READINGS: u32 = 16;

/// Shortest interval between two of these readings.
const LEAST_APART: Duration = Duration::from_millis(50);

/// Upper bound on attempts at a reading that takes unusually long.
const ATTEMPTS: u32 = 3;

/// Reason why a block has no value.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(super) enum BlockError {
    /// The trial is to end.
    #[error("interrupted")]
    Stopped,
    /// A reading failed.
    #[error(transparent)]
    Reading(#[from] MetricError),
    /// The counter was the same at the end of the block.
    #[error("the metric did not move")]
    DidNotMove,
    /// The counter went backwards.
    #[error(
        "the counter went backwards (from {0} to {1}); --metric-kind gauge is for numbers that do"
    )]
    Backwards(f64, f64),
    /// The value is not positive, so it has no ratio.
    #[error("the metric is {0}, and ratios can be taken of numbers above 0 only")]
    NotPositive(f64),
}

/// The value of a block, and the difference of its halves on the log scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Value {
    pub(super) value: f64,
    pub(super) halves: Option<f64>,
}

/// CPU time of the target.
#[derive(Debug, Default)]
pub(super) struct CpuTimes {
    processes: BTreeMap<ProcessId, Duration>,
    /// CPU time of ended processes, up to their last reading.
    ended: Duration,
    /// File of the control group that counts CPU time for all of them, including short-lived processes.
    group: Option<PathBuf>,
}

impl CpuTimes {
    /// Counts by the `cpu.stat` of a control group (version 2) if there is one, otherwise by processes.
    pub(super) fn of_group(group: Option<PathBuf>) -> Self {
        Self {
            group: group.filter(|file| usage_in(file).is_some()),
            ..Self::default()
        }
    }

    /// Returns CPU seconds that `members` have used by now, and processes that have ended since they were first seen.
    pub(super) fn now(&mut self, members: impl Iterator<Item = ProcessId>) -> f64 {
        if let Some(usage) = self.group.as_deref().and_then(usage_in) {
            return usage.as_secs_f64();
        }
        let mut now = BTreeMap::new();
        for id in members {
            if let Some(time) = cpu_time_of(id.pid) {
                // Another process with the same number may have taken over, with a smaller time.
                let before = self.processes.get(&id).copied().unwrap_or_default();
                now.insert(id, time.max(before));
            }
        }
        for (id, time) in &self.processes {
            if !now.contains_key(id) {
                self.ended += *time;
            }
        }
        self.processes = now;
        let sum: Duration = self.processes.values().sum();
        (sum + self.ended).as_secs_f64()
    }
}

/// Returns `usage_usec` of a `cpu.stat` (`Documentation/admin-guide/cgroup-v2.rst`).
fn usage_in(file: &std::path::Path) -> Option<Duration> {
    let text = fs::read_to_string(file).ok()?;
    let mut lines = text.lines();
    let usage = lines.find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(Duration::from_micros(usage.trim().parse().ok()?))
}

/// Services that a meter needs from its trial.
pub(super) trait MeterEnvironment {
    /// Sleeps; returns true to stop.
    fn nap(&mut self, time: Duration) -> bool;
    /// Returns CPU seconds of the target so far.
    fn cpu(&mut self) -> f64;
}

/// Measures blocks.
#[derive(Debug)]
pub(super) struct Meter {
    /// `None` for CPU time alone.
    pub(super) source: Option<Source>,
    pub(super) kind: MetricKind,
    /// Duration of a reading without delays.
    shortest: Cell<Option<Duration>>,
}

/// One reading, and its time.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    number: f64,
    cpu: f64,
}

impl Meter {
    pub(super) fn new(source: Option<Source>, kind: MetricKind) -> Self {
        let shortest = Cell::new(None);
        Self {
            source,
            kind,
            shortest,
        }
    }

    /// Reads once; returns the time that it took.
    pub(super) fn try_out(
        &self,
        around: &mut dyn MeterEnvironment,
    ) -> Result<Duration, BlockError> {
        let begun = Instant::now();
        let reading = self.read(around)?;
        if self.kind == MetricKind::Gauge && reading.number <= 0.0 {
            return Err(BlockError::NotPositive(reading.number));
        }
        Ok(begun.elapsed())
    }

    /// Reads, and repeats a reading that took unusually long to get a better one: the number is of an unknown moment during the reading.
    fn read(&self, around: &mut dyn MeterEnvironment) -> Result<Reading, BlockError> {
        let (mut best, mut shortest) = self.read_once(around)?;
        for _ in 1..ATTEMPTS {
            let usual = self.shortest.get().unwrap_or(shortest);
            if shortest <= usual * 2 {
                break;
            }
            let (reading, took) = self.read_once(around)?;
            if took < shortest {
                (best, shortest) = (reading, took);
            }
        }
        // The usual duration may grow slowly.
        let usual = self.shortest.get().unwrap_or(shortest);
        self.shortest.set(Some(shortest.min(usual + usual / 16)));
        Ok(best)
    }

    /// Takes one reading; returns it and its duration.
    fn read_once(
        &self,
        around: &mut dyn MeterEnvironment,
    ) -> Result<(Reading, Duration), BlockError> {
        let Some(source) = &self.source else {
            let at = Instant::now();
            let number = around.cpu();
            let cpu = number;
            return Ok((Reading { at, number, cpu }, Duration::ZERO));
        };
        let needs_cpu = self.kind == MetricKind::Work;
        let mut cpu = || if needs_cpu { around.cpu() } else { 0.0 };
        let (begun, before) = (Instant::now(), cpu());
        let number = source.ask(&mut || around.nap(Duration::ZERO))?;
        let after = if needs_cpu { around.cpu() } else { 0.0 };
        let took = begun.elapsed();
        let reading = Reading {
            at: begun + took / 2,
            number,
            cpu: f64::midpoint(before, after),
        };
        Ok((reading, took))
    }

    /// Measures a block that begins now.
    pub(super) fn block(
        &self,
        length: Duration,
        around: &mut dyn MeterEnvironment,
    ) -> Result<Value, BlockError> {
        match self.kind {
            MetricKind::Gauge => self.level(length, around),
            MetricKind::Counter | MetricKind::Work => self.growth(length, around),
        }
    }

    fn growth(
        &self,
        length: Duration,
        around: &mut dyn MeterEnvironment,
    ) -> Result<Value, BlockError> {
        let begun = Instant::now();
        let first = self.read(around)?;
        wait_until(begun + length / 2, around)?;
        let middle = self.read(around)?;
        wait_until(begun + length, around)?;
        let last = self.read(around)?;
        let value = self.between(first, last)?;
        let halves = [(first, middle), (middle, last)].map(|(a, b)| self.between(a, b));
        let halves = match halves {
            [Ok(first), Ok(second)] => Some((second / first).ln()),
            _ => None,
        };
        Ok(Value { value, halves })
    }

    fn between(&self, first: Reading, last: Reading) -> Result<f64, BlockError> {
        let growth = last.number - first.number;
        if growth < 0.0 {
            return Err(BlockError::Backwards(first.number, last.number));
        }
        let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
        if growth <= 0.0 || seconds <= 0.0 {
            return Err(BlockError::DidNotMove);
        }
        if self.kind == MetricKind::Work {
            let cpu = last.cpu - first.cpu;
            return if cpu > 0.0 {
                Ok(cpu / growth)
            } else {
                Err(BlockError::DidNotMove)
            };
        }
        Ok(growth / seconds)
    }

    fn level(
        &self,
        length: Duration,
        around: &mut dyn MeterEnvironment,
    ) -> Result<Value, BlockError> {
        let begun = Instant::now();
        let apart = (length / READINGS).max(LEAST_APART);
        let mut halves = [(0.0, 0.0); 2];
        let mut next = begun;
        loop {
            wait_until(next.min(begun + length), around)?;
            let at = begun.elapsed();
            let reading = self.read(around)?;
            let half = &mut halves[usize::from(at >= length / 2)];
            *half = (half.0 + reading.number, half.1 + 1.0);
            if at >= length {
                break;
            }
            next = (next + apart).max(Instant::now());
        }
        let [first, second] = halves;
        let value = (first.0 + second.0) / (first.1 + second.1);
        if value <= 0.0 || !value.is_finite() {
            return Err(BlockError::NotPositive(value));
        }
        let [first, second] = [first, second].map(|(sum, count)| sum / count);
        let halves = (second / first).ln();
        Ok(Value {
            value,
            halves: halves.is_finite().then_some(halves),
        })
    }
}

fn wait_until(at: Instant, around: &mut dyn MeterEnvironment) -> Result<(), BlockError> {
    loop {
        let left = at.saturating_duration_since(Instant::now());
        if around.nap(left.min(Duration::from_millis(50))) {
            return Err(BlockError::Stopped);
        }
        if left.is_zero() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use superhue_procfs::Roots;
    use superhue_procfs::process::identify;

    use super::*;

    /// CPU time that counts the calls for it.
    #[derive(Default)]
    struct FakeEnvironment(f64);

    impl MeterEnvironment for FakeEnvironment {
        fn nap(&mut self, time: Duration) -> bool {
            std::thread::sleep(time);
            false
        }

        fn cpu(&mut self) -> f64 {
            self.0 += 1.0;
            self.0
        }
    }

    fn meter(command: &str, kind: MetricKind) -> Meter {
        let command = command.to_owned();
        let source = Source::Command {
            command,
            regex: None,
        };
        Meter::new(Some(source), kind)
    }

    const BLOCK: Duration = Duration::from_millis(200);

    #[test]
    fn growth_is_per_second_and_levels_are_as_they_are() {
        let mut around = FakeEnvironment::default();
        let cpu = Meter::new(None, MetricKind::Counter);
        let value = cpu.block(BLOCK, &mut around).unwrap().value;
        // Two more calls at the end than at the start, after a fifth of a second at least.
        assert!(value > 0.0 && value <= 10.0, "{value}");
        let level = meter("echo 3", MetricKind::Gauge);
        let value = level.block(BLOCK, &mut around).unwrap();
        assert_eq!((value.value, value.halves), (3.0, Some(0.0)));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("count");
        fs::write(&file, "0").unwrap();
        let file = file.display();
        let command = format!("n=$(cat {file}); echo $((n + 100)) > {file}; echo $n");
        let work = meter(&command, MetricKind::Work).block(BLOCK, &mut around);
        // For any number of readings: a hundred pieces of work for each two calls, except that a better reading counts as of its middle.
        let work = work.unwrap().value;
        assert!((work - 0.02).abs() < 1e-9, "{work}");
    }

    #[test]
    fn what_has_no_ratio_is_told() {
        let mut around = FakeEnvironment::default();
        let said = meter("echo 3", MetricKind::Counter).block(BLOCK, &mut around);
        assert_eq!(said, Err(BlockError::DidNotMove));
        let said = meter("echo -1", MetricKind::Gauge).block(BLOCK, &mut around);
        assert_eq!(said, Err(BlockError::NotPositive(-1.0)));
        let back = "date +%s%N | sed s/^/-/";
        let said = meter(back, MetricKind::Counter).block(BLOCK, &mut around);
        assert!(matches!(said, Err(BlockError::Backwards(..))), "{said:?}");
    }

    #[test]
    fn time_of_those_who_end_is_not_lost() {
        let roots = Roots::default();
        let own = identify(&roots, std::process::id()).unwrap();
        let mut times = CpuTimes::default();
        let first = times.now([own].into_iter());
        assert!(first > 0.0);
        let gone = times.now([].into_iter());
        assert!((gone - first).abs() < 1e-9);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cpu.stat");
        fs::write(&file, "usage_usec 2500000\nuser_usec 1\n").unwrap();
        let mut group = CpuTimes::of_group(Some(file.clone()));
        assert!((group.now([own].into_iter()) - 2.5).abs() < 1e-9);
        fs::write(&file, "nonsense").unwrap();
        assert!(CpuTimes::of_group(Some(file)).group.is_none());
    }
}
