//! `/proc/PID/task`: the CPUs on which the threads of a process run.

use std::fs;

use crate::{ReadError, Roots};

use super::stat::stat_of_thread;

/// CPU on which a thread ran last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadCpu {
    /// Number of the CPU.
    pub cpu: u32,
    /// True if the thread runs, or waits for a CPU, at this moment.
    pub runs: bool,
    /// True if its scheduling policy is real-time (`SCHED_FIFO`, `SCHED_RR`, `SCHED_DEADLINE`).
    pub real_time: bool,
}

/// Reads the CPUs of all threads of process `pid`; `None` if it has more than `most` threads. Every user may read them.
///
/// # Errors
/// [`ReadError::Vanished`] when there is no such process.
pub fn thread_cpus(
    roots: &Roots,
    pid: u32,
    most: usize,
) -> Result<Option<Vec<ThreadCpu>>, ReadError> {
    let path = roots.of_process(pid, "task");
    let entries = fs::read_dir(&path).map_err(|error| ReadError::of_process(pid, &path, error))?;
    let numbers = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<u32>().ok()
    });
    let numbers: Vec<u32> = numbers.take(most.saturating_add(1)).collect();
    if numbers.len() > most {
        return Ok(None);
    }
    // A thread that has ended meanwhile runs nowhere.
    let threads = numbers
        .into_iter()
        .filter_map(|tid| stat_of_thread(roots, pid, tid).ok());
    let cpus = threads.filter_map(|thread| {
        Some(ThreadCpu {
            cpu: thread.processor?,
            runs: thread.state == 'R',
            real_time: matches!(thread.policy, Some(1 | 2 | 6)),
        })
    });
    Ok(Some(cpus.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_thread_runs_on_a_cpu() {
        let roots = Roots::default();
        let own = thread_cpus(&roots, std::process::id(), usize::MAX).unwrap();
        let own = own.unwrap();
        assert!(own.iter().any(|thread| thread.runs && !thread.real_time));
        assert!(matches!(
            thread_cpus(&roots, u32::MAX >> 1, 1),
            Err(ReadError::Vanished { .. })
        ));
        assert_eq!(thread_cpus(&roots, std::process::id(), 0).unwrap(), None);
    }
}
