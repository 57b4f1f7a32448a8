//! Splits of torn huge pages, of which the program has given back a part. They are split at once, no matter what made them.
//!
//! Base pages already map the rest of one, so the program loses nothing, and the kernel frees the pages that no process maps. A split that has no
//! effect (the huge page is pinned, or shared since a fork) is tried again, later each time. A dry run lists each once.

use std::collections::BTreeMap;

use superhue_model::{Action, Effect, Memory, Owner, PAGES_PER_REGION, Region, TornPage};

use crate::backoff::{Consequence, REGION, Wait};
use crate::clock::{EarliestTick, Tick};
use crate::record::OUTCOME_TIMEOUT;

/// Number of splits that may be under way at once.
const MAX_PENDING_SPLITS: usize = 128;

/// Torn huge pages whose split was requested.
#[derive(Debug, Default)]
pub(crate) struct TornSplits {
    tried: BTreeMap<(Owner, Region), TornSplit>,
}

/// A torn huge page whose split was requested.
#[derive(Debug, Clone, Copy)]
struct TornSplit {
    /// Time of the request, while the outcome is outstanding.
    in_flight: Option<Tick>,
    /// True if the last split was done, and no look has shown yet whether it helped.
    was_split: bool,
    /// True if a dry run has listed it: it is not planned again while it is there.
    is_listed: bool,
    wait: Wait,
    held: u64,
}

/// Changes that a look shows.
#[derive(Debug, Default)]
pub(crate) struct TornChanges {
    /// Number of pages that came back.
    pub(crate) returned: u64,
    /// Number of splits whose outcome will not come any more.
    pub(crate) expired: u64,
}

impl TornSplits {
    /// Takes in a look.
    pub(crate) fn look<'a>(&mut self, views: &[Memory<'a>], now: Tick) -> TornChanges {
        let mut news = TornChanges::default();
        self.tried.retain(|&(owner, region), tried| {
            let view = views.binary_search_by_key(&owner, |view| view.owner);
            let view = view.ok().and_then(|at| views.get(at));
            let there = view.is_some_and(|view| find(view.torn, region).is_some());
            if let Some(planned) = tried.in_flight {
                let late = now.since(planned) >= OUTCOME_TIMEOUT;
                news.expired += u64::from(late);
                if late {
                    tried.in_flight = None;
                }
                return !late || there;
            }
            if std::mem::take(&mut tried.was_split) {
                if there {
                    tried.wait.fail(now, &REGION);
                } else {
                    news.returned += tried.held;
                }
            }
            tried.wait.forget(now, &REGION);
            there
        });
        news
    }

    /// Plans splits in the memory of owners for which `may_split` returns true.
    pub(crate) fn plan(
        &mut self,
        views: &[Memory<'_>],
        may_split: impl Fn(Owner) -> bool,
        now: Tick,
        due: &mut EarliestTick,
    ) -> Vec<Action> {
        let under_way = self
            .tried
            .values()
            .filter(|tried| tried.in_flight.is_some());
        let mut left = MAX_PENDING_SPLITS.saturating_sub(under_way.count());
        let mut actions = Vec::new();
        for view in views.iter().filter(|view| may_split(view.owner)) {
            for torn in view.torn {
                let key = (view.owner, torn.region);
                let tried = self.tried.entry(key).or_insert(TornSplit {
                    in_flight: None,
                    was_split: false,
                    is_listed: false,
                    wait: Wait::NONE,
                    held: 0,
                });
                if tried.in_flight.is_some() || tried.is_listed {
                    continue;
                }
                if tried.wait.until() > now {
                    due.add(tried.wait.until());
                    continue;
                }
                if left == 0 {
                    due.add(now.after_nanos(1));
                    return actions;
                }
                left -= 1;
                tried.in_flight = Some(now);
                tried.held = torn.held.0.min(PAGES_PER_REGION);
                actions.push(Action::Split {
                    owner: view.owner,
                    region: torn.region,
                });
            }
        }
        actions
    }

    /// Takes in the effect of a split. Returns its consequence, or `None` if it was none of these.
    pub(crate) fn learn(
        &mut self,
        action: &Action,
        effect: Effect,
        now: Tick,
    ) -> Option<Consequence> {
        let key = (action.owner(), action.region());
        let tried = self.tried.get_mut(&key)?;
        if !matches!(action, Action::Split { .. }) {
            return None;
        }
        tried.in_flight.take()?;
        let consequence = Consequence::of(effect).about(action);
        match consequence {
            Consequence::Done => tried.was_split = true,
            Consequence::Listed => tried.is_listed = true,
            _ => tried.wait.fail(now, &REGION),
        }
        Some(consequence)
    }

    /// Returns true if the outcome of this split is outstanding.
    pub(crate) fn is_in_flight(&self, owner: Owner, region: Region) -> bool {
        let tried = self.tried.get(&(owner, region));
        tried.is_some_and(|tried| tried.in_flight.is_some())
    }

    /// Returns the number of splits whose outcome is outstanding.
    pub(crate) fn in_flight(&self) -> u64 {
        let under_way = self
            .tried
            .values()
            .filter(|tried| tried.in_flight.is_some());
        u64::try_from(under_way.count()).unwrap_or(u64::MAX)
    }
}

fn find(torn: &[TornPage], region: Region) -> Option<&TornPage> {
    let at = torn
        .binary_search_by_key(&region, |torn| torn.region)
        .ok()?;
    torn.get(at)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use superhue_model::{Errno, PageCount, ProcessId, ProcessView, VirtAddr};

    use super::*;

    const ID: ProcessId = ProcessId {
        pid: 7,
        start_ticks: 1,
    };

    fn view(torn: &[(u64, u64)]) -> ProcessView {
        let torn = torn.iter().map(|&(mib, held)| TornPage {
            region: Region::containing(VirtAddr(mib << 20)),
            held: PageCount(held),
        });
        ProcessView {
            torn: torn.collect(),
            ..ProcessView::unread(ID)
        }
    }

    fn at(ms: u64) -> Tick {
        Tick::default().after(Duration::from_millis(ms))
    }

    #[test]
    fn each_is_split_once_and_what_came_back_counts() {
        let mut torn = TornSplits::default();
        let mut due = EarliestTick::default();
        let seen = view(&[(2, 500), (8, 12)]);
        let views = [Memory::of_process(&seen)];
        assert_eq!(torn.look(&views, at(0)).returned, 0);
        let actions = torn.plan(&views, |_| true, at(0), &mut due);
        assert_eq!(actions.len(), 2);
        assert_eq!(torn.in_flight(), 2);
        assert!(torn.plan(&views, |_| true, at(1), &mut due).is_empty());
        for action in &actions {
            assert_eq!(
                torn.learn(action, Effect::Done, at(2)),
                Some(Consequence::Done)
            );
            assert_eq!(
                torn.learn(action, Effect::Done, at(2)),
                None,
                "no answer counts twice"
            );
        }
        // One is still whole: it is pinned.
        let seen = view(&[(8, 12)]);
        let views = [Memory::of_process(&seen)];
        let news = torn.look(&views, at(10));
        assert_eq!((news.returned, news.expired), (500, 0));
        assert!(torn.plan(&views, |_| true, at(10), &mut due).is_empty());
        let wait = due.get().unwrap();
        assert!(wait > at(10));
        assert_eq!(torn.plan(&views, |_| true, wait, &mut due).len(), 1);
    }

    #[test]
    fn what_is_refused_waits_longer_each_time_and_what_gets_no_answer_is_given_up() {
        let mut torn = TornSplits::default();
        let seen = view(&[(2, 500)]);
        let views = [Memory::of_process(&seen)];
        let mut now = at(0);
        let mut waits = Vec::new();
        for _ in 0..3 {
            torn.look(&views, now);
            let action = torn
                .plan(&views, |_| true, now, &mut EarliestTick::default())
                .remove(0);
            let errno = Errno::EINVAL;
            assert_eq!(
                torn.learn(&action, Effect::Failed { errno }, now),
                Some(Consequence::RegionWaits)
            );
            let mut due = EarliestTick::default();
            assert!(torn.plan(&views, |_| true, now, &mut due).is_empty());
            let next = due.get().unwrap();
            waits.push(next.since(now).as_millis());
            now = next;
        }
        assert_eq!(waits, [100, 200, 400]);
        torn.plan(&views, |_| true, now, &mut EarliestTick::default());
        let late = now.after(OUTCOME_TIMEOUT);
        assert_eq!(torn.look(&views, late).expired, 1);
        assert_eq!(torn.in_flight(), 0);
        // The history of a process that is gone is dropped.
        torn.look(&[], late);
        assert!(torn.tried.is_empty());
    }

    #[test]
    fn the_promoter_splits_them_first_and_keeps_the_account() {
        use crate::Scheme;
        use superhue_model::{ActionResult, Outcome, Plan, Snapshot};
        for scheme in [Scheme::resident(), Scheme::hot(), Scheme::always()] {
            let mut policy = scheme.policy();
            let mut snapshot = Snapshot::default();
            snapshot.put(view(&[(2, 500)]));
            let Plan { actions, .. } = policy.decide(&snapshot);
            assert!(matches!(actions[..], [Action::Split { .. }]));
            assert_eq!((policy.ledger().planned, policy.ledger().in_flight), (1, 1));
            let results = vec![ActionResult {
                action: actions[0],
                effect: Effect::Done,
                took: Duration::from_micros(50),
            }];
            policy.learn(Duration::from_millis(1), &Outcome { results });
            snapshot.put(view(&[]));
            snapshot.at = Duration::from_millis(100);
            assert!(policy.decide(&snapshot).actions.is_empty());
            let ledger = policy.ledger();
            assert_eq!((ledger.splits.done, ledger.in_flight), (1, 0));
            assert_eq!(ledger.returned, PageCount(500));
        }
    }

    #[test]
    fn splits_that_are_not_permitted_end_those_of_the_process() {
        use crate::Scheme;
        use superhue_model::{ActionResult, Outcome, Snapshot};
        for errno in [Errno::EPERM, Errno::EACCES, Errno::ENOSYS] {
            let mut policy = Scheme::resident().policy();
            let mut snapshot = Snapshot::default();
            snapshot.put(view(&[(2, 500)]));
            let actions = policy.decide(&snapshot).actions;
            assert_eq!(actions.len(), 1);
            let results = vec![ActionResult {
                action: actions[0],
                effect: Effect::Failed { errno },
                took: Duration::ZERO,
            }];
            policy.learn(snapshot.at, &Outcome { results });
            // Neither the same one nor another one of that process.
            snapshot.put(view(&[(2, 500), (8, 12)]));
            for minutes in 1..60 {
                snapshot.at = Duration::from_secs(60 * minutes);
                assert_eq!(policy.decide(&snapshot).actions, [], "{errno}");
                assert_eq!(policy.wants_look_within(), None, "{errno}");
            }
            // Another process may be one for which it is permitted.
            snapshot.put(ProcessView {
                id: ProcessId { pid: 8, ..ID },
                ..view(&[(2, 500)])
            });
            assert_eq!(policy.decide(&snapshot).actions.len(), 1, "{errno}");
        }
    }

    #[test]
    fn one_that_is_beyond_the_budget_too_is_split_once() {
        use crate::Scheme;
        use superhue_model::{
            ActionResult, Outcome, RegionView, Share, Snapshot, VirtRange, Vma, VmaKind,
        };
        let mut scheme = Scheme::always();
        scheme.quota.budget = Some(Share::BasisPoints(1000));
        let mut policy = scheme.policy();
        let mut snapshot = Snapshot::default();
        let mut decide = |ms: u64, used: u64, huge: bool, torn: &[(u64, u64)]| {
            let (start, end) = (VirtAddr(2 << 20), VirtAddr(4 << 20));
            snapshot.at = Duration::from_millis(ms);
            snapshot.put(ProcessView {
                vmas: vec![Vma {
                    range: VirtRange::new(start, end).unwrap(),
                    kind: VmaKind::Anonymous,
                    writable: true,
                }],
                regions: vec![RegionView {
                    region: Region::containing(start),
                    resident: PageCount(if huge { PAGES_PER_REGION } else { 400 }),
                    huge: Some(huge),
                }],
                rss_anon: Some(PageCount(used).bytes()),
                ..view(torn)
            });
            let actions = policy.decide(&snapshot).actions;
            let results = actions.iter().map(|&action| ActionResult {
                action,
                effect: Effect::Done,
                took: Duration::from_micros(50),
            });
            let results = results.collect();
            policy.learn(snapshot.at, &Outcome { results });
            actions
        };
        let collapsed = decide(0, 10_000, false, &[]);
        assert!(
            matches!(collapsed[..], [Action::Collapse { .. }]),
            "{collapsed:?}"
        );
        assert_eq!(decide(1000, 100, true, &[]), []);
        let split = decide(2500, 100, true, &[(2, 300)]);
        assert!(matches!(split[..], [Action::Split { .. }]), "{split:?}");
    }
}
