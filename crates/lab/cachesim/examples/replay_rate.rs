//! References per second that the models replay, for loops of the papers: one line of JSON for each.
//!
//! CPU time of one thread, the best of five; `scripts/lab-rate` keeps the result.

#![allow(clippy::print_stdout, reason = "its only output")]

use std::fs;

use superhue_cachesim::{Machine, Placement, Random, System, machines};

fn transpose(system: &mut System, pages: &Placement, dim: u64) {
    for i in 0..dim {
        for j in 0..dim {
            system.load(0, pages, (dim * dim + j * dim + i) * 8);
            system.store(0, pages, (i * dim + j) * 8);
        }
    }
}

fn sweep(system: &mut System, pages: &Placement, bytes: u64) {
    system.load_run(0, pages, 0, 8, bytes / 8);
}

/// CPU time of this thread in seconds; unlike wall time it is unaffected by other load on the machine.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds: u64 = (text.split(' ').next())
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    nanoseconds as f64 / 1e9
}

fn main() {
    for (file, text) in machines::ALL {
        let machine = Machine::parse(file, text).unwrap_or_else(|error| panic!("{error}"));
        let mut random = Random::new(1);
        let last = machine.last().size;
        // One size that fits in the last cache, and one about twice the cache.
        let dims = [last * 9 / 10, last * 2].map(|bytes| ((bytes / 16) as f64).sqrt() as u64);
        let pages = usize::try_from(last * 3 / machine.page).unwrap_or(0);
        let pages = Placement::random(pages, machine.page, &mut random);
        let mut best = [0f64; 3];
        for _ in 0..5 {
            let mut system = System::new(&machine);
            for (index, best) in best.iter_mut().enumerate() {
                let before = system.counts(0).references();
                let start = cpu_seconds();
                while cpu_seconds() - start < 0.1 {
                    match index {
                        0 | 1 => transpose(&mut system, &pages, dims[index]),
                        _ => sweep(&mut system, &pages, last),
                    }
                }
                let done = system.counts(0).references() - before;
                *best = best.max(done as f64 / (cpu_seconds() - start));
            }
        }
        let [inside, beyond, sweep] = best.map(|rate| (rate / 1e5).round() / 10.0);
        println!(
            "{{\"machine\": \"{}\", \"transpose_in_cache\": {inside}, \"transpose_beyond\": {beyond}, \"sweep\": {sweep}}}",
            machine.name
        );
    }
}
