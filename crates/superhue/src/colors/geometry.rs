//! Test of the kernel's color geometry against the cache, by conflicts that really happen.

use std::thread;

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use superhue_color::kernel::deal;
use superhue_color::oracles::{HardwareProbe, Judgement, OracleKind, Trust, judge_here};
use superhue_model::{BASE_PAGE_SIZE, ByteCount};
use superhue_procfs::Roots;
use superhue_procfs::hardware::{Cpuid, Geometry, Hardware};
use superhue_procfs::system::PageColors;

use super::headroom;

/// Pages of a color that a test needs: twice the ways to evict with, and some to be evicted.
const PAGES_OF_COLOR: u64 = 48;
/// Bytes that push everything out of any second level; and the most that a test may take of a machine.
const MIN_POOL_SIZE: ByteCount = ByteCount(16 << 20);
const MAX_POOL_SIZE: ByteCount = ByteCount(256 << 20);
/// Ways assumed if the cache does not report them.
const WAYS: usize = 16;
/// Refutations in a row that count as one: a single test may be disturbed.
const REFUTATIONS: usize = 2;

/// Returns the bytes that the kernel deals for a test of `colors` colors.
#[must_use]
pub fn pool_for_colors(colors: usize) -> ByteCount {
    ByteCount(colors as u64 * PAGES_OF_COLOR * BASE_PAGE_SIZE).clamp(MIN_POOL_SIZE, MAX_POOL_SIZE)
}

/// Tests the geometry on memory that the kernel deals, on a thread that stays on its CPU and ends.
pub(super) fn judge(roots: &Roots, coloring: &PageColors) -> Judgement {
    let untested = |why: &str| Judgement::untested(OracleKind::Kernel, why.to_owned());
    let pool = pool_for_colors(coloring.colors());
    if headroom::for_ourselves(roots).is_some_and(|room| room < pool) {
        return untested("too little memory is free");
    }
    thread::scope(|scope| {
        let thread =
            thread::Builder::new().spawn_scoped(scope, || repeatedly(roots, coloring, pool));
        match thread {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|_| untested("the test failed")),
            Err(error) => untested(&format!("no thread: {error}")),
        }
    })
}

fn repeatedly(roots: &Roots, coloring: &PageColors, pool: ByteCount) -> Judgement {
    let cpu = stay();
    let ways = ways_of_second_level(roots, cpu);
    let mut judgement = once(roots, coloring, pool, ways);
    for _ in 1..REFUTATIONS {
        if !matches!(judgement.trust, Trust::Refuted(_)) {
            break;
        }
        judgement = once(roots, coloring, pool, ways);
    }
    judgement
}

fn once(roots: &Roots, coloring: &PageColors, pool: ByteCount, ways: usize) -> Judgement {
    let untested = |why: String| Judgement::untested(OracleKind::Kernel, why);
    let mut probe = match HardwareProbe::new() {
        Ok(probe) => probe,
        Err(error) => return untested(error.to_string()),
    };
    match deal(roots, coloring, pool) {
        Ok(mut dealt) => judge_here(&mut probe, &mut dealt.oracle, dealt.sample.pages(), ways),
        Err(error) => untested(error.to_string()),
    }
}

/// Keeps the calling thread on the CPU that it is on, whose number it returns.
fn stay() -> u32 {
    let cpu = sched_getcpu();
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
        // If the kernel forbids that, the test is only noisier.
        let _ = sched_setaffinity(None, &set);
    }
    u32::try_from(cpu).unwrap_or_default()
}

/// Returns the ways of the second-level cache of `cpu`: the colors are those of this cache.
fn ways_of_second_level(roots: &Roots, cpu: u32) -> usize {
    let caches = Hardware::read(roots, &Cpuid::native())
        .caches
        .unwrap_or_default();
    let of_cpu = caches.into_iter().map(|judged| judged.cache).find(|cache| {
        let mine = (cache.shared_by.as_ref()).is_none_or(|cpus| cpus.contains(cpu));
        mine && cache.holds_data() && cache.level == Some(2)
    });
    let geometry = of_cpu.and_then(|cache| Geometry::of(&cache).ok());
    let ways = geometry.and_then(|geometry| usize::try_from(geometry.ways).ok());
    ways.unwrap_or(WAYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_pages_enough_of_each_color_and_is_bounded() {
        assert_eq!(pool_for_colors(2), MIN_POOL_SIZE);
        assert_eq!(pool_for_colors(512).0, 512 * 48 * 4096);
        assert_eq!(pool_for_colors(usize::MAX >> 20), MAX_POOL_SIZE);
    }

    #[test]
    fn what_is_off_is_untested() {
        let off = PageColors::parse("enabled 0\ngeometry masks:0x1000\ncolors 2\n").unwrap();
        let judgement = judge(&Roots::default(), &off);
        assert!(
            matches!(judgement.trust, Trust::Untested(_)),
            "{judgement:?}"
        );
    }
}
