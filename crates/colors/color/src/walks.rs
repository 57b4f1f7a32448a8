//! What it costs that memory is in base pages, found by timing loads of our own.
//!
//! Two mappings of the same size, one in base pages and one in superpages, are read in turns, in three ways:
//!
//! * *apart*: random pages, no load waits for another; many walks are under way at once, as in a hash join;
//! * *chained*: random pages, each load waits for the one before, as in a list or tree: the whole latency shows;
//! * *in order*: page after page, every line; walks are few and mostly foreseen, as in a scan.
//!
//! The difference for one page is what a TLB miss costs, whatever it is made of: a longer walk, its entries that are not in the caches,
//! and in a virtual machine the walks of the host's tables for each of its steps. Beyond the reach of the TLB it grows with
//! the memory that is read, because the page tables grow; so it is measured by footprint.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};
use superhue_sys::collapse::own_collapse;
use superhue_sys::scratch::Scratch;

const WORD: u64 = 8;
const LINE: u64 = 64;

/// The smallest footprint: beyond what the second TLBs of today's processors reach with base pages.
const SMALLEST: u64 = 16 << 20;

/// Turns at each footprint. The median counts: what others do to the caches makes walks dearer for whoever runs beside them.
const TURNS: usize = 9;

/// How long one way of reading is timed in a turn.
const SPELL: Duration = Duration::from_millis(5);

/// Loads between two looks at the clock.
const BATCH: u64 = 2048;

/// What one more TLB miss costs, in nanoseconds, at one footprint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WalkCost {
    /// Memory read.
    pub footprint: ByteCount,
    /// For random loads that do not wait for each other.
    pub apart_ns: f64,
    /// For random loads each of which waits for the one before.
    pub chained_ns: f64,
    /// For each page that is read in order.
    pub in_order_ns: f64,
    /// The share of the whole time that was saved when loads did not wait for each other: no program that does other things as well can save
    /// more in that way, 0 to 1.
    pub apart_gain: f64,
    /// The same for loads that wait.
    pub chained_gain: f64,
    /// And for pages in order.
    pub in_order_gain: f64,
}

/// Measures it at footprints of 16 MiB and each doubling, up to `largest`, of which twice as much memory is used; in some seconds.
///
/// # Errors
/// `ENOMEM` without the memory; `EINVAL` on a kernel that makes no superpages.
pub fn walk_costs(largest: ByteCount) -> Result<Vec<WalkCost>, Errno> {
    let largest = largest.0 / HUGE_PAGE_SIZE * HUGE_PAGE_SIZE;
    let length = usize::try_from(largest).map_err(|_| Errno::NOMEM)?;
    if largest < SMALLEST {
        return Err(Errno::INVAL);
    }
    let mut base = Scratch::in_base_pages(length)?;
    let mut huge = Scratch::untouched(length)?;
    // Fails only on a kernel that has none; whether it made any is seen by the collapses.
    huge.advise_huge()?;
    for page in 0..length / BASE_PAGE_SIZE as usize {
        base.touch_page(page);
        huge.touch_page(page);
    }
    for region in huge.range().regions() {
        match own_collapse(region) {
            Ok(()) | Err(Errno::AGAIN | Errno::BUSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    let mut costs = Vec::new();
    let mut footprint = SMALLEST;
    while footprint <= largest {
        let mut took: [[Vec<f64>; 2]; 3] = Default::default();
        for turn in 0..TURNS {
            for (way, took) in Way::ALL.into_iter().zip(&mut took) {
                let mut arms = [(&base, 0), (&huge, 1)];
                if turn % 2 == 1 {
                    arms.reverse();
                }
                for (memory, place) in arms {
                    let ns = time(memory, footprint, way, turn as u64 + 1);
                    if let Some(all) = took.get_mut(place) {
                        all.push(ns);
                    }
                }
            }
        }
        let took = took.map(|arms| arms.map(median));
        let saved = took.map(|[base, huge]| (base - huge).max(0.0));
        let [apart_ns, chained_ns, in_order_ns] = saved;
        let gain = |way: usize| {
            let [base, huge] = took.get(way).copied().unwrap_or([1.0; 2]);
            (1.0 - huge / base).max(0.0)
        };
        costs.push(WalkCost {
            footprint: ByteCount(footprint),
            apart_ns,
            chained_ns,
            in_order_ns,
            apart_gain: gain(0),
            chained_gain: gain(1),
            in_order_gain: gain(2),
        });
        footprint *= 2;
    }
    Ok(costs)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// In which way memory is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Apart,
    Chained,
    InOrder,
}

impl Way {
    const ALL: [Self; 3] = [Self::Apart, Self::Chained, Self::InOrder];
}

/// Nanoseconds for each load, or each page read in order.
fn time(memory: &Scratch, footprint: u64, way: Way, seed: u64) -> f64 {
    let words = footprint / WORD;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let (mut sum, mut done) = (0_u64, 0_u64);
    // A turn of reading in order begins anywhere: what the last one left in the caches is not read again.
    let mut place = scale(next(&mut state), footprint / BASE_PAGE_SIZE) * BASE_PAGE_SIZE;
    // Once unmeasured: what the caches and TLBs hold is then of this memory.
    for warm in [true, false] {
        let (begun, cpu_begun) = (Instant::now(), cpu_seconds());
        let spell = if warm { SPELL / 4 } else { SPELL };
        done = 0;
        loop {
            match way {
                Way::Apart => {
                    for _ in 0..BATCH {
                        sum = sum.wrapping_add(memory.load_word(scale(next(&mut state), words)));
                    }
                    done += BATCH;
                }
                Way::Chained => {
                    for _ in 0..BATCH / 8 {
                        // Nobody but the processor knows that the word is small.
                        sum = memory.load_word(scale(next(&mut state) ^ sum, words));
                    }
                    done += BATCH / 8;
                }
                Way::InOrder => {
                    for _ in 0..BATCH / 32 {
                        for line in 0..BASE_PAGE_SIZE / LINE {
                            sum = sum.wrapping_add(memory.load_word((place + line * LINE) / WORD));
                        }
                        place += BASE_PAGE_SIZE;
                        if place >= footprint {
                            place = 0;
                        }
                    }
                    done += BATCH / 32;
                }
            }
            if begun.elapsed() >= spell {
                if !warm {
                    black_box(sum);
                    return (cpu_seconds() - cpu_begun) * 1e9 / done as f64;
                }
                break;
            }
        }
    }
    black_box(sum);
    done as f64
}

/// CPU time of this thread: others may have the CPU in between.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Marsaglia's xorshift: about a nanosecond.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A random word as an index below `count`.
fn scale(random: u64, count: u64) -> u64 {
    ((u128::from(random) * u128::from(count)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No figure is tested: timing decides no test. What is tested is that every footprint has sane ones.
    #[test]
    fn every_footprint_has_its_costs() {
        let costs = match walk_costs(ByteCount(SMALLEST * 2)) {
            Ok(costs) => costs,
            Err(errno) => {
                superhue_testing::skip("walk_costs", &errno.to_string());
                return;
            }
        };
        let footprints: Vec<u64> = costs.iter().map(|cost| cost.footprint.0).collect();
        assert_eq!(footprints, [SMALLEST, SMALLEST * 2]);
        for cost in costs {
            for ns in [cost.apart_ns, cost.chained_ns, cost.in_order_ns] {
                assert!(ns.is_finite() && ns >= 0.0, "{cost:?}");
            }
            for gain in [cost.apart_gain, cost.chained_gain, cost.in_order_gain] {
                assert!((0.0..1.0).contains(&gain), "{cost:?}");
            }
        }
        assert_eq!(walk_costs(ByteCount(4096)), Err(Errno::INVAL));
    }
}
