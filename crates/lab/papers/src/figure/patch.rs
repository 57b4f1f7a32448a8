//! The patch of 2003: bandwidth by size, transforms, a product.

use superhue_cachesim::{Machine, Placement};

use super::{
    JUST_BEYOND, Outcome, Replayed, Settings, Size, both_never_worse, counted, gain, losses,
    not_modelled, place, replay,
};
use crate::ReplayError;
use crate::arm::Arm;
use crate::document::{Figure, Spread};
use crate::memory::Memory;
use crate::workload::{fft_bytes, product_bytes, sweep};

/// Reason why the large transform loses by color: in the two largest of its eight steps all references miss but those
/// of factors, 146 more per 1,000.
const QUARTERS: &str = "The quarters that the largest steps join lie two sizes of the direct-mapped cache apart, or half of one: placed evenly they share its sets, and any frames part them.";
const EIGHT: &str = "Pages of kernels that were booted are of 4 KiB; the Alpha's are of 8 KiB, as `random` has them.";

fn kib(bytes: u64) -> String {
    if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) {
        format!("{}M", bytes >> 20)
    } else {
        format!("{}K", bytes >> 10)
    }
}

/// Largest last cache in bytes that [`bandwidth`] replays: the frames of twice as much are drawn from 1 GiB.
const LARGEST: u64 = 256 << 20;

pub(super) fn bandwidth(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    let cache = machine.last().size;
    if cache > LARGEST {
        return Err(ReplayError(format!(
            "p2-bandwidth replays caches of up to {}, and the last cache of {} has {}",
            kib(LARGEST),
            machine.name,
            kib(cache)
        )));
    }
    let eighths: &[u64] = if settings.quick {
        &[1, 2, 4, 6, 8, 10, 12]
    } else {
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16]
    };
    let size = |eighth: &u64| Size {
        label: kib(cache * eighth / 8),
        bytes: cache * eighth / 8,
        number: *eighth,
    };
    let sizes: Vec<Size> = eighths.iter().map(size).collect();
    // Cost of a load from the last cache, measured below the size of the first miss.
    let best = {
        let pages =
            Placement::sequential((cache / 8).div_ceil(machine.page) as usize, machine.page, 0);
        counted(machine, &pages, |sink, _| sweep(sink, cache / 8)).cycles() / (cache / 64) as f64
    };
    let one = |size: &Size, arm: Arm, draw: usize| {
        let (pages, real) = if arm == Arm::Random {
            let mut random = memory.random("bandwidth", draw);
            let count = size.bytes.div_ceil(machine.page) as usize;
            (Placement::random(count, machine.page, &mut random), false)
        } else {
            let placed = place(memory, arm, size.bytes, draw);
            (placed.pages, placed.real)
        };
        let counts = counted(machine, &pages, |sink, counting| {
            for _ in 0..if counting { 2 } else { 1 } {
                sweep(sink, size.bytes);
            }
        });
        let cycles = counts.cycles() / counts.references() as f64;
        Outcome::of(real, &counts, 100.0 * best / cycles)
    };
    let arms = [Arm::Fresh, Arm::Kernel, Arm::Random, Arm::Colored];
    Ok(replay(
        &sizes,
        &arms,
        |size| settings.draws(size.bytes),
        one,
    ))
}

pub(super) fn tell_bandwidth(machine: &Machine, mut replayed: Replayed) -> Figure {
    let cache = machine.last().size;
    replayed.enter_paper(|point, arm| match (arm, point.bytes * 8 / cache) {
        // 80 % of the theoretical maximum, which a loop without a conflict has: the 100 % of this figure.
        ("kernel", 1) | ("colored", 1..=8) => Some(100.0),
        _ => None,
    });
    let mut figure = Figure {
        name: "p2-bandwidth".to_owned(),
        title: "Bandwidth by working set, direct-mapped cache".to_owned(),
        paper: "P2 result 3".to_owned(),
        says: vec![
            "Without coloring 80 % of the maximum theoretical bandwidth up to 1/8 of the L2 cache, beyond that 30 to 50 %; with it 80 % over the whole L2. A loop without a conflict has 80 %, which is 100 % here.".to_owned(),
        ],
        machine: machine.name.clone(),
        cache: None,
        workload: "loads of doubles one after the other, over and over; 100 % is a working set of 1/8 without a conflict".to_owned(),
        axis: "size".to_owned(),
        value: "% of the best bandwidth, modelled".to_owned(),
        higher_is_better: true,
        points: replayed.points,
        verdict: Vec::new(),
        losing: Vec::new(),
        not_modelled: not_modelled(&[EIGHT]),
    };
    let of = |eighth: u64, arm: &str| {
        let label = kib(cache * eighth / 8);
        figure
            .result(&label, arm)
            .map_or(0.0, |result| result.value.median)
    };
    let said = format!(
        "Aged kernel: {:.0} % at 1/8 of the cache, {:.0} % at its full size (random 8 KiB pages: {:.0} % and {:.0} %); colored: {:.0} % at its full size.",
        of(1, "kernel"),
        of(8, "kernel"),
        of(1, "random"),
        of(8, "random"),
        of(8, "colored"),
    );
    figure.verdict.push(said);
    figure.losing = losses(&figure, "colored", "kernel");
    figure
}

pub(super) fn fft(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    let all: &[(u64, &str)] = if settings.quick {
        &[(1 << 16, "64k")]
    } else {
        &[(1 << 16, "64k"), (1 << 20, "1M")]
    };
    let size = |(points, label): &(u64, &str)| Size {
        label: (*label).to_owned(),
        bytes: fft_bytes(*points),
        number: *points,
    };
    let sizes: Vec<Size> = all.iter().map(size).collect();
    let one = |size: &Size, arm: Arm, draw: usize| {
        let placed = place(memory, arm, size.bytes, draw);
        let counts = counted(machine, &placed.pages, |sink, _| {
            crate::workload::fft(sink, size.number);
        });
        Outcome::of(placed.real, &counts, counts.cycles() / size.number as f64)
    };
    let arms = [Arm::Kernel, Arm::Colored, Arm::Both];
    Ok(replay(
        &sizes,
        &arms,
        |size| settings.draws(size.bytes),
        one,
    ))
}

pub(super) fn tell_fft(machine: &Machine, replayed: Replayed) -> Figure {
    let mut figure = Figure {
        name: "p2-fft".to_owned(),
        title: "Fourier transforms, direct-mapped cache".to_owned(),
        paper: "P2 result 4".to_owned(),
        says: vec!["FFTW on the Alpha: 30 % faster for 64k points, 20 % for 1M points.".to_owned()],
        machine: machine.name.clone(),
        cache: None,
        workload: "a transform of complex doubles out of place, depth first, radix 4 with leaves of 16 points; the second one counts".to_owned(),
        axis: "points".to_owned(),
        value: "cycles a point, modelled".to_owned(),
        higher_is_better: false,
        points: replayed.points,
        verdict: Vec::new(),
        losing: Vec::new(),
        not_modelled: not_modelled(&[EIGHT, "FFTW's own plan, and its arithmetic: the gain of a real transform is smaller."]),
    };
    for point in &figure.points {
        let says = if point.label == "64k" { 30 } else { 20 };
        if let Some(gain) = gain(&figure, point, "colored", "kernel") {
            let text = format!(
                "{} points: {:+.1} % by coloring (the paper: +{says} %).",
                point.label,
                (gain - 1.0) * 100.0
            );
            figure.verdict.push(text);
        }
    }
    figure
        .verdict
        .push(both_never_worse(&figure, ["colored", "kernel"], QUARTERS));
    figure.losing = losses(&figure, "colored", "kernel");
    figure.losing.extend(losses(&figure, "both", "kernel"));
    figure
}

/// Rows of the product that count.
const ROWS: u64 = 3;

pub(super) fn product(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    let all: &[u64] = if settings.quick {
        &[200]
    } else {
        &[100, 200, 300, 1000]
    };
    let size = |dim: &u64| Size {
        label: dim.to_string(),
        bytes: product_bytes(*dim),
        number: *dim,
    };
    let sizes: Vec<Size> = all.iter().map(size).collect();
    let one = |size: &Size, arm: Arm, draw: usize| {
        let placed = place(memory, arm, size.bytes, draw);
        let counts = counted(machine, &placed.pages, |sink, counting| {
            let rows = if counting { 1..ROWS + 1 } else { 0..1 };
            crate::workload::product(sink, size.number, rows);
        });
        let sums = size.number * size.number * ROWS;
        Outcome::of(placed.real, &counts, counts.cycles() / sums as f64)
    };
    let arms = [
        Arm::Fresh,
        Arm::Kernel,
        Arm::Colored,
        Arm::Superpages,
        Arm::Both,
    ];
    Ok(replay(
        &sizes,
        &arms,
        |size| settings.draws(size.bytes),
        one,
    ))
}

pub(super) fn tell_product(machine: &Machine, replayed: Replayed) -> Figure {
    let mut figure = Figure {
        name: "p2-product".to_owned(),
        title: "A product of matrices, two-way cache of 512 KiB".to_owned(),
        paper: "P2 result 2".to_owned(),
        says: vec!["1000x1000 matrix multiply: 10 % faster on an Athlon with 512 kB.".to_owned()],
        machine: machine.name.clone(),
        cache: None,
        workload: format!(
            "c[i][j] += a[i][k] b[k][j] by inner products; {ROWS} rows of c after one that does not count"
        ),
        axis: "dim".to_owned(),
        value: "cycles a multiplication, modelled".to_owned(),
        higher_is_better: false,
        points: replayed.points,
        verdict: Vec::new(),
        losing: Vec::new(),
        not_modelled: not_modelled(&[
            "How the paper's product was written, which it does not say.",
        ]),
    };
    for point in &figure.points {
        if let Some(gain) = gain(&figure, point, "colored", "kernel") {
            let says = if point.label == "1000" {
                " (the paper: +10 %)"
            } else {
                ""
            };
            let worst = point
                .arm("kernel")
                .zip(point.arm("colored"))
                .map(|(kernel, colored)| {
                    let worst = |spread: &Spread| spread.worst(false);
                    worst(&kernel.value) / worst(&colored.value)
                });
            figure.verdict.push(format!(
                "dim {}: {:+.1} % by coloring{says}, {:+.1} % between the worst draws.",
                point.label,
                (gain - 1.0) * 100.0,
                (worst.unwrap_or(1.0) - 1.0) * 100.0
            ));
        }
    }
    figure.verdict.push(both_never_worse(
        &figure,
        ["colored", "superpages"],
        JUST_BEYOND,
    ));
    figure.losing = losses(&figure, "colored", "kernel");
    figure.losing.extend(losses(&figure, "both", "superpages"));
    figure
}
