//! Gain of a rule as its last trial measured it, for `superhue ctl status`.

use superhue::Pages;
use superhue::model::counted;
use superhue_daemon::account::{DaemonAccount, RuleAccount, TrialAccount};
use superhue_measure::trial::words::signed;

/// Returns the gain for a table: `?` if no trial has measured it.
pub(super) fn cell(rule: &RuleAccount) -> String {
    match &rule.trial {
        Some(trial) => percent(trial.gain),
        None => "?".to_owned(),
    }
}

/// Returns a sentence on the last trial of a rule; `now` is in seconds since 1970.
pub(super) fn sentence(rule: &str, trial: &TrialAccount, now: u64) -> String {
    let TrialAccount {
        conclusion,
        metric,
        gain,
        gain_low,
        gain_high,
        pairs,
        ended_at_seconds,
    } = trial;
    let [gain, low, high] = [gain, gain_low, gain_high].map(|&share| percent(share));
    let age = age(now.saturating_sub(*ended_at_seconds));
    let pairs = counted(*pairs, "pair");
    format!(
        "rule {rule}: a trial {age} ago measured a gain of {gain} ({low} to {high}, {pairs}) in `{metric}`: {}\n",
        conclusion.name()
    )
}

/// Returns a line on how to measure gains that are unknown; empty if all are known.
pub(super) fn hint(status: &DaemonAccount) -> String {
    let can_be_tried = |rule: &RuleAccount| {
        rule.watch.as_ref().is_some_and(|watch| {
            let is_idle = matches!(watch.pages, Some(Pages::Kernel | Pages::Never));
            watch.colors.is_none() && !is_idle
        })
    };
    let is_unknown = |rule: &&RuleAccount| can_be_tried(rule) && rule.trial.is_none();
    match status.rules.iter().find(is_unknown) {
        Some(rule) => format!(
            "GAIN ? is not measured: superhue ctl trial {} measures it (CPU time, or your own --metric-command)\n",
            rule.name
        ),
        None => String::new(),
    }
}

/// Returns a share with its sign; `?` for an unknown one.
fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "?".to_owned(), signed)
}

/// Returns a time in its largest unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use superhue_daemon::account::TrialConclusion;

    use super::*;

    #[test]
    fn a_gain_is_what_a_trial_measured_or_unknown() {
        let trial = TrialAccount {
            conclusion: TrialConclusion::Keep,
            metric: "redis-cli info".to_owned(),
            gain: Some(0.0312),
            gain_low: Some(0.012),
            gain_high: None,
            pairs: 40,
            ended_at_seconds: 1_000_000,
        };
        assert_eq!(
            sentence("redis", &trial, 1_000_000 + 3 * 3_600),
            "rule redis: a trial 3 h ago measured a gain of +3.1 % (+1.2 % to ?, 40 pairs) in `redis-cli info`: keep\n"
        );
        let mut rule = RuleAccount {
            name: "redis".to_owned(),
            watch: Some(Arc::default()),
            ..RuleAccount::default()
        };
        let status = |rule: &RuleAccount| DaemonAccount {
            rules: vec![RuleAccount::default(), rule.clone()],
            ..DaemonAccount::default()
        };
        assert_eq!(cell(&rule), "?");
        assert!(hint(&status(&rule)).contains("ctl trial redis"));
        rule.trial = Some(trial);
        assert_eq!(cell(&rule), "+3.1 %");
        assert_eq!(hint(&status(&rule)), "");
    }

    #[test]
    fn an_age_has_one_unit() {
        let ages = [
            (119, "119 s"),
            (120, "2 min"),
            (7_200, "2 h"),
            (172_800, "2 days"),
        ];
        for (seconds, wanted) in ages {
            assert_eq!(age(seconds), wanted);
        }
    }
}
