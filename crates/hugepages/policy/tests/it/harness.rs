//! Runs a policy on the model kernel, and checks all its plans.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use superhue_model::{
    Action, ActionResult, ByteCount, Effect, Errno, HUGE_PAGE_SIZE, Outcome, PAGES_PER_REGION,
    Plan, ProcessId, Region, Share, SkipReason, Snapshot, Vma,
};
use superhue_policy::{
    Account, Active, Ledger, Pattern, Policy, Quota, Resident, Scheme, Split, StallBound,
};

use crate::kernel::{Event, FakeKernel};

/// Fate of one planned action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActionOutcome {
    /// The kernel's result.
    Tried,
    /// Error that the action gets, untried.
    Fails(Errno),
    /// Left undone.
    Skipped(SkipReason),
    /// Reported as vanished.
    Vanished,
    /// Tried, but its result never arrives.
    TriedUnheard,
    /// Not tried, and no result arrives.
    Lost,
    /// Tried, but its result arrives only with the next outcome.
    TriedLate,
}

/// One turn of the loop.
#[derive(Debug, Clone)]
pub(crate) struct LoopStep {
    pub(crate) events: Vec<Event>,
    /// Milliseconds since the last turn; below zero for a clock that jumps back.
    pub(crate) pause: i64,
    /// Fates of the actions, in turn; the list repeats.
    pub(crate) fates: Vec<ActionOutcome>,
    /// Most plans made of the same decision after the first one.
    pub(crate) resumptions: u8,
}

/// Returns the scheme with another budget.
pub(crate) fn budgeted(budget: Share, mut scheme: Scheme) -> Scheme {
    scheme.quota.budget = Some(budget);
    scheme
}

/// Returns the scheme with another rate.
pub(crate) fn rated(rate: Option<ByteCount>, mut scheme: Scheme) -> Scheme {
    scheme.quota.rate = rate;
    scheme
}

/// Returns the scheme with a bound on stalls.
pub(crate) fn stalling(max_stall: Option<StallBound>, mut scheme: Scheme) -> Scheme {
    scheme.quota.max_stall = max_stall;
    scheme
}

/// Returns the scheme, which goes by accesses, with huge pages that are cold after `time`.
pub(crate) fn cold_after(time: Duration, mut scheme: Scheme) -> Scheme {
    match &mut scheme.pattern {
        Pattern::Active(active) => active.cold_after = time,
        other => panic!("{other:?} does not go by accesses"),
    }
    scheme
}

/// Returns a share of a region in whole pages.
fn pages_of_region(share: Share) -> u64 {
    let bytes = share.of(ByteCount(HUGE_PAGE_SIZE));
    bytes.0.div_ceil(4096).clamp(1, PAGES_PER_REGION)
}

/// Returns the least number of pages with which a region is promoted.
pub(crate) fn min_resident(scheme: &Scheme) -> u64 {
    match &scheme.pattern {
        Pattern::Resident(resident) => pages_of_region(resident.min_resident),
        _ => 1,
    }
}

/// Returns the time for which a region that is not full must be quiet; `None` if the scheme has no such time.
fn settle(scheme: &Scheme) -> Option<Duration> {
    match &scheme.pattern {
        Pattern::Resident(resident) => Some(resident.settle),
        _ => None,
    }
}

/// Returns the number of pages that have to be active.
fn min_active(scheme: &Scheme) -> u64 {
    match &scheme.pattern {
        Pattern::Active(active) => pages_of_region(active.min_active),
        _ => 0,
    }
}

/// Holes of a region that needs no evidence under `auto`, and the time for which it must not have grown.
const FEW_HOLES: u64 = 16;
const QUIET: Duration = Duration::from_millis(100);

/// Returns true if regions that are full, or have few holes, need no evidence.
fn full_at_once(scheme: &Scheme) -> bool {
    matches!(&scheme.pattern, Pattern::Active(active) if active.full_at_once)
}

fn splits(scheme: &Scheme) -> bool {
    matches!(&scheme.pattern, Pattern::Active(active) if active.split.is_some())
}

type Place = (ProcessId, Region);

/// The loop around a policy, with a second instance of it that must always agree.
pub(crate) struct Harness {
    subject: Scheme,
    policy: Box<dyn Policy + Send>,
    twin: Box<dyn Policy + Send>,
    pub(crate) world: FakeKernel,
    /// Time that the clock shows, and the latest it has shown.
    at: Duration,
    latest: Duration,
    in_flight: BTreeMap<Place, Duration>,
    late: Vec<ActionResult>,
    /// Pages, true if huge, and the time since which that holds.
    seen: BTreeMap<Place, (u64, Option<bool>, Duration)>,
    /// Plans that were not empty: time, and number of actions.
    pub(crate) plans: Vec<(Duration, usize)>,
    /// The last look, and the huge pages whose zeroes the last decision wants counted.
    snapshot: Snapshot,
    questions: Vec<(ProcessId, Region)>,
    /// Number of questions so far, and true if they are answered.
    pub(crate) asked: usize,
    pub(crate) answers: bool,
    /// Rates of regions to report instead of active pages, by their place in the snapshot, like a tracker that knows ranges only.
    pub(crate) by_range: Option<Vec<f32>>,
    /// True if looks show that all processes fill their memory.
    pub(crate) fills: bool,
}

impl Harness {
    pub(crate) fn new(subject: Scheme, world: FakeKernel) -> Self {
        Self {
            policy: subject.policy(),
            twin: subject.policy(),
            subject,
            world,
            at: Duration::ZERO,
            latest: Duration::ZERO,
            in_flight: BTreeMap::new(),
            late: Vec::new(),
            seen: BTreeMap::new(),
            plans: Vec::new(),
            snapshot: Snapshot::default(),
            questions: Vec::new(),
            asked: 0,
            answers: true,
            by_range: None,
            fills: false,
        }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        self.policy.ledger()
    }

    pub(crate) fn wants_look_within(&self) -> Option<Duration> {
        self.policy.wants_look_within()
    }

    /// Returns the latest moment the clock has shown.
    pub(crate) fn now(&self) -> Duration {
        self.latest
    }

    /// Runs the events, looks, decides, checks, acts, learns. Returns the plan.
    pub(crate) fn turn(&mut self, turn: &LoopStep) -> Plan {
        turn.events
            .iter()
            .for_each(|event| self.world.happen(event));
        self.pass(turn.pause);
        let plan = self.decide();
        self.act(&plan, &turn.fates);
        for _ in 0..turn.resumptions {
            let Some(pause) = self.resumes_within() else {
                break;
            };
            self.pass_time(pause);
            let plan = self.resume();
            self.act(&plan, &turn.fates);
        }
        plan
    }

    /// Runs a turn without events, in which every action meets `fate`.
    pub(crate) fn quiet_turn(&mut self, pause: Duration, fate: ActionOutcome) -> Plan {
        self.pass_time(pause);
        let plan = self.decide();
        self.act(&plan, &[fate]);
        plan
    }

    /// Lets time pass, and corrects the clock if it was wrong.
    pub(crate) fn pass_time(&mut self, pause: Duration) {
        self.at = self.latest + pause;
        self.latest = self.at;
        self.world.now = self.latest;
    }

    fn pass(&mut self, millis: i64) {
        let step = Duration::from_millis(millis.unsigned_abs());
        self.at = if millis < 0 {
            self.at.saturating_sub(step)
        } else {
            self.at + step
        };
        self.latest = self.latest.max(self.at);
        self.world.now = self.latest;
    }

    /// Takes a sample after every `interval`, decides and acts after each, for `time`. Returns the actions planned.
    pub(crate) fn watch(&mut self, interval: Duration, time: Duration) -> Vec<Action> {
        let until = self.latest + time;
        let mut actions = Vec::new();
        while self.latest < until {
            self.pass_time(interval);
            self.world.happen(&Event::Sample);
            let plan = self.decide();
            self.act(&plan, &[ActionOutcome::Tried]);
            actions.extend(plan.actions);
        }
        actions
    }

    /// Looks and decides, and checks the plan.
    pub(crate) fn decide(&mut self) -> Plan {
        let mut snapshot = self.world.look(self.at);
        if let Some(rates) = &self.by_range {
            let heats = snapshot.processes.iter_mut();
            let heats = heats.filter_map(|process| process.heat.as_mut());
            let regions = heats.flat_map(|heat| &mut heat.regions);
            for (region, rate) in regions.zip(rates) {
                region.active = None;
                region.is_range = true;
                region.rate = *rate;
            }
        }
        for process in &mut snapshot.processes {
            process.fills = self.fills;
        }
        self.decide_on(&snapshot)
    }

    /// Decides on a snapshot that need not be true, and checks the plan.
    pub(crate) fn decide_on(&mut self, snapshot: &Snapshot) -> Plan {
        self.at = snapshot.at;
        self.latest = self.latest.max(self.at);
        let before = self.ledger().clone();
        let plan = self.policy.decide(snapshot);
        let after = self.ledger().clone();

        let mut reversed = snapshot.clone();
        reversed.processes.reverse();
        assert_eq!(self.twin.decide(&reversed), plan, "not deterministic");
        assert_eq!(*self.twin.ledger(), after, "not deterministic");
        self.questions = self.policy.wants_zeroes();
        assert_eq!(
            self.twin.wants_zeroes(),
            self.questions,
            "not deterministic"
        );
        assert!(self.questions.len() <= 64);

        self.observe(snapshot);
        self.snapshot = snapshot.clone();
        self.check(&plan, &before);
        let regions = u64::try_from(self.seen.len()).unwrap();
        assert!(after.tracked.regions <= regions, "remembers what is gone");
        let wanted = self.policy.wants_look_within();
        assert_ne!(wanted, Some(Duration::ZERO), "the look was just taken");
        assert!(plan.actions.is_empty() || wanted.is_some());
        plan
    }

    /// Plans more of the last decision, and checks the plan.
    pub(crate) fn resume(&mut self) -> Plan {
        let before = self.ledger().clone();
        let plan = self.policy.resume(self.latest);
        assert_eq!(self.twin.resume(self.latest), plan, "not deterministic");
        assert_eq!(self.twin.ledger(), self.ledger(), "not deterministic");
        self.check(&plan, &before);
        assert_ne!(self.resumes_within(), Some(Duration::ZERO), "it just was");
        plan
    }

    pub(crate) fn resumes_within(&self) -> Option<Duration> {
        self.policy.resumes_within()
    }

    /// Checks a plan that was made by the last snapshot, with the ledger from before.
    fn check(&mut self, plan: &Plan, before: &Ledger) {
        let (snapshot, after) = (self.snapshot.clone(), self.ledger().clone());
        self.check_actions(&snapshot, plan);
        self.check_budget(&snapshot, before, &after);
        let is_collapse = |action: &&Action| matches!(action, Action::Collapse { .. });
        self.check_rate(plan.actions.iter().filter(is_collapse).count());
        self.check_ledger(&snapshot, &after);
        for action in &plan.actions {
            let place = (action.owner().process().unwrap(), action.region());
            self.in_flight.insert(place, self.latest);
        }
    }

    /// Records the time since which each region has been in its present state.
    fn observe(&mut self, snapshot: &Snapshot) {
        let mut seen = BTreeMap::new();
        for process in &snapshot.processes {
            for view in &process.regions {
                if !process.vmas.iter().any(|vma| holds(vma, view.region)) {
                    continue;
                }
                let place = (process.id, view.region);
                let pages = view.resident.0.min(PAGES_PER_REGION);
                let since = match self.seen.get(&place) {
                    Some(&(before, huge, since)) if (before, huge) == (pages, view.huge) => since,
                    _ => self.latest,
                };
                seen.entry(place).or_insert((pages, view.huge, since));
            }
        }
        self.seen = seen;
        let (seen, latest) = (&self.seen, self.latest);
        self.in_flight.retain(|place, planned| {
            seen.contains_key(place) && latest - *planned < Duration::from_secs(10)
        });
    }

    fn check_actions(&self, snapshot: &Snapshot, plan: &Plan) {
        let mut places = BTreeSet::new();
        for action in &plan.actions {
            let (process, region) = (action.owner().process().unwrap(), action.region());
            let place = (process, region);
            assert!(places.insert(place), "{action:?} planned twice");
            assert!(
                !self.in_flight.contains_key(&place),
                "{action:?} is in flight"
            );
            let view = snapshot
                .processes
                .iter()
                .find(|view| view.id == process)
                .expect("a process that is not there");
            let is_split = matches!(action, Action::Split { .. });
            if is_split && view.torn.iter().any(|torn| torn.region == region) {
                continue;
            }
            assert!(
                view.vmas.iter().any(|vma| holds(vma, region)),
                "{action:?} leaves its VMA"
            );
            let (pages, huge, since) = self.seen[&place];
            let Action::Collapse { growth, .. } = action else {
                let ledger = self.policy.ledger();
                let is_overdrawn = ledger.budget.is_some_and(|budget| ledger.charged > budget);
                assert!(
                    splits(&self.subject) || is_overdrawn,
                    "nobody asked for {action:?}"
                );
                assert_eq!(huge, Some(true), "{action:?} is split");
                continue;
            };
            // With evidence, a region with few holes is promoted while it grows.
            let few_and_quiet = growth.0 <= FEW_HOLES && self.latest - since >= QUIET;
            let needs_evidence = !full_at_once(&self.subject) || !(growth.0 == 0 || few_and_quiet);
            if needs_evidence && min_active(&self.subject) > 0 && self.by_range.is_none() {
                let heat = view.heat.as_ref().expect("nothing known of its accesses");
                let active = heat.of(region).and_then(|heat| heat.active);
                let active = active.expect("nothing known of this region").0;
                // For a full region, scattered accesses to fewer pages are enough.
                let enough = if growth.0 == 0 { active * 4 } else { active };
                assert!(enough >= min_active(&self.subject), "{action:?} is cold");
                assert!(heat.samples >= 2 || growth.0 == 0, "{action:?} is a guess");
            }
            assert_ne!(huge, Some(true), "{action:?} is huge already");
            assert_eq!(growth.0, PAGES_PER_REGION - pages);
            assert!(pages >= min_resident(&self.subject), "{action:?} is sparse");
            if let Some(settle) = settle(&self.subject)
                && pages < PAGES_PER_REGION
            {
                assert!(self.latest > since, "{action:?} was seen only once");
                assert!(self.latest - since >= settle, "{action:?} has not settled");
            }
        }
        if matches!(self.subject.pattern, Pattern::Active(_)) {
            return;
        }
        let growths: Vec<_> = plan
            .actions
            .iter()
            // Splits for an overdrawn budget come after them, in an order of their own.
            .filter(|action| matches!(action, Action::Collapse { .. }))
            .map(|action| {
                let (pages, _, since) =
                    self.seen[&(action.owner().process().unwrap(), action.region())];
                let growth = PAGES_PER_REGION - pages;
                (
                    growth,
                    since,
                    action.owner().process().unwrap(),
                    action.region(),
                )
            })
            .collect();
        assert!(growths.is_sorted(), "not the cheapest and oldest first");
    }

    fn check_budget(&self, snapshot: &Snapshot, before: &Ledger, after: &Ledger) {
        let anonymous = snapshot
            .processes
            .iter()
            .filter_map(|process| process.rss_anon)
            .sum();
        let budget = self.subject.quota.budget.map(|budget| budget.of(anonymous));
        if snapshot
            .processes
            .iter()
            .all(|view| view.rss_anon.is_some())
        {
            assert_eq!(after.budget, budget);
        }
        let limit = after.budget.unwrap_or(ByteCount(u64::MAX));
        assert!(
            after.charged <= limit.max(before.charged),
            "{} charged of {limit}, {} before",
            after.charged,
            before.charged
        );
        assert!(after.peak_charged >= after.charged);
    }

    fn check_rate(&mut self, count: usize) {
        let Some(rate) = self.subject.quota.rate.filter(|_| count > 0) else {
            return;
        };
        self.plans.push((self.latest, count));
        let mut bytes = 0;
        for &(at, count) in self.plans.iter().rev() {
            bytes += u128::try_from(count).unwrap() * u128::from(HUGE_PAGE_SIZE);
            let since = |extra: Duration| {
                u128::from(rate.0) * (self.latest - at + extra).as_nanos() / 1_000_000_000
            };
            let burst = since(Duration::from_millis(500));
            let single = since(Duration::ZERO) + u128::from(HUGE_PAGE_SIZE);
            assert!(bytes <= burst.max(single), "{bytes} bytes since {at:?}");
        }
    }

    fn check_ledger(&self, snapshot: &Snapshot, ledger: &Ledger) {
        assert_eq!(
            ledger.planned,
            ledger.collapses.known()
                + ledger.splits.known()
                + ledger.vanished
                + ledger.expired
                + ledger.in_flight,
            "{ledger:?}"
        );
        let torn = snapshot.processes.iter().map(|view| view.torn.len());
        let torn = u64::try_from(torn.sum::<usize>()).unwrap();
        assert!(ledger.in_flight <= ledger.tracked.regions + torn);
    }

    /// Acts on a plan.
    pub(crate) fn outcome(&mut self, plan: &Plan, fates: &[ActionOutcome]) -> Outcome {
        let mut results = std::mem::take(&mut self.late);
        for (action, fate) in plan.actions.iter().zip(fates.iter().cycle()) {
            let process = action.owner().process().unwrap();
            let mut collapse = || match *action {
                Action::Collapse { region, .. } => self.world.collapse(process, region),
                Action::Split { region, .. } => self.world.split(process, region),
            };
            let effect = match *fate {
                ActionOutcome::Tried | ActionOutcome::TriedLate => collapse(),
                ActionOutcome::TriedUnheard => {
                    collapse();
                    continue;
                }
                ActionOutcome::Lost => continue,
                ActionOutcome::Fails(errno) => Effect::Failed { errno },
                ActionOutcome::Skipped(reason) => Effect::Skipped { reason },
                ActionOutcome::Vanished => Effect::Vanished,
            };
            let result = ActionResult {
                action: *action,
                effect,
                took: Duration::from_micros(300),
            };
            if *fate == ActionOutcome::TriedLate {
                self.late.push(result);
            } else {
                results.push(result);
            }
        }
        Outcome { results }
    }

    /// Acts on the plan, and passes the outcome to the policy.
    pub(crate) fn act(&mut self, plan: &Plan, fates: &[ActionOutcome]) {
        let outcome = self.outcome(plan, fates);
        for (process, region) in std::mem::take(&mut self.questions) {
            self.asked += 1;
            if self.answers
                && let Some(zero) = self.world.count_zeroes(process, region)
            {
                self.policy.learn_zeroes(process, region, zero);
                self.twin.learn_zeroes(process, region, zero);
            }
        }
        for result in &outcome.results {
            let gone = match result.effect {
                Effect::Vanished => true,
                Effect::Failed { errno } => errno == Errno::ESRCH,
                _ => false,
            };
            let place = (
                result.action.owner().process().unwrap(),
                result.action.region(),
            );
            // A process that is gone is forgotten, with all its actions in flight.
            self.in_flight
                .retain(|other, _| *other != place && !(gone && other.0 == place.0));
            self.seen.retain(|other, _| !(gone && other.0 == place.0));
        }
        self.policy.learn(self.at, &outcome);
        self.twin.learn(self.at, &outcome);
        assert_eq!(self.policy.ledger(), self.twin.ledger());
        assert_eq!(
            self.policy.wants_look_within(),
            self.twin.wants_look_within()
        );
    }
}

/// Returns the number of actions that were only listed.
pub(crate) fn listed_by(ledger: &Ledger) -> u64 {
    let listed = |account: &Account| account.skipped.get(&SkipReason::DryRun).copied();
    let [collapses, splits] = [&ledger.collapses, &ledger.splits].map(listed);
    collapses.unwrap_or(0) + splits.unwrap_or(0)
}

fn holds(vma: &Vma, region: Region) -> bool {
    vma.is_promotable()
        && region.range().len() == ByteCount(HUGE_PAGE_SIZE)
        && vma.range.contains(&region.range())
}

/// Makes any fate that leaves the policy an honest picture: only a process that has vanished is reported so.
pub(crate) fn honest_fate() -> impl Strategy<Value = ActionOutcome> {
    prop_oneof![
        8 => Just(ActionOutcome::Tried),
        1 => Just(ActionOutcome::Fails(Errno::EAGAIN)),
        1 => Just(ActionOutcome::Fails(Errno::EBUSY)),
        1 => Just(ActionOutcome::Fails(Errno::ENOMEM)),
        1 => Just(ActionOutcome::Fails(Errno::EINVAL)),
        1 => Just(ActionOutcome::Fails(Errno(77))),
        1 => Just(ActionOutcome::Skipped(SkipReason::NoHeadroom)),
        1 => Just(ActionOutcome::Skipped(SkipReason::NoRoomToGrow)),
        1 => Just(ActionOutcome::Skipped(SkipReason::Cancelled)),
        1 => Just(ActionOutcome::Skipped(SkipReason::Unmapped)),
        1 => Just(ActionOutcome::TriedUnheard),
        1 => Just(ActionOutcome::Lost),
        1 => Just(ActionOutcome::TriedLate),
    ]
}

/// Makes any fate.
pub(crate) fn fate() -> impl Strategy<Value = ActionOutcome> {
    prop_oneof![
        20 => honest_fate(),
        1 => Just(ActionOutcome::Fails(Errno::ESRCH)),
        1 => Just(ActionOutcome::Fails(Errno::EPERM)),
        1 => Just(ActionOutcome::Skipped(SkipReason::DryRun)),
        1 => Just(ActionOutcome::Vanished),
    ]
}

/// Makes a number of turns.
pub(crate) fn turns(
    events: impl Strategy<Value = Event>,
    fates: impl Strategy<Value = ActionOutcome>,
) -> impl Strategy<Value = Vec<LoopStep>> {
    let pause = prop_oneof![
        10 => 10..400i64,
        2 => Just(0),
        1 => Just(100),
        1 => 5_000..70_000i64,
        1 => -1000..0i64,
    ];
    let turn = (
        prop::collection::vec(events, 0..8),
        pause,
        prop::collection::vec(fates, 1..6),
        0..4u8,
    )
        .prop_map(|(events, pause, fates, resumptions)| LoopStep {
            events,
            pause,
            fates,
            resumptions,
        });
    prop::collection::vec(turn, 1..50)
}

/// Makes any policy with any configuration.
pub(crate) fn subject() -> impl Strategy<Value = Scheme> {
    let share = || {
        prop_oneof![
            3 => (0u32..2000).prop_map(Share::BasisPoints),
            1 => (0u64..8 << 20).prop_map(|bytes| Share::Bytes(ByteCount(bytes))),
            1 => Just(Share::BasisPoints(500)),
        ]
    };
    let rate = || {
        prop_oneof![
            1 => Just(None),
            1 => Just(Some(ByteCount(2 << 30))),
            2 => (0u64..64 << 20).prop_map(|rate| Some(ByteCount(rate))),
        ]
    };
    let max_stall = || {
        prop_oneof![
            2 => Just(None),
            1 => (0u64..200_000, 0u64..3000, any::<bool>()).prop_map(|(us, ms, while_growing)| {
                Some(StallBound {
                    allowed: Duration::from_micros(us),
                    grace: Duration::from_millis(ms),
                    while_growing,
                })
            }),
        ]
    };
    let min_resident = prop_oneof![
        2 => Just(Share::BasisPoints(7500)),
        1 => (0u32..11_000).prop_map(Share::BasisPoints),
    ];
    let quota =
        (prop::option::of(share()), rate(), max_stall()).prop_map(|(budget, rate, max_stall)| {
            Quota {
                budget,
                rate,
                max_stall,
                spares_filling: false,
            }
        });
    let resident = (min_resident, 0u64..400).prop_map(|(min_resident, settle)| {
        Pattern::Resident(Resident {
            min_resident,
            settle: Duration::from_millis(settle),
        })
    });
    let pattern = prop_oneof![
        2 => resident,
        1 => Just(Pattern::AnyPage),
        3 => active().prop_map(Pattern::Active),
    ];
    (pattern, quota).prop_map(|(pattern, quota)| Scheme { pattern, quota })
}

fn active() -> impl Strategy<Value = Active> {
    let part = || (0u32..11_000).prop_map(Share::BasisPoints);
    let min_active = prop_oneof![Just(Share::BasisPoints(2_500)), part()];
    let cold_after = (0u64..5_000).prop_map(Duration::from_millis);
    (
        min_active,
        cold_after,
        prop::option::of(part()),
        any::<bool>(),
    )
        .prop_map(|(min_active, cold_after, min_zero, full_at_once)| Active {
            min_active,
            cold_after,
            full_at_once,
            split: min_zero.map(|min_zero| Split { min_zero }),
        })
}
