//! One watch for each rule that has processes, over reloads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue::live::{LiveWatch, Members, WatchAccount};
use superhue::{Config, stall_bound};
use superhue_procfs::Roots;

use crate::account::RuleAccount;
use crate::metrics::Seen;
use crate::rules::{Rule, RulePolicy};

/// Watches at a time: each is a thread, and tracks by itself.
const MOST_WATCHES: usize = 256;

/// How long after trouble a watch is tried again.
const AFTER_TROUBLE: Duration = Duration::from_secs(60);

/// The watches of all rules.
#[derive(Debug)]
pub(crate) struct Watches {
    roots: Roots,
    rules: Arc<[Rule]>,
    /// By the rule's name.
    kept: BTreeMap<Arc<str>, Kept>,
    /// Those that end: they may be in the middle of something, and nobody waits for them.
    ending: Vec<(Arc<str>, Numbered)>,
    /// What those that have ended had come to, until somebody takes note.
    ended: Vec<Seen>,
    /// Watches started so far.
    started: u64,
    paused: bool,
    max_overhead: f64,
}

/// What is kept of a rule that has or had processes.
#[derive(Debug, Default)]
struct Kept {
    placement: Option<RulePolicy>,
    processes: u64,
    members: Members,
    /// The watch has not been told of them.
    is_news: bool,
    watch: Option<Numbered>,
    /// Why there is no watch, and when it is tried again.
    trouble: Option<(String, Duration)>,
}

/// A watch that can be told from those before it.
#[derive(Debug)]
struct Numbered {
    number: u64,
    begun: Instant,
    watch: LiveWatch,
}

impl Numbered {
    fn seen(&self, rule: &Arc<str>) -> Seen {
        Seen {
            rule: rule.clone(),
            watch: self.number,
            account: self.watch.account(),
        }
    }
}

impl std::ops::Deref for Numbered {
    type Target = LiveWatch;

    fn deref(&self) -> &LiveWatch {
        &self.watch
    }
}

impl Watches {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            rules: Arc::new([]),
            kept: BTreeMap::new(),
            ending: Vec::new(),
            ended: Vec::new(),
            started: 0,
            paused: false,
            max_overhead: 1.0,
        }
    }

    /// The rules in force from now on. What is watched under a rule of the same name and with the same placement goes on, whatever its
    /// conditions are: heat is not forgotten.
    pub(crate) fn follow(&mut self, rules: Arc<[Rule]>, max_overhead: f64) {
        self.max_overhead = max_overhead;
        self.rules = rules;
        let wanted: BTreeMap<&str, &Option<RulePolicy>> = (self.rules.iter())
            .map(|rule| (&*rule.name, &rule.placement))
            .collect();
        let kept = std::mem::take(&mut self.kept);
        for (name, kept) in kept {
            if wanted.get(&*name) == Some(&&kept.placement) {
                self.kept.insert(name, kept);
            } else if let Some(watch) = kept.watch {
                watch.stop();
                self.ending.push((name, watch));
            }
        }
    }

    /// Says who belongs to which rule, by index.
    pub(crate) fn feed(&mut self, members: BTreeMap<usize, Members>, at: Duration) {
        let rules = Arc::clone(&self.rules);
        let mut seen = BTreeSet::new();
        for (index, members) in members {
            let Some(rule) = rules.get(index) else {
                continue;
            };
            seen.insert(rule.name.clone());
            // Said once: a rule may be about what starts many times a second.
            let begin = || {
                let processes = members.len();
                tracing::info!(rule = &*rule.name, processes, "has its first processes");
                Kept {
                    placement: rule.placement.clone(),
                    ..Kept::default()
                }
            };
            let kept = self.kept.entry(rule.name.clone()).or_insert_with(begin);
            kept.processes = members.len() as u64;
            kept.members = members;
            kept.is_news = true;
        }
        for (name, kept) in &mut self.kept {
            if !seen.contains(name) && kept.processes > 0 {
                tracing::debug!(rule = &**name, "has no process any more");
                kept.processes = 0;
                kept.members = Members::new();
                kept.is_news = true;
            }
        }
        self.tend(at);
    }

    /// Starts watches that are missing, tells all who belongs to them, and divides the ceiling among those that have processes.
    pub(crate) fn tend(&mut self, at: Duration) {
        let ended = &mut self.ended;
        self.ending.retain(|(name, watch)| {
            let has_ended = watch.has_ended();
            ended.extend(has_ended.then(|| watch.seen(name)));
            !has_ended
        });
        let mut running = self
            .kept
            .values()
            .filter(|kept| kept.watch.is_some())
            .count();
        for (name, kept) in &mut self.kept {
            self.ended.extend(kept.note_trouble(name, at));
            let Some(placement) = &kept.placement else {
                continue;
            };
            let may_start = (kept.trouble.as_ref()).is_none_or(|&(_, until)| at >= until);
            if kept.watch.is_none() && kept.processes > 0 && may_start {
                kept.trouble = None;
                let started = match running {
                    MOST_WATCHES.. => {
                        Err(format!("{MOST_WATCHES} rules have processes: merge some"))
                    }
                    _ => LiveWatch::start(&config(placement, &self.roots), name)
                        .map_err(|error| format!("cannot start a thread: {error}")),
                };
                match started {
                    Ok(watch) => {
                        watch.pause(self.paused);
                        kept.is_news = true;
                        self.started += 1;
                        kept.watch = Some(Numbered {
                            number: self.started,
                            begun: Instant::now(),
                            watch,
                        });
                        running += 1;
                    }
                    Err(text) => {
                        tracing::warn!(rule = &**name, text, "its processes are left alone");
                        kept.trouble = Some((text, at + AFTER_TROUBLE));
                    }
                }
            }
            if let Some(watch) = &kept.watch
                && std::mem::take(&mut kept.is_news)
            {
                watch.feed(kept.members.clone());
            }
        }
        self.divide();
    }

    /// Lets all watches together cost no more than the ceiling.
    fn divide(&self) {
        let active = |kept: &Kept| kept.processes > 0 && kept.watch.is_some();
        let shares = self.kept.values().filter(|kept| active(kept));
        let wanted: f64 = shares.filter_map(Kept::max_overhead).sum();
        let factor = if wanted > self.max_overhead {
            self.max_overhead / wanted
        } else {
            1.0
        };
        for kept in self.kept.values() {
            if let (Some(watch), Some(share)) = (&kept.watch, kept.max_overhead()) {
                watch.limit(share * factor);
            }
        }
    }

    pub(crate) fn pause(&mut self, paused: bool) {
        self.paused = paused;
        for watch in self.kept.values().filter_map(|kept| kept.watch.as_ref()) {
            watch.pause(paused);
        }
    }

    pub(crate) const fn is_paused(&self) -> bool {
        self.paused
    }

    /// The rules that have or had processes, in order.
    pub(crate) fn account(&self) -> Vec<RuleAccount> {
        let of_rule = |rule: &Rule| {
            let kept = self.kept.get(&rule.name)?;
            Some(RuleAccount {
                name: rule.name.to_string(),
                off: kept.placement.is_none(),
                processes: kept.processes,
                watch: kept.account(),
            })
        };
        self.rules.iter().filter_map(of_rule).collect()
    }

    /// What all watches have come to, those that end included.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let ending = self.ending.iter().map(|(name, watch)| watch.seen(name));
        let kept = self.kept.iter();
        let running = kept.filter_map(|(name, kept)| Some(kept.watch.as_ref()?.seen(name)));
        ending.chain(running).collect()
    }

    /// What watches had come to that have ended since this was asked last.
    pub(crate) fn take_ended(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.ended)
    }

    /// For how long the watch of each rule of [`Self::account`] has said nothing new.
    pub(crate) fn ages(&self) -> Vec<Option<Duration>> {
        let rules = self.rules.iter();
        let kept = rules.filter_map(|rule| self.kept.get(&rule.name));
        kept.map(Kept::age).collect()
    }

    /// What the watch of a rule says, and how many processes it has.
    pub(crate) fn of(&self, name: &str) -> (u64, Option<Arc<WatchAccount>>) {
        let kept = self.kept.get(name);
        kept.map_or((0, None), |kept| (kept.processes, kept.account()))
    }
}

impl Kept {
    fn max_overhead(&self) -> Option<f64> {
        Some(self.placement.as_ref()?.max_overhead)
    }

    /// Takes note of a watch that has ended, which it does only if there was trouble.
    fn note_trouble(&mut self, name: &Arc<str>, at: Duration) -> Option<Seen> {
        let watch = self.watch.take_if(|watch| watch.has_ended())?;
        let text = watch.account().trouble.clone();
        let text = text.unwrap_or_else(|| "its watch has ended unexpectedly".to_owned());
        self.trouble = Some((text, at + AFTER_TROUBLE));
        Some(watch.seen(name))
    }

    /// `None` without a watch, and before it has said anything.
    fn age(&self) -> Option<Duration> {
        let watch = self.watch.as_ref().filter(|_| self.processes > 0)?;
        let said = Duration::try_from_secs_f64(watch.account().at_seconds).ok()?;
        Some(watch.begun.elapsed().saturating_sub(said))
    }

    fn account(&self) -> Option<Arc<WatchAccount>> {
        match (&self.watch, &self.trouble) {
            (Some(watch), _) => Some(watch.account()),
            (None, Some((text, _))) => Some(Arc::new(WatchAccount {
                trouble: Some(text.clone()),
                ..WatchAccount::default()
            })),
            (None, None) => None,
        }
    }
}

/// What a watch is to do.
pub(crate) fn config(placement: &RulePolicy, roots: &Roots) -> Config {
    Config {
        pages: placement.pages,
        budget: placement.budget,
        max_overhead: placement.max_overhead,
        max_stall: Some(placement.max_stall)
            .filter(|bound| !bound.is_zero())
            .map(stall_bound),
        colors: placement.colors.clone(),
        swap: placement.swap,
        roots: roots.clone(),
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use superhue::Pages;
    use superhue_model::ProcessId;

    use super::*;
    use crate::rules::Conditions;

    const NOW: Duration = Duration::from_secs(1);

    fn rule(name: &str, pages: Option<Pages>) -> Rule {
        Rule {
            name: name.into(),
            place: String::new(),
            conditions: Conditions::default(),
            placement: pages.map(|pages| RulePolicy {
                pages: Some(pages),
                ..RulePolicy::default()
            }),
        }
    }

    fn members() -> Members {
        let nobody = ProcessId {
            pid: u32::MAX >> 1,
            start_ticks: 1,
        };
        [(nobody, "a.service".into())].into()
    }

    fn watches(rules: Vec<Rule>) -> Watches {
        let mut watches = Watches::new(&Roots::default());
        watches.follow(rules.into(), 0.01);
        watches
    }

    #[test]
    fn rules_have_watches_only_while_they_are_worth_it() {
        let off = rule("off", None);
        let mut watches = watches(vec![rule("a", Some(Pages::Kernel)), off]);
        assert!(watches.account().is_empty(), "nobody has any process");
        watches.feed([(0, members()), (1, members())].into(), NOW);
        let account = watches.account();
        assert_eq!(account.len(), 2);
        assert!(account[0].watch.is_some() && !account[0].off);
        assert!(account[1].watch.is_none() && account[1].off);
        watches.feed(BTreeMap::new(), NOW);
        assert_eq!(watches.account()[0].processes, 0);
    }

    #[test]
    fn a_reload_keeps_the_watches_of_rules_that_stay() {
        let rules = ["a", "b", "c"].map(|name| rule(name, Some(Pages::Kernel)));
        let mut watches = watches(rules.to_vec());
        let all = || (0..3).map(|index| (index, members())).collect();
        watches.feed(all(), NOW);
        let watch =
            |watches: &Watches, name: &str| Some(watches.kept.get(name)?.watch.as_ref()?.number);
        let before = watch(&watches, "a");
        assert!(before.is_some());
        let mut rules = rules.to_vec();
        // Other conditions, another place, another placement, gone.
        rules[0].conditions.unit = Some(glob::Pattern::new("x").unwrap());
        rules[1].placement.as_mut().unwrap().pages = Some(Pages::Resident);
        rules.swap(0, 1);
        rules.truncate(2);
        watches.follow(rules.into(), 0.01);
        assert_eq!(watch(&watches, "a"), before);
        assert_eq!([watch(&watches, "b"), watch(&watches, "c")], [None, None]);
        assert_eq!(watches.ending.len(), 2);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !watches.ending.is_empty() {
            assert!(Instant::now() < deadline);
            watches.tend(NOW);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn the_ceiling_is_divided_among_those_that_have_processes() {
        let rules = ["a", "b", "c"].map(|name| rule(name, Some(Pages::Kernel)));
        let mut watches = watches(rules.to_vec());
        watches.feed([(0, members()), (1, members())].into(), NOW);
        let wait = |watches: &Watches, name: &str, expected: f64| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while (watches.of(name).1.unwrap().own.max_overhead - expected).abs() > 1e-12 {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        // Two of 1 % each may cost 1 % together.
        wait(&watches, "a", 0.005);
        wait(&watches, "b", 0.005);
        watches.feed([(1, members())].into(), NOW);
        wait(&watches, "b", 0.01);
    }

    #[test]
    fn a_watch_in_trouble_is_told_and_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        std::fs::create_dir(&roots.proc).unwrap();
        std::os::unix::fs::symlink("0", roots.proc.join("self")).unwrap();
        let mut watches = Watches::new(&roots);
        watches.follow([rule("a", Some(Pages::Kernel))].into(), 0.01);
        watches.feed([(0, members())].into(), NOW);
        let deadline = Instant::now() + Duration::from_secs(60);
        while watches.kept["a"].trouble.is_none() {
            assert!(Instant::now() < deadline);
            watches.tend(NOW);
        }
        assert!(watches.of("a").1.unwrap().trouble.is_some());
        watches.tend(NOW + AFTER_TROUBLE);
        assert!(watches.kept["a"].trouble.is_none(), "tried again");
    }
}
