//! Cost of memory in base pages, measured by timing loads of our own.
//!
//! Mappings of the same size, in base pages and in huge pages, are read in turns, in three ways:
//!
//! * *apart*: random pages, no load waits for another; many walks are under way at once, as in a hash join;
//! * *chained*: random pages, each load waits for the one before, as in a list or tree: the whole latency shows;
//! * *in order*: page after page, every line; walks are few and mostly foreseen, as in a scan.
//!
//! The difference for one page is the cost of a TLB miss, all parts together: a longer walk, its entries that are not in the caches,
//! and in a virtual machine the walks of the host's tables for each of its steps. Beyond the reach of the TLB it grows with the memory
//! that is read, because the page tables grow; so it is measured by footprint.
//!
//! The cost also depends on which frames the base pages have. If neighbouring pages lie in neighbouring frames, one TLB entry may hold several, and
//! the walks read the same places of a host's tables again and again. So there are two mappings in base pages: one with its frames
//! *together*, and one with its frames *scattered*. In virtual machines on Zen 4 a miss in the second costs 7 times as much as in the first.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};
use superhue_sys::collapse::own_collapse;
use superhue_sys::process::thread_cpu_time;
use superhue_sys::scratch::Scratch;

const WORD: u64 = 8;
const LINE: u64 = 64;

/// The smallest footprint: beyond what the second TLBs of today's processors reach with base pages.
const SMALLEST: u64 = 16 << 20;

/// Turns at each footprint.
const TURNS: usize = 7;

/// Step between the pages that are touched: a prime, so that each is met once, and large, so that neighbours are touched long after each other.
const STRIDE: usize = 7919;

/// Upper bound of a share of the time.
const MAX_TIME_SHARE: f64 = 0.95;

/// Shortest time that one way of reading is timed in a turn.
const SPELL: Duration = Duration::from_millis(8);

/// Page table entries in a line of the cache.
const ENTRIES_PER_LINE: u64 = 8;

/// Reads of each cache line of the page tables, on average, before the timing starts. A program's own page tables are
/// in the caches as far as they fit; lines that the previous turn pushed out would count as the cost of a walk.
const WARM_READS_PER_LINE: u64 = 3;

/// Loads between two looks at the clock.
const BATCH: u64 = 2048;

/// Cost of one more TLB miss, in nanoseconds, at one footprint.
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
    /// The share of the whole time that was saved when loads did not wait for each other, 0 to 1. A program that also
    /// does other work saves at most this share in that way.
    pub apart_gain: f64,
    /// The same for loads that wait.
    pub chained_gain: f64,
    /// And for pages in order.
    pub in_order_gain: f64,
}

/// Costs of misses, by how the frames of base pages lie. Both vectors ascend by the same footprints.
#[derive(Debug, Clone, PartialEq)]
pub struct WalkCosts {
    /// Neighbouring pages lie in neighbouring frames.
    pub together: Vec<WalkCost>,
    /// Neighbouring pages lie in frames far from each other.
    pub scattered: Vec<WalkCost>,
}

/// Measures the costs at footprints of 16 MiB and each doubling, up to `largest`; uses three times `largest` of memory and takes some seconds.
///
/// # Errors
/// `ENOMEM` without the memory; `EINVAL` on a kernel that makes no huge pages.
pub fn walk_costs(largest: ByteCount) -> Result<WalkCosts, Errno> {
    let largest = largest.0 / HUGE_PAGE_SIZE * HUGE_PAGE_SIZE;
    let length = usize::try_from(largest).map_err(|_| Errno::NOMEM)?;
    if largest < SMALLEST {
        return Err(Errno::INVAL);
    }
    let pages = length / BASE_PAGE_SIZE as usize;
    let mut scattered = Scratch::in_base_pages(length)?;
    // The kernel deals frames in order while it can: pages touched in another order get frames far from their neighbours'.
    for place in 0..pages {
        scattered.touch_page(place * STRIDE % pages);
    }
    let huge = in_huge_pages(length)?;
    let mut together = in_huge_pages(length)?;
    together.map_by_base_pages()?;
    let footprints: Vec<u64> =
        std::iter::successors(Some(SMALLEST), |footprint| Some(footprint * 2))
            .take_while(|footprint| *footprint <= largest)
            .collect();
    let [together, scattered] = in_turns([&together, &scattered], &huge, &footprints);
    Ok(WalkCosts {
        together: by_footprint(&footprints, &together),
        scattered: by_footprint(&footprints, &scattered),
    })
}

/// Memory in huge pages, as far as the kernel has any.
fn in_huge_pages(length: usize) -> Result<Scratch, Errno> {
    let mut memory = Scratch::untouched(length)?;
    for page in 0..length / BASE_PAGE_SIZE as usize {
        memory.touch_page(page);
    }
    for region in memory.range().regions() {
        match own_collapse(region) {
            Ok(()) | Err(Errno::AGAIN | Errno::BUSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(memory)
}

/// Timings of one way of reading at one footprint.
#[derive(Debug, Clone, Default)]
struct ReadTimings {
    /// Nanoseconds with base pages, for each load or each page in order.
    of_base: Vec<f64>,
    /// Nanoseconds saved with huge pages in the adjacent spell.
    saved: Vec<f64>,
}

/// The ways at one footprint.
type OrderTimings = [ReadTimings; ReadOrder::ALL.len()];

/// Reads each mapping in base pages in turns with the one in huge pages. A turn goes through all footprints and ways: a
/// disturbance of a second by another process then spoils one turn of each, and not all turns of one.
fn in_turns(bases: [&Scratch; 2], huge: &Scratch, footprints: &[u64]) -> [Vec<OrderTimings>; 2] {
    let mut timed = bases.map(|_| vec![OrderTimings::default(); footprints.len()]);
    for turn in 0..TURNS {
        for (base, timed) in bases.iter().zip(&mut timed) {
            for (&footprint, ways) in footprints.iter().zip(timed) {
                for (way, spells) in ReadOrder::ALL.into_iter().zip(ways) {
                    let spell = |memory| time(memory, footprint, way, turn as u64 + 1);
                    let (with_base, with_huge) = if turn % 2 == 0 {
                        let with_base = spell(base);
                        (with_base, spell(huge))
                    } else {
                        let with_huge = spell(huge);
                        (spell(base), with_huge)
                    };
                    spells.of_base.push(with_base);
                    spells.saved.push(with_base - with_huge);
                }
            }
        }
    }
    timed
}

fn by_footprint(footprints: &[u64], timed: &[OrderTimings]) -> Vec<WalkCost> {
    let mut costs: Vec<WalkCost> = footprints
        .iter()
        .zip(timed)
        .map(|(&footprint, ways)| {
            let [apart, chained, in_order] = ways.each_ref().map(cost);
            WalkCost {
                footprint: ByteCount(footprint),
                apart_ns: apart.ns,
                chained_ns: chained.ns,
                in_order_ns: in_order.ns,
                apart_gain: apart.gain,
                chained_gain: chained.gain,
                in_order_gain: in_order.gain,
            }
        })
        .collect();
    let rising_figures: [fn(&mut WalkCost) -> &mut f64; 4] = [
        |cost| &mut cost.apart_ns,
        |cost| &mut cost.chained_ns,
        |cost| &mut cost.apart_gain,
        |cost| &mut cost.chained_gain,
    ];
    for figure in rising_figures {
        let mut figures: Vec<f64> = costs.iter_mut().map(|cost| *figure(cost)).collect();
        rising(&mut figures);
        for (cost, risen) in costs.iter_mut().zip(figures) {
            *figure(cost) = risen;
        }
    }
    costs
}

/// Takes the median difference of two adjacent spells: a disturbance of the caches by another process affects both.
fn cost(spells: &ReadTimings) -> Cost {
    let ns = median(spells.saved.clone()).max(0.0);
    Cost {
        ns,
        gain: (ns / median(spells.of_base.clone())).clamp(0.0, MAX_TIME_SHARE),
    }
}

/// Cost of base pages in one way of reading.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// Nanoseconds for each load, or each page in order; not below 0.
    ns: f64,
    /// The share of the time, 0 to 1.
    gain: f64,
}

/// Makes figures rise with the footprint, each as near to its measurement as that allows (pool adjacent violators):
/// more memory has larger page tables, and a decrease is noise.
fn rising(figures: &mut [f64]) {
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for &figure in figures.iter() {
        let (mut mean, mut count) = (figure, 1);
        while let Some((before, more)) = pools.pop_if(|(before, _)| *before > mean) {
            mean = (mean * count as f64 + before * more as f64) / (count + more) as f64;
            count += more;
        }
        pools.push((mean, count));
    }
    let pooled = pools
        .into_iter()
        .flat_map(|(mean, count)| std::iter::repeat_n(mean, count));
    for (figure, pooled) in figures.iter_mut().zip(pooled) {
        *figure = pooled;
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// Order in which memory is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadOrder {
    Apart,
    Chained,
    InOrder,
}

impl ReadOrder {
    const ALL: [Self; 3] = [Self::Apart, Self::Chained, Self::InOrder];
}

/// Nanoseconds for each load, or each page read in order.
fn time(memory: &Scratch, footprint: u64, way: ReadOrder, seed: u64) -> f64 {
    let words = footprint / WORD;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let (mut sum, mut done) = (0_u64, 0_u64);
    // A turn of reading in order begins at a random page: the next turn does not read what the last one left in the caches.
    let mut place = scale(next(&mut state), footprint / BASE_PAGE_SIZE) * BASE_PAGE_SIZE;
    let lines = footprint / BASE_PAGE_SIZE / ENTRIES_PER_LINE;
    for warm in [true, false] {
        let (begun, cpu_begun) = (Instant::now(), cpu_seconds());
        let spell = if warm { SPELL / 4 } else { SPELL };
        let least = if warm && way != ReadOrder::InOrder {
            lines * WARM_READS_PER_LINE
        } else {
            0
        };
        done = 0;
        loop {
            match way {
                ReadOrder::Apart => {
                    for _ in 0..BATCH {
                        sum = sum.wrapping_add(memory.load_word(scale(next(&mut state), words)));
                    }
                    done += BATCH;
                }
                ReadOrder::Chained => {
                    for _ in 0..BATCH / 8 {
                        // The compiler does not know that the word is small.
                        sum = memory.load_word(scale(next(&mut state) ^ sum, words));
                    }
                    done += BATCH / 8;
                }
                ReadOrder::InOrder => {
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
            if begun.elapsed() >= spell && done >= least {
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

/// CPU time of this thread: the scheduler may give the CPU to another thread in between.
pub(crate) fn cpu_seconds() -> f64 {
    thread_cpu_time().as_secs_f64()
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

    /// Checks that every footprint has sane figures. No exact figure is tested: timing decides no test.
    #[test]
    fn every_footprint_has_its_costs() {
        let costs = match walk_costs(ByteCount(SMALLEST * 2)) {
            Ok(costs) => costs,
            Err(errno) => {
                superhue_testing::skip("walk_costs", &errno.to_string());
                return;
            }
        };
        for costs in [&costs.together, &costs.scattered] {
            let footprints: Vec<u64> = costs.iter().map(|cost| cost.footprint.0).collect();
            assert_eq!(footprints, [SMALLEST, SMALLEST * 2]);
        }
        for cost in costs.together.iter().chain(&costs.scattered) {
            for ns in [cost.apart_ns, cost.chained_ns, cost.in_order_ns] {
                assert!(ns.is_finite() && ns >= 0.0, "{cost:?}");
            }
            for gain in [cost.apart_gain, cost.chained_gain, cost.in_order_gain] {
                assert!((0.0..1.0).contains(&gain), "{cost:?}");
            }
        }
        assert_eq!(walk_costs(ByteCount(4096)), Err(Errno::INVAL));
    }

    #[test]
    fn costs_that_rise_stay_and_others_are_pooled() {
        let pooled = |figures: &[f64]| {
            let mut figures = figures.to_vec();
            rising(&mut figures);
            figures
        };
        assert!(pooled(&[]).is_empty());
        assert_eq!(pooled(&[1.0, 2.0, 5.0]), [1.0, 2.0, 5.0]);
        assert_eq!(pooled(&[1.0, 6.0, 2.0, 9.0]), [1.0, 4.0, 4.0, 9.0]);
        assert_eq!(pooled(&[9.0, 6.0, 3.0, 2.0]), [5.0; 4]);
    }
}
