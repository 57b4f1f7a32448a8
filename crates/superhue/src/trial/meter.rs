//! Measurement of a block: readings at its start, its middle and its end, or throughout.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use superhue_measure::trial::MetricKind;
use superhue_model::ProcessId;
use superhue_procfs::process::time_of_ticks;
use superhue_sys::process::cpu_time_of;

use super::ask::{MetricError, Source};
use crate::cpu::since_boot;

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
    processes: BTreeMap<ProcessId, MemberTime>,
    /// CPU time of processes that are gone, up to their last reading.
    ended: Duration,
    /// Time since boot at the last reading.
    read_at: Option<Duration>,
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

    /// Returns CPU seconds that processes have used by now while they were members. Time before a process became one does not count: a process
    /// that is older than the last reading brings none along.
    pub(super) fn now(&mut self, members: impl Iterator<Item = ProcessId>) -> f64 {
        if let Some(usage) = self.group.as_deref().and_then(usage_in) {
            return usage.as_secs_f64();
        }
        let now: Vec<(ProcessId, Option<Duration>)> =
            members.map(|id| (id, cpu_time_of(id.pid))).collect();
        self.enter(since_boot(), &now, |id| cpu_time_of(id.pid).is_some())
    }

    /// Enters the CPU times of all members; `lives` is called for former ones.
    fn enter(
        &mut self,
        at: Duration,
        members: &[(ProcessId, Option<Duration>)],
        lives: impl Fn(ProcessId) -> bool,
    ) -> f64 {
        let before = self.read_at.replace(at);
        self.processes
            .values_mut()
            .for_each(|it| it.is_member = false);
        for &(id, time) in members {
            let Some(time) = time else { continue };
            let is_new = before.is_some_and(|before| started_after(id, before));
            let first = if is_new { Duration::ZERO } else { time };
            let member = self.processes.entry(id).or_insert(MemberTime {
                last: first,
                was_member: true,
                ..MemberTime::default()
            });
            // Another process with the same number may have taken over, with a smaller time.
            if member.was_member {
                member.used += time.saturating_sub(member.last);
            }
            member.last = member.last.max(time);
            member.is_member = true;
        }
        let mut gone = Duration::ZERO;
        self.processes.retain(|&id, it| {
            it.was_member = it.is_member;
            let stays = it.is_member || lives(id);
            if !stays {
                gone += it.used;
            }
            stays
        });
        self.ended += gone;
        let sum: Duration = self.processes.values().map(|it| it.used).sum();
        (sum + self.ended).as_secs_f64()
    }
}

/// CPU time of one process.
#[derive(Debug, Default, Clone, Copy)]
struct MemberTime {
    /// CPU time of the process at the last reading that it was part of.
    last: Duration,
    /// Part of it that was used while it was a member.
    used: Duration,
    was_member: bool,
    is_member: bool,
}

/// Returns true if a process started after `time`, since boot.
fn started_after(id: ProcessId, time: Duration) -> bool {
    time_of_ticks(id.start_ticks) >= time
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
            // Each reading counts: those that take long may be those that show what is slow.
            let (reading, _) = self.read_once(around)?;
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

    /// Measures a block; measures another one if a command got no CPU for as long as it may take.
    fn block(meter: &Meter, around: &mut FakeEnvironment) -> Result<Value, BlockError> {
        let begun = Instant::now();
        loop {
            match meter.block(BLOCK, around) {
                Err(BlockError::Reading(MetricError::Late(_)))
                    if begun.elapsed() < Duration::from_secs(60) => {}
                other => break other,
            }
        }
    }

    #[test]
    fn growth_is_per_second_and_levels_are_as_they_are() {
        let mut around = FakeEnvironment::default();
        let cpu = Meter::new(None, MetricKind::Counter);
        let value = cpu.block(BLOCK, &mut around).unwrap().value;
        // Two more calls at the end than at the start, after a fifth of a second at least.
        assert!(value > 0.0 && value <= 10.0, "{value}");
        let level = meter("echo 3", MetricKind::Gauge);
        let value = block(&level, &mut around).unwrap();
        assert_eq!((value.value, value.halves), (3.0, Some(0.0)));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("count");
        fs::write(&file, "0").unwrap();
        let file = file.display();
        let command = format!("n=$(cat {file}); echo $((n + 100)) > {file}; echo $n");
        let work = block(&meter(&command, MetricKind::Work), &mut around);
        // For any number of readings: a hundred pieces of work for each two calls, except that a better reading counts as of its middle.
        let work = work.unwrap().value;
        assert!((work - 0.02).abs() < 1e-9, "{work}");
    }

    #[test]
    fn a_level_counts_its_slow_readings() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("count");
        fs::write(&file, "0").unwrap();
        let file = file.display();
        // Each third reading takes long, and says so.
        let command = format!(
            "n=$(cat {file}); echo $((n + 1)) > {file}; if [ $((n % 3)) = 2 ]; then sleep .1; echo 100; else echo 1; fi"
        );
        let level = meter(&command, MetricKind::Gauge);
        let mut around = FakeEnvironment::default();
        let mut values = (0..3).map(|_| block(&level, &mut around).unwrap().value);
        assert!(values.any(|value| value > 10.0));
    }

    #[test]
    fn what_has_no_ratio_is_told() {
        let mut around = FakeEnvironment::default();
        let said = block(&meter("echo 3", MetricKind::Counter), &mut around);
        assert_eq!(said, Err(BlockError::DidNotMove));
        let said = block(&meter("echo -1", MetricKind::Gauge), &mut around);
        assert_eq!(said, Err(BlockError::NotPositive(-1.0)));
        let back = "date +%s%N | sed s/^/-/";
        let said = block(&meter(back, MetricKind::Counter), &mut around);
        assert!(matches!(said, Err(BlockError::Backwards(..))), "{said:?}");
    }

    #[test]
    fn only_time_as_a_member_counts_and_only_once() {
        let second = Duration::from_secs;
        let per_second = rustix::param::clock_ticks_per_second();
        let id = |pid, started: u64| ProcessId {
            pid,
            start_ticks: started * per_second,
        };
        let (first, old, new) = (id(1, 10), id(2, 20), id(3, 105));
        let mut times = CpuTimes::default();
        let mut now = |at, members: &[(ProcessId, u64)], dead: &[ProcessId]| {
            let members: Vec<_> = (members.iter())
                .map(|&(id, cpu)| (id, Some(second(cpu))))
                .collect();
            times.enter(second(at), &members, |id| !dead.contains(&id))
        };
        assert_eq!(now(100, &[(first, 1000)], &[]), 0.0);
        assert_eq!(now(104, &[(first, 1003)], &[]), 3.0);
        // One that had run for hours joins, and one that has just started.
        let joined = [(first, 1004), (old, 7200), (new, 2)];
        assert_eq!(now(108, &joined, &[]), 6.0);
        assert_eq!(now(109, &[(old, 7201), (new, 3)], &[]), 8.0);
        // The first is back, after a search that had missed it.
        let back = [(first, 1009), (old, 7202), (new, 4)];
        assert_eq!(now(110, &back, &[]), 10.0);
        assert_eq!(now(111, &[(first, 1010)], &[old, new]), 11.0);
        assert_eq!(now(112, &[(first, 1011)], &[old, new]), 12.0);
    }

    #[test]
    fn time_of_those_who_end_is_not_lost() {
        let roots = Roots::default();
        let own = identify(&roots, std::process::id()).unwrap();
        let mut times = CpuTimes::default();
        assert_eq!(
            times.now([own].into_iter()),
            0.0,
            "time before the first reading"
        );
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(20) {}
        let used = times.now([own].into_iter());
        assert!(used > 0.0);
        let gone = times.now([].into_iter());
        assert!((gone - used).abs() < 1e-9);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cpu.stat");
        fs::write(&file, "usage_usec 2500000\nuser_usec 1\n").unwrap();
        let mut group = CpuTimes::of_group(Some(file.clone()));
        assert!((group.now([own].into_iter()) - 2.5).abs() < 1e-9);
        fs::write(&file, "nonsense").unwrap();
        assert!(CpuTimes::of_group(Some(file)).group.is_none());
    }
}
