//! A trial as a picture: its pairs, and the effects that are not ruled out, over time.

#[cfg(test)]
mod tests;

use superhue_plot::svg::{Anchor, Ink, Svg, fit};

use superhue_measure::human::exact_percent;
use superhue_measure::metric::Better;
use superhue_measure::trial::words::{signed, time};
use superhue_measure::trial::{Trial, TrialOutcome, TrialPair};

const WIDTH: i32 = 960;
const HEIGHT: i32 = 480;
const LEFT: i32 = 80;
const RIGHT: i32 = WIDTH - 30;
const TOP: i32 = 96;
const BOTTOM: i32 = HEIGHT - 64;

/// Largest change on the axis; a triangle at the end of the axis stands for a pair with a larger one.
const MAX_DRAWN_CHANGE: f64 = 1.0;

/// Half the width of the ends of an interval that stands alone.
const END: i32 = 7;
/// Ratio of the time axis to the time of an only pair, which would lie on the edge without it.
const AIR: f64 = 1.15;

/// Draws the trial.
#[must_use]
pub fn to_svg(trial: &Trial) -> String {
    let target = match trial.target.program.as_str() {
        "" => trial.target.name.clone(),
        program => format!("{program} ({})", trial.target.name),
    };
    let title = format!("Trial of {} on {target}", trial.policy_words());
    let mut svg = Svg::new(WIDTH, HEIGHT, &title);
    let title = fit(&title, 17, WIDTH - 40);
    svg.bold_below(20, 18, 17, Ink::Text, &title);
    let sentence = fit(&trial.short_sentence(), 13, WIDTH - 40);
    svg.text_below(20, 46, 13, Anchor::Left, Ink::Text, &sentence);
    let frame = Frame::around(trial);
    frame.grid(&mut svg, trial);
    frame.interval(&mut svg, trial);
    frame.pairs(&mut svg, trial);
    frame.verdict(&mut svg, trial);
    svg.finish()
}

/// Scales of the value axis and the time axis.
struct Frame {
    reach: f64,
    seconds: f64,
}

impl Frame {
    /// Fits the axes to most pairs and to the last interval.
    fn around(trial: &Trial) -> Self {
        let pairs = trial.pairs.iter();
        let mut far: Vec<f64> = pairs.map(|pair| change(pair).abs()).collect();
        far.sort_by(f64::total_cmp);
        let most = far.get(far.len() * 9 / 10).copied().unwrap_or(0.0);
        let ends = [trial.effect.low, trial.effect.high, trial.effect.estimate];
        let ends = ends.into_iter().flatten().map(f64::abs);
        let reach = ends.fold(most.max(trial.settings.within * 1.5), f64::max);
        let air = if only_pair(trial).is_some() { AIR } else { 1.0 };
        Self {
            reach: reach.min(MAX_DRAWN_CHANGE) * 1.15,
            seconds: trial.seconds.max(1.0) * air,
        }
    }

    /// Returns true if a change lies on the axis.
    fn holds(&self, share: f64) -> bool {
        share.abs() <= self.reach
    }

    #[allow(clippy::cast_possible_truncation, reason = "pixels of a picture")]
    fn y(&self, share: f64) -> i32 {
        let place = f64::midpoint(share / self.reach, 1.0).clamp(0.0, 1.0);
        BOTTOM - (place * f64::from(BOTTOM - TOP)).round() as i32
    }

    #[allow(clippy::cast_possible_truncation, reason = "pixels of a picture")]
    fn x(&self, seconds: f64) -> i32 {
        let place = (seconds / self.seconds).clamp(0.0, 1.0);
        LEFT + (place * f64::from(RIGHT - LEFT)).round() as i32
    }

    fn grid(&self, svg: &mut Svg, trial: &Trial) {
        let within = trial.settings.within;
        let (above, below) = (self.y(within), self.y(-within));
        svg.rectangle(LEFT, above, RIGHT - LEFT, below - above, Ink::Grid.hex());
        let step = round_step(self.reach / 4.0);
        let mut tick = 0.0;
        while tick <= self.reach {
            for value in [tick, -tick] {
                let y = self.y(value);
                svg.line((LEFT, y), (RIGHT, y), Ink::Grid, 1.0);
                svg.text(
                    LEFT - 8,
                    y + 4,
                    12,
                    Anchor::Right,
                    Ink::Text,
                    &signed(value),
                );
            }
            tick += step;
        }
        svg.line((LEFT, self.y(0.0)), (RIGHT, self.y(0.0)), Ink::Text, 1.0);
        let step = step_of_time(self.seconds);
        let mut at = 0.0;
        while at <= self.seconds {
            let x = self.x(at);
            svg.line((x, BOTTOM), (x, BOTTOM + 5), Ink::Text, 1.0);
            let text = if at == 0.0 { "0".to_owned() } else { time(at) };
            svg.text(x, BOTTOM + 20, 12, Anchor::Middle, Ink::Text, &text);
            at += step;
        }
        let better = match trial.metric.better {
            Better::Lower => " (less is better)",
            Better::Higher => " (more is better)",
            Better::Neither => "",
        };
        let what = format!("change of {} by the policy{better}", trial.metric_words());
        svg.text(LEFT, TOP - 10, 12, Anchor::Left, Ink::Text, &what);
        let band = format!(
            "grey: within {} counts as no difference",
            exact_percent(within)
        );
        svg.text(RIGHT, TOP - 10, 12, Anchor::Right, Ink::Faint, &band);
        let y = HEIGHT - 14;
        svg.dot(LEFT + 4, y - 4, 3, Ink::Line(3), 1.0);
        svg.text(
            LEFT + 14,
            y,
            12,
            Anchor::Left,
            Ink::Text,
            "pair of blocks, on first",
        );
        svg.dot(LEFT + 194, y - 4, 3, Ink::Line(4), 1.0);
        svg.text(LEFT + 204, y, 12, Anchor::Left, Ink::Text, "off first");
        svg.line((LEFT + 290, y - 4), (LEFT + 314, y - 4), Ink::Line(1), 6.0);
        let band = if only_pair(trial).is_some() {
            "not ruled out by this pair; an arrow: without a bound"
        } else {
            "not ruled out at that time"
        };
        svg.text(LEFT + 322, y, 12, Anchor::Left, Ink::Text, band);
        let beyond = trial.pairs.iter().filter(|pair| !self.holds(change(pair)));
        let beyond = beyond.count();
        if beyond > 0 {
            svg.beyond((RIGHT - 126, y - 8), true, Ink::Faint, 1.0);
            let text = format!("{beyond} beyond the axis");
            svg.text(RIGHT, y, 12, Anchor::Right, Ink::Text, &text);
        }
    }

    /// Draws the changes that are not ruled out.
    fn interval(&self, svg: &mut Svg, trial: &Trial) {
        if let Some(pair) = only_pair(trial) {
            self.bar(svg, pair);
            return;
        }
        let mut effects = trial.pairs.iter().map(|pair| pair.effect);
        // Without any bound, a band would cover everything and mean nothing.
        if effects.any(|effect| effect.low.or(effect.high).is_some()) {
            self.band(svg, trial);
        }
    }

    /// Draws the interval of an only pair, as a line with ends; an arrow stands for an end without a bound, and for one beyond the axis.
    fn bar(&self, svg: &mut Svg, pair: &TrialPair) {
        let (x, ink) = (self.x(pair.at_seconds), Ink::Line(1));
        let place = |bound: Option<f64>, edge: i32| {
            let bound = bound.filter(|bound| self.holds(*bound));
            bound.map_or((edge, true), |bound| (self.y(bound), false))
        };
        let high = place(pair.effect.high, TOP);
        let low = place(pair.effect.low, BOTTOM);
        svg.line((x, high.0), (x, low.0), ink, 3.0);
        for ((y, is_open), inward) in [(high, 10), (low, -10)] {
            let back = if is_open { y + inward } else { y };
            svg.polyline(&[(x - END, back), (x, y), (x + END, back)], ink, 3.0);
        }
    }

    /// Draws a band that narrows in steps.
    fn band(&self, svg: &mut Svg, trial: &Trial) {
        let (mut below, mut above) = (Vec::new(), Vec::new());
        let (mut low, mut high) = (BOTTOM, TOP);
        let ends = trial
            .pairs
            .iter()
            .map(|pair| (pair.at_seconds, pair.effect));
        let start = (0.0, superhue_measure::trial::TrialEffect::default());
        for (at, effect) in std::iter::once(start).chain(ends) {
            let x = self.x(at);
            below.push((x, low));
            above.push((x, high));
            low = effect.low.map_or(BOTTOM, |low| self.y(low));
            high = effect.high.map_or(TOP, |high| self.y(high));
            below.push((x, low));
            above.push((x, high));
        }
        let corners = above.iter().chain(below.iter().rev());
        let points: Vec<String> = corners.map(|(x, y)| format!("{x},{y}")).collect();
        let ink = Ink::Line(1).hex();
        svg.raw(format_args!(
            "<polygon points=\"{}\" fill=\"{ink}\" fill-opacity=\"0.22\"/>\n",
            points.join(" ")
        ));
        for line in [above, below] {
            svg.polyline(&line, Ink::Line(1), 1.5);
        }
    }

    fn pairs(&self, svg: &mut Svg, trial: &Trial) {
        // An only dot hides no other dot.
        let (radius, opacity) = match only_pair(trial) {
            Some(_) => (5, 1.0),
            None => (3, 0.6),
        };
        for pair in &trial.pairs {
            let (x, y) = (self.x(pair.at_seconds), self.y(change(pair)));
            let ink = Ink::Line(if pair.on_first { 3 } else { 4 });
            if self.holds(change(pair)) {
                svg.dot(x, y, radius, ink, opacity);
            } else {
                svg.beyond((x, y), change(pair) > 0.0, ink, opacity);
            }
        }
    }

    /// Draws the line at which the trial ended; beside an only pair, which the line would cover, the verdict alone.
    fn verdict(&self, svg: &mut Svg, trial: &Trial) {
        let Some(last) = trial.pairs.last() else {
            return;
        };
        if let Some(estimate) = trial.effect.estimate.filter(|share| self.holds(*share)) {
            let y = self.y(estimate);
            svg.dashed((LEFT, y), (RIGHT, y));
        }
        let word = match trial.verdict.outcome {
            TrialOutcome::Keep => "keep",
            TrialOutcome::Leave => "leave",
            TrialOutcome::NoDifference => "no difference",
            TrialOutcome::Undecided => "undecided",
            TrialOutcome::Guarded => "guard",
            TrialOutcome::NothingToDo | TrialOutcome::Interrupted | TrialOutcome::Failed => "ended",
        };
        let x = self.x(last.at_seconds);
        let gap = if only_pair(trial).is_some() {
            6 + 2 * END
        } else {
            svg.line((x, TOP), (x, BOTTOM), Ink::Accent, 2.0);
            6
        };
        // The word stays inside the axes.
        let (at, anchor) = if x < i32::midpoint(LEFT, RIGHT) {
            (x + gap, Anchor::Left)
        } else {
            (x - gap, Anchor::Right)
        };
        svg.over(at, TOP + 16, 13, anchor, word);
    }
}

/// Returns the change of the metric by the policy in a pair, as a share.
fn change(pair: &TrialPair) -> f64 {
    pair.on / pair.off - 1.0
}

/// Returns the pair of a trial that has no other.
fn only_pair(trial: &Trial) -> Option<&TrialPair> {
    match trial.pairs.as_slice() {
        [pair] => Some(pair),
        _ => None,
    }
}

/// Returns a round step of about this size: 1, 2 or 5 with zeroes.
fn round_step(rough: f64) -> f64 {
    let rough = rough.max(1e-6);
    let power = 10_f64.powf(rough.log10().floor());
    let fits = [1.0, 2.0, 5.0].into_iter();
    let mut fits = fits.filter(|step| step * power >= rough);
    fits.next().unwrap_or(10.0) * power
}

fn step_of_time(seconds: f64) -> f64 {
    const STEPS: [f64; 9] = [1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];
    let mut fits = STEPS.into_iter().filter(|step| seconds / step <= 8.0);
    fits.next().unwrap_or_else(|| round_step(seconds / 6.0))
}
