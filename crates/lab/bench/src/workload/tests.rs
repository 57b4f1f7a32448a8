use rand::SeedableRng;

use super::*;
use crate::machine::CacheLevel;

fn caches() -> Caches {
    let level = |level, kib: u64| CacheLevel {
        level,
        bytes: kib << 10,
        ways: Some(8),
        shared_by: vec![0],
    };
    Caches(vec![level(1, 32), level(2, 1024), level(3, 32 << 10)])
}

fn prepared(name: &str, share: f64) -> Option<(Box<dyn Workload>, Point, Buffer)> {
    let mut workload = all()
        .into_iter()
        .find(|workload| workload.name() == name)
        .unwrap();
    let points = workload.points(&caches(), Sweep::Quick);
    let point = points
        .into_iter()
        .min_by(|a, b| (a.share - share).abs().total_cmp(&(b.share - share).abs()));
    let point = point.unwrap();
    let mut memory = Buffer::new(point.size()).unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    match workload.prepare(&point, &mut memory, &mut rng) {
        Ok(()) => Some((workload, point, memory)),
        Err(trouble) => {
            superhue_testing::skip(name, &trouble.to_string());
            None
        }
    }
}

#[test]
fn sizes_ascend_and_fit_their_working_set() {
    for workload in all() {
        for sweep in [Sweep::Quick, Sweep::Full] {
            let points = workload.points(&caches(), sweep);
            assert!(!points.is_empty(), "{}", workload.name());
            assert!(
                points.windows(2).all(|pair| pair[0].bytes < pair[1].bytes),
                "{}",
                workload.name()
            );
            assert!(points.iter().all(|point| workload.amount(point) > 0.0));
        }
    }
}

#[test]
fn the_chase_is_one_cycle_through_every_line() {
    let (mut chase, point, mut memory) = prepared("chase", 0.5).unwrap();
    let words = memory.words();
    let (mut at, mut steps) = (0, 0);
    loop {
        at = index(words[at]);
        steps += 1;
        if at == 0 {
            break;
        }
    }
    assert_eq!(steps, point.bytes / LINE);
    chase.work(&point, &mut memory, 2);
}

#[test]
fn both_transposes_transpose() {
    for name in ["transpose-load", "transpose-store"] {
        let (mut transpose, point, mut memory) = prepared(name, 0.5).unwrap();
        transpose.work(&point, &mut memory, 1);
        let dim = index(point.parameter);
        let values = memory.doubles();
        for (row, column) in [(0, 0), (1, 0), (0, 1), (dim - 1, 3), (7, dim - 1)] {
            assert_eq!(
                values[row * dim + column],
                values[dim * dim + column * dim + row],
                "{name}"
            );
        }
    }
}

#[test]
fn the_product_is_the_product() {
    let (mut product, point, mut memory) = prepared("product", 0.85).unwrap();
    product.work(&point, &mut memory, 1);
    let dim = index(point.parameter);
    let values = memory.doubles();
    let (row, column) = (5, 11);
    let wanted: f64 = (0..dim)
        .map(|k| values[row * dim + k] * values[dim * dim + k * dim + column])
        .sum();
    assert_eq!(values[2 * dim * dim + row * dim + column], wanted);
}

#[test]
fn the_copy_copies_and_the_gather_stays_inside() {
    let (mut copy, point, mut memory) = prepared("copy", 0.5).unwrap();
    let half = memory.bytes().len() / 2;
    memory.bytes()[half - 1] = 99;
    copy.work(&point, &mut memory, 1);
    assert_eq!(memory.bytes()[2 * half - 1], 99);
    let (mut gather, point, mut memory) = prepared("gather", 0.5).unwrap();
    gather.work(&point, &mut memory, 1);
}

#[test]
fn fftw_transforms_an_impulse_into_a_constant() {
    let Some((mut fft, point, mut memory)) = prepared("fft", 0.75) else {
        return;
    };
    fft.work(&point, &mut memory, 1);
    let library = crate::fftw::Library::load().unwrap();
    let mut plan = library.plan(1024, &mut memory).unwrap();
    memory.doubles().fill(0.0);
    memory.doubles()[0] = 1.0;
    plan.execute(&mut memory);
    let (real, imaginary) = (memory.doubles()[2 * 777], memory.doubles()[2 * 777 + 1]);
    assert!((real - 1.0).abs() < 1e-12 && imaginary.abs() < 1e-12);
    assert!(library.plan(1 << 40, &mut memory).is_err());
}

#[test]
fn gains_are_above_one_whichever_way_the_unit_goes() {
    let (time, rate) = (Figure::nanoseconds("ns"), Figure::millions("MB/s"));
    assert_eq!(time.gain(2.0, 3.0), 1.5);
    assert_eq!(rate.gain(3.0, 2.0), 1.5);
    assert_eq!(time.of(1e9, 2.0), 2.0);
    assert_eq!(rate.of(4e6, 2.0), 2.0);
}
