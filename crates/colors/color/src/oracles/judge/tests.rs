//! Verdicts on modelled machines, whose frames may differ from the frame numbers that pagemap shows.

use superhue_model::{ColorIndex, Pfn};

use super::super::{Frames, HugePages, OffsetOracle, OracleError, PfnOracle};
use super::*;

const WAYS: usize = 8;
const PAGES: usize = 4096;

/// A cache of [`WAYS`] ways under pages whose real colors are known.
struct Machine {
    /// The color of the frame number that pagemap shows.
    real: fn(u64) -> u64,
    /// The number that pagemap shows.
    frame: fn(Page) -> u64,
    /// Of 1,000 fates this number is wrong.
    noise: usize,
    random: Random,
}

impl Machine {
    fn new(real: fn(u64) -> u64) -> Self {
        Self {
            real,
            frame: frame_of,
            noise: 0,
            random: Random::new(7),
        }
    }

    fn color(&self, page: Page) -> u64 {
        (self.real)((self.frame)(page))
    }
}

/// Frames are in no order of addresses, and each page has its own.
fn frame_of(page: Page) -> u64 {
    ((page.address() as u64 >> 12) * 2_654_435_761) % (1 << 20)
}

impl Probe for Machine {
    fn trial(&mut self, _: &Lines, targets: &[Page], evictors: &[Page], times: &mut [u32]) -> bool {
        let mut pushing = std::collections::BTreeMap::new();
        // A page takes one way, however often it pushes.
        let evictors: std::collections::BTreeSet<Page> = evictors.iter().copied().collect();
        for evictor in evictors {
            *pushing.entry(self.color(evictor)).or_insert(0) += 1;
        }
        for (&target, time) in targets.iter().zip(times) {
            let pushed = pushing.get(&self.color(target)).copied().unwrap_or(0);
            let wrong = self.random.below(1000) < self.noise;
            *time = if (pushed >= WAYS) == wrong { 170 } else { 330 };
        }
        true
    }

    fn chase(&mut self, _: &[Page], _: u64) -> Option<f64> {
        None
    }
}

#[derive(Debug)]
struct FakeFrames;

impl Frames for FakeFrames {
    fn frames(&mut self, pages: &[Page], frames: &mut [Option<Pfn>]) -> Result<(), OracleError> {
        for (page, frame) in pages.iter().zip(frames) {
            *frame = Some(Pfn(frame_of(*page)));
        }
        Ok(())
    }
}

/// All memory lies in huge pages whose frames follow each other.
#[derive(Debug)]
struct AllHuge;

impl HugePages for AllHuge {
    fn is_in_huge_page(&mut self, _: Page) -> Result<bool, OracleError> {
        Ok(true)
    }
}

fn pages() -> Vec<Page> {
    // SAFETY: the modelled machine reads none of them.
    let page = |number: usize| unsafe { Page::at(number << 12) };
    (512..512 + PAGES).filter_map(page).collect()
}

fn judged(machine: &mut Machine, index: &ColorIndex) -> Judgement {
    judge(
        machine,
        &mut PfnOracle::with(FakeFrames, index.clone()),
        &pages(),
        WAYS,
    )
}

fn plain(frame: u64) -> u64 {
    frame % 32
}

/// Bit i of the color is bit i of the frame number xor bit i + 7.
fn hashed(frame: u64) -> u64 {
    (frame ^ (frame >> 7)) % 32
}

/// Color by a host that places pages at random.
fn scattered(frame: u64) -> u64 {
    frame.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59
}

#[test]
fn frame_numbers_are_trusted_where_they_are_true() {
    let mut machine = Machine::new(plain);
    let found = judged(&mut machine, &ColorIndex::plain(32).unwrap());
    assert_eq!(found.trust, Trust::Trusted, "{found:?}");
    assert!(found.own.of >= 200 && found.foreign.of >= 900, "{found:?}");
    assert_eq!(found.right().value(), Some(1.0));
    assert!(found.right().interval().0 > 0.99);
}

#[test]
fn noise_does_not_refute_what_is_true() {
    let mut machine = Machine::new(plain);
    machine.noise = 40;
    let found = judged(&mut machine, &ColorIndex::plain(32).unwrap());
    assert!(found.is_trusted(), "{found:?}");
    assert!(found.right().hits < found.right().of || found.unsure > 0);
}

#[test]
fn a_hashed_index_is_refuted_until_its_masks_are_given() {
    let found = judged(&mut Machine::new(hashed), &ColorIndex::plain(32).unwrap());
    assert!(matches!(found.trust, Trust::Refuted(_)), "{found:?}");
    let masks: Vec<u64> = (0..5).map(|bit| 0x81 << 12 << bit).collect();
    let found = judged(
        &mut Machine::new(hashed),
        &ColorIndex::from_masks(&masks).unwrap(),
    );
    assert_eq!(found.trust, Trust::Trusted, "{found:?}");
}

#[test]
fn a_host_that_scatters_frames_refutes_them() {
    let found = judged(
        &mut Machine::new(scattered),
        &ColorIndex::plain(32).unwrap(),
    );
    let Trust::Refuted(reason) = &found.trust else {
        panic!("{found:?}")
    };
    assert!(
        reason.starts_with("of 256 pages predicted to conflict "),
        "{reason}"
    );
    assert!(found.own.value().unwrap() < 0.1, "{found:?}");
}

#[test]
fn too_few_and_too_many_colors_are_refuted() {
    let mut few = Machine::new(plain);
    let found = judged(&mut few, &ColorIndex::plain(8).unwrap());
    assert!(matches!(found.trust, Trust::Refuted(_)), "{found:?}");
    let mut many = Machine::new(plain);
    let found = judged(&mut many, &ColorIndex::plain(64).unwrap());
    let Trust::Refuted(reason) = &found.trust else {
        panic!("{found:?}")
    };
    assert!(
        reason.contains("more colors apart than there are"),
        "{reason}"
    );
}

#[test]
fn what_cannot_be_tried_is_not_trusted() {
    struct FrozenClockProbe;
    impl Probe for FrozenClockProbe {
        fn trial(&mut self, _: &Lines, _: &[Page], _: &[Page], times: &mut [u32]) -> bool {
            times.fill(0);
            true
        }
        fn chase(&mut self, _: &[Page], _: u64) -> Option<f64> {
            None
        }
    }
    let index = ColorIndex::plain(32).unwrap();
    let mut oracle = PfnOracle::with(FakeFrames, index.clone());
    let frozen = judge(&mut FrozenClockProbe, &mut oracle, &pages(), WAYS);
    let Trust::Untested(reason) = &frozen.trust else {
        panic!("{frozen:?}")
    };
    assert!(reason.contains("timing shows no cache"), "{reason}");

    let mut machine = Machine::new(plain);
    let few: Vec<Page> = pages().into_iter().take(300).collect();
    let found = judge(&mut machine, &mut oracle, &few, WAYS);
    assert!(matches!(found.trust, Trust::Untested(_)), "{found:?}");
    let one = judged(&mut machine, &ColorIndex::plain(1).unwrap());
    assert_eq!(
        one.trust,
        Trust::Untested("there is one color only".to_owned())
    );
}

#[test]
fn the_position_in_a_huge_page_is_trusted_where_the_host_has_huge_pages_too() {
    let mut oracle = OffsetOracle::with(AllHuge, 32).unwrap();
    let mut whole = Machine::new(plain);
    whole.frame = |page| page.address() as u64 >> 12;
    let found = judge(&mut whole, &mut oracle, &pages(), WAYS);
    assert_eq!(found.trust, Trust::Trusted, "{found:?}");
    let found = judge(&mut Machine::new(scattered), &mut oracle, &pages(), WAYS);
    assert!(matches!(found.trust, Trust::Refuted(_)), "{found:?}");
}

#[test]
fn shares_have_intervals_that_hold_them() {
    let share = Share { hits: 95, of: 100 };
    let (low, high) = share.interval();
    assert!(
        (low - 0.888).abs() < 0.002 && (high - 0.978).abs() < 0.002,
        "{low} {high}"
    );
    assert_eq!(Share::default().interval(), (0.0, 1.0));
    assert_eq!(Share::default().value(), None);
    let none = Share { hits: 0, of: 200 };
    assert!(none.interval().0 == 0.0 && none.interval().1 < 0.02);
}

#[test]
fn tests_without_an_answer_are_no_evidence() {
    let judgement = |unsure| Judgement {
        kind: OracleKind::Measured,
        colors: 32,
        own: Share { hits: 26, of: 26 },
        foreign: Share { hits: 0, of: 40 },
        unsure,
        trust: Trust::Trusted,
    };
    let trust = |unsure| trust(&judgement(unsure), None, 1000, 1000);
    assert_eq!(trust(33), Trust::Trusted);
    assert!(matches!(trust(34), Trust::Untested(why) if why.starts_with("34 tests")));
}
