//! Answers to requests of `superhue ctl` and Prometheus.

use std::sync::Arc;

use superhue_procfs::system::ThpCounters;
use superhue_procfs::system::thp::folio_bytes;

use super::{ACCOUNT_AT_MOST, Daemon};
use crate::account::{DaemonAccount, RuleAccount, TrialAccount};
use crate::clients::Requester;
use crate::ctl::{
    Answer, Answers, HeldRule, LEASE, LONGEST_ANSWER, PassedRule, Request, RuleSummary, Why,
};
use crate::metrics::{Format, MetricsInputs};
use crate::roster::Facts;
use crate::rules::{GroupFacts, Rule, mismatch};
use crate::workers::{ReadOneError, read_one};

/// Rules that `why` lists before the one that holds.
const PASSED_LISTED: usize = 100;

impl Daemon {
    /// Holds a rule for a client, or extends its hold.
    pub(super) fn hold(&mut self, from: Requester, name: &str) -> Answer {
        let processes = |name: &str| self.watches.of(name).0;
        let rule = match self.holds.take(from, name, &self.rules, processes) {
            Ok(rule) => rule,
            Err(text) => return Answer::Refused { text },
        };
        self.watches.hold(self.holds.names());
        let processes = self.watches.processes(name);
        Answer::Held(HeldRule {
            rule: RuleSummary::of(&rule, Some(self.watches.of(name).0)),
            policy: rule.placement.unwrap_or_default(),
            processes,
            lease_seconds: LEASE.as_secs(),
            paused: self.watches.is_paused(),
        })
    }

    /// Keeps the result of a trial of the rule that a client holds.
    fn trial_ended(
        &mut self,
        from: Requester,
        name: &str,
        trial: TrialAccount,
    ) -> Result<String, String> {
        let rule = self.holds.held_by(from.client, name)?;
        tracing::info!(rule = name, conclusion = trial.conclusion.name(), "tried");
        let kept = self.trials.keep(&rule, trial);
        self.outdate();
        kept?;
        Ok(format!("the result of the trial is kept with rule {name}"))
    }

    pub(super) fn status(&mut self) -> Answer {
        self.asked = self.now();
        if self.now().saturating_sub(self.told) >= ACCOUNT_AT_MOST {
            self.publish();
        }
        let mut status = DaemonAccount::clone(&self.handle.latest());
        bound(&mut status.rules);
        let status = Box::new(status);
        Answer::Status { status }
    }

    /// Returns the metrics, at most a second old.
    pub(super) fn metrics(&mut self, format: Format) -> Arc<str> {
        let at = self.now();
        self.asked = at;
        if self.pages.is_old(at) {
            self.publish();
            let account = self.handle.latest();
            let kernel = ThpCounters::read(&self.options.roots).ok();
            let folios = folio_bytes(&self.options.roots);
            let ages = self.watches.ages();
            let beside = MetricsInputs {
                started: self.started,
                loaded: self.loaded,
                ages: &ages,
                kernel: kernel.as_ref(),
                folios: &folios,
            };
            self.pages.sums.bury(&self.watches.take_ended());
            let seen = (&self.watches.seen()[..], self.metrics_services);
            self.pages.make(at, &account, &beside, seen);
        }
        self.pages.text(format)
    }

    fn why(&mut self, pid: u32) -> Answer {
        let at = self.now();
        let found = match self.roster.avoids(pid, at) {
            true => Err(ReadOneError::HeldUp),
            false => read_one(&mut self.reader, pid),
        };
        let found = match found {
            Ok(found) if found.user.is_some() => found,
            Ok(_) => {
                let text = format!("there is no process {pid} (or it may not be looked at)");
                return Answer::Refused { text };
            }
            Err(error) => {
                if error == ReadOneError::HeldUp {
                    self.roster.avoid(pid, self.now());
                }
                let text = format!("process {pid}: {error}");
                return Answer::Refused { text };
            }
        };
        let mut cgroup = found.cgroup.clone();
        // In a container the kernel gives the path relative to our own cgroup (`cgroup_namespaces(7)`), which leads nowhere here.
        if cgroup.as_ref().is_some_and(|path| path.starts_with("/..")) {
            cgroup = self.roster.find(pid).or(cgroup);
        }
        let group = GroupFacts::new(cgroup.as_deref().unwrap_or("/")).with_pods(self.roster.pods());
        let mut facts = Facts::of(&found);
        let mut passed = Vec::new();
        let mut holding = None;
        for rule in self.rules.iter() {
            match mismatch(rule, &group, &mut facts) {
                None => {
                    holding = Some(rule);
                    break;
                }
                Some(because) => {
                    passed.push(PassedRule {
                        rule: rule.name.to_string(),
                        because: because.describe().to_owned(),
                    });
                    if because.is_undecided() {
                        break;
                    }
                }
            }
        }
        let unlisted = passed.len().saturating_sub(PASSED_LISTED);
        let account = holding.and_then(|rule| self.watches.of(&rule.name).1);
        let watched = holding.is_some_and(|rule| self.watches.has(&rule.name, pid));
        let nobody = "no rule is about it: it is left alone".to_owned();
        Answer::Why(Why {
            pid,
            cgroup,
            rule: holding.map(|rule| rule.name.to_string()),
            placement: holding.map_or(nobody, Rule::placed),
            watched,
            trouble: account.and_then(|account| account.trouble.clone()),
            passed: passed.split_off(unlisted),
            passed_unlisted: unlisted as u64,
        })
    }
}

impl Answers for Daemon {
    fn answer(&mut self, from: Requester, request: Request) -> Answer {
        let done = |result| match result {
            Ok(text) => Answer::Done { text },
            Err(text) => Answer::Refused { text },
        };
        match request {
            Request::Status => self.status(),
            Request::Rules => Answer::Rules {
                rules: (self.rules.iter())
                    .map(|rule| RuleSummary::of(rule, Some(self.watches.of(&rule.name).0)))
                    .collect(),
            },
            Request::Why { pid } => self.why(pid),
            Request::Metrics { format } => match self.metrics(format) {
                // The text is longer as JSON.
                text if text.len() > LONGEST_ANSWER / 2 => Answer::Refused {
                    text: "the metrics are too long for this socket: lower metrics-services, or have them served \
                           (metrics = \"127.0.0.1:9119\")"
                        .to_owned(),
                },
                text => Answer::Metrics {
                    text: text.to_string(),
                },
            },
            Request::Pause => done(self.pause(true)),
            Request::Resume => done(self.pause(false)),
            Request::Reload => done(self.reload()),
            Request::Hold { rule } => self.hold(from, &rule),
            Request::TrialEnded { rule, trial } => done(self.trial_ended(from, &rule, trial)),
        }
    }

    fn ended(&mut self, client: u64) {
        if self.holds.end(client) {
            self.watches.hold(self.holds.names());
        }
    }
}

/// Keeps the account of rules within an answer: drops single processes first, then services.
pub(super) fn bound(rules: &mut [RuleAccount]) {
    // Bytes of one entry as JSON: rough upper bounds.
    const PROCESS: usize = 600;
    const SERVICE: usize = 1600;
    let count = |rules: &[RuleAccount], of: fn(&superhue::live::WatchAccount) -> usize| -> usize {
        let watches = rules.iter().filter_map(|rule| rule.watch.as_deref());
        watches.map(of).sum()
    };
    let strip = |rules: &mut [RuleAccount], services: bool| {
        for rule in rules {
            if services {
                rule.converged_seconds.clear();
            }
            if let Some(watch) = &mut rule.watch {
                let watch = Arc::make_mut(watch);
                watch.processes.clear();
                if services {
                    watch.services.clear();
                }
            }
        }
    };
    let half = LONGEST_ANSWER / 2;
    let services = count(rules, |watch| watch.services.len()) * SERVICE;
    if services + count(rules, |watch| watch.processes.len()) * PROCESS > half {
        strip(rules, services > half);
    }
}
