//! Transposes: P0 tables 1 and 2, figures 8 to 13; P3 figures 9 to 11, and strides.

use superhue_cachesim::Machine;

use super::{
    JUST_BEYOND, Outcome, Replayed, Settings, Size, both_never_worse, counted, gain, losses,
    not_modelled, place, replay,
};
use crate::ReplayError;
use crate::arm::Arm;
use crate::document::Figure;
use crate::memory::Memory;
use crate::workload::{Stride, strided, transpose, transpose_bytes};

/// P0 table 2: dimension, normal, page coloring, in MB/s.
const TABLE_2: [(u64, f64, f64); 10] = [
    (43, 1468.12, 1537.00),
    (45, 1512.98, 1529.26),
    (47, 519.32, 1556.19),
    (49, 378.77, 1559.53),
    (85, 342.09, 1614.42),
    (87, 353.40, 1608.25),
    (89, 361.71, 1210.74),
    (91, 284.64, 705.87),
    (93, 261.84, 456.61),
    (95, 263.04, 300.83),
];

const BOTH_PAGES: &str = "Superpages are those of today's kernel, 2 MiB; IA-32's are 4 MiB.";

/// Transposes to replay.
struct Transposes {
    stride: Stride,
    dims: Vec<u64>,
    arms: Vec<Arm>,
}

/// Words of a figure of transposes.
struct Words<'a> {
    name: &'a str,
    title: &'a str,
    paper: &'a str,
    says: &'a [&'a str],
    stride: Stride,
}

fn dims(dims: &[u64]) -> Vec<Size> {
    let size = |dim: &u64| Size {
        label: dim.to_string(),
        bytes: transpose_bytes(*dim),
        number: *dim,
    };
    dims.iter().map(size).collect()
}

/// MB/s, counting 16 bytes for an element: a load and a store of a double.
fn rate(machine: &Machine, dim: u64, passes: u64, cycles: f64) -> f64 {
    (16 * dim * dim * passes) as f64 * machine.clock_mhz / cycles
}

fn replayed(
    plan: &Transposes,
    machine: &Machine,
    settings: &Settings,
    memory: &Memory,
) -> Replayed {
    let one = |size: &Size, arm: Arm, draw: usize| {
        let dim = size.number;
        let placed = place(memory, arm, size.bytes, draw);
        let passes = if dim < 200 { 4 } else { 1 };
        let counts = counted(machine, &placed.pages, |sink, counting| {
            for _ in 0..if counting { passes } else { 1 } {
                transpose(sink, dim, plan.stride);
            }
        });
        Outcome::of(
            placed.real,
            &counts,
            rate(machine, dim, passes, counts.cycles()),
        )
    };
    replay(
        &dims(&plan.dims),
        &plan.arms,
        |size| settings.draws(size.bytes),
        one,
    )
}

fn figure(words: &Words<'_>, machine: &Machine, replayed: Replayed) -> Figure {
    let side = match words.stride {
        Stride::Load => "a[i][j] = b[j][i]",
        Stride::Store => "a[j][i] = b[i][j]",
    };
    Figure {
        name: words.name.to_owned(),
        title: words.title.to_owned(),
        paper: words.paper.to_owned(),
        says: words.says.iter().map(|text| (*text).to_owned()).collect(),
        machine: machine.name.clone(),
        cache: None,
        workload: format!(
            "{side} for matrices of dim x dim doubles, a and behind it b; one pass to fill the caches, then passes that count"
        ),
        axis: "dim".to_owned(),
        value: "MB/s, modelled".to_owned(),
        higher_is_better: true,
        points: replayed.points,
        verdict: Vec::new(),
        losing: Vec::new(),
        not_modelled: not_modelled(&[BOTH_PAGES]),
    }
}

/// Largest dimension whose matrices fit into the last cache.
fn capacity(machine: &Machine) -> u64 {
    (1..)
        .take_while(|dim| transpose_bytes(*dim) <= machine.last().size)
        .last()
        .unwrap_or(0)
}

/// Reports the dimension up to which an arm misses less than 10 of 1,000 references, beside the one predicted from the
/// size of the cache.
fn flat_to(figure: &Figure, arm: &str, capacity: u64) -> String {
    let few = |label: &str| {
        figure
            .result(label, arm)
            .map_or(f64::INFINITY, |result| result.misses.median)
    };
    // The limit is one miss per 100 references.
    let mut found = 0;
    let mut next = None;
    for point in &figure.points {
        if few(&point.label) > 10.0 {
            next = point.label.parse::<u64>().ok();
            break;
        }
        found = point.label.parse().unwrap_or(0);
    }
    let beyond = next.map_or(String::new(), |next| format!("; at {next} there are more"));
    let met = if found <= capacity && next.is_none_or(|next| next > capacity) {
        "Found as predicted"
    } else {
        "MISSED"
    };
    format!(
        "{met}: by its size the cache holds dim {capacity}; {arm} misses less than 10 of 1,000 references up to dim {found} of those replayed{beyond}."
    )
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// Range of the ratios of an arm's medians to the paper's numbers.
fn distance(figure: &Figure, arm: &str) -> Option<String> {
    let of = figure.points.iter().filter_map(|point| point.arm(arm));
    let (low, high) = range(of.filter_map(|arm| Some(arm.value.median / arm.paper?)))?;
    Some(format!(
        "Medians of {arm} are {low:.2} to {high:.2} of the paper's."
    ))
}

/// Number of points at which the paper's number lies between the least and the most of all draws of an arm.
fn among_draws(figure: &Figure, arm: &str) -> Option<String> {
    let with: Vec<_> = figure
        .points
        .iter()
        .filter_map(|point| point.arm(arm))
        .filter_map(|arm| Some((arm.value, arm.paper?)))
        .collect();
    let inside = with
        .iter()
        .filter(|(value, paper)| (value.least..=value.most).contains(paper))
        .count();
    let below = with
        .iter()
        .filter(|(value, paper)| *paper < value.least)
        .count();
    (!with.is_empty()).then(|| {
        format!(
            "The paper's numbers without coloring lie among our draws of {arm} at {inside} of {} points and below all of them at {below}: \
             one machine is one draw.",
            with.len()
        )
    })
}

pub(super) fn celeron(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    let all = vec![
        43, 45, 47, 49, 55, 61, 67, 73, 79, 85, 87, 89, 91, 93, 95, 99, 105, 113, 120, 140, 160,
        199,
    ];
    let plan = Transposes {
        stride: Stride::Load,
        dims: all,
        arms: vec![Arm::Fresh, Arm::Kernel, Arm::Random, Arm::Colored],
    };
    Ok(self::replayed(&plan, machine, settings, memory))
}

pub(super) fn tell_celeron(machine: &Machine, mut replayed: Replayed) -> Figure {
    replayed.enter_paper(|point, arm| {
        let dim: u64 = point.label.parse().ok()?;
        let row = TABLE_2.iter().find(|row| row.0 == dim)?;
        match arm {
            "kernel" => Some(row.1),
            "colored" => Some(row.2),
            _ => None,
        }
    });
    let words = Words {
        name: "p0-celeron",
        title: "A transpose in 128 KiB, with and without coloring",
        paper: "P0 table 2, figures 8 and 9",
        says: &[
            "Table 2: dim 47 from 519.32 to 1556.19 MB/s, dim 87 from 353.40 to 1608.25, dim 95 from 263.04 to 300.83.",
            "Better up to about dim 89, 123.8 kByte, nearly all of the cache; beyond it a small loss, then a few percent of gain.",
        ],
        stride: Stride::Load,
    };
    let mut figure = figure(&words, machine, replayed);
    figure
        .verdict
        .push(flat_to(&figure, "colored", capacity(machine)));
    let gains = figure.points.iter().filter_map(|point| {
        Some((
            point.label.clone(),
            gain(&figure, point, "colored", "kernel")?,
        ))
    });
    if let Some((label, most)) = gains.max_by(|a, b| a.1.total_cmp(&b.1)) {
        figure.verdict.push(format!(
            "Coloring brings most at dim {label}: {most:.2} times the median of the aged kernel."
        ));
    }
    figure.verdict.extend(distance(&figure, "colored"));
    figure.verdict.extend(distance(&figure, "kernel"));
    figure.verdict.extend(among_draws(&figure, "kernel"));
    figure.losing = losses(&figure, "colored", "kernel");
    figure
}

const LARGE: [u64; 4] = [400, 600, 1000, 1500];

pub(super) fn celeron_superpages(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    let dims: Vec<u64> = if settings.quick {
        vec![47, 67, 87, 89, 95, 120, 160, 400, 600]
    } else {
        [&[47, 67, 87, 89, 95, 120, 160, 220][..], &LARGE].concat()
    };
    let plan = Transposes {
        stride: Stride::Load,
        dims,
        arms: vec![Arm::Kernel, Arm::Colored, Arm::Superpages, Arm::Both],
    };
    Ok(self::replayed(&plan, machine, settings, memory))
}

pub(super) fn tell_celeron_superpages(machine: &Machine, replayed: Replayed) -> Figure {
    let words = Words {
        name: "p0-celeron-superpages",
        title: "Superpages and coloring together, 128 KiB",
        paper: "P0 figures 10 and 11",
        says: &[
            "Section 6: up to 2 times on the Celeron, without a loss from joining the two.",
            "Figure 11 (b), against superpages alone: the improvement of a few percent as in figure 9 (b).",
        ],
        stride: Stride::Load,
    };
    let mut figure = figure(&words, machine, replayed);
    joined(&mut figure, 2.0);
    figure
}

/// Adds verdicts on huge pages with coloring, beside the paper's highest ratio.
fn joined(figure: &mut Figure, most: f64) {
    figure.verdict.push(both_never_worse(
        figure,
        ["colored", "superpages"],
        JUST_BEYOND,
    ));
    let beyond = figure.points.iter().filter(|point| point.bytes >= 2 << 20);
    let gains = beyond.filter_map(|point| gain(figure, point, "both", "kernel"));
    if let Some((low, high)) = range(gains) {
        figure.verdict.push(format!(
            "Where there are superpages, both are {low:.2} to {high:.2} times the aged kernel (the paper: up to {most} times)."
        ));
    }
    figure.losing = losses(figure, "both", "kernel");
    figure.losing.extend(losses(figure, "both", "superpages"));
    figure.losing.extend(losses(figure, "both", "colored"));
}

pub(super) fn pentium4(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    let dims: Vec<u64> = if settings.quick {
        vec![100, 120, 140, 160, 181, 185, 190, 220, 400, 600]
    } else {
        [
            &[100, 120, 140, 150, 160, 170, 175, 181, 185, 190, 200, 220][..],
            &LARGE,
        ]
        .concat()
    };
    let plan = Transposes {
        stride: Stride::Load,
        dims,
        arms: vec![
            Arm::Fresh,
            Arm::Kernel,
            Arm::Colored,
            Arm::Superpages,
            Arm::Both,
        ],
    };
    Ok(self::replayed(&plan, machine, settings, memory))
}

pub(super) fn tell_pentium4(machine: &Machine, replayed: Replayed) -> Figure {
    let words = Words {
        name: "p0-pentium4",
        title: "Superpages and coloring together, 512 KiB",
        paper: "P0 figures 12 and 13",
        says: &[
            "Better up to dim 181, 511.9 kByte, about the end of the cache.",
            "Section 6: up to 6 times on the Pentium 4; against superpages alone a few percent at large dimensions.",
        ],
        stride: Stride::Load,
    };
    let mut figure = figure(&words, machine, replayed);
    figure
        .verdict
        .push(flat_to(&figure, "colored", capacity(machine)));
    joined(&mut figure, 6.0);
    figure
}

fn p3(stride: Stride, machine: &Machine, settings: &Settings, memory: &Memory) -> Replayed {
    let dims: Vec<u64> = if settings.quick {
        vec![200, 400, 600, 1000]
    } else {
        [&[100, 200][..], &LARGE, &[2000, 3000]].concat()
    };
    let plan = Transposes {
        stride,
        dims,
        arms: vec![Arm::Kernel, Arm::Superpages],
    };
    replayed(&plan, machine, settings, memory)
}

fn tell_p3(
    (name, paper, says, (about, ratio)): (&str, &str, &[&str], (&str, f64)),
    stride: Stride,
    machine: &Machine,
    replayed: Replayed,
) -> Figure {
    let side = if stride == Stride::Load {
        "Load"
    } else {
        "Store"
    };
    let title = format!("{side} stride, base pages and superpages: {}", machine.name);
    let words = Words {
        name,
        title: &title,
        paper,
        says,
        stride,
    };
    let mut figure = figure(&words, machine, replayed);
    let of = figure.points.iter().filter(|point| point.bytes >= 2 << 20);
    let gains = of.filter_map(|point| gain(&figure, point, "superpages", "kernel"));
    if let Some((low, high)) = range(gains) {
        let met = if high >= ratio { "Met" } else { "MISSED" };
        figure.verdict.push(format!(
            "{met}: with superpages it is {low:.2} to {high:.2} times as fast where a superpage fits (the paper: {about})."
        ));
    }
    if let Some(point) = figure.points.last()
        && let (Some(base), Some(large)) = (point.arm("kernel"), point.arm("superpages"))
    {
        figure.verdict.push(format!(
            "TLB misses of 1,000 references at dim {}: {} with base pages, {} with superpages.",
            point.label, base.walks.median, large.walks.median
        ));
    }
    figure.losing = losses(&figure, "superpages", "kernel");
    figure.not_modelled.push(
        "Why time differs less than in the paper: cache misses are charged in full here, one after the other, beside which walks are cheap; \
         a real processor overlaps cache misses, but not what waits for a walk. The kernel puts memory whose size is no multiple of 2 MiB \
         anywhere, so its head and tail are base pages (the paper's option vm_align is for that)."
            .to_owned(),
    );
    figure
}

pub(super) fn p3_load(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    Ok(p3(Stride::Load, machine, settings, memory))
}

pub(super) fn tell_p3_celeron_load(machine: &Machine, replayed: Replayed) -> Figure {
    let says = [
        "Section 5.1: about 2 times on the Celeron, with losses here and there; section 7: about 2 times.",
        "Table 1: 32 entries for 4 KB pages and 8 for 4 MB pages (the data TLB has 64 and 8 by Intel's manual, which is what is modelled).",
    ];
    let what = (
        "p3-celeron-load",
        "P3 figure 10 (a)",
        &says[..],
        ("about 2 times", 2.0),
    );
    tell_p3(what, Stride::Load, machine, replayed)
}

pub(super) fn tell_p3_pentium4_load(machine: &Machine, replayed: Replayed) -> Figure {
    let says = [
        "Section 5.1: at most 5 to 6 times on the Pentium 4, whose 64 entries hold pages of both sizes (table 1).",
    ];
    let what = (
        "p3-pentium4-load",
        "P3 figures 9 and 10 (b)",
        &says[..],
        ("at most 5 to 6 times", 5.0),
    );
    tell_p3(what, Stride::Load, machine, replayed)
}

pub(super) fn p3_store(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    Ok(p3(Stride::Store, machine, settings, memory))
}

pub(super) fn tell_p3_pentium4_store(machine: &Machine, replayed: Replayed) -> Figure {
    let says = ["Section 5.1: the ratios of the store stride are like those of the load stride."];
    let what = (
        "p3-store",
        "P3 figure 11 (b)",
        &says[..],
        ("ratios like those of the load stride", 5.0),
    );
    tell_p3(what, Stride::Store, machine, replayed)
}

/// Bytes of a transpose of dim 1000: real kernels dealt that much.
pub(crate) const SWEPT: u64 = 16_000_000;

pub(super) fn stride(
    settings: &Settings,
    memory: &Memory,
    machine: &Machine,
) -> Result<Replayed, ReplayError> {
    let strides: &[u64] = if settings.quick {
        &[8, 512, 4096, 8000]
    } else {
        &[8, 64, 256, 512, 1024, 2048, 4096, 8000, 16384, 65536]
    };
    let size = |stride: &u64| Size {
        label: stride.to_string(),
        bytes: SWEPT,
        number: *stride,
    };
    let sizes: Vec<Size> = strides.iter().map(size).collect();
    let one = |size: &Size, arm: Arm, draw: usize| {
        let placed = place(memory, arm, size.bytes, draw);
        // About a million loads.
        let columns = (size.number / 8).clamp(1, 64);
        let counts = counted(machine, &placed.pages, |sink, _| {
            strided(sink, SWEPT, size.number, columns);
        });
        Outcome::of(
            placed.real,
            &counts,
            counts.cycles() / counts.references() as f64,
        )
    };
    let arms = [Arm::Kernel, Arm::Superpages];
    Ok(replay(
        &sizes,
        &arms,
        |size| settings.draws(size.bytes),
        one,
    ))
}

pub(super) fn tell_stride(machine: &Machine, replayed: Replayed) -> Figure {
    let mut figure = Figure {
        name: "p3-stride".to_owned(),
        title: format!("TLB misses by stride: {}", machine.name),
        paper: "P3 section 5.1".to_owned(),
        says: vec!["A stride of more than a page loads from another 4 KB page each time, if the dimension is large enough.".to_owned()],
        machine: machine.name.clone(),
        cache: None,
        workload: "loads of doubles a stride apart over 15.3 MiB, beginning at neighbouring doubles in turn".to_owned(),
        axis: "stride".to_owned(),
        value: "cycles a load, modelled".to_owned(),
        higher_is_better: false,
        points: replayed.points,
        verdict: Vec::new(),
        losing: Vec::new(),
        not_modelled: not_modelled(&[BOTH_PAGES]),
    };
    for (stride, what) in [("8", "Unit stride"), ("8000", "A stride of 8,000 bytes")] {
        if let (Some(base), Some(large)) = (
            figure.result(stride, "kernel"),
            figure.result(stride, "superpages"),
        ) {
            figure.verdict.push(format!(
                "{what}: {} TLB misses of 1,000 loads with base pages, {} with superpages.",
                base.walks.median, large.walks.median
            ));
        }
    }
    figure.losing = losses(&figure, "superpages", "kernel");
    figure
}
