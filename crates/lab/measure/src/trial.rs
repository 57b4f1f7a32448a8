//! The document of a trial: a policy switched on and off in one running program, in pairs of blocks.
//!
//! The document is plain data, which the driver of the trial fills in; sentences and the picture are made from it alone.
//! [`sequence`](crate::sequence) explains the verdict.

#[cfg(test)]
mod tests;
pub mod timetable;
pub mod words;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metric::Better;
use crate::sequence::{Evidence, Shown};
use superhue_model::counted;

/// Name and version of the document's format.
pub const TRIAL_SCHEMA: &str = "superhue-trial/1";

/// Result of a trial, complete or not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// [`TRIAL_SCHEMA`].
    pub schema: String,
    /// Target of the trial: the processes whose memory it changed.
    pub target: TrialTarget,
    /// Policy that was switched on and off.
    pub policy: TrialPolicy,
    /// Metric that was measured.
    pub metric: TrialMetric,
    /// Settings of the trial.
    pub settings: TrialSettings,
    /// Verdict.
    pub verdict: TrialVerdict,
    /// Effect of the policy on the metric. At the end of a trial its estimate is corrected for the stopping rule.
    pub effect: TrialEffect,
    /// Further estimates at the end; `None` before, and in documents of earlier versions.
    #[serde(default)]
    pub estimates: Option<TrialEstimates>,
    /// Pairs that count, in order; those of an earlier trial that this one continues come first.
    pub pairs: Vec<TrialPair>,
    /// Number of pairs that were begun and do not count, by reason.
    pub discarded: BTreeMap<String, u64>,
    /// Number of those in which a block had no value, by the policy's state in that block; `None` in documents of earlier versions.
    #[serde(default)]
    pub without_value: Option<TrialStates>,
    /// Cost and result of switching.
    pub switching: TrialSwitching,
    /// Frames of the memory that was switched; `None` in documents of earlier versions.
    #[serde(default)]
    pub frames: Option<TrialFrames>,
    /// Guards that were watched.
    pub guards: Vec<TrialGuard>,
    /// Duration in seconds, learning and an earlier trial included.
    pub seconds: f64,
    /// CPU seconds that superhue itself took, collapses and splits included.
    pub own_cpu_seconds: f64,
}

/// Target of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialTarget {
    /// Name as the user gave it: `4711`, `redis.service`, `system.slice/redis.service`, `rule redis`.
    pub name: String,
    /// Rule of the daemon that was tried; `None` for other targets.
    #[serde(default)]
    pub rule: Option<String>,
    /// Program name of the process with most memory; empty if no process was seen.
    pub program: String,
    /// Number of processes at the end.
    pub processes: u64,
    /// Number of restarts during the trial.
    pub restarts: u64,
}

/// Policy that is switched on and off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialPolicy {
    /// Name; `None` if no policy was chosen before the end.
    pub pages: Option<String>,
    /// Reason for this policy, and its tracker.
    pub because: String,
    /// Remarks on how the policy is applied.
    pub notes: Vec<String>,
}

/// Source of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialSource {
    /// CPU time of the target.
    Cpu,
    /// Output of a command.
    Command,
    /// Answer of a Prometheus server.
    Prometheus,
}

/// Use of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricKind {
    /// The number only grows; its growth per second counts.
    Counter,
    /// The number is a level; its mean over a block counts.
    Gauge,
    /// The number counts finished work; the target's CPU time for one piece counts.
    Work,
}

/// Metric of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialMetric {
    /// Source of the numbers.
    pub source: TrialSource,
    /// Command or query; `None` for CPU time.
    pub asked: Option<String>,
    /// Regular expression that takes the number out of the command's output; `None` without one.
    #[serde(default)]
    pub regex: Option<String>,
    /// URL of the Prometheus server; `None` for other sources.
    #[serde(default)]
    pub url: Option<String>,
    /// Use of the numbers.
    pub kind: MetricKind,
    /// Direction in which it is better.
    pub better: Better,
}

/// Settings of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialSettings {
    /// Probability of a wrong verdict, for all looks together.
    pub alpha: f64,
    /// Effects below this share count as no difference (0.02 is 2 %).
    pub within: f64,
    /// Seconds after which the trial ends undecided.
    pub limit_seconds: f64,
    /// Seed for the order of blocks.
    pub seed: u64,
    /// Seconds of a block; `None` if the trial chooses them.
    pub block_seconds: Option<f64>,
    /// True if nothing was switched: a test of the trial itself.
    pub nothing_switched: bool,
    /// True if memory that was huge already was switched, too.
    #[serde(default)]
    pub present: bool,
    /// True if swap in memory could be made to scatter frames.
    #[serde(default)]
    pub swap: bool,
    /// Number of pairs of an earlier trial that this one continues.
    #[serde(default)]
    pub earlier_pairs: u64,
}

/// Outcome of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialOutcome {
    /// The policy is better.
    Keep,
    /// The policy is worse.
    Leave,
    /// The policy makes less difference than counts.
    NoDifference,
    /// The time limit came first.
    Undecided,
    /// The policy found nothing to change.
    NothingToDo,
    /// A guard's limit was exceeded.
    Guarded,
    /// A signal ended the trial.
    Interrupted,
    /// The target ended, or measuring or switching failed.
    Failed,
}

/// Verdict of a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialVerdict {
    /// Outcome.
    pub outcome: TrialOutcome,
    /// Reason why the trial ended; `None` if a shown result or the time limit ended it.
    pub reason: Option<String>,
}

/// Change of the metric by the policy, as a share of its value without the policy: 0.03 is 3 % more.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialEffect {
    /// Best estimate; `None` before the first pair.
    pub estimate: Option<f64>,
    /// Least change that is not ruled out; `None` without a bound.
    pub low: Option<f64>,
    /// Greatest change that is not ruled out; `None` without a bound.
    pub high: Option<f64>,
}

/// Estimates of the change of the metric by the policy, as shares of its value without the policy.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialEstimates {
    /// Usual change as the pairs show it, without the correction for the stopping rule.
    pub usual_as_measured: Option<f64>,
    /// Change of the mean over all blocks, corrected for the stopping rule where that is possible.
    pub mean: Option<f64>,
    /// Change of the mean as the pairs show it.
    pub mean_as_measured: Option<f64>,
    /// Least change of the mean that is not ruled out; `None` before the second pair.
    pub mean_low: Option<f64>,
    /// Greatest change of the mean that is not ruled out; `None` before the second pair.
    pub mean_high: Option<f64>,
    /// Number of orders of the pairs on which the corrections rest; 0 if nothing was corrected.
    pub orders: u64,
}

/// Frames of the memory that was switched: base pages whose frames are neighbors miss the TLB at a lower cost.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialFrames {
    /// Share of neighboring pages whose frames were neighbors before the policy collapsed them; `None` if that is unknown.
    pub neighbors_before: Option<f64>,
    /// The same share with the policy off; `None` if that is unknown.
    pub neighbors_off: Option<f64>,
    /// Number of pages that were moved to other frames, over all switches, without those that the program itself brought in.
    pub moved_pages: u64,
    /// Swap area that they went through; `None` if no page was moved.
    pub through: Option<String>,
    /// Reason why pages were not moved although their frames had been scattered before; `None` if there is none.
    pub not_moved_because: Option<String>,
}

/// Counts of pairs, by the policy's state in the block that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialStates {
    /// With the policy on.
    pub on: u64,
    /// With the policy off.
    pub off: u64,
}

impl TrialStates {
    /// Counts one more pair.
    pub const fn add(&mut self, on: bool) {
        if on {
            self.on += 1;
        } else {
            self.off += 1;
        }
    }

    /// Returns the probability that *on* has at least this many of the pairs if the policy changes nothing: the coin then makes both states equally
    /// likely (one-sided sign test).
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts of pairs")]
    pub fn chance_of_on(self) -> f64 {
        let all = self.on + self.off;
        // Logarithms, since 2^-1100 is 0.
        let mut log_ways = 0.0;
        let mut chance = 0.0;
        for on in (self.on..=all).rev() {
            chance += (log_ways - all as f64 * std::f64::consts::LN_2).exp();
            // From C(all, on) to C(all, on - 1).
            log_ways += (on as f64).ln() - ((all - on + 1) as f64).ln();
        }
        chance.min(1.0)
    }

    /// Returns the reason why pairs say too little in favour of the policy, if *on* lost more of them than chance explains at level `alpha`: the
    /// missing values may be those of its worst blocks.
    #[must_use]
    pub fn why_doubtful(self, alpha: f64) -> Option<String> {
        (self.chance_of_on() <= alpha).then(|| {
            format!(
                "{} without a value when on, and {} when off: more than chance explains, so the pairs that are left may flatter the policy. Find \
                 out why the metric has no value",
                counted(self.on, "block"),
                self.off
            )
        })
    }
}

/// Two blocks that are compared with each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialPair {
    /// Seconds from the start of the trial to the end of its second block.
    pub at_seconds: f64,
    /// True if the policy was on in the first of its blocks.
    pub on_first: bool,
    /// Duration of each block in seconds.
    pub block_seconds: f64,
    /// Seconds before each block that do not count.
    pub settle_seconds: f64,
    /// Value of the metric with the policy on.
    pub on: f64,
    /// Value of the metric with the policy off.
    pub off: f64,
    /// Share of the policy's regions that were huge at the end of the block with the policy on; `None` where that is unknown.
    pub huge_on: Option<f64>,
    /// The same share for the block with the policy off.
    pub huge_off: Option<f64>,
    /// Changes that are not ruled out after this pair.
    pub effect: TrialEffect,
}

/// Cost and result of switching.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialSwitching {
    /// Number of regions that were switched, at the end.
    pub regions: u64,
    /// Bytes of these regions.
    pub bytes: u64,
    /// Bytes that were huge before the trial. It leaves them unchanged, or restores them; `None` if the kernel does not report them.
    pub huge_before_bytes: Option<u64>,
    /// Most memory that collapses added.
    pub growth_bytes: u64,
    /// Number of times that the policy was switched on again.
    pub times_on: u64,
    /// Number of times that it was switched off.
    pub times_off: u64,
    /// Seconds of the longest switch to on; `None` if there was none.
    pub longest_on_seconds: Option<f64>,
    /// Seconds of the longest switch to off; `None` if there was none.
    pub longest_off_seconds: Option<f64>,
    /// Number of failed collapses of the policy's regions while switching on.
    pub not_collapsed: u64,
    /// Number of failed splits while switching off.
    pub not_split: u64,
    /// Number of the policy's regions that are huge after the trial; `None` where the kernel does not show it.
    pub left_huge: Option<u64>,
    /// Number of failed splits of them at the end of the trial.
    #[serde(default)]
    pub left_unsplit: u64,
    /// Number of regions that were huge already (before the trial, or when a restarted program had begun) and were switched.
    #[serde(default)]
    pub found_huge: u64,
    /// Number of these regions that could not be made huge again at the end; `None` where the kernel does not show it.
    #[serde(default)]
    pub found_not_restored: Option<u64>,
    /// Number of regions that stayed huge in both states, because a split would have replaced their pages of zeroes by one shared page.
    #[serde(default)]
    pub zero_regions: u64,
}

/// Limit on a quantity that the policy must not worsen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialGuard {
    /// Condition as the user gave it: `p99 < 5ms`.
    pub condition: String,
    /// Number of readings.
    pub readings: u64,
    /// Last reading.
    pub last: Option<f64>,
    /// Reading nearest to the limit, or farthest beyond it.
    pub worst: Option<f64>,
}

/// Reason why a trial cannot continue an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContinueError {
    /// The trials differ in a point on which the pairs depend.
    #[error(
        "it was a trial of another {what} ({earlier}, now {now}), and its pairs say nothing about this one"
    )]
    Different {
        /// The point.
        what: &'static str,
        /// Value of the point in the earlier trial.
        earlier: String,
        /// Value of the point now.
        now: String,
    },
    /// The earlier trial's pairs already show a result at the present settings.
    #[error(
        "its pairs already show `{0}`: there is nothing to continue (a lower --smallest or --alpha asks for more)"
    )]
    Shown(&'static str),
    /// The earlier trial's pairs showed a result, and that trial did not accept it.
    #[error("its result was not accepted ({0}): mend that, and start a trial without --continue")]
    Withheld(String),
}

/// Reason why a text is not a trial.
#[derive(Debug, thiserror::Error)]
pub enum TrialReadError {
    /// The text is not JSON, or has other fields.
    #[error("it is not the JSON of a trial: {0}")]
    Json(#[from] serde_json::Error),
    /// The document has another schema.
    #[error("its schema is `{0}`, and this version reads {TRIAL_SCHEMA}")]
    Schema(String),
}

impl Trial {
    /// Returns the evidence of its pairs at these settings.
    #[must_use]
    pub fn evidence(&self, alpha: f64, within: f64) -> Evidence {
        let mut evidence = Evidence::new(alpha, within);
        for pair in &self.pairs {
            evidence.add(pair.on, pair.off);
        }
        evidence
    }

    /// Returns true if the pairs still show this after `lost` more of them in which *on* is worse by the usual difference. Blocks without a value may be
    /// such ones.
    #[must_use]
    pub fn shows_despite(&self, shown: Shown, lost: u64) -> bool {
        if lost == 0 {
            return true;
        }
        let differences = self
            .pairs
            .iter()
            .map(|pair| (pair.on / pair.off).ln().abs());
        let mut differences: Vec<f64> = differences.collect();
        differences.sort_by(f64::total_cmp);
        let usual = differences.get(differences.len() / 2).copied();
        let worse = match self.metric.better {
            Better::Lower => usual.unwrap_or(0.0).exp(),
            Better::Higher | Better::Neither => (-usual.unwrap_or(0.0)).exp(),
        };
        let mut evidence = Evidence::new(self.settings.alpha, self.settings.within);
        (0..lost).for_each(|_| evidence.add(worse, 1.0));
        for pair in &self.pairs {
            evidence.add(pair.on, pair.off);
        }
        evidence.shown() == Some(shown)
    }

    /// Returns the reason why the pairs show nothing, if the metric had one and the same value in all of them: something that is measured varies.
    #[must_use]
    pub fn why_stuck(&self) -> Option<String> {
        let first = self.pairs.first()?.on;
        #[allow(clippy::float_cmp, reason = "the same number is read again")]
        let is_same = |pair: &TrialPair| pair.on == first && pair.off == first;
        self.pairs
            .iter()
            .all(is_same)
            .then(|| format!("the metric was {first} in every block, so its source may be stuck"))
    }

    /// Checks that a trial with the settings of `next` can continue this one, and returns the evidence to begin with. The process may be another
    /// one of the same service. A process named by number may have been restarted: its program must be the same, where both are known.
    ///
    /// # Errors
    /// See [`ContinueError`].
    pub fn continued_by(&self, next: &Self) -> Result<Evidence, ContinueError> {
        let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let name = |trial: &Self| {
            let name = &trial.target.name;
            if is_number(name) {
                "a process".to_owned()
            } else {
                name.clone()
            }
        };
        let same = |what, earlier: String, now: String| {
            if earlier == now {
                return Ok(());
            }
            Err(ContinueError::Different { what, earlier, now })
        };
        same("target", name(self), name(next))?;
        let programs = [self, next].map(|trial| &trial.target.program);
        if is_number(&next.target.name) && programs.iter().all(|program| !program.is_empty()) {
            let [earlier, now] = programs.map(Clone::clone);
            same("program", earlier, now)?;
        }
        let metric = |trial: &Self| {
            let metric = &trial.metric;
            let asked = metric.asked.as_deref().unwrap_or("CPU time");
            let by = [("by", &metric.regex), ("at", &metric.url)];
            let by = by.map(|(how, what)| what.as_ref().map(|what| format!(" {how} `{what}`")));
            let by: String = by.into_iter().flatten().collect();
            format!(
                "{asked}{by}, {:?}, {:?} is better",
                metric.kind, metric.better
            )
        };
        same("metric", metric(self), metric(next))?;
        if let (Some(earlier), Some(now)) = (&self.policy.pages, &next.policy.pages) {
            same("policy", earlier.clone(), now.clone())?;
        }
        let memory = |trial: &Self| match (trial.settings.nothing_switched, trial.settings.present)
        {
            (true, _) => "nothing switched".to_owned(),
            (false, true) => "what was huge already, too".to_owned(),
            (false, false) => "the policy's own huge pages".to_owned(),
        };
        same("kind of memory", memory(self), memory(next))?;
        let frames = |trial: &Self| match trial.settings.swap {
            true => "scattered in off (--swap)".to_owned(),
            false => "as a split leaves them in off".to_owned(),
        };
        same("place of frames", frames(self), frames(next))?;
        let evidence = self.evidence(next.settings.alpha, next.settings.within);
        match evidence.shown() {
            None => Ok(evidence),
            Some(shown) => match (self.verdict.outcome, &self.verdict.reason) {
                (TrialOutcome::Undecided, Some(reason)) => {
                    Err(ContinueError::Withheld(reason.clone()))
                }
                _ if shown == Shown::Small => Err(ContinueError::Shown("no difference")),
                _ => Err(ContinueError::Shown("a difference")),
            },
        }
    }

    /// Reads the output of `superhue trial --json`.
    ///
    /// # Errors
    /// Fails if the text is not a trial of this version.
    pub fn from_json(text: &str) -> Result<Self, TrialReadError> {
        let value: serde_json::Value = serde_json::from_str(text)?;
        let schema = value
            .get("schema")
            .and_then(serde_json::Value::as_str)
            .unwrap_or_default();
        if schema != TRIAL_SCHEMA {
            return Err(TrialReadError::Schema(schema.to_owned()));
        }
        Ok(serde_json::from_value(value)?)
    }
}
