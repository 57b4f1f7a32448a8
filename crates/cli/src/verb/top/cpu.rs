//! CPU time of processes, as shares of one CPU.
//!
//! ```text
//!   look of the survey at process 812   smaps_rollup, stat, cgroup
//!   right after it, here                stat: utime + stime, all threads ── less the previous read ──> share
//! ```
//!
//! The read belongs to the look: the survey's share of the CPU limit covers it, and a process that holds up either of them is passed over.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use superhue::model::ProcessId;
use superhue::procfs::Roots;
use superhue::procfs::process::{CpuTicks, ProcStat, stat};
use superhue::survey::{ProcessEntry, ProcessRead};

/// Least time between two reads that are compared: the kernel counts in ticks of 10 ms, 2 % of it.
const MIN_BETWEEN: Duration = Duration::from_millis(500);

/// Reads the CPU time of processes, and compares it with the read before.
#[derive(Debug, Default)]
pub struct CpuMeter {
    last: HashMap<u32, CpuRead>,
}

/// CPU time of one process.
#[derive(Debug, Clone, Copy)]
struct CpuRead {
    /// Start of the process, which tells it from an earlier one of the same number.
    start_ticks: u64,
    /// Time of the read.
    at: Duration,
    /// CPU time until then.
    total: Duration,
    /// Share of one CPU between the last two reads; `None` after one read.
    share: Option<f64>,
}

impl CpuMeter {
    /// Returns a function to pass the survey's reads to: it reads the CPU time of a process at the end of each look. Times count from `begun`.
    pub fn after_looks(
        &mut self,
        roots: &Roots,
        begun: Instant,
    ) -> impl FnMut(Option<ProcessRead>) {
        let mut looked_at = None;
        move |read| match read {
            Some(read) => looked_at = read.in_full.then_some(read.pid),
            None => {
                if let Some(pid) = looked_at.take() {
                    self.read(roots, pid, begun.elapsed());
                }
            }
        }
    }

    fn read(&mut self, roots: &Roots, pid: u32, at: Duration) {
        match stat(roots, pid) {
            Ok(stat) => self.compare(pid, at, &stat),
            // The process has ended.
            Err(_) => drop(self.last.remove(&pid)),
        }
    }

    fn compare(&mut self, pid: u32, at: Duration, stat: &ProcStat) {
        let ticks = CpuTicks {
            user_ticks: stat.user_ticks,
            system_ticks: stat.system_ticks,
        };
        let mut now = CpuRead {
            start_ticks: stat.start_ticks,
            at,
            total: ticks.total(),
            share: None,
        };
        let before = self.last.get(&pid);
        if let Some(before) = before.filter(|it| it.start_ticks == now.start_ticks) {
            let passed = at.saturating_sub(before.at);
            if passed < MIN_BETWEEN {
                return;
            }
            let used = now.total.checked_sub(before.total);
            now.share = used.map(|used| used.as_secs_f64() / passed.as_secs_f64());
        }
        self.last.insert(pid, now);
    }

    /// Returns the shares of these processes, as far as they are known, and forgets all other processes.
    pub fn shares(&mut self, processes: &[ProcessEntry]) -> HashMap<ProcessId, f64> {
        let mut kept = HashMap::with_capacity(self.last.len());
        let mut shares = HashMap::with_capacity(self.last.len());
        for ProcessEntry { id, .. } in processes {
            let last = self.last.remove(&id.pid);
            let Some(read) = last.filter(|it| it.start_ticks == id.start_ticks) else {
                continue;
            };
            shares.extend(read.share.map(|share| (*id, share)));
            kept.insert(id.pid, read);
        }
        self.last = kept;
        shares
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use superhue::survey::Look;

    use super::*;

    fn entry(pid: u32, start_ticks: u64) -> ProcessEntry {
        ProcessEntry {
            id: ProcessId { pid, start_ticks },
            name: "it".into(),
            cgroup: "/x".into(),
            glanced: Duration::ZERO,
            resident: superhue::model::ByteCount(1),
            anonymous: superhue::model::ByteCount(1),
            look: Look::NotYet,
            gain: None,
        }
    }

    /// Writes a `stat` in which the process of this start has used `user` and `system` ticks.
    fn write_stat(root: &Path, pid: u32, start: u64, user: u64, system: u64) {
        let folder = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        let text = format!(
            "{pid} (it) S 1 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 1 0 {start} {}\n",
            "0 ".repeat(30)
        );
        fs::write(folder.join("stat"), text).unwrap();
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn two_reads_make_a_share_of_one_cpu() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let ticks = rustix::param::clock_ticks_per_second();
        let mut meter = CpuMeter::default();
        let known = [entry(7, 70)];
        let share = |meter: &mut CpuMeter| meter.shares(&known).get(&known[0].id).copied();

        write_stat(folder.path(), 7, 70, ticks, ticks);
        meter.read(&roots, 7, seconds(1.0));
        assert_eq!(share(&mut meter), None, "one read is no share");
        // Two threads used two CPUs for 2 s: user and kernel time count.
        write_stat(folder.path(), 7, 70, ticks * 4, ticks * 2);
        meter.read(&roots, 7, seconds(3.0));
        assert_eq!(share(&mut meter), Some(2.0));
        // Too soon to be compared: the share stays, and the next read counts from the earlier one.
        write_stat(folder.path(), 7, 70, ticks * 5, ticks * 2);
        meter.read(&roots, 7, seconds(3.25));
        assert_eq!(share(&mut meter), Some(2.0));
        meter.read(&roots, 7, seconds(4.0));
        assert_eq!(share(&mut meter), Some(1.0));
        // An idle process has used 0, which is known.
        meter.read(&roots, 7, seconds(6.0));
        assert_eq!(share(&mut meter), Some(0.0));
    }

    #[test]
    fn a_process_that_has_ended_has_no_share() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let mut meter = CpuMeter::default();
        for (at, user) in [(1.0, 0), (2.0, 50)] {
            write_stat(folder.path(), 7, 70, user, 0);
            meter.read(&roots, 7, seconds(at));
        }
        let known = [entry(7, 70)];
        assert_eq!(meter.shares(&known).len(), 1);
        fs::remove_file(folder.path().join("proc/7/stat")).unwrap();
        meter.read(&roots, 7, seconds(3.0));
        assert!(meter.shares(&known).is_empty());
        // A process that the survey does not know any more is forgotten.
        write_stat(folder.path(), 7, 70, 50, 0);
        meter.read(&roots, 7, seconds(4.0));
        assert!(meter.shares(&[]).is_empty() && meter.last.is_empty());
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let mut meter = CpuMeter::default();
        for (at, user) in [(1.0, 0), (2.0, 50)] {
            write_stat(folder.path(), 7, 70, user, 0);
            meter.read(&roots, 7, seconds(at));
        }
        // The new process has used more than the old one: the difference would look like a share.
        write_stat(folder.path(), 7, 99, 80, 0);
        meter.read(&roots, 7, seconds(3.0));
        assert!(meter.shares(&[entry(7, 99)]).is_empty());
        assert!(
            meter.shares(&[entry(7, 70)]).is_empty(),
            "the survey is behind"
        );
    }

    #[test]
    fn only_looks_are_followed_by_a_read() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        write_stat(folder.path(), 7, 70, 0, 0);
        write_stat(folder.path(), 8, 80, 0, 0);
        let mut meter = CpuMeter::default();
        let mut told = meter.after_looks(&roots, Instant::now());
        for (pid, in_full) in [(7, false), (8, true)] {
            told(Some(ProcessRead { pid, in_full }));
            told(None);
        }
        // The survey reports the end of a look that it has passed over, too.
        told(None);
        drop(told);
        assert_eq!(meter.last.keys().collect::<Vec<_>>(), [&8]);
    }
}
