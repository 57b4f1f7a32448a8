//! The CPUs of a program's threads, and priority on one of them for a moment.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use superhue_procfs::Roots;
use superhue_procfs::hardware::CpuList;
use superhue_procfs::process::{ThreadCpu, thread_cpus};
use superhue_sys::urgency::RealTime;

/// Most threads of a program whose CPUs are looked up, some 8 us each.
const THREADS: usize = 512;

/// Most CPUs on which frames are dealt.
const CPUS: usize = 8;

/// The CPUs where a page of the program may be faulted in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProgramCpus {
    /// CPU on which we work: a thread of the program that runs there waits meanwhile.
    pub(crate) home: Option<usize>,
    /// The other CPUs on which threads of the program run.
    pub(crate) others: Vec<usize>,
}

impl ProgramCpus {
    /// Returns the CPUs of the threads of process `pid` that run now; no CPU if it has more than [`THREADS`] threads.
    ///
    /// Leaves out CPUs of real-time threads of this process, which we would wait for, or delay, and isolated CPUs (`isolcpus=`). It does not
    /// know the real-time threads of other processes.
    pub(crate) fn of(roots: &Roots, pid: u32) -> Self {
        // A thread that is not looked up might be a real-time thread.
        let threads = thread_cpus(roots, pid, THREADS).ok().flatten();
        Self::of_threads(&threads.unwrap_or_default(), &isolated(roots))
    }

    fn of_threads(threads: &[ThreadCpu], isolated: &[usize]) -> Self {
        let mut count = vec![0_usize; CpuSet::MAX_CPU];
        for thread in threads.iter().filter(|thread| thread.runs) {
            if let Some(count) = count.get_mut(thread.cpu as usize) {
                *count += 1;
            }
        }
        let real_time = threads.iter().filter(|thread| thread.real_time);
        let real_time = real_time.map(|thread| thread.cpu as usize);
        for cpu in real_time.chain(isolated.iter().copied()) {
            if let Some(count) = count.get_mut(cpu) {
                *count = 0;
            }
        }
        Self::by_count(&count)
    }

    /// Makes the busiest CPU the home CPU.
    fn by_count(count: &[usize]) -> Self {
        let mut cpus: Vec<usize> = (0..count.len()).filter(|&cpu| count[cpu] > 0).collect();
        cpus.sort_by_key(|&cpu| std::cmp::Reverse(count[cpu]));
        cpus.truncate(CPUS);
        let mut cpus = cpus.into_iter();
        Self {
            home: cpus.next(),
            others: cpus.collect(),
        }
    }
}

/// CPUs that the scheduler keeps free of other threads (`Documentation/admin-guide/kernel-parameters.txt`, `isolcpus=`).
fn isolated(roots: &Roots) -> Vec<usize> {
    let path = roots.sys.join("devices/system/cpu/isolated");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    let list = CpuList::parse(&list).unwrap_or_default();
    list.numbers().iter().map(|&cpu| cpu as usize).collect()
}

/// Runs the calling thread first on a CPU of its choice (`SCHED_FIFO`); dropping it restores the previous scheduling.
///
/// For less than a millisecond at a time. No other thread, the program's included, runs on that CPU meanwhile, so no
/// thread takes a frame between its dealing and its use. Only this thread of ours is scheduled this way, never a
/// program's thread.
#[derive(Debug)]
pub(crate) struct FifoScheduling {
    affinity: Option<CpuSet>,
    _real_time: Option<RealTime>,
}

impl FifoScheduling {
    /// Moves to `cpu`, or stays on the current one.
    ///
    /// Without the right to real-time scheduling the thread keeps its scheduling: other threads may then run in between.
    pub(crate) fn on(cpu: Option<usize>) -> Self {
        let real_time = RealTime::begin();
        let served = Self {
            affinity: sched_getaffinity(None).ok(),
            _real_time: real_time,
        };
        let here = sched_getcpu();
        if cpu.is_none_or(|cpu| served.go(cpu).is_err()) {
            // The CPU is outside our cpuset: the program's own CPU will serve its faults.
            let _ = served.go(here);
        }
        served
    }

    /// Moves to another CPU.
    ///
    /// # Errors
    /// `EINVAL`: our cpuset has no such CPU, or it is offline.
    pub(crate) fn go(&self, cpu: usize) -> Result<(), Errno> {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno::INVAL);
        }
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only)
    }
}

impl Drop for FifoScheduling {
    fn drop(&mut self) {
        if let Some(affinity) = &self.affinity {
            // If the old affinity is no longer allowed, the kernel has already chosen another.
            let _ = sched_setaffinity(None, affinity);
        }
    }
}

#[cfg(test)]
mod tests {
    use superhue_sys::scheduling::Scheduling;

    use super::*;

    #[test]
    fn the_busiest_cpu_is_home() {
        let cpus = ProgramCpus::by_count(&[0, 2, 0, 5, 1]);
        assert_eq!((cpus.home, cpus.others), (Some(3), vec![1, 4]));
        assert_eq!(ProgramCpus::by_count(&[0; 4]).home, None);
        let many = ProgramCpus::by_count(&[1; 100]);
        assert_eq!(many.others.len(), CPUS - 1);
    }

    #[test]
    fn cpus_of_real_time_threads_are_left_alone() {
        let thread = |cpu, real_time: bool| ThreadCpu {
            cpu,
            runs: !real_time,
            real_time,
        };
        // After many others.
        let mut threads = vec![thread(1, false); 100];
        threads.extend([thread(2, false), thread(1, true)]);
        let cpus = ProgramCpus::of_threads(&threads, &[]);
        assert_eq!((cpus.home, cpus.others), (Some(2), vec![]));
        assert_eq!(ProgramCpus::of_threads(&threads, &[2]).home, None);
    }

    #[test]
    fn a_program_with_too_many_threads_has_no_home() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let stat = superhue_testing::recorded_file("processes/linux-6.18", "proc/701/stat");
        let stat = stat.replacen(") S ", ") R ", 1);
        let start = |count: usize| {
            for tid in 0..count {
                let task = roots.proc.join(format!("7/task/{tid}"));
                std::fs::create_dir_all(&task).unwrap();
                std::fs::write(task.join("stat"), &stat).unwrap();
            }
            ProgramCpus::of(&roots, 7).home
        };
        assert!(start(THREADS).is_some());
        assert_eq!(start(THREADS + 1), None);
    }

    #[test]
    fn isolated_cpus_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        assert!(isolated(&roots).is_empty());
        let cpus = roots.sys.join("devices/system/cpu");
        std::fs::create_dir_all(&cpus).unwrap();
        for (list, expected) in [("\n", vec![]), ("2-4,7\n", vec![2, 3, 4, 7])] {
            std::fs::write(cpus.join("isolated"), list).unwrap();
            assert_eq!(isolated(&roots), expected);
        }
    }

    #[test]
    fn the_thread_is_as_before_afterwards() {
        let before = (sched_getaffinity(None).unwrap(), Scheduling::of(0).unwrap());
        {
            let served = FifoScheduling::on(None);
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            assert!(served.go(CpuSet::MAX_CPU).is_err());
        }
        let after = (sched_getaffinity(None).unwrap(), Scheduling::of(0).unwrap());
        assert!(before == after);
    }
}
