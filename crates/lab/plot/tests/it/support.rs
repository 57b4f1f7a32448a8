//! Invented processes with known heat.

use std::collections::BTreeMap;
use std::time::Duration;

use superhue_model::{PageSet, Region, VirtAddr, VirtRange};
use superhue_plot::{
    Area, Cost, Heat, HotPoint, HotSet, Mapping, Observation, Process, Recorder, Run, SCHEMA,
    SampleReading, Target,
};

/// Resident memory of an invented process: address, pages, label, and whether it consists of huge pages.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) pages: u64,
    pub(crate) name: String,
    pub(crate) huge: bool,
}

pub(crate) fn piece(start: u64, pages: u64, name: &str, huge: bool) -> Piece {
    Piece {
        start,
        pages,
        name: name.to_owned(),
        huge,
    }
}

/// Returns the heat of the pieces in `samples` samples. `touched` takes a sample, the index of a piece and a page number of the piece.
pub(crate) fn heat(
    name: &str,
    pieces: &[Piece],
    samples: u64,
    interval: Duration,
    touched: impl Fn(u64, usize, u64) -> bool,
) -> Heat {
    let mut recorder = Recorder::new();
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for sample in 0..samples {
        let mut regions: BTreeMap<u64, (bool, PageSet, PageSet)> = BTreeMap::new();
        for (index, piece) in pieces.iter().enumerate() {
            for page in 0..piece.pages {
                let number = (piece.start >> 12) + page;
                let entry = regions.entry(number / 512).or_default();
                entry.0 |= piece.huge;
                entry.1.insert(number as usize % 512);
                let asked = if piece.huge { page / 512 * 512 } else { page };
                let is_touched = touched(sample, index, asked);
                if is_touched {
                    entry.2.insert(number as usize % 512);
                }
                *counts.entry(number).or_default() += u64::from(is_touched);
            }
        }
        let at = interval * u32::try_from(sample).unwrap();
        let seen = regions
            .into_iter()
            .map(|(number, (huge, present, touched))| SampleReading::Pages {
                region: Region::containing(VirtAddr(number << 21)),
                huge,
                present,
                touched,
            });
        recorder.add(at, at + interval, seen.collect::<Vec<_>>());
    }
    let areas: Vec<Area> = (pieces.iter())
        .map(|piece| Area {
            range: VirtRange::new(
                VirtAddr(piece.start),
                VirtAddr(piece.start + piece.pages * 4096),
            )
            .unwrap(),
            label: piece.name.clone(),
        })
        .collect();
    let seconds = interval.as_secs_f64();
    Heat {
        schema: SCHEMA.to_owned(),
        process: Process {
            pid: 4711,
            name: name.to_owned(),
            command: vec![
                format!("/usr/bin/{name}"),
                "--some".to_owned(),
                "option".to_owned(),
            ],
        },
        tracker: Target {
            name: "ptwalk".to_owned(),
            why: "the most exact one".to_owned(),
            scope: "all".to_owned(),
        },
        watched: Observation {
            samples,
            seconds: seconds * samples as f64,
            shortest_interval_seconds: seconds,
            longest_interval_seconds: seconds,
            ..Observation::default()
        },
        hot_set: hot_set(&counts),
        cost: Some(Cost {
            own_cpu_seconds: 0.01,
            own_cpu_share: 0.003,
            target_slowdown: 0.0041,
        }),
        mappings: pieces.iter().map(|piece| mapping(piece, &counts)).collect(),
        series: recorder.series(&areas),
    }
}

fn mapping(piece: &Piece, counts: &BTreeMap<u64, u64>) -> Mapping {
    let mut runs: Vec<Run> = Vec::new();
    let end = piece.start + piece.pages * 4096;
    for (&page, &count) in counts.range(piece.start >> 12..end >> 12) {
        match runs.last_mut() {
            Some(last) if last.count == count => last.end += 4096,
            _ => runs.push(Run {
                start: page << 12,
                end: (page + 1) << 12,
                count,
            }),
        }
    }
    Mapping {
        start: piece.start,
        end,
        name: Some(piece.name.clone()),
        permissions: "rw-p".to_owned(),
        base_bytes: if piece.huge { 0 } else { piece.pages * 4096 },
        huge_bytes: if piece.huge { piece.pages * 4096 } else { 0 },
        runs,
    }
}

fn hot_set(counts: &BTreeMap<u64, u64>) -> HotSet {
    let mut hottest: Vec<u64> = counts
        .values()
        .copied()
        .filter(|&count| count > 0)
        .collect();
    hottest.sort_unstable_by_key(|&count| std::cmp::Reverse(count));
    let all: u64 = hottest.iter().sum();
    let mut points = Vec::new();
    let mut sum = 0;
    for (index, count) in hottest.iter().enumerate() {
        sum += count;
        if index % (hottest.len() / 200 + 1) == 0 || index + 1 == hottest.len() {
            points.push(HotPoint {
                bytes: (index as u64 + 1) * 4096,
                share: sum as f64 / all as f64,
            });
        }
    }
    let bytes = |share: f64| points.iter().find(|p| p.share >= share).map(|p| p.bytes);
    HotSet {
        resident_bytes: counts.len() as u64 * 4096,
        bytes_50: bytes(0.5),
        bytes_90: bytes(0.9),
        bytes_99: bytes(0.99),
        points,
    }
}

/// Returns a number that looks random and is the same for the same input.
pub(crate) fn noise(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 31;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 29)
}

/// Returns the heat of a server: many libraries, a heap with a moving hot spot, huge pages, a stack.
pub(crate) fn server(samples: u64) -> Heat {
    let mut pieces = vec![
        piece(0x55d0_0000_0000, 300, "server", false),
        piece(0x55d0_0100_0000, 3000, "[heap]", false),
        piece(0x7f00_0000_0000, 512 * 12, "anonymous", true),
    ];
    for n in 0..40 {
        let name = format!("libwith-a-rather-long-name-{n}.so.6.0.{n}");
        for part in 0..4 {
            pieces.push(piece(
                0x7f10_0000_0000 + n * 0x40_0000 + part * 0x8000,
                7,
                &name,
                false,
            ));
        }
    }
    pieces.push(piece(0x7ffc_0000_0000, 33, "[stack]", false));
    heat(
        "server",
        &pieces,
        samples,
        Duration::from_millis(100),
        |sample, piece, page| match piece {
            0 => page < 40,
            1 => page.abs_diff(sample * 20) < 120 || noise(sample, page).is_multiple_of(97),
            2 => (page / 512 + sample / 10) % 4 == 0,
            _ => noise(page, piece as u64).is_multiple_of(5),
        },
    )
}

/// Returns noise everywhere: the worst case for drawing.
pub(crate) fn worst() -> Heat {
    let pieces: Vec<Piece> = (0..30)
        .map(|n| {
            piece(
                0x7f00_0000_0000 + n * 0x100_0000,
                128,
                &format!("m{n}"),
                false,
            )
        })
        .collect();
    heat(
        "noise",
        &pieces,
        230,
        Duration::from_millis(50),
        |sample, piece, page| noise(sample, page * 31 + piece as u64).is_multiple_of(2),
    )
}
