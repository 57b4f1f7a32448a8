//! A random chase through memory in all colors, against one through ordinary memory, over sizes up to a cache.
//!
//!     cargo run --release -p superhue --example colored -- [KIB...]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use allocator_api2::vec::Vec as ColoredVec;
use superhue::color::{ArenaOptions, ColoredArena, Colors};

/// A cache line; each holds the number of the next.
const LINE: usize = 64;
const LOADS: u32 = 4_000_000;
/// Allocations of each kind; the program prints their median.
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let sizes: Result<Vec<usize>, _> = std::env::args().skip(1).map(|size| size.parse()).collect();
    let mut sizes = sizes?;
    if sizes.is_empty() {
        sizes = vec![256, 512, 768, 896, 960, 1024, 1536, 1792, 1920];
    }
    let colors = Colors::open()?;
    say(&format!(
        "{} colors\n    KiB  ordinary   colored  (ns a load)",
        colors.count()
    ));
    for kib in sizes {
        let (mut ordinary, mut colored) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ordinary.push(chase(&mut vec![0; (kib << 10) / 8]));
            let set = colors.set("spread")?;
            let arena = ColoredArena::new(&colors, &set, ArenaOptions::new().strict(true))?;
            let mut memory: ColoredVec<u64, _> = ColoredVec::new_in(arena);
            memory.resize((kib << 10) / 8, 0);
            colored.push(chase(&mut memory));
        }
        say(&format!(
            "{kib:7}  {:8.2}  {:8.2}",
            median(ordinary),
            median(colored)
        ));
    }
    Ok(())
}

/// Returns nanoseconds per load. Each load waits for the one before; the loads go through all lines in random order.
fn chase(memory: &mut [u64]) -> f64 {
    let step = LINE / 8;
    let mut lines: Vec<usize> = (0..memory.len() / step).collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..lines.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        lines.swap(last, usize::try_from(seed >> 33).unwrap_or(0) % (last + 1));
    }
    for pair in lines.windows(2) {
        memory[pair[0] * step] = (pair[1] * step) as u64;
    }
    if let (Some(first), Some(last)) = (lines.first(), lines.last()) {
        memory[last * step] = (first * step) as u64;
    }
    let mut at = 0;
    let mut go = |loads| {
        for _ in 0..loads {
            at = usize::try_from(memory[at]).unwrap_or(0);
        }
        black_box(at);
    };
    go(LOADS / 8);
    let start = Instant::now();
    go(LOADS);
    start.elapsed().as_secs_f64() * 1e9 / f64::from(LOADS)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[allow(clippy::print_stdout, reason = "a program")]
fn say(line: &str) {
    println!("{line}");
}
