//! Document of a trial: the blank one, the one that continues an earlier trial, and the verdict.

use std::collections::BTreeMap;

use superhue_measure::trial::{
    ContinueError, TRIAL_SCHEMA, Trial, TrialEffect, TrialFrames, TrialMetric, TrialOutcome,
    TrialPolicy, TrialSettings, TrialSource, TrialStates, TrialSwitching, TrialTarget,
    TrialVerdict,
};
use superhue_measure::{Better, Evidence, Shown};
use superhue_model::ProcessId;
use superhue_procfs::Roots;
use superhue_procfs::process::{resident_now, stat};

use super::environment::TrialEnvironment;
use super::guard::Alarm;
use super::switch::FrameSurvey;
use super::{End, Source, TrialPlan};

/// Returns the document and the evidence with which the trial begins: empty, or those of an earlier trial.
pub(super) fn first_document(
    plan: &TrialPlan,
    environment: &TrialEnvironment<'_>,
    roots: &Roots,
) -> Result<(Trial, Evidence), ContinueError> {
    let mut trial = blank(plan, environment);
    trial.target.program = largest_program(roots, &environment.members);
    let Some(earlier) = &plan.earlier else {
        return Ok((trial, Evidence::new(plan.alpha, plan.within)));
    };
    let evidence = earlier.continued_by(&trial)?;
    continue_with(earlier, &mut trial);
    Ok((trial, evidence))
}

/// Returns the name of the process with most memory; empty if no process can be read.
fn largest_program(roots: &Roots, members: &[ProcessId]) -> String {
    let largest = members
        .iter()
        .filter_map(|id| Some((resident_now(roots, id.pid).ok()?.total, id)))
        .max_by_key(|&(resident, _)| resident);
    largest
        .and_then(|(_, id)| stat(roots, id.pid).ok())
        .map_or_else(String::new, |stat| stat.comm)
}

/// Enters the pairs of an earlier trial.
fn continue_with(earlier: &Trial, trial: &mut Trial) {
    trial.pairs.clone_from(&earlier.pairs);
    trial.discarded.clone_from(&earlier.discarded);
    // Of an earlier version only the sum is known: the count starts over.
    trial.without_value = earlier.without_value.or(trial.without_value);
    trial.effect = earlier
        .pairs
        .last()
        .map(|pair| pair.effect)
        .unwrap_or_default();
    trial.settings.earlier_pairs = earlier.pairs.len() as u64;
    trial.target.restarts = earlier.target.restarts;
    trial.seconds = earlier.seconds;
}

fn blank(plan: &TrialPlan, environment: &TrialEnvironment<'_>) -> Trial {
    let source = match &plan.source {
        None => TrialSource::Cpu,
        // Also for the kind that measures CPU time for each piece of work.
        Some(Source::Command { .. }) => TrialSource::Command,
        Some(Source::Prometheus { .. }) => TrialSource::Prometheus,
    };
    Trial {
        schema: TRIAL_SCHEMA.to_owned(),
        target: TrialTarget {
            name: environment.who.name(),
            rule: environment.who.rule(),
            program: String::new(),
            processes: 0,
            restarts: 0,
        },
        policy: TrialPolicy {
            pages: plan.config.options.pages.map(|pages| pages.to_string()),
            because: String::new(),
            notes: Vec::new(),
        },
        metric: TrialMetric {
            source,
            regex: plan
                .source
                .as_ref()
                .and_then(Source::pattern)
                .map(str::to_owned),
            url: plan.source.as_ref().and_then(Source::url),
            asked: plan.source.as_ref().map(|source| source.asked().to_owned()),
            kind: plan.kind,
            better: plan.better,
        },
        settings: TrialSettings {
            alpha: plan.alpha,
            within: plan.within,
            limit_seconds: plan.limit.as_secs_f64(),
            seed: plan.seed,
            block_seconds: plan.block.map(|block| block.as_secs_f64()),
            nothing_switched: plan.nothing_switched,
            present: plan.present,
            swap: plan.swap,
            earlier_pairs: 0,
        },
        verdict: TrialVerdict {
            outcome: TrialOutcome::Undecided,
            reason: None,
        },
        effect: TrialEffect::default(),
        estimates: None,
        pairs: Vec::new(),
        discarded: BTreeMap::new(),
        without_value: Some(TrialStates::default()),
        switching: TrialSwitching::default(),
        frames: None,
        guards: Vec::new(),
        seconds: 0.0,
        own_cpu_seconds: 0.0,
    }
}

/// Returns the result that is in favour of the policy.
pub(super) const fn gain_of(better: Better) -> Shown {
    match better {
        Better::Lower => Shown::Below,
        Better::Higher | Better::Neither => Shown::Above,
    }
}

/// Returns the outcome of a trial that ended for this reason, and the reason in words where the outcome does not name it.
pub(super) fn verdict_of(end: End, better: Better) -> (TrialOutcome, Option<String>) {
    let keeps = gain_of(better);
    match end {
        End::Shown(Shown::Small) => (TrialOutcome::NoDifference, None),
        End::Shown(shown) if shown == keeps => (TrialOutcome::Keep, None),
        End::Shown(_) => (TrialOutcome::Leave, None),
        End::Limit => (TrialOutcome::Undecided, None),
        End::Withheld(why) => (TrialOutcome::Undecided, Some(why)),
        End::NothingToDo(why) => (TrialOutcome::NothingToDo, Some(why)),
        End::Alarm(Alarm::Crossed(why)) => (TrialOutcome::Guarded, Some(why)),
        End::Signal => {
            let why = "a signal asked for it".to_owned();
            (TrialOutcome::Interrupted, Some(why))
        }
        End::Alarm(Alarm::Unreadable(why)) | End::Failed(why) => (TrialOutcome::Failed, Some(why)),
    }
}

/// Returns the frames for the document.
pub(super) fn frames_of(seen: FrameSurvey) -> TrialFrames {
    TrialFrames {
        neighbors_before: seen.before,
        neighbors_off: seen.off,
        moved_pages: seen.moved,
        through: seen.through,
        not_moved_because: seen.why_not,
    }
}
