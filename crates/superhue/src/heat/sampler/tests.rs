use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use superhue_heat::{Reading, RegionBits};
use superhue_model::{PageSet, Region, VirtAddr};
use superhue_procfs::process::identify;
use superhue_testing::undisturbed;

use super::*;

/// Calls that a tracker got, and answers that it is to give.
#[derive(Debug, Default)]
struct Script {
    armed: u64,
    read: u64,
    released: Vec<ProcessId>,
    touched: usize,
    replaced: bool,
    unusable: bool,
    costs: Duration,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Script>>);

impl Fake {
    fn with<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }
}

impl Tracker for Fake {
    fn kind(&self) -> TrackerKind {
        TrackerKind::Ptwalk
    }

    fn arm(&mut self, _: ProcessId) -> Result<ArmingResult, TrackError> {
        self.with(|script| {
            script.armed += 1;
            if script.unusable {
                return Err(TrackError::Unusable {
                    kind: TrackerKind::Ptwalk,
                    why: "it is only a test".to_owned(),
                });
            }
            Ok(ArmingResult {
                took: script.costs,
                elsewhere: Duration::ZERO,
                locked: script.costs,
                flushed: true,
            })
        })
    }

    fn read(&mut self, id: ProcessId, ranges: &[VirtRange]) -> Result<Reading, TrackError> {
        assert!(!ranges.is_empty());
        self.with(|script| {
            script.read += 1;
            if std::mem::take(&mut script.replaced) {
                return Err(TrackError::Replaced(id));
            }
            let mut accessed = PageSet::EMPTY;
            (0..script.touched).for_each(|page| accessed.insert(page));
            Ok(Reading::Pages(vec![RegionBits {
                region: Region::containing(VirtAddr(1 << 30)),
                huge: false,
                present: PageSet::FULL,
                accessed,
            }]))
        })
    }

    fn release(&mut self, process: ProcessId) {
        self.with(|script| script.released.push(process));
    }
}

/// A child that lives as long as the test: a sampled process must exist.
struct Child(std::process::Child);

impl Child {
    /// Returns it once it has answered: the memory that it uses changes no more.
    fn start() -> (Self, ProcessId) {
        let mut cat = std::process::Command::new("cat");
        let mut child = Self(
            cat.stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let id = identify(&Roots::default(), child.0.id()).unwrap();
        let (input, output) = (child.0.stdin.as_mut(), child.0.stdout.as_mut());
        input.unwrap().write_all(b"?").unwrap();
        output.unwrap().read_exact(&mut [0]).unwrap();
        (child, id)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn sampler(fake: &Fake) -> Sampler {
    let config = Sampling {
        scope: superhue_heat::Scope::All,
        ..Sampling::default()
    };
    Sampler::new(Roots::default(), Box::new(fake.clone()), config)
}

/// Returns `count` children, and a sampler of them that never settles; each sample costs `costs`.
fn costly(count: usize, costs: Duration) -> (Vec<(Child, ProcessId)>, Fake, Sampler) {
    let children: Vec<_> = (0..count).map(|_| Child::start()).collect();
    let fake = Fake::default();
    fake.with(|script| script.costs = costs);
    let mut sampler = sampler(&fake);
    sampler.config.settle = false;
    children.iter().for_each(|(_, id)| sampler.add(*id));
    (children, fake, sampler)
}

/// Steps whenever something is due until `until`.
fn run(sampler: &mut Sampler, until: Duration) -> Vec<SampleOutcome> {
    let mut sampled = Vec::new();
    while let Some(due) = sampler.due().filter(|due| *due <= until) {
        sampled.extend(sampler.step(due));
    }
    sampled
}

const MINUTE: Duration = Duration::from_secs(60);

/// CPU time that puts no sample off: what 1 % of ten seconds pays for in advance.
const UNPAID: Duration = Duration::from_millis(100);

#[test]
fn few_samples_last_longer_and_many_do_not() {
    let (_child, id) = Child::start();
    let of = |time: u64, entries: u64| {
        let mut sampler = sampler(&Fake::default());
        sampler.fit(Duration::from_secs(time), entries);
        sampler.add(id);
        sampler.interval(id).unwrap()
    };
    // The measured cost of an entry is 20 ns to 10 us.
    assert_eq!(of(5, 100), Duration::from_millis(50), "they are cheap");
    assert_eq!(of(5, 1 << 30), LONGEST_OF_FEW, "one is all there can be");
    let half = Duration::from_millis(400);
    let mut sampler = sampler(&Fake::default());
    sampler.fit(half, 1 << 30);
    sampler.add(id);
    let only = sampler.interval(id).unwrap();
    assert!(only < half && only > half / 2, "{only:?}");
}

#[test]
fn sampling_settles_and_is_taken_up_again() {
    undisturbed(MINUTE, UNPAID, || {
        let (_child, id) = Child::start();
        let fake = Fake::default();
        fake.with(|script| script.touched = 100);
        let mut sampler = sampler(&fake);
        sampler.add(id);
        sampler.add(id);
        let sampled = run(&mut sampler, MINUTE);
        assert!(sampled.iter().all(|sampled| sampled.result.is_ok()));
        assert!(sampler.is_settled(id));
        // Sampling settles after five calm samples; then there is a probe every other second.
        let before = sampler.samples();
        assert!((25..=40).contains(&before), "{before}");
        let heat = sampler.map(id).unwrap().heat();
        assert_eq!(heat.regions[0].active, Some(PageCount(100)));
        assert_eq!(
            sampler.hot_set().bytes_for(1.0),
            Some(PageCount(100).bytes())
        );

        sampler.resample_soon(id);
        assert!(!sampler.is_settled(id));
        run(&mut sampler, 2 * MINUTE);
        assert!(sampler.is_settled(id));
        // Work that this thread is charged with on a busy machine puts samples off.
        assert!(sampler.samples() > before + 10);

        sampler.retain(|_| false);
        assert_eq!(sampler.due(), None);
        assert_eq!(fake.with(|script| script.released.clone()), [id]);
        assert!(sampler.total_cost().own > Duration::ZERO);
    });
}

#[test]
fn what_it_costs_stays_below_the_ceiling() {
    let (children, _, mut sampler) = costly(4, Duration::from_millis(20));
    let until = 20 * MINUTE;
    let sampled = run(&mut sampler, until);
    assert!(sampled.len() > 100, "{}", sampled.len());
    let cost = sampler.total_cost();
    // One per cent, and as much as ten seconds of it in advance, and one sample.
    let most = until.mul_f64(0.01) + Duration::from_millis(200);
    assert!(cost.own <= most, "{:?}", cost.own);
    for (_, id) in &children {
        let cost = sampler.cost(*id).unwrap();
        assert!(cost.target <= most, "{:?}", cost.target);
    }
}

#[test]
fn a_step_arms_only_what_is_affordable_and_each_is_paid_for() {
    let (_children, fake, mut sampler) = costly(60, Duration::from_secs(1));
    sampler.step(Duration::ZERO);
    let armed = fake.with(|script| script.armed);
    assert!((1..60).contains(&armed), "{armed}");
    // Processes that end before they are read have been held up as well.
    sampler.retain(|_| false);
    let held = sampler.total_cost().target;
    assert!(held >= Duration::from_secs(armed), "{held:?}");
}

#[test]
fn work_with_the_samples_is_part_of_the_cost() {
    let (_child, id) = Child::start();
    let mut sampler = sampler(&Fake::default());
    sampler.config.settle = false;
    sampler.add(id);
    run(&mut sampler, Duration::from_secs(1));
    let before = (sampler.total_cost().own, sampler.due().unwrap());
    sampler.spend_beside(Duration::from_secs(1));
    assert!(sampler.total_cost().own >= before.0 + Duration::from_secs(1));
    // A sample that has begun ends in time; the next one waits until 1 % of the time has paid for it.
    run(&mut sampler, Duration::from_secs(2));
    let due = sampler.due().unwrap();
    assert!(due > before.1 + Duration::from_secs(80), "{due:?}");
}

#[test]
fn a_process_that_replaced_its_memory_is_looked_at_anew() {
    undisturbed(MINUTE, UNPAID, || {
        let (_child, id) = Child::start();
        let fake = Fake::default();
        fake.with(|script| script.touched = 7);
        let mut sampler = sampler(&fake);
        sampler.add(id);
        run(&mut sampler, Duration::from_secs(5));
        assert!(sampler.map(id).unwrap().samples() > 2);
        sampler.resample_soon(id);
        fake.with(|script| script.replaced = true);
        let sampled = run(&mut sampler, MINUTE / 2);
        let replaced =
            |sampled: &&SampleOutcome| matches!(sampled.result, Err(TrackError::Replaced(_)));
        assert_eq!(sampled.iter().filter(replaced).count(), 1);
        let samples = sampler.map(id).unwrap().samples();
        assert!(samples as usize <= sampled.len(), "{samples}");
        run(&mut sampler, MINUTE);
        assert!(sampler.is_settled(id));
    });
}

#[test]
fn a_sampler_that_is_put_off_lets_another_one_track() {
    let (_child, id) = Child::start();
    let fake = Fake::default();
    fake.with(|script| script.touched = 7);
    let mut first = sampler(&fake);
    first.add(id);
    assert!(run(&mut first, MINUTE).iter().all(|it| it.result.is_ok()));
    let mut second = sampler(&fake);
    second.add(id);
    let refused = run(&mut second, MINUTE);
    let is_foreign = |it: &SampleOutcome| matches!(it.result, Err(TrackError::Foreign { .. }));
    assert!(!refused.is_empty() && refused.iter().all(is_foreign));
    first.put_off();
    assert_eq!(fake.with(|script| script.released.clone()), [id]);
    let taken = run(&mut second, 2 * MINUTE);
    assert!(taken.iter().any(|it| it.result.is_ok()));
    drop(second);
    let taken = run(&mut first, 2 * MINUTE);
    assert!(taken.iter().any(|it| it.result.is_ok()));
}

#[test]
fn a_sample_that_would_hold_the_lock_for_too_long_is_not_taken() {
    let (_child, id) = Child::start();
    let fake = Fake::default();
    fake.with(|script| script.touched = 7);
    let mut sampler = sampler(&fake);
    sampler.config.max_lock = Some(Duration::from_nanos(1));
    sampler.add(id);
    let refused = run(&mut sampler, Duration::from_secs(1));
    let [
        SampleOutcome {
            result: Err(TrackError::TooLong {
                entries, expected, ..
            }),
            ..
        },
    ] = &refused[..]
    else {
        panic!("{refused:?}");
    };
    assert!(*entries > 0);
    let each = first_clearing(&Roots::default());
    assert_eq!(*expected, each * u32::try_from(*entries).unwrap());
    assert_eq!(fake.with(|script| script.armed), 0);
    // Once allowed, the time that a sample took counts, not the most that it may take.
    sampler.config.max_lock = Some(*expected);
    fake.with(|script| script.costs = Duration::from_micros(1));
    let taken = run(&mut sampler, MINUTE);
    assert!(taken.len() > 10, "{taken:?}");
    sampler.config.max_lock = Some(QUICK_CLEARING * u32::try_from(*entries).unwrap());
    sampler.resample_soon(id);
    let taken = run(&mut sampler, 2 * MINUTE);
    assert!(!taken.is_empty() && taken.iter().all(|sampled| sampled.result.is_ok()));
    // Without a bound all goes.
    sampler.config.max_lock = None;
    assert!(sampler.object(id, u64::MAX, Duration::MAX).is_ok());
}

#[test]
fn trouble_is_told_and_not_asked_for_again_at_once() {
    undisturbed(MINUTE, UNPAID, || {
        let (_child, id) = Child::start();
        let fake = Fake::default();
        fake.with(|script| script.unusable = true);
        let mut sampler = sampler(&fake);
        sampler.add(id);
        let sampled = run(&mut sampler, MINUTE);
        assert!(sampled.iter().all(|sampled| sampled.result.is_err()));
        assert!((5..8).contains(&sampled.len()), "{}", sampled.len());
    });
}

#[test]
fn one_process_is_not_tracked_twice() {
    let (_child, id) = Child::start();
    let (one, two) = (Fake::default(), Fake::default());
    let (mut first, mut second) = (sampler(&one), sampler(&two));
    first.add(id);
    second.add(id);
    assert!(first.step(Duration::ZERO).is_empty());
    let refused = second.step(Duration::ZERO);
    assert!(matches!(refused[0].result, Err(TrackError::Foreign { .. })));
    assert_eq!(two.with(|script| script.armed), 0);
    first.remove(id);
    run(&mut second, MINUTE);
    assert!(two.with(|script| script.read) > 0);
}

#[test]
fn a_held_sampler_ends_samples_and_begins_none() {
    let (_child, id) = Child::start();
    let fake = Fake::default();
    let mut sampler = sampler(&fake);
    sampler.add(id);
    sampler.step(Duration::ZERO);
    sampler.hold(true);
    let end = sampler.due().unwrap();
    assert!(end > Duration::ZERO);
    assert_eq!(sampler.step(end).len(), 1);
    assert_eq!(sampler.due(), None);
    sampler.step(end + MINUTE);
    assert_eq!(fake.with(|script| (script.armed, script.read)), (1, 1));
    sampler.hold(false);
    sampler.step(end + MINUTE);
    assert_eq!(fake.with(|script| script.armed), 2);
}

#[test]
fn a_process_that_ends_while_it_is_sampled_stops_nothing() {
    let (child, id) = Child::start();
    let fake = Fake::default();
    let mut sampler = sampler(&fake);
    sampler.config.by_cpu_time = true;
    sampler.add(id);
    sampler.step(Duration::ZERO);
    let end = sampler.due().unwrap();
    drop(child);
    assert_eq!(sampler.step(end).len(), 1);
}
