//! `superhue ctl trial`: `superhue trial` on the processes of a rule, which the daemon leaves alone meanwhile.
//!
//! The connection holds the rule. It ends with the trial: after a verdict, when the daemon has received the result, after an error or a signal, and with
//! this process if it is killed.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use superhue::model::ColorRequest;
use superhue::procfs::Roots;
use superhue::procfs::process::still_is;
use superhue::trial::{RuleProcesses, TrialPlan, TrialTargets};
use superhue::{Config, Pages};
use superhue_daemon::account::{MAX_METRIC_CHARS, TrialAccount, TrialConclusion};
use superhue_daemon::config_of;
use superhue_daemon::ctl::{HeldRule, HoldError, RuleHold};
use superhue_measure::Better;
use superhue_measure::trial::{Trial, TrialOutcome};

use crate::output::{FAILED, Failure, UNABLE, USAGE, VerbResult, note};
use crate::trial_args::RuleTrialArgs;
use crate::utc;
use crate::verb::trial::{code_of_outcome, conduct, plan, show};

use super::code_of;

/// Rights that are missing if superhue may not act.
const RIGHTS: &str = "the trial switches the memory by itself, not through the daemon: it needs CAP_SYS_NICE, and CAP_SYS_PTRACE for processes of \
                      other users; run it as root";

/// Measures whether a rule is worth it.
pub(super) fn trial(args: &RuleTrialArgs, socket: &Path, json: bool) -> VerbResult {
    let usage = |text| Failure::new(USAGE, text);
    // Options that do not fit together show first, before the daemon leaves the rule alone.
    plan(&args.options, Config::default()).map_err(usage)?;
    let hold = RuleHold::take(socket, &args.rule, Instant::now()).map_err(failure)?;
    let rule = hold.rule().rule.clone();
    let roots = Roots::default();
    let config = config_in(hold.rule(), &roots)?;
    if hold.rule().paused {
        note(
            "the daemon is paused: it does not act by the rule after the trial either (superhue ctl resume)",
        );
    }
    let hold = SharedHold::new(hold);
    let plan = TrialPlan {
        targets: TrialTargets::Rule(hold.processes(&rule.name)),
        present: true,
        ..plan(&args.options, config).map_err(usage)?
    };
    let (trial, written) = conduct(plan, &args.options).inspect_err(|failure| {
        if failure.code == UNABLE.into() {
            note(RIGHTS);
        }
    })?;
    // Before anything is printed: a reader of the output that stops must not hold the rule.
    if let Err(error) = hold.finish(account(&trial)) {
        note(&format!("the daemon does not keep the result: {error}"));
    }
    show(&trial, json, |trial| advice(trial, &rule.name, &rule.place))?;
    let code = code_of_outcome(&trial, json);
    written.map(|()| code)
}

/// The connection that holds the rule, for the trial's search for processes and for the result at the end.
#[derive(Clone)]
struct SharedHold(Arc<Mutex<Option<RuleHold>>>);

impl SharedHold {
    fn new(hold: RuleHold) -> Self {
        Self(Arc::new(Mutex::new(Some(hold))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<RuleHold>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the processes that the daemon names, for as long as it leaves them alone.
    fn processes(&self, rule: &str) -> RuleProcesses {
        let hold = self.clone();
        RuleProcesses::new(rule, move || match hold.lock().as_mut() {
            Some(hold) => {
                let held = hold.keep(Instant::now());
                Ok(held.map_err(|error| error.to_string())?.processes.clone())
            }
            None => Err("the trial has ended".to_owned()),
        })
    }

    /// Ends the hold. The daemon keeps the result, if there is one.
    fn finish(&self, result: Option<TrialAccount>) -> Result<(), HoldError> {
        let hold = self.lock().take();
        match hold.zip(result) {
            Some((hold, result)) => hold.finish(result, Instant::now()),
            None => Ok(()),
        }
    }
}

/// Returns the result for the daemon; `None` if the trial says nothing about the rule.
fn account(trial: &Trial) -> Option<TrialAccount> {
    let conclusion = match trial.verdict.outcome {
        TrialOutcome::Keep => TrialConclusion::Keep,
        TrialOutcome::Leave => TrialConclusion::Leave,
        TrialOutcome::NoDifference => TrialConclusion::NoDifference,
        TrialOutcome::Undecided => TrialConclusion::Undecided,
        _ => return None,
    };
    if trial.settings.nothing_switched {
        return None;
    }
    let effect = trial.effect;
    let (gain, gain_low, gain_high) = match trial.metric.better {
        Better::Higher => (effect.estimate, effect.low, effect.high),
        Better::Lower => {
            let less = |change: Option<f64>| change.map(|change| -change);
            (less(effect.estimate), less(effect.high), less(effect.low))
        }
        Better::Neither => return None,
    };
    let asked = trial.metric.asked.clone();
    Some(TrialAccount {
        conclusion,
        // The daemon keeps no more, and a request is short.
        metric: asked
            .unwrap_or_else(|| trial.metric_words().to_owned())
            .chars()
            .take(MAX_METRIC_CHARS)
            .collect(),
        gain,
        gain_low,
        gain_high,
        pairs: trial.pairs.len() as u64,
        ended_at_seconds: utc::now().unwrap_or_default().as_secs(),
    })
}

/// Returns the settings of the rule, if a trial can switch what it does.
fn config_in(held: &HeldRule, roots: &Roots) -> Result<Config, Failure> {
    let (name, place) = (&held.rule.name, &held.rule.place);
    let refused = |why: &str| {
        let text = format!("rule `{name}` ({place}) cannot be tried: {why}");
        Err(Failure::new(FAILED, text))
    };
    if let Some(pages @ (Pages::Kernel | Pages::Never)) = held.policy.pages {
        return refused(&format!(
            "with pages = \"{pages}\" it makes no huge pages, so there is nothing to switch"
        ));
    }
    if held.policy.colors != ColorRequest::Off {
        return refused(
            "it places memory by page colors, and a trial switches huge pages only; superhue compare measures colors",
        );
    }
    if !held.processes.iter().any(|id| still_is(roots, *id)) {
        return refused(
            "the daemon names no process that is here; if it runs in a container, run superhue ctl trial there",
        );
    }
    Ok(config_of(&held.policy, roots))
}

/// Returns a sentence on what to do about the rule; `None` without a verdict.
fn advice(trial: &Trial, name: &str, place: &str) -> Option<String> {
    match trial.verdict.outcome {
        TrialOutcome::Keep => Some(format!(
            "rule {name} is worth it: nothing needs to be done, the daemon acts by it again"
        )),
        TrialOutcome::Leave => Some(format!(
            "rule {name} costs more than it gains, and the daemon acts by it again: change it ({place}; pages = \"off\" leaves its processes \
             alone) or remove it, then run superhue ctl reload"
        )),
        TrialOutcome::NoDifference => Some(format!(
            "rule {name} makes no difference that counts, and the daemon acts by it again: it may stay; to save the cost of watching, remove it \
             ({place}), then run superhue ctl reload"
        )),
        _ => None,
    }
}

fn failure(error: HoldError) -> Failure {
    let code = match &error {
        HoldError::Ask(error) => code_of(error),
        HoldError::Refused(_) | HoldError::Ended { .. } => FAILED,
    };
    Failure::new(code, error)
}

#[cfg(test)]
mod tests {
    use superhue::PlacementOptions;
    use superhue::model::{ProcessId, Share};
    use superhue_daemon::ctl::RuleSummary;

    use super::*;

    fn held(policy: PlacementOptions, processes: Vec<ProcessId>) -> HeldRule {
        HeldRule {
            rule: RuleSummary {
                name: "redis".to_owned(),
                place: "redis.toml:3".to_owned(),
                conditions: String::new(),
                placement: String::new(),
                processes: processes.len() as u64,
            },
            policy,
            processes,
            lease_seconds: 60,
            paused: false,
        }
    }

    fn this_process() -> Vec<ProcessId> {
        let found = superhue::procfs::process::identify(&Roots::default(), std::process::id());
        vec![found.unwrap()]
    }

    #[test]
    fn a_trial_has_the_settings_of_the_rule() {
        let policy = PlacementOptions {
            pages: Some(Pages::Resident),
            budget: Some(Share::BasisPoints(700)),
            max_overhead: 0.003,
            ..PlacementOptions::default()
        };
        let config = config_in(&held(policy, this_process()), &Roots::default()).unwrap();
        assert_eq!(config.options.pages, Some(Pages::Resident));
        assert_eq!(config.options.budget, Some(Share::BasisPoints(700)));
        assert_eq!(config.options.max_overhead, 0.003);
    }

    #[test]
    fn rules_that_cannot_be_tried_are_refused_with_the_reason() {
        let with = |pages, colors| PlacementOptions {
            pages,
            colors,
            ..PlacementOptions::default()
        };
        let elsewhere = vec![ProcessId {
            pid: u32::MAX >> 1,
            start_ticks: 1,
        }];
        for (policy, processes, words) in [
            (
                with(Some(Pages::Kernel), ColorRequest::Off),
                this_process(),
                "pages = \"kernel\"",
            ),
            (
                with(None, ColorRequest::Spread),
                this_process(),
                "page colors",
            ),
            (with(None, ColorRequest::Off), elsewhere, "in a container"),
        ] {
            let refused = config_in(&held(policy, processes), &Roots::default()).unwrap_err();
            assert!(refused.text.contains(words), "{}", refused.text);
            assert!(refused.text.starts_with("rule `redis` (redis.toml:3)"));
        }
    }
}
