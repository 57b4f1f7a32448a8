//! CPU of the measurement, and its caches.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use superhue_procfs::Roots;
use superhue_procfs::hardware::read_caches;

use crate::BenchError;

/// A data cache of one CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLevel {
    /// Level; 1 is nearest to the CPU.
    pub level: u32,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Lines per set, if known.
    pub ways: Option<u64>,
    /// CPUs that share it, as far as this system can see; empty if unknown.
    pub shared_by: Vec<u32>,
}

impl CacheLevel {
    /// Common name of the cache.
    #[must_use]
    pub fn name(&self) -> String {
        format!("L{}{}", self.level, if self.level == 1 { "d" } else { "" })
    }
}

/// The data caches of one CPU, nearest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caches(pub Vec<CacheLevel>);

impl Caches {
    /// Reads the caches of `cpu` from sysfs.
    ///
    /// # Errors
    /// If sysfs describes no second level: working sets are shares of it.
    pub fn read(roots: &Roots, cpu: u32) -> Result<Self, BenchError> {
        let all = read_caches(roots)
            .map_err(|error| BenchError::during("cannot tell the sizes of the caches", error))?;
        let levels = all.into_iter().filter_map(|cache| {
            let shared_by = cache
                .shared_by
                .as_ref()
                .map_or(Vec::new(), |cpus| cpus.numbers().to_vec());
            let ours = shared_by.is_empty() || shared_by.contains(&cpu);
            (ours && cache.holds_data()).then_some(CacheLevel {
                level: cache.level?,
                bytes: cache.size?.0,
                ways: cache.ways,
                shared_by,
            })
        });
        let caches = Self(levels.collect());
        match caches.level(2) {
            Some(_) => Ok(caches),
            None => Err(BenchError(format!(
                "no second-level cache of CPU {cpu} is described in sysfs"
            ))),
        }
    }

    /// The cache of this level.
    #[must_use]
    pub fn level(&self, level: u32) -> Option<&CacheLevel> {
        self.0.iter().find(|cache| cache.level == level)
    }

    /// Bytes of the second level; the measured colors are colors of that cache.
    #[must_use]
    pub fn colored_bytes(&self) -> u64 {
        self.level(2).map_or(0, |cache| cache.bytes)
    }
}

/// The CPU of the measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedCpu {
    /// Number of the CPU.
    pub cpu: u32,
    /// Numbers of the CPUs that the thread might use before, this one included.
    pub allowed: Vec<u32>,
}

/// Pins the calling thread, and those that it starts from now on, to one CPU: `cpu`, or the last one that it may use
/// (interrupts are mostly served by the first ones).
///
/// # Errors
/// If the thread may not use `cpu`, or there is no such CPU.
pub fn pin(cpu: Option<u32>) -> Result<PinnedCpu, BenchError> {
    let refused = |error| BenchError::during("cannot stay on one CPU", error);
    let allowed = sched_getaffinity(None).map_err(refused)?;
    let numbers: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect();
    let chosen = match cpu {
        Some(cpu) => cpu as usize,
        None => numbers.last().copied().unwrap_or(0),
    };
    if !numbers.contains(&chosen) {
        let list: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        return Err(BenchError(format!(
            "this process may not use CPU {chosen}, only {}",
            list.join(",")
        )));
    }
    let mut one = CpuSet::new();
    one.set(chosen);
    sched_setaffinity(None, &one).map_err(refused)?;
    let number = |cpu: usize| u32::try_from(cpu).ok();
    Ok(PinnedCpu {
        cpu: number(chosen).unwrap_or(0),
        allowed: numbers.into_iter().filter_map(number).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_not_there_is_refused_with_those_that_are() {
        let trouble = pin(Some(CpuSet::MAX_CPU as u32 + 7)).unwrap_err();
        assert!(trouble.0.contains("only "), "{trouble}");
    }

    #[test]
    fn without_a_description_the_reason_is_told() {
        let roots = Roots {
            sys: "/nonexistent".into(),
            ..Roots::default()
        };
        assert!(Caches::read(&roots, 0).is_err());
    }
}
