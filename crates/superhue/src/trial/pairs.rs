//! A trial in progress: it lets the policy learn, tries to switch it, and measures pairs until one verdict is shown.

use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue_measure::trial::timetable::Timetable;
use superhue_measure::trial::{
    Trial, TrialEffect, TrialEstimates, TrialOutcome, TrialPair, TrialSwitching, TrialVerdict,
};
use superhue_measure::{Coin, Evidence, Range, Shown};
use superhue_model::counted;

use super::document::{frames_of, gain_of, verdict_of};
use super::environment::TrialEnvironment;
use super::meter::{BlockError, Meter, MeterEnvironment};
use super::switch::{PolicySwitch, Remains, SwitchCounts};
use super::{End, TrialPlan, TrialStep};
use crate::live::WatchAccount;

/// Time without new huge pages after which the policy has learned enough.
const QUIET: Duration = Duration::from_secs(3);

/// Share of regions; a pair does not count if more of them have gone with their processes.
const GONE: f64 = 0.1;

/// Pairs in a row without a value after which the trial fails.
const MAX_VALUELESS_PAIRS: u32 = 5;

/// Smallest difference between the shares of huge regions in *on* and in *off* with which "no difference" says something about the policy.
const LEAST_CONTRAST: f64 = 0.5;

/// Pair without a ratio.
struct LostPair {
    why: BlockError,
    /// True if the policy was on in the block that has no value; `None` if the trial ended before one.
    on: Option<bool>,
}

impl LostPair {
    const fn stopped() -> Self {
        Self {
            why: BlockError::Stopped,
            on: None,
        }
    }
}

/// A trial in progress.
pub(super) struct TrialRun<'a> {
    pub(super) plan: &'a TrialPlan,
    pub(super) meter: Meter,
    pub(super) switch: PolicySwitch,
    pub(super) begun: Instant,
    pub(super) coin: Coin,
    pub(super) evidence: Evidence,
    pub(super) timetable: Timetable,
    pub(super) trial: Trial,
    pub(super) growth: u64,
    /// True after many of the regions that the policy had made huge went with their processes.
    pub(super) broken: bool,
    /// True if the policy was on in the block in which that happened.
    pub(super) broken_on: Option<bool>,
}

impl TrialRun<'_> {
    /// Runs until the trial ends.
    pub(super) fn go(
        &mut self,
        environment: &mut TrialEnvironment<'_>,
        tell: &mut dyn FnMut(TrialStep<'_>),
    ) -> End {
        if let Err(end) = self.learn(environment, tell) {
            return end;
        }
        tell(TrialStep::Switching);
        if let Err(end) = self.try_switching(environment) {
            return end;
        }
        tell(TrialStep::Measuring {
            block: self.timetable.block(),
            settle: self.timetable.settle(),
        });
        let mut in_vain = 0;
        loop {
            let left = self.plan.limit.saturating_sub(self.begun.elapsed());
            let (block, settle) = (self.timetable.block(), self.timetable.settle());
            if left.as_secs_f64() < 2.0 * (block + settle) {
                return End::Limit;
            }
            let measured = self.pair(environment, block, settle);
            if let Some(end) = environment.end.take() {
                return end;
            }
            if let Some(trouble) = self.switch.trouble() {
                return End::Failed(trouble);
            }
            self.tend(environment);
            let broken = std::mem::take(&mut self.broken);
            let broken_on = self.broken_on.take();
            match measured {
                Ok(_) if broken => {
                    // The policy may be why it has ended.
                    if let Some(on) = broken_on {
                        self.trial.without_value.get_or_insert_default().add(on);
                    }
                    self.discard("because the target was started anew", tell);
                    self.trial.target.restarts += 1;
                    if let Err(end) = self.learn(environment, tell) {
                        return end;
                    }
                }
                Ok((pair, halves)) => {
                    in_vain = 0;
                    self.evidence.add(pair.on, pair.off);
                    self.timetable.add((pair.on / pair.off).ln(), &halves);
                    self.enter(pair);
                    tell(TrialStep::Pair(&self.trial, None));
                    if let Some(shown) = self.evidence.shown() {
                        return match self.why_withheld(shown) {
                            Some(why) => End::Withheld(why),
                            None => End::Shown(shown),
                        };
                    }
                }
                Err(LostPair { why, on }) => {
                    if let Some(on) = on {
                        let states = self.trial.without_value.get_or_insert_default();
                        states.add(on);
                    }
                    // A source that is updated less often than the blocks end gets longer ones.
                    let is_longer = why == BlockError::DidNotMove && self.timetable.did_not_move();
                    in_vain = if is_longer { 0 } else { in_vain + 1 };
                    let reason = why.to_string();
                    self.discard(&reason, tell);
                    if broken {
                        self.trial.target.restarts += 1;
                        if let Err(end) = self.learn(environment, tell) {
                            return end;
                        }
                    }
                    if in_vain >= MAX_VALUELESS_PAIRS {
                        let hint = match why {
                            BlockError::DidNotMove => {
                                ": --block sets longer blocks, and --for gives them room"
                            }
                            _ => "",
                        };
                        return End::Failed(format!(
                            "{MAX_VALUELESS_PAIRS} pairs in a row without a value: {reason}{hint}"
                        ));
                    }
                }
            }
        }
    }

    /// Waits until the policy has made all the huge pages it wants. Its switch is on then.
    fn learn(
        &mut self,
        environment: &mut TrialEnvironment<'_>,
        tell: &mut dyn FnMut(TrialStep<'_>),
    ) -> Result<(), End> {
        environment.feed(&mut self.switch);
        self.switch.switch(true, &mut |time| environment.nap(time));
        tell(TrialStep::Learning(self.switch.regions()));
        let mut until = Instant::now() + self.plan.learn;
        let (mut regions, mut changed) = (self.switch.regions(), Instant::now());
        loop {
            if environment.nap(Duration::from_millis(100)) {
                return Err(environment.end.take().unwrap_or(End::Signal));
            }
            environment.feed(&mut self.switch);
            self.switch.adopt_again();
            if let Some(trouble) = self.switch.trouble() {
                return Err(End::Failed(trouble));
            }
            let now = self.switch.regions();
            if now != regions {
                // A program that grows adds a few regions at a time, which do not count.
                if now.abs_diff(regions) > regions / 50 {
                    changed = Instant::now();
                }
                regions = now;
                tell(TrialStep::Learning(now));
            }
            if environment.members.is_empty() {
                // The service restarts.
                until = Instant::now() + self.plan.learn;
            }
            let is_quiet = regions > 0 && changed.elapsed() >= QUIET;
            if is_quiet || Instant::now() >= until {
                break;
            }
            if self.begun.elapsed() >= self.plan.limit {
                return Err(End::Limit);
            }
        }
        self.switch.forget_the_dead();
        if self.switch.regions() == 0 && !self.plan.nothing_switched {
            return Err(End::NothingToDo(self.why_nothing(environment)));
        }
        Ok(())
    }

    fn why_nothing(&self, environment: &TrialEnvironment<'_>) -> String {
        let account = self.switch.account();
        let mut reasons: Vec<String> = Vec::new();
        let huge = account.memory.huge_bytes.unwrap_or_default();
        if huge.0 > 0 {
            reasons.push(format!(
                "{huge} of {} are huge already, by the program, the kernel or the daemon: --present tries those, too",
                account.memory.anonymous_bytes
            ));
        }
        let all = account
            .collapses
            .failed
            .iter()
            .chain(&account.collapses.skipped);
        reasons.extend(all.map(|(why, count)| format!("{}: {why}", counted(*count, "collapse"))));
        reasons.extend(
            account
                .waiting
                .iter()
                .filter(|it| *it.1 > 0)
                .map(|(why, count)| format!("{} waiting: {why}", counted(*count, "region"))),
        );
        let pid = environment
            .members
            .first()
            .map_or_else(|| "PID".to_owned(), |id| id.pid.to_string());
        format!(
            "the policy has made no private memory huge within {} s ({}); `superhue status --why {pid}` says what stands in the way, \
             and a longer --learn gives it more time",
            self.plan.learn.as_secs(),
            if reasons.is_empty() {
                "no region suits it".to_owned()
            } else {
                reasons.join("; ")
            }
        )
    }

    /// Switches off and on again, twice: the time that this takes determines the length of blocks.
    fn try_switching(&mut self, environment: &mut TrialEnvironment<'_>) -> Result<(), End> {
        let mut longest = Duration::ZERO;
        let mut huge_off = None;
        // In a guest, first use of a frame costs more than use of a frame that was in a huge page before: only the second round counts.
        for (on, counts) in [(false, false), (true, false), (false, true), (true, true)] {
            let (begun, limit) = (self.begun, self.plan.limit);
            let is_over = || begun.elapsed() >= limit;
            let took = (self.switch).switch(on, &mut |time| environment.nap(time) || is_over());
            if let Some(end) = environment.end.take() {
                return Err(end);
            }
            if let Some(trouble) = self.switch.trouble() {
                return Err(End::Failed(trouble));
            }
            if is_over() {
                return Err(End::Limit);
            }
            if counts {
                longest = longest.max(took);
            }
            if !on {
                huge_off = self.switch.huge_share();
            }
        }
        self.timetable.switched(longest.as_secs_f64());
        if let (0, zeroed @ 1..) = self.switch.switched_and_zeroed() {
            return Err(End::NothingToDo(format!(
                "{} hold pages of zeroes, which a split replaces by one shared page: without huge pages the program would be faster for that \
                 alone. Try it when its memory is filled",
                counted(zeroed as u64, "region")
            )));
        }
        if self.plan.nothing_switched {
            return Ok(());
        }
        if let Some(huge) = huge_off.filter(|huge| *huge > 0.5) {
            return Err(End::Failed(format!(
                "{:.0} % of the regions stayed huge when the policy was off: nothing to compare with. The kernel did not split them ({} refused)",
                huge * 100.0,
                counted(self.switch.switched.not_split, "split")
            )));
        }
        if let Some(huge) = self.switch.huge_share().filter(|huge| *huge < 0.5) {
            return Err(End::Failed(format!(
                "only {:.0} % of the regions became huge again: nothing to compare with",
                huge * 100.0
            )));
        }
        Ok(())
    }

    /// Returns the reason why the pairs do not support a verdict that they show, if there is one.
    fn why_withheld(&self, shown: Shown) -> Option<String> {
        if shown != Shown::Small && shown != gain_of(self.plan.better) {
            return None;
        }
        let nothing_seen = (shown == Shown::Small)
            .then(|| self.trial.why_stuck().or_else(|| self.why_no_contrast()));
        let states = self.trial.without_value.unwrap_or_default();
        (nothing_seen.flatten())
            .or_else(|| states.why_doubtful(self.plan.alpha))
            .or_else(|| {
                let lost = states.on.saturating_sub(states.off);
                (!self.trial.shows_despite(shown, lost)).then(|| {
                    format!(
                        "{} without a value when on, and {} when off: had those been bad ones, the others would not show it",
                        counted(states.on, "block"),
                        states.off
                    )
                })
            })
    }

    /// Returns the reason why the pairs say nothing about the policy, if regions were about as huge in *off* as in *on*.
    fn why_no_contrast(&self) -> Option<String> {
        if self.plan.nothing_switched {
            return None;
        }
        let Some((on, off)) = self.trial.mean_huge() else {
            let why = "it is not known if the regions were huge when on, and not when off, so the metric says nothing about the policy";
            return Some(why.to_owned());
        };
        (on - off < LEAST_CONTRAST).then(|| {
            format!(
                "{:.0} % of the regions were huge when on, and {:.0} % when off, so the metric says nothing about the policy",
                on * 100.0,
                off * 100.0
            )
        })
    }

    /// Measures two blocks; returns the pair, and the differences between the halves of each block.
    fn pair(
        &mut self,
        environment: &mut TrialEnvironment<'_>,
        block: f64,
        settle: f64,
    ) -> Result<(TrialPair, Vec<f64>), LostPair> {
        let on_first = self.coin.toss();
        let mut values = [None; 2];
        let mut huge = [None; 2];
        let mut longest = Duration::ZERO;
        for on in [on_first, !on_first] {
            let begins = Instant::now() + Duration::from_secs_f64(settle);
            longest = longest.max(self.switch.switch(on, &mut |time| environment.nap(time)));
            if self.switch.trouble().is_some() {
                return Err(LostPair::stopped());
            }
            while Instant::now() < begins {
                let left = begins.saturating_duration_since(Instant::now());
                if environment.nap(left.min(Duration::from_millis(50))) {
                    return Err(LostPair::stopped());
                }
            }
            let value = self
                .meter
                .block(Duration::from_secs_f64(block), environment);
            self.note_the_dead(Some(on));
            let value = value.map_err(|why| LostPair { why, on: Some(on) })?;
            values[usize::from(on)] = Some(value);
            huge[usize::from(on)] = self.switch.huge_share();
            environment.feed(&mut self.switch);
        }
        self.timetable.switched(longest.as_secs_f64());
        let [Some(off), Some(on)] = values else {
            return Err(LostPair::stopped());
        };
        let pair = TrialPair {
            at_seconds: self.seconds(),
            on_first,
            block_seconds: block,
            settle_seconds: settle,
            on: on.value,
            off: off.value,
            huge_on: huge[1],
            huge_off: huge[0],
            effect: TrialEffect::default(),
        };
        let halves = [on, off].iter().filter_map(|value| value.halves).collect();
        Ok((pair, halves))
    }

    /// Returns the seconds since the start, an earlier trial included.
    fn seconds(&self) -> f64 {
        let earlier = self.plan.earlier.as_deref().map_or(0.0, |it| it.seconds);
        self.begun.elapsed().as_secs_f64() + earlier
    }

    /// Updates members, lost regions and growth after a pair.
    fn tend(&mut self, environment: &mut TrialEnvironment<'_>) {
        environment.feed(&mut self.switch);
        self.note_the_dead(None);
        self.growth = self.growth.max(self.switch.account().charged_bytes.0);
    }

    /// Notes that most regions have ended with their processes, and the state in which they did.
    fn note_the_dead(&mut self, on: Option<bool>) {
        let (before, left) = self.switch.forget_the_dead();
        #[allow(clippy::cast_precision_loss, reason = "counts of regions")]
        if before > 0 && (before - left) as f64 > GONE * before as f64 {
            self.broken = true;
            self.broken_on = on;
        }
    }

    fn discard(&mut self, reason: &str, tell: &mut dyn FnMut(TrialStep<'_>)) {
        // A reason with numbers in it would be a kind of its own each time.
        let known = self.trial.discarded.len() < 16 || self.trial.discarded.contains_key(reason);
        let key = if known { reason } else { "for other reasons" };
        *self.trial.discarded.entry(key.to_owned()).or_default() += 1;
        tell(TrialStep::Pair(&self.trial, Some(reason)));
    }

    fn enter(&mut self, mut pair: TrialPair) {
        let (estimate, Range { low, high }) = self.evidence.usual_shares();
        pair.effect = TrialEffect {
            estimate,
            low,
            high,
        };
        self.trial.effect = pair.effect;
        self.trial.pairs.push(pair);
        self.trial.seconds = self.seconds();
    }
}

impl TrialRun<'_> {
    /// Enters the final estimates, corrected for the stopping rule.
    fn estimate(&mut self) {
        let mean = self.evidence.mean();
        let Some(mean_as_measured) = mean.estimate() else {
            return;
        };
        let Range { low, high } = mean.range();
        let corrected = self.evidence.corrected(self.plan.seed);
        let (usual_as_measured, _) = self.evidence.usual_shares();
        self.trial.estimates = Some(TrialEstimates {
            usual_as_measured,
            mean: Some(corrected.map_or(mean_as_measured, |it| it.mean)),
            mean_as_measured: Some(mean_as_measured),
            mean_low: low,
            mean_high: high,
            orders: corrected.map_or(0, |it| it.orders as u64),
        });
        if let Some(corrected) = corrected {
            self.trial.effect.estimate = Some(corrected.usual);
        }
    }

    /// Leaves the target in its final state, and returns the result.
    pub(super) fn conclude(mut self, end: End, environment: &mut TrialEnvironment<'_>) -> Trial {
        // An alarm of a guard does not wait, and neither does a user who ends the trial.
        let at_once = matches!(end, End::Alarm(_) | End::Signal);
        let (outcome, reason) = verdict_of(end, self.plan.better);
        // The processes for which the trial's huge pages are split.
        environment.search();
        self.switch.forget_the_dead();
        let account: Arc<WatchAccount> = self.switch.account();
        let Remains {
            huge: left,
            unsplit,
            found,
            found_not_restored,
        } = (self.switch).finish(outcome == TrialOutcome::Keep, at_once, &mut |time| {
            environment.rest(time)
        });
        self.estimate();
        let SwitchCounts {
            times_on,
            times_off,
            longest_on,
            longest_off,
            not_collapsed,
            not_split,
        } = self.switch.switched;
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let (regions, zeroed) = self.switch.switched_and_zeroed();
        let regions = regions as u64;
        let frames = self.switch.frames();
        let left_on = self.switch.finish_scattering();
        let not_held = self.switch.not_held().map(str::to_owned);
        let mut trial = self.trial;
        trial.frames = (times_off > 0).then(|| frames_of(frames));
        trial.verdict = TrialVerdict { outcome, reason };
        trial.guards = environment.guards.told();
        trial.switching = TrialSwitching {
            regions,
            bytes: regions * superhue_model::HUGE_PAGE_SIZE,
            huge_before_bytes: trial.switching.huge_before_bytes,
            growth_bytes: self.growth.max(account.charged_bytes.0),
            times_on,
            times_off,
            longest_on_seconds: seconds(longest_on),
            longest_off_seconds: seconds(longest_off),
            not_collapsed,
            not_split,
            left_huge: left,
            left_unsplit: unsplit,
            found_huge: found,
            found_not_restored,
            zero_regions: zeroed as u64,
        };
        trial.policy.pages = account
            .pages
            .map(|pages| pages.to_string())
            .or(trial.policy.pages);
        trial.policy.because.clone_from(&account.pages_because);
        trial.policy.notes.clone_from(&account.notes);
        trial.policy.notes.extend(left_on);
        // With the verdict to keep the policy nothing is to be switched off.
        trial
            .policy
            .notes
            .extend(not_held.filter(|_| outcome != TrialOutcome::Keep));
        trial.target.processes = environment.members.len() as u64;
        let largest = account
            .processes
            .iter()
            .max_by_key(|it| it.memory.resident_bytes);
        if let Some(largest) = largest {
            trial.target.program.clone_from(&largest.name);
        }
        trial
    }
}
