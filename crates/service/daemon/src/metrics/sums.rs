//! Counters that never go back, made from accounts that start over with every watch.
//!
//! ```text
//!   watch 1 of a rule   0 ... 7
//!   watch 2, after a reload     0 ... 3          the gains since the last look are added:
//!   the rule            0 ... 7 ... 10
//! ```
//!
//! A limited number of services have series of their own, the largest first. Gains of the others go to [`OTHER`], at the time of the gain. So no
//! series goes back when a service gets one of its own, or loses it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use superhue::live::{LiveMemory, ServiceAccount, WatchAccount};

use super::families::Id;

/// Name of the sum of services without series of their own. No unit and no cgroup has this name.
pub(super) const OTHER: &str = "other";

/// A service keeps its series until another one is larger by this factor.
const LARGER: f64 = 1.25;

/// Number of rules beyond which sums of rules that are no longer in force are forgotten; until then such a rule may come back.
const KEPT_RULES: usize = 1024;

/// State of a rule's watch. Each watch has a number of its own.
#[derive(Debug, Clone)]
pub(crate) struct WatchSample {
    pub(crate) rule: Arc<str>,
    pub(crate) watch: u64,
    pub(crate) account: Arc<WatchAccount>,
}

/// A counter of a rule, and the label that distinguishes it within its family.
pub(super) type Counter = (Id, String);

/// The counters of a service, in the order of [`SERVICE_COUNTERS`].
pub(super) type ServiceCounters = [f64; SERVICE_COUNTERS.len()];

/// The families of services that are counters.
pub(super) const SERVICE_COUNTERS: [Id; 6] = [
    Id::ServiceCollapses,
    Id::ServiceCollapsesFailed,
    Id::ServiceCollapsesSkipped,
    Id::ServiceSplits,
    Id::ServiceStall,
    Id::ServiceAdded,
];

/// Sums of all rules since the daemon's start.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    rules: BTreeMap<Arc<str>, RuleSums>,
    /// Rules and services that have series of their own.
    apart: BTreeSet<(Arc<str>, String)>,
    /// Sums of rules that were forgotten, which are still part of sums over all.
    gone: BTreeMap<Counter, f64>,
    round: u64,
}

/// Sums of one rule.
#[derive(Debug, Default)]
pub(super) struct RuleSums {
    /// The last values of its watches.
    seen: Vec<(u64, CounterValues)>,
    /// Counters of the rule, summed up over its watches.
    pub(super) told: BTreeMap<Counter, f64>,
    /// Counters of its services that have or had series of their own, and the last round in which they had.
    services: BTreeMap<String, (ServiceCounters, u64)>,
    /// Counters of all other services together.
    other: ServiceCounters,
    last_seen: u64,
}

#[derive(Debug, Default)]
struct CounterValues {
    rule: BTreeMap<Counter, f64>,
    services: BTreeMap<String, ServiceCounters>,
}

/// Values of a service for the page.
#[derive(Debug, PartialEq)]
pub(super) struct ServiceValues<'a> {
    pub(super) service: &'a str,
    pub(super) counters: ServiceCounters,
    pub(super) memory: LiveMemory,
}

impl Sums {
    /// Adds the gains since the last look; at most `services` have series of their own from now on.
    pub(crate) fn look(&mut self, all: &[WatchSample], services: usize) {
        self.round += 1;
        self.choose(all, services);
        for seen in all {
            let sums = self.rules.entry(seen.rule.clone()).or_default();
            sums.last_seen = self.round;
            sums.look(seen, &self.apart, self.round);
        }
        for sums in self.rules.values_mut() {
            let is_there = |watch: u64| all.iter().any(|seen| seen.watch == watch);
            sums.seen.retain(|(watch, _)| is_there(*watch));
        }
        self.forget(services);
    }

    /// Adds the last gains of watches that have ended.
    pub(crate) fn bury(&mut self, ended: &[WatchSample]) {
        for seen in ended {
            let sums = self.rules.entry(seen.rule.clone()).or_default();
            sums.look(seen, &self.apart, self.round);
            sums.seen.retain(|(watch, _)| *watch != seen.watch);
        }
    }

    /// Returns the sums of a rule.
    pub(super) fn of(&self, rule: &str) -> Option<&RuleSums> {
        self.rules.get(rule)
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &RuleSums> {
        self.rules.values()
    }

    /// Returns the sum of rules that were forgotten.
    pub(super) fn gone(&self, counter: &Counter) -> f64 {
        self.gone.get(counter).copied().unwrap_or_default()
    }

    /// Returns the services of a rule's account that have series of their own, then the others together if there are any.
    pub(super) fn services<'a>(
        &'a self,
        rule: &str,
        account: &'a WatchAccount,
    ) -> Vec<ServiceValues<'a>> {
        let Some(sums) = self.rules.get(rule) else {
            return Vec::new();
        };
        let mut told = Vec::new();
        let mut others = account.memory;
        let mut is_other = account.services.len() >= superhue::live::SERVICES_LISTED;
        for (service, now) in &account.services {
            match sums.services.get(service) {
                Some((counters, round)) if *round == self.round => {
                    subtract(&mut others, &now.memory);
                    told.push(ServiceValues {
                        service,
                        counters: *counters,
                        memory: now.memory,
                    });
                }
                _ => is_other = true,
            }
        }
        // A series that was served once stays: a counter does not come and go.
        if is_other || sums.other.iter().any(|&counter| counter > 0.0) {
            told.push(ServiceValues {
                service: OTHER,
                counters: sums.other,
                memory: others,
            });
        }
        told
    }

    /// Chooses the services with series of their own: the largest, and of about equals those that had them.
    #[allow(clippy::cast_precision_loss, reason = "only compared")]
    fn choose(&mut self, all: &[WatchSample], most: usize) {
        let count: usize = all.iter().map(|seen| seen.account.services.len()).sum();
        let mut ranked = Vec::with_capacity(count);
        for seen in all {
            for (service, now) in &seen.account.services {
                let key = (seen.rule.clone(), service.clone());
                let had = self.apart.contains(&key);
                let size = now.memory.resident_bytes.0 as f64 + 1.0;
                ranked.push((if had { size * LARGER } else { size }, key));
            }
        }
        ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        // A watch that ends and the one that follows it may both have the service.
        self.apart.clear();
        for (_, key) in ranked {
            if self.apart.len() >= most {
                break;
            }
            self.apart.insert(key);
        }
    }

    /// Bounds the state of services and rules that are gone.
    fn forget(&mut self, services: usize) {
        let round = self.round;
        let kept: usize = self.rules.values().map(|sums| sums.services.len()).sum();
        if kept > 2 * services.max(1) {
            let mut rounds: Vec<u64> = (self.rules.values())
                .flat_map(|sums| sums.services.values().map(|(_, round)| *round))
                .filter(|&told| told != round)
                .collect();
            rounds.sort_unstable();
            // The half that was served longest ago.
            let until = rounds.get(rounds.len() / 2).copied().unwrap_or_default();
            for sums in self.rules.values_mut() {
                sums.services
                    .retain(|_, (_, told)| *told == round || *told > until);
            }
        }
        while self.rules.len() > KEPT_RULES {
            let oldest = self.rules.iter().min_by_key(|(_, sums)| sums.last_seen);
            let oldest = oldest.map(|(name, sums)| (name.clone(), sums.last_seen));
            let Some((name, _)) = oldest.filter(|&(_, last)| last < round) else {
                return;
            };
            let told = self.rules.remove(&name).map(|sums| sums.told);
            for (counter, value) in told.unwrap_or_default() {
                // Other counters have labels of their own, and would pile up.
                if counter.0 == Id::RuleCpu {
                    *self.gone.entry(counter).or_default() += value;
                }
            }
        }
    }
}

impl RuleSums {
    fn look(&mut self, seen: &WatchSample, apart: &BTreeSet<(Arc<str>, String)>, round: u64) {
        let index = match self.seen.iter().position(|(watch, _)| *watch == seen.watch) {
            Some(index) => index,
            None => {
                self.seen.push((seen.watch, CounterValues::default()));
                self.seen.len() - 1
            }
        };
        let Some((_, last)) = self.seen.get_mut(index) else {
            return;
        };
        for (counter, now) in counters(&seen.account) {
            // Some are differences of two clocks, which may fall by a little.
            let highest = last.rule.entry(counter.clone()).or_default();
            *self.told.entry(counter).or_default() += (now - *highest).max(0.0);
            *highest = highest.max(now);
        }
        let mut known = BTreeMap::new();
        for (service, account) in &seen.account.services {
            let now = of_service(account);
            let before = last.services.get(service).copied().unwrap_or_default();
            let is_apart = apart.contains(&(seen.rule.clone(), service.clone()));
            let sums = if is_apart {
                let (sums, told) = self.services.entry(service.clone()).or_default();
                *told = round;
                sums
            } else {
                &mut self.other
            };
            for ((sum, before), now) in sums.iter_mut().zip(before).zip(now) {
                *sum += gain(before, now);
            }
            known.insert(service.clone(), now);
        }
        last.services = known;
    }
}

/// Returns the gain of a service. If it has less than before, its watch forgot it meanwhile, and it has started over.
fn gain(before: f64, now: f64) -> f64 {
    if now >= before { now - before } else { now }
}

/// Subtracts the memory of one service.
fn subtract(all: &mut LiveMemory, one: &LiveMemory) {
    all.processes = all.processes.saturating_sub(one.processes);
    let less = |all: &mut superhue_model::ByteCount, one: superhue_model::ByteCount| {
        all.0 = all.0.saturating_sub(one.0);
    };
    less(&mut all.resident_bytes, one.resident_bytes);
    less(&mut all.anonymous_bytes, one.anonymous_bytes);
    if one.processes > 0 {
        for (all, one) in [
            (&mut all.huge_bytes, one.huge_bytes),
            (&mut all.held_bytes, one.held_bytes),
        ] {
            *all = all.zip(one).map(|(mut all, one)| {
                less(&mut all, one);
                all
            });
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "exact below 2^53")]
fn of_service(account: &ServiceAccount) -> ServiceCounters {
    let actions = &account.actions;
    [
        actions.collapses_done as f64,
        actions.collapses_failed as f64,
        actions.collapses_skipped as f64,
        actions.splits_done as f64,
        actions.collapsing_seconds,
        actions.growth_bytes.0 as f64,
    ]
}

/// The bound of a bucket that has none.
pub(super) const UNBOUNDED: &str = "+Inf";

/// Returns all values of an account that only grow as long as its watch lasts.
#[allow(clippy::cast_precision_loss, reason = "exact below 2^53")]
fn counters(account: &WatchAccount) -> Vec<(Counter, f64)> {
    let mut all = Vec::new();
    let mut put = |id, what: &str, value: f64| all.push(((id, what.to_owned()), value));
    let (collapses, splits) = (&account.collapses, &account.splits);
    put(Id::RuleProcessesSeen, "", account.processes_seen as f64);
    put(Id::RuleDenied, "", account.processes_denied as f64);
    put(Id::RuleCollapses, "", collapses.done as f64);
    put(Id::RuleSplits, "", splits.done as f64);
    for (id, counts) in [
        (Id::RuleCollapsesFailed, &collapses.failed),
        (Id::RuleCollapsesSkipped, &collapses.skipped),
        (Id::RuleSplitsFailed, &splits.failed),
    ] {
        counts
            .iter()
            .for_each(|(reason, &count)| put(id, reason, count as f64));
    }
    put(Id::RuleCollapseTime, "", collapses.seconds);
    for bucket in &collapses.buckets {
        let bound = bucket.at_most_seconds;
        let bound = bound.map_or(UNBOUNDED.to_owned(), |bound| bound.to_string());
        put(Id::RuleCollapseTime, &bound, bucket.count as f64);
    }
    put(Id::RuleAdded, "", account.growth_bytes.0 as f64);
    let stalls = &account.stalls;
    put(Id::RuleStall, "collapse", stalls.collapsing_seconds);
    put(Id::RuleStall, "tracking", stalls.tracking_seconds);
    if let Some(colors) = &account.colors {
        put(Id::RuleColorPages, "", colors.recolored_pages as f64);
    }
    let own = &account.own;
    put(Id::RuleCpu, "tracking", own.tracking_seconds);
    put(Id::RuleCpu, "acting", own.acting_seconds);
    let watching = (own.watching_seconds - own.tracking_seconds).max(0.0);
    put(Id::RuleCpu, "watching", watching);
    put(Id::RuleLooks, "full", own.full_looks as f64);
    let quick = own.looks.saturating_sub(own.full_looks);
    put(Id::RuleLooks, "quick", quick as f64);
    all
}

#[cfg(test)]
mod tests {
    use superhue_model::ByteCount;

    use super::*;

    fn seen(watch: u64, collapses: u64, services: &[(&str, u64, u64)]) -> WatchSample {
        let mut account = WatchAccount::default();
        account.collapses.done = collapses;
        for &(name, mebibytes, done) in services {
            let mut service = ServiceAccount::default();
            service.memory.processes = 1;
            service.memory.resident_bytes = ByteCount(mebibytes << 20);
            service.actions.collapses_done = done;
            account.memory.processes += 1;
            account.memory.resident_bytes += service.memory.resident_bytes;
            account.services.insert(name.to_owned(), service);
        }
        WatchSample {
            rule: "r".into(),
            watch,
            account: Arc::new(account),
        }
    }

    fn collapses(sums: &Sums) -> f64 {
        sums.of("r").unwrap().told[&(Id::RuleCollapses, String::new())]
    }

    /// Returns collapses and MiB of each service on the page.
    fn told(sums: &Sums, seen: &WatchSample) -> Vec<(String, f64, u64)> {
        let told = sums.services("r", &seen.account);
        told.iter()
            .map(|it| {
                let mebibytes = it.memory.resident_bytes.0 >> 20;
                (it.service.to_owned(), it.counters[0], mebibytes)
            })
            .collect()
    }

    fn line(service: &str, collapses: f64, mebibytes: u64) -> (String, f64, u64) {
        (service.to_owned(), collapses, mebibytes)
    }

    #[test]
    fn counters_do_not_go_back_when_a_watch_begins_anew() {
        let mut sums = Sums::default();
        let mut before = 0.0;
        // At its first look, watch 2 has more than watch 1 had; watch 1 continues for a while.
        for (all, expected) in [
            (vec![seen(1, 5, &[])], 5.0),
            (vec![seen(1, 7, &[])], 7.0),
            (vec![seen(1, 8, &[]), seen(2, 20, &[])], 28.0),
            (vec![seen(1, 9, &[]), seen(2, 20, &[])], 29.0),
            (vec![seen(2, 21, &[])], 30.0),
            (vec![], 30.0),
            (vec![seen(3, 1, &[])], 31.0),
        ] {
            sums.look(&all, 10);
            assert_eq!(collapses(&sums), expected);
            assert!(expected >= before);
            before = expected;
        }
        // Its end counts though there was no look in between, and only once.
        sums.bury(&[seen(3, 4, &[])]);
        assert_eq!(collapses(&sums), 34.0);
        sums.bury(&[seen(4, 6, &[("a", 1, 6)])]);
        assert_eq!(collapses(&sums), 40.0);
    }

    #[test]
    fn the_largest_services_are_told_apart_and_no_gain_is_told_twice() {
        let mut sums = Sums::default();
        let now = seen(1, 0, &[("big", 100, 4), ("mid", 50, 2), ("small", 1, 1)]);
        sums.look(std::slice::from_ref(&now), 2);
        let expected = [
            line("big", 4.0, 100),
            line("mid", 2.0, 50),
            line(OTHER, 1.0, 1),
        ];
        assert_eq!(told(&sums, &now), expected);
        // A little larger is not enough.
        let now = seen(1, 0, &[("big", 100, 4), ("mid", 50, 3), ("small", 60, 2)]);
        sums.look(std::slice::from_ref(&now), 2);
        let expected = [
            line("big", 4.0, 100),
            line("mid", 3.0, 50),
            line(OTHER, 2.0, 60),
        ];
        assert_eq!(told(&sums, &now), expected);
        // Now it has a series of its own, which begins with what it gains from here on.
        let now = seen(1, 0, &[("big", 100, 4), ("mid", 50, 5), ("small", 90, 9)]);
        sums.look(std::slice::from_ref(&now), 2);
        let expected = [
            line("big", 4.0, 100),
            line("small", 7.0, 90),
            line(OTHER, 4.0, 50),
        ];
        assert_eq!(told(&sums, &now), expected);
        // And `mid` continues at its old value when it comes back.
        let now = seen(1, 0, &[("big", 100, 4), ("mid", 500, 6), ("small", 90, 9)]);
        sums.look(std::slice::from_ref(&now), 2);
        let expected = [
            line("big", 4.0, 100),
            line("mid", 4.0, 500),
            line(OTHER, 4.0, 90),
        ];
        assert_eq!(told(&sums, &now), expected);
        // No service has a series of its own.
        sums.look(std::slice::from_ref(&now), 0);
        assert_eq!(told(&sums, &now), [line(OTHER, 4.0, 690)]);
    }

    #[test]
    fn services_and_rules_that_come_and_go_do_not_pile_up() {
        let mut sums = Sums::default();
        let mut all = 0.0;
        for number in 0..5000_u64 {
            let name = format!("job-{number}");
            let mut now = seen(number, 1, &[("lasting", 9, number + 1), (&name, 1, 1)]);
            sums.look(std::slice::from_ref(&now), 4);
            all = told(&sums, &now)[1].1;
            assert!(sums.of("r").unwrap().services.len() <= 9);
            now.rule = format!("rule-{number}").into();
            Arc::make_mut(&mut now.account).own.watching_seconds = 1.0;
            sums.bury(&[now]);
        }
        assert!(sums.rules.len() <= KEPT_RULES + 1, "{}", sums.rules.len());
        assert!(all > 0.0);
        let part = (Id::RuleCpu, "watching".to_owned());
        let kept: f64 = sums.rules().filter_map(|rule| rule.told.get(&part)).sum();
        assert_eq!(
            kept + sums.gone(&part),
            5000.0,
            "what it all took is not forgotten"
        );
        assert_eq!(sums.gone.len(), 3);
    }

    #[test]
    fn clocks_that_fall_back_do_not_count_twice() {
        let mut sums = Sums::default();
        let mut now = seen(1, 0, &[]);
        for (cpu, expected) in [(2.0, 2.0), (1.999, 2.0), (2.5, 2.5)] {
            Arc::make_mut(&mut now.account).own.watching_seconds = cpu;
            sums.look(std::slice::from_ref(&now), 1);
            let part = (Id::RuleCpu, "watching".to_owned());
            assert!((sums.of("r").unwrap().told[&part] - expected).abs() < 1e-12);
        }
    }
}
