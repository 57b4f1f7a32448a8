//! The result in sentences.

use crate::design::Arm;
use crate::human::{clean, listed, percent, ratio};
use crate::metric::{Better, Builtin, Metric};
use crate::result::Comparison;
use crate::stats::bootstrap::Interval;
use crate::summary::{Estimate, ReferenceComparison, Verdict};

impl Comparison {
    /// Returns one sentence for each arm but the reference, with the metrics by which a user decides: wall time, the numbers that the program itself
    /// prints, CPU time, memory.
    ///
    /// ```text
    /// `always` is 27 % faster than `never` (1.24x-1.30x) and uses 12 % more memory.
    /// ```
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let all = self.sentences_by_arm().into_iter();
        all.map(|(_, sentence)| sentence).collect()
    }

    /// Returns the same, each with the number of its arm.
    pub fn sentences_by_arm(&self) -> Vec<(usize, String)> {
        (0..self.arms.len())
            .filter(|arm| *arm != self.reference_of(*arm))
            .map(|arm| match self.arms[arm].values() {
                values if values.is_empty() => (arm, self.sentence(arm)),
                values => (
                    arm,
                    format!("With {}: {}", clean(&values), self.sentence(arm)),
                ),
            })
            .collect()
    }

    /// Returns the results of the conditions, if there are any: a line for each condition, and one for each of its arms.
    #[must_use]
    pub fn gate_lines(&self) -> Vec<String> {
        let gates = self.gates.iter();
        gates.flat_map(|gate| gate.sentences(self)).collect()
    }

    /// Returns remarks on the runs: failed runs, an early end, removed round effects.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for arm in 0..self.arms.len() {
            let tally = self.tally(arm);
            let runs = tally.good + tally.failed;
            if let Some(why) = tally.why_failed {
                remarks.push(format!(
                    "{}: {} of {runs} runs failed and {} not counted (first: {}).",
                    self.title(arm),
                    tally.failed,
                    if tally.failed == 1 { "is" } else { "are" },
                    clean(why)
                ));
            }
        }
        if self.interrupted {
            let rounds = (0..self.arms.len())
                .map(|arm| self.tally(arm).good + self.tally(arm).failed)
                .min();
            remarks.push(format!(
                "Interrupted after {} of {} rounds; what is shown rests on the runs done by then.",
                rounds.unwrap_or(0),
                self.settings.runs
            ));
        }
        if self.is_evened() {
            remarks.push(
                "Ratios and verdicts leave out what slowed whole rounds, as the other arms tell it; medians do not.".to_owned(),
            );
        }
        if let Some(why) = &self.aborted {
            remarks.push(format!("Given up before the end: {}.", clean(why)));
        }
        remarks
    }

    /// Returns true if round effects were removed from any pair of arms.
    pub fn is_evened(&self) -> bool {
        let arms = self.summaries.iter().flat_map(|summary| &summary.arms);
        arms.filter_map(|arm| arm.against)
            .any(|against| against.evened > 0.0)
    }

    /// Formats name and values of an arm, in quotes: `` `hot, size=10` ``.
    pub fn title(&self, arm: usize) -> String {
        let title = self.arms.get(arm).map_or("?".to_owned(), Arm::title);
        format!("`{}`", clean(&title))
    }

    /// Formats the name of an arm, in quotes.
    pub fn name(&self, arm: usize) -> String {
        let name = self.arms.get(arm).map_or("?", |arm| arm.name.as_str());
        format!("`{}`", clean(name))
    }

    fn sentence(&self, arm: usize) -> String {
        let name = self.name(arm);
        let reference = self.name(self.reference_of(arm));
        for unmeasured in [arm, self.reference_of(arm)] {
            if self.tally(unmeasured).good == 0 {
                let culprit = self.name(unmeasured);
                return format!("{name} cannot be judged: {culprit} has no good run.");
            }
        }
        let headlines: Vec<(&Metric, &ReferenceComparison)> = (self.headline_metrics().into_iter())
            .filter_map(|metric| Some((metric, self.against(&metric.name, arm)?)))
            .collect();
        let clauses: Vec<Clause> = (headlines.iter())
            .filter(|(_, against)| against.verdict.is_difference())
            .map(|(metric, against)| Clause::new(metric, against))
            .collect();
        let alike: Vec<_> = (headlines.iter().copied())
            .filter(|(_, against)| against.verdict == Verdict::NoDifferenceShown)
            .collect();

        if clauses.is_empty() {
            if !alike.is_empty() {
                return format!("{name} {}.", self.likeness(&alike, &reference));
            }
            let needed = headlines
                .iter()
                .find_map(|(_, against)| match against.verdict {
                    Verdict::TooFewRuns { needed } => Some(needed),
                    _ => None,
                });
            return match needed {
                Some(needed) => format!(
                    "{name} cannot be told from {reference} with so few runs: \
                     each needs at least {needed} good ones."
                ),
                None => format!("{name} has nothing measured to compare with {reference}."),
            };
        }
        // The sentence must not be silent about the most important metric.
        let first = headlines
            .get(..1)
            .filter(|first| first[0].1.verdict == Verdict::NoDifferenceShown);
        let opening = first.map(|first| format!("{}, but", self.likeness(first, &reference)));
        let mut compared = opening.is_some();
        let phrases: Vec<String> = (clauses.chunk_by(|one, next| one.verb == next.verb))
            .map(|group| {
                let claims: Vec<String> = (group.iter())
                    .map(|clause| {
                        // The first claim names the reference; later claims need not.
                        let first = !std::mem::replace(&mut compared, true);
                        clause.text(first.then_some(&reference))
                    })
                    .collect();
                format!("{} {}", group[0].verb, listed(&claims, "and"))
            })
            .collect();
        let phrases = listed(&phrases, "and");
        match opening {
            Some(opening) => format!("{name} {opening} {phrases}."),
            None => format!("{name} {phrases}."),
        }
    }

    /// Formats metrics without a difference that matters: `shows no difference from X in wall time or memory`, and where there is a small one beyond
    /// chance, `differs from X by less than 1 % in wall time`.
    fn likeness(&self, alike: &[(&Metric, &ReferenceComparison)], reference: &str) -> String {
        let nouns = |is_beyond: bool| -> Vec<String> {
            let those = alike
                .iter()
                .filter(|(_, against)| against.is_beyond_chance() == is_beyond);
            those.map(|(metric, _)| noun(metric)).collect()
        };
        let (same, small) = (nouns(false), nouns(true));
        let smallest = self.smallest_percent();
        match (same.is_empty(), small.is_empty()) {
            (_, true) => format!(
                "shows no difference from {reference} in {}",
                listed(&same, "or")
            ),
            (true, false) => format!(
                "differs from {reference} by less than {smallest} % in {}",
                listed(&small, "and")
            ),
            (false, false) => format!(
                "shows no difference from {reference} in {}, and differs by less than {smallest} % in {}",
                listed(&same, "or"),
                listed(&small, "and")
            ),
        }
    }

    /// Formats the smallest difference that matters, in percent: `2.5`.
    pub fn smallest_percent(&self) -> String {
        let percent = self.settings.smallest * 100.0;
        format!("{}", (percent * 1e6).round() / 1e6)
    }

    /// Returns the metrics for a sentence, the most important first.
    pub fn headline_metrics(&self) -> Vec<&Metric> {
        let builtin = |wanted: Builtin| self.metrics.iter().find(|m| m.name == wanted.name());
        let own = (self.metrics.iter()).filter(|m| Builtin::from_name(&m.name).is_none());
        builtin(Builtin::Wall)
            .into_iter()
            .chain(own)
            .chain(builtin(Builtin::ServerCpuPerLoad))
            .chain(builtin(Builtin::Cpu))
            .chain(builtin(Builtin::MaxCharged))
            .chain(builtin(Builtin::MaxRss))
            .collect()
    }
}

/// Returns `wall time`, `memory`, or the quoted name of a user's metric.
fn noun(metric: &Metric) -> String {
    match Builtin::from_name(&metric.name) {
        Some(Builtin::MaxRss) => "memory".to_owned(),
        Some(_) => clean(&metric.label),
        None => format!("`{}`", clean(&metric.label)),
    }
}

/// Difference that was shown: `is` `27 % faster` `than` `(1.24x-1.30x)`.
struct Clause {
    verb: &'static str,
    claim: String,
    preposition: &'static str,
    interval: Option<Interval>,
}

impl Clause {
    fn new(metric: &Metric, against: &ReferenceComparison) -> Self {
        let higher = against.difference.is_some_and(|d| d.value > 0.0);
        let ratio = against.ratio.filter(|ratio| ratio.value > 0.0);
        match ratio {
            Some(time) if metric.name == Builtin::Wall.name() => Self::speed(time, higher),
            _ => Self::amount(metric, against, ratio, higher),
        }
    }

    /// Makes a clause on speed, the inverse of time; its interval is the inverse of that of the time.
    fn speed(time: Estimate, slower: bool) -> Self {
        let speed = Estimate {
            value: time.value.recip(),
            interval: time.interval.map(|interval| Interval {
                low: interval.high.recip(),
                high: interval.low.recip(),
            }),
        };
        let (Estimate { value, interval }, how) = if slower {
            (time, "slower")
        } else {
            (speed, "faster")
        };
        let (verb, claim, preposition) = match (value >= 2.0, slower) {
            (false, _) => ("is", format!("{} {how}", percent(value - 1.0)), "than"),
            (true, false) => ("is", format!("{} times as fast", times(value)), "as"),
            (true, true) => ("takes", format!("{} times as long", times(value)), "as"),
        };
        Self {
            verb,
            claim,
            preposition,
            interval,
        }
    }

    /// Makes a clause on an amount: `uses 12 % more memory`, `has 3.1 times the ops`, `uses less memory`.
    fn amount(
        metric: &Metric,
        against: &ReferenceComparison,
        ratio: Option<Estimate>,
        higher: bool,
    ) -> Self {
        let noun = noun(metric);
        let own = Builtin::from_name(&metric.name).is_none();
        let (verb, more, judged) = match (own, higher) {
            (true, true) => ("has", "higher", verdict_word(metric, against)),
            (true, false) => ("has", "lower", verdict_word(metric, against)),
            (false, true) => ("uses", "more", ""),
            (false, false) => ("uses", "less", ""),
        };
        let (claim, preposition) = match ratio.map(|ratio| ratio.value) {
            Some(value) if value >= 2.0 => (format!("{} times the {noun}", times(value)), "of"),
            Some(value) => {
                let percent = percent(value - 1.0);
                (format!("{percent} {more} {noun}{judged}"), "than")
            }
            None => (format!("{more} {noun}{judged}"), "than"),
        };
        Self {
            verb,
            claim,
            preposition,
            interval: ratio.and_then(|ratio| ratio.interval),
        }
    }

    /// Formats the claim; the first of a sentence also has the reference and the interval.
    fn text(&self, reference: Option<&String>) -> String {
        let Self {
            claim, preposition, ..
        } = self;
        let Some(reference) = reference else {
            return claim.clone();
        };
        let interval = self.interval.map_or(String::new(), bracket);
        format!("{claim} {preposition} {reference}{interval}")
    }
}

/// Returns the verdict as a word, because the name of a user's metric does not show whether `higher` is good.
fn verdict_word(metric: &Metric, against: &ReferenceComparison) -> &'static str {
    match (metric.better, against.verdict) {
        (Better::Neither, _) => "",
        (_, Verdict::Better) => " (better)",
        (_, _) => " (worse)",
    }
}

fn times(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.1}")
    } else {
        ratio(value)
    }
}

/// Formats an interval, ` (1.24x-1.30x)`, with a third decimal where two would hide that it excludes 1.
fn bracket(interval: Interval) -> String {
    let Interval { low, high } = interval;
    if !(low.is_finite() && high.is_finite()) {
        return String::new();
    }
    let decimals = if (low - 1.0).abs().min((high - 1.0).abs()) < 0.02 {
        3
    } else {
        2
    };
    format!(" ({low:.decimals$}x-{high:.decimals$}x)")
}
