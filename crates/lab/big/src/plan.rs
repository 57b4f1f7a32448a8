//! Plan of the measurement: steps, their time, and sizes that fit the machine. Pure.

use std::time::Duration;

use superhue::model::ByteCount;

const GIB: u64 = 1 << 30;

/// Parts of the measurement, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StepName {
    /// Page colors found on every core
    Colors,
    /// Cost to a process's threads of passes over the process
    Shootdown,
    /// Cost of looking at memory, by GiB
    Looks,
    /// The daemon among many processes
    Daemon,
    /// Speed of collapsing memory, and waits of threads meanwhile
    Collapse,
    /// Short programs, many at a time
    Programs,
}

impl StepName {
    /// All steps, in order.
    pub const ALL: [Self; 6] = [
        Self::Colors,
        Self::Shootdown,
        Self::Looks,
        Self::Daemon,
        Self::Collapse,
        Self::Programs,
    ];

    /// Returns the step's name on the command line and in the document.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Colors => "colors",
            Self::Shootdown => "shootdown",
            Self::Looks => "looks",
            Self::Daemon => "daemon",
            Self::Collapse => "collapse",
            Self::Programs => "programs",
        }
    }

    /// Returns a short description of the measurement.
    pub const fn about(self) -> &'static str {
        match self {
            Self::Colors => "page colors found by timing on each core, and whether cores agree",
            Self::Shootdown => "what a pass over a process costs the process, by its threads",
            Self::Looks => "what looking at memory and sampling its accesses cost, by GiB",
            Self::Daemon => {
                "the daemon among many processes: its CPU and memory, and when a new service is known"
            }
            Self::Collapse => {
                "huge pages made per second by many at a time, and how long threads wait that touch the memory"
            }
            Self::Programs => "short programs, many at a time: wall time alone and under superhue",
        }
    }

    /// Returns the step's weight in the division of time.
    const fn weight(self) -> u32 {
        match self {
            Self::Colors => 35,
            Self::Shootdown => 65,
            Self::Looks => 155,
            Self::Daemon => 110,
            Self::Collapse => 70,
            Self::Programs => 85,
        }
    }
}

/// Returns the time for the first step of `left`, out of the whole time left: by weight, so that later steps get what a step does not use.
pub fn bound(left: &[StepName], time: Duration) -> Duration {
    let all: u32 = left.iter().map(|step| step.weight()).sum();
    match left.first() {
        Some(first) if all > 0 => time * first.weight() / all,
        _ => Duration::ZERO,
    }
}

/// Returns the memory that may be filled: what is available and what control groups allow, less a reserve, and at most `asked`.
pub fn usable(
    available: ByteCount,
    headroom: Option<ByteCount>,
    asked: Option<ByteCount>,
) -> ByteCount {
    let most = available.0.min(headroom.map_or(u64::MAX, |bytes| bytes.0));
    let reserve = (most / 12).max((most / 3).min(GIB));
    ByteCount((most - reserve).min(asked.map_or(u64::MAX, |bytes| bytes.0)))
}

/// Returns sizes of memory to look at, ascending: steps of four up to 64 GiB, then 100 GiB, or all usable memory where that is much more
/// than the last step.
pub fn sizes(usable: ByteCount) -> Vec<ByteCount> {
    let steps = [GIB / 4, GIB, 4 * GIB, 16 * GIB, 64 * GIB, 100 * GIB];
    let fitting = steps.into_iter().filter(|size| *size <= usable.0);
    // The smallest size is for machines with less than 1 GiB.
    let mut sizes: Vec<u64> = fitting
        .filter(|size| *size >= GIB || usable.0 < GIB)
        .collect();
    let last = sizes.last().copied().unwrap_or(0);
    let whole = usable.0 >> 21 << 21;
    if last < 100 * GIB && whole > last + last / 4 {
        sizes.push(whole.min(100 * GIB));
    }
    sizes.into_iter().map(ByteCount).collect()
}

/// Returns numbers of threads, ascending: powers of two up to 16 that `cpus` can run at once, and `cpus` itself where it is less than 16.
pub fn threads(cpus: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = [1, 2, 4, 8, 16]
        .into_iter()
        .filter(|count| *count <= cpus)
        .collect();
    if cpus < 16 && !counts.contains(&cpus) && cpus > 0 {
        counts.push(cpus);
    }
    counts
}

/// Moves the smallest and the largest number to the front: those in between are the ones to leave out if time ends.
pub fn ends_first(mut counts: Vec<usize>) -> Vec<usize> {
    if counts.len() > 2 {
        counts.rotate_right(1);
        counts.swap(0, 1);
    }
    counts
}

/// Returns numbers of concurrent collapsers: powers of two, up to 16 and up to twice the processors.
pub fn collapsers(cpus: usize) -> Vec<usize> {
    [1, 2, 4, 8, 16]
        .into_iter()
        .filter(|count| *count <= cpus * 2)
        .collect()
}

/// Returns numbers of processes for a crowd in which each process takes `each` bytes.
pub fn crowds(usable: ByteCount, each: ByteCount) -> Vec<usize> {
    let most = usize::try_from(usable.0 / each.0.max(1)).unwrap_or(usize::MAX);
    let mut sizes: Vec<usize> = [100, 1000, 5000]
        .into_iter()
        .filter(|size| *size <= most)
        .collect();
    if sizes.is_empty() && most >= 10 {
        sizes.push(most);
    }
    sizes
}

/// Returns numbers of concurrent copies of a program.
pub fn copies(cpus: usize) -> Vec<usize> {
    [1, 4, 16]
        .into_iter()
        .filter(|count| *count <= cpus.max(4))
        .collect()
}

/// Returns the memory for each of `copies` copies: 1 GiB where there is room for one and a half times that, else less, in steps of 64 MiB.
/// `None` below 128 MiB.
pub fn of_copy(usable: ByteCount, copies: usize) -> Option<ByteCount> {
    let each = usable.0 * 2 / 3 / copies.max(1) as u64;
    let size = each.min(GIB) >> 26 << 26;
    (size >= 128 << 20).then_some(ByteCount(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn gib(count: u64) -> ByteCount {
        ByteCount(count * GIB)
    }

    #[test]
    fn time_that_is_not_used_goes_to_those_after() {
        let all = StepName::ALL;
        let mut left = Duration::from_secs(520);
        for (at, step) in all.iter().enumerate() {
            let time = bound(&all[at..], left);
            assert!(time <= left);
            // Each step uses half of its time; the last step may use all time left.
            assert!(
                time >= Duration::from_secs(520) * step.weight() / 520,
                "{step:?}: {time:?}"
            );
            left -= time / 2;
        }
        assert_eq!(bound(&all[5..], left), left);
        assert_eq!(bound(&[], left), Duration::ZERO);
        assert_eq!(bound(&all, Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn sizes_fit_the_memory() {
        assert_eq!(
            sizes(gib(115)),
            [gib(1), gib(4), gib(16), gib(64), gib(100)]
        );
        assert_eq!(sizes(gib(20)), [gib(1), gib(4), gib(16)]);
        assert_eq!(sizes(gib(24)), [gib(1), gib(4), gib(16), gib(24)]);
        assert_eq!(
            sizes(ByteCount(600 << 20)),
            [ByteCount(256 << 20), ByteCount(600 << 20)]
        );
        assert_eq!(sizes(ByteCount(100 << 20)), [ByteCount(100 << 20)]);
        assert_eq!(sizes(ByteCount(0)), []);
        for mib in 0..4096 {
            let usable = ByteCount((mib * 33) << 20);
            let sizes = sizes(usable);
            assert!(
                sizes.is_sorted() && sizes.iter().all(|size| *size <= usable && size.0 > 0),
                "{usable:?}: {sizes:?}"
            );
        }
    }

    #[test]
    fn a_reserve_is_left_and_limits_are_kept() {
        assert_eq!(usable(gib(120), None, None), gib(110));
        assert_eq!(usable(gib(24), None, None), gib(22));
        assert_eq!(usable(gib(24), Some(gib(12)), None), gib(11));
        assert_eq!(usable(gib(24), Some(gib(12)), Some(gib(2))), gib(2));
        assert_eq!(
            usable(ByteCount(300 << 20), None, None),
            ByteCount(200 << 20)
        );
        assert_eq!(usable(gib(24), Some(ByteCount(0)), None), ByteCount(0));
    }

    #[test]
    fn counts_fit_the_processors() {
        assert_eq!(threads(16), [1, 2, 4, 8, 16]);
        assert_eq!(threads(64), [1, 2, 4, 8, 16]);
        assert_eq!(threads(6), [1, 2, 4, 6]);
        assert_eq!(ends_first(threads(16)), [1, 16, 2, 4, 8]);
        assert_eq!(ends_first(threads(2)), [1, 2]);
        assert_eq!(ends_first(Vec::new()), [] as [usize; 0]);
        assert_eq!((threads(2), threads(1)), (vec![1, 2], vec![1]));
        assert_eq!(
            (collapsers(16), collapsers(2)),
            (vec![1, 2, 4, 8, 16], vec![1, 2, 4])
        );
        assert_eq!((copies(16), copies(2)), (vec![1, 4, 16], vec![1, 4]));
        assert_eq!(crowds(gib(16), ByteCount(1 << 20)), [100, 1000, 5000]);
        assert_eq!(crowds(gib(1), ByteCount(1 << 20)), [100, 1000]);
        assert_eq!(crowds(ByteCount(50 << 20), ByteCount(1 << 20)), [50]);
        assert_eq!(
            crowds(ByteCount(5 << 20), ByteCount(1 << 20)),
            [] as [usize; 0]
        );
        assert_eq!(of_copy(gib(100), 16), Some(gib(1)));
        assert_eq!(of_copy(gib(6), 4), Some(gib(1)));
        assert_eq!(of_copy(gib(3), 4), Some(ByteCount(512 << 20)));
        assert_eq!(of_copy(gib(1), 16), None);
    }
}
