//! A trial in sentences.

use superhue_model::{ByteCount, counted};

use super::{MetricKind, Trial, TrialEffect, TrialFrames, TrialOutcome, TrialPair, TrialSource};
use crate::human::exact_percent;
use crate::metric::Better;

/// Shares of neighboring frames that differ by more than this lie differently.
const FRAMES_ALIKE: f64 = 0.25;

impl Trial {
    /// Returns a short name of the metric.
    #[must_use]
    pub fn metric_words(&self) -> &'static str {
        match (self.metric.source, self.metric.kind) {
            (_, MetricKind::Work) => "CPU time for a piece of work",
            (TrialSource::Cpu, _) => "CPU time per second",
            (_, MetricKind::Counter) => "the metric (growth per second)",
            (_, MetricKind::Gauge) => "the metric",
        }
    }

    /// Returns the policy's name.
    #[must_use]
    pub fn policy_words(&self) -> &str {
        self.policy.pages.as_deref().unwrap_or("the policy")
    }

    /// Returns the verdict in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let metric = self.metric_words();
        let pages = self.policy_words();
        let reason = self.verdict.reason.as_deref();
        let reason = reason.unwrap_or("no reason is known");
        let way = match self.metric.better {
            Better::Lower => "less is better",
            Better::Higher => "more is better",
            Better::Neither => "neither way is better",
        };
        let effect = self.effect.words();
        match self.verdict.outcome {
            TrialOutcome::Keep => {
                format!("keep: with `{pages}` {metric} is better: {effect} ({way})")
            }
            TrialOutcome::Leave => {
                format!("leave: with `{pages}` {metric} is worse: {effect} ({way})")
            }
            TrialOutcome::NoDifference => format!(
                "no difference at {}: with `{pages}` {metric} changes by {effect}",
                exact_percent(self.settings.within)
            ),
            TrialOutcome::Undecided if self.verdict.reason.is_some() => {
                format!("undecided: {reason}")
            }
            TrialOutcome::Undecided => format!(
                "undecided after {}: with `{pages}` {metric} changes by {effect} ({way}); {}",
                time(self.settings.limit_seconds),
                self.way_to_decide()
            ),
            TrialOutcome::NothingToDo => format!("nothing to switch: {reason}"),
            TrialOutcome::Guarded => format!("a guard ended the trial: {reason}"),
            TrialOutcome::Interrupted => format!("ended before a verdict: {reason}"),
            TrialOutcome::Failed => format!("the trial failed: {reason}"),
        }
    }

    /// Returns the verdict in a sentence short enough for a picture.
    pub fn short_sentence(&self) -> String {
        let metric = self.metric_words();
        let effect = self.effect.words();
        let pairs = counted(self.pairs.len() as u64, "pair");
        let word = match self.verdict.outcome {
            TrialOutcome::Keep => "keep",
            TrialOutcome::Leave => "leave",
            TrialOutcome::NoDifference => "no difference",
            TrialOutcome::Undecided => "undecided",
            _ => return self.sentence(),
        };
        format!(
            "{word}: {metric} changes by {effect}; {pairs} in {}",
            time(self.seconds)
        )
    }

    /// Returns the whole result, in lines.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.sentence()];
        if !self.pairs.is_empty() {
            lines.push(format!(
                "{} in {}; the interval holds at {} however often it is looked at (seed {})",
                counted(self.pairs.len() as u64, "pair"),
                time(self.seconds),
                exact_percent(1.0 - self.settings.alpha),
                self.settings.seed
            ));
        }
        lines.extend(self.mean_line());
        if !self.discarded.is_empty() {
            let reasons = self.discarded.iter();
            let reasons: Vec<String> = reasons.map(|(why, n)| format!("{n} {why}")).collect();
            let states = self.without_value.map_or_else(String::new, |states| {
                format!(
                    "; without a value: {} when on, {} when off",
                    states.on, states.off
                )
            });
            lines.push(format!(
                "pairs that do not count: {}{states}",
                reasons.join(", ")
            ));
        }
        let switching = &self.switching;
        if switching.times_off > 0 {
            lines.push(format!(
                "switched {} of {} on {} and off {} times, at most {} and {} each; added {} at the most",
                counted(switching.regions, "region"),
                ByteCount(switching.bytes),
                switching.times_on,
                switching.times_off,
                time(switching.longest_on_seconds.unwrap_or_default()),
                time(switching.longest_off_seconds.unwrap_or_default()),
                ByteCount(switching.growth_bytes),
            ));
        }
        lines.extend(self.diluted());
        lines.extend(self.zeroes());
        lines.extend(self.frames.as_ref().map(TrialFrames::line));
        for guard in &self.guards {
            let worst = guard.worst;
            let worst = worst.map_or_else(|| "-".to_owned(), |it| format!("{it:.6}"));
            let readings = counted(guard.readings, "reading");
            lines.push(format!(
                "guard {}: {readings}, worst {worst}",
                guard.condition
            ));
        }
        lines.push(self.left_behind());
        lines.extend(self.found());
        lines.extend(self.policy.notes.iter().map(|note| format!("note: {note}")));
        lines
    }

    /// Returns what would decide a trial that ended undecided.
    fn way_to_decide(&self) -> &'static str {
        let evidence = self.evidence(self.settings.alpha, self.settings.within);
        if evidence.only_usual_is_small() {
            "the usual change is small, and the mean is not shown to be: single blocks differ much, and a longer --for shows whether that is the \
             policy"
        } else {
            "a longer --for, a metric that varies less, or a second trial with --continue decides"
        }
    }

    /// Returns the change of the mean, and the size of the correction for the stopping rule.
    fn mean_line(&self) -> Option<String> {
        let estimates = self.estimates?;
        let mean = TrialEffect {
            estimate: Some(estimates.mean?),
            low: estimates.mean_low,
            high: estimates.mean_high,
        };
        let mut line = format!("mean over all blocks: {}", mean.words());
        if estimates.orders > 0 {
            let as_measured = |share: Option<f64>| share.map_or_else(|| "?".to_owned(), signed);
            line += &format!(
                "; corrected for the stopping rule, as the pairs stand {} usually and {} in the mean",
                as_measured(estimates.usual_as_measured),
                as_measured(estimates.mean_as_measured)
            );
        } else if self.pairs.len() > 1 {
            line += "; not corrected for the stopping rule, which exaggerates an effect";
        }
        Some(line)
    }

    /// Returns the final state of the policy's huge pages.
    fn left_behind(&self) -> String {
        let switching = &self.switching;
        let is_kept = self.verdict.outcome == TrialOutcome::Keep;
        match switching.left_huge {
            Some(left) if is_kept => {
                format!("the policy's huge pages stay: {}", counted(left, "region"))
            }
            None if is_kept => {
                "the policy's huge pages stay; this kernel does not show how many".to_owned()
            }
            None => format!(
                "what the trial had made huge was split again; this kernel does not show whether it is on base pages ({} failed)",
                counted(switching.left_unsplit, "split")
            ),
            Some(0) => "what the trial had made huge is on base pages again".to_owned(),
            Some(left) => format!(
                "{} could not be split again; the program runs on with them",
                counted(left, "region")
            ),
        }
    }

    /// Returns the final state of memory that was huge already, if the trial switched it.
    fn found(&self) -> Option<String> {
        let switching = &self.switching;
        let found = Some(switching.found_huge).filter(|found| *found > 0)?;
        let found = counted(found, "region");
        Some(match switching.found_not_restored {
            Some(0) => format!("{found} that were huge already are huge again"),
            None => format!(
                "{found} were huge already; this kernel does not show whether they are huge again"
            ),
            Some(lost) => {
                format!("{lost} of {found} that were huge already could not be made huge again")
            }
        })
    }

    /// Returns a remark on regions that were not switched because of their pages of zeroes.
    fn zeroes(&self) -> Option<String> {
        let zeroes = Some(self.switching.zero_regions).filter(|zeroes| *zeroes > 0)?;
        Some(format!(
            "{} stayed huge in both states: they hold pages of zeroes, which a split would replace by one shared page",
            counted(zeroes, "region")
        ))
    }

    /// Returns the mean shares of regions that were huge when on, and when off; `None` without pairs, or where the kernel does not show it.
    #[must_use]
    pub fn mean_huge(&self) -> Option<(f64, f64)> {
        let mean = |of: fn(&TrialPair) -> Option<f64>| {
            let seen: Vec<f64> = self.pairs.iter().filter_map(of).collect();
            (!seen.is_empty()).then(|| seen.iter().sum::<f64>() / seen.len() as f64)
        };
        Some((mean(|it| it.huge_on)?, mean(|it| it.huge_off)?))
    }

    /// Returns a remark if switching did not take effect everywhere.
    fn diluted(&self) -> Option<String> {
        let (on, off) = self.mean_huge()?;
        (on < 0.95 || off > 0.05).then(|| {
            format!(
                "{} of the regions were huge when on, and {} when off: an effect of the policy would be larger than what was measured",
                exact_percent((on * 100.0).round() / 100.0),
                exact_percent((off * 100.0).round() / 100.0)
            )
        })
    }
}

impl TrialEffect {
    /// Formats the effect: `-3.1 % (-4.6 % to -1.8 %)`.
    #[must_use]
    pub fn words(&self) -> String {
        let bound = |bound: Option<f64>| bound.map_or_else(|| "?".to_owned(), signed);
        if let (Some(estimate), None, None) = (self.estimate, self.low, self.high) {
            return format!("{} so far, with nothing ruled out", signed(estimate));
        }
        format!(
            "{} ({} to {})",
            bound(self.estimate),
            bound(self.low),
            bound(self.high)
        )
    }
}

impl TrialFrames {
    /// Returns a sentence on the frames of base pages: as before, or not, and in which direction that moves the effect.
    fn line(&self) -> String {
        let percent = |share: f64| exact_percent((share * 100.0).round() / 100.0);
        let why = self.not_moved_because.as_deref();
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        match (self.neighbors_before, self.neighbors_off) {
            (Some(before), Some(off)) => {
                let shares = format!(
                    "{} of neighboring pages had neighboring frames before, and {} when off",
                    percent(before),
                    percent(off)
                );
                if (off - before).abs() <= FRAMES_ALIKE {
                    format!(
                        "with the policy off, frames lay as before it: {shares}; other causes of a difference are not excluded"
                    )
                } else if off > before {
                    format!(
                        "off was faster than before the policy: a split leaves frames side by side{why}; {shares}: the policy's effect \
                         is probably larger than measured"
                    )
                } else {
                    format!(
                        "off was slower than before the policy: {shares}: the policy's effect is probably smaller than measured"
                    )
                }
            }
            (None, Some(off)) => format!(
                "{} of neighboring pages had neighboring frames when off{why}; how they lay before is not known",
                percent(off)
            ),
            (_, None) => format!(
                "off was split, with frames side by side{why}: where they had been scattered, the policy's effect is larger than measured"
            ),
        }
    }
}

/// Formats a share with its sign.
pub fn signed(share: f64) -> String {
    let percent = (share * 1000.0).round() / 10.0;
    // A value that rounds to 0 has no sign.
    if percent == 0.0 {
        return "0 %".to_owned();
    }
    format!("{percent:+.1} %")
}

/// Formats a time in seconds: `12.0 s`, `3.5 min`.
pub fn time(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 120.0 {
        format!("{} s", (seconds * 10.0).round() / 10.0)
    } else {
        format!("{} min", (seconds / 6.0).round() / 10.0)
    }
}
