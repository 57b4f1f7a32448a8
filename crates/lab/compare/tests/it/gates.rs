//! Conditions for continuous integration: some are shown, some are not, and noise fails no gate.

use superhue_compare::ComparisonView;
use superhue_measure::{
    Arm, Builtin, Comparison, Condition, ConditionError, Context, Demand, Design, Execution,
    Judgement, Metric, Outcome, Record, Sample, Settings, gate,
};

use crate::simulation::{NoiseModel, compare, scan};

fn condition(text: &str, demand: Demand, comparison: &Comparison) -> Condition {
    let reference = comparison.settings.reference;
    Condition::parse(
        text,
        demand,
        &comparison.arms,
        &comparison.metrics,
        reference,
    )
    .unwrap()
}

/// Returns the outcome of one condition under both demands, and the judgements for the arms.
fn judged(comparison: &mut Comparison, text: &str) -> (Outcome, Outcome, Vec<Judgement>) {
    let [fail_if, fail_unless] = [Demand::FailIf, Demand::FailUnless].map(|demand| {
        comparison.check_conditions(&[condition(text, demand, comparison)]);
        comparison.gates[0].clone()
    });
    assert_eq!(fail_if.findings, fail_unless.findings);
    let judgements = fail_if.findings.iter().map(|f| f.judgement).collect();
    (fail_if.outcome, fail_unless.outcome, judgements)
}

use Judgement::{DoesNotHold, Holds, NotJudged, Undecided};
use Outcome::{Failed, Passed};

#[test]
fn a_clear_difference_is_found_on_either_side() {
    // The second arm takes ten percent more, with one percent of noise, in 10 runs.
    let mut result = compare(NoiseModel::Normal(0.01), &[1.0, 1.1], 2, 10, 500, 3);
    assert_eq!(
        judged(&mut result, "m0 > 5%"),
        (Failed, Passed, vec![Holds])
    );
    assert_eq!(
        judged(&mut result, "m0 > +5 %"),
        (Failed, Passed, vec![Holds])
    );
    assert_eq!(
        judged(&mut result, "arm1: m0 < 5%"),
        (Passed, Failed, vec![DoesNotHold])
    );
    assert_eq!(
        judged(&mut result, "m0 > 15%"),
        (Passed, Failed, vec![DoesNotHold])
    );
    assert_eq!(judged(&mut result, "m0<15%"), (Failed, Passed, vec![Holds]));
    // The estimate is about 10 %, so neither is shown.
    assert_eq!(
        judged(&mut result, "m0 > 10%"),
        (Passed, Failed, vec![Undecided])
    );
}

#[test]
fn noise_fails_no_gate() {
    for world in [
        NoiseModel::Normal(0.05),
        NoiseModel::HeavyTailed,
        NoiseModel::Bimodal,
        NoiseModel::Drifting,
    ] {
        let mut failed = 0;
        for seed in 0..150 {
            // The threshold equals the true ratio, which is the hardest case.
            let mut result = compare(world, &[1.0, 1.0, 1.0], 2, 8, 100, seed);
            let conditions = ["m0 < 0%", "m0 > 0%", "m1 < 0%", "m1 > 0%"]
                .map(|text| condition(text, Demand::FailIf, &result));
            result.check_conditions(&conditions);
            let fails = result.gates.iter().any(|gate| gate.outcome == Failed);
            failed += usize::from(fails);
        }
        // 2.5 % of 150 are 4; the point estimate would fail all of them.
        assert!(failed <= 7, "{world:?}: {failed} of 150");
    }
}

#[test]
fn a_gate_that_the_interval_alone_would_fail_needs_the_test_too() {
    let mut interval_alone = 0;
    let mut failed = 0;
    for seed in 0..300 {
        let mut result = compare(NoiseModel::HeavyTailed, &[1.0, 1.0], 1, 5, 200, seed);
        let beyond = |c: &Comparison| {
            let ratio = c.against("m0", 1).unwrap().ratio.unwrap();
            ratio.interval.unwrap().excludes(1.0)
        };
        interval_alone += usize::from(beyond(&result));
        let conditions = ["m0 < 0%", "m0 > 0%"];
        let conditions = conditions.map(|text| condition(text, Demand::FailIf, &result));
        result.check_conditions(&conditions);
        failed += usize::from(result.gates.iter().any(|gate| gate.outcome == Failed));
    }
    assert!(failed < interval_alone, "{failed}, {interval_alone}");
}

#[test]
fn all_questions_of_all_gates_are_corrected_for() {
    let mut result = compare(NoiseModel::Normal(0.01), &[1.0, 1.1, 1.2], 1, 6, 200, 3);
    let conditions = ["m0 > 5%", "m0 > 1%"].map(|t| condition(t, Demand::FailIf, &result));
    assert_eq!(gate::needed(&conditions[..1]), 5);
    assert_eq!(gate::needed(&conditions), 6);
    result.check_conditions(&conditions);
    for finding in result.gates.iter().flat_map(|gate| &gate.findings) {
        // The p-value is 2 / C(12, 6), times four questions.
        assert!((finding.p_corrected.unwrap() - 4.0 * 2.0 / 924.0).abs() < 1e-12);
        assert_eq!(finding.judgement, Holds);
    }
}

#[test]
fn in_a_scan_each_value_has_its_own_reference() {
    // At the second value all runs take ten times as long; only there is arm1 20 % worse.
    let mut result = scan(&[&[1.0, 1.0], &[10.0, 12.0]], 8);
    let (fails, _, judgements) = judged(&mut result, "m0 > 10%");
    assert_eq!(fails, Failed);
    assert_eq!(judgements, [DoesNotHold, Holds]);
    let arms: Vec<usize> = result.gates[0].findings.iter().map(|f| f.arm).collect();
    assert_eq!(arms, [1, 3]);
    assert_eq!(judged(&mut result, "m0 > 30%").0, Passed);
}

#[test]
fn what_is_wrong_is_said_with_what_there_is() {
    use ConditionError as E;
    let result = compare(NoiseModel::Normal(0.01), &[1.0, 1.1, 1.2], 2, 5, 100, 3);
    let error = |text: &str| {
        let refused = Condition::parse(text, Demand::FailIf, &result.arms, &result.metrics, 0);
        refused.unwrap_err()
    };
    for text in [
        "", "m0", "m0 = 2%", "m0 <", "< 2%", "m0 <= 2%", "m0 >= 2%", "<",
    ] {
        assert_eq!(error(text), E::Form(text.into()), "{text}");
    }
    for text in [
        "m0 < 2",
        "m0 < x%",
        "m0 < %",
        "m0 < -100%",
        "m0 < nan%",
        "m0 < inf%",
        "m0 < 2%%",
    ] {
        assert!(matches!(error(text), E::Percentage { .. }), "{text}");
    }
    let unknown = error("mops < -2%");
    assert!(
        unknown.to_string().contains("`mops`; there are m0 and m1"),
        "{unknown}"
    );
    let unknown = error("hot: m0 < -2%").to_string();
    assert!(
        unknown.contains("`hot`; there are arm0, arm1 and arm2"),
        "{unknown}"
    );
    let unknown = error("arm1: x < -2%").to_string();
    assert!(unknown.contains("no metric `x`"), "{unknown}");
    let reference = error("arm0: m0 < -2%").to_string();
    assert!(
        reference.contains("name one of arm1 and arm2"),
        "{reference}"
    );
}

/// Makes a comparison of two arms with the given values of wall time; `None` is a failed run, NaN a missing value.
fn wall(values: &[[Option<f64>; 2]]) -> Comparison {
    let mut execution = Execution::default();
    for (round, values) in values.iter().enumerate() {
        for (arm, value) in values.iter().enumerate() {
            let mut sample = Sample::new();
            sample.set("wall", value.unwrap_or(1.0));
            execution.records.push(Record {
                arm,
                round,
                position: arm,
                warmup: false,
                failed: value.is_none().then(|| "exit status 9".to_owned()),
                sample,
            });
        }
    }
    let metrics: Vec<Metric> = vec![Builtin::Wall.metric()];
    let settings = Settings {
        runs: values.len(),
        resamples: 200,
        ..Settings::default()
    };
    let arms = vec![Arm::new("never", ""), Arm::new("hot", "")];
    let design = Design::new(arms, metrics, settings).unwrap();
    Comparison::new(design, execution, Context::default())
}

#[test]
fn no_gate_passes_on_an_incomplete_result() {
    let even = |i: i32| 1.0 + 0.01 * f64::from(i);
    let good: Vec<[Option<f64>; 2]> = (0..9).map(|i| [Some(even(i)), Some(even(i))]).collect();
    let worse: Vec<_> = good.iter().map(|[a, b]| [*a, b.map(|b| b * 2.0)]).collect();
    let outcome = |values: &[[Option<f64>; 2]], change: fn(&mut Comparison)| {
        let mut result = wall(values);
        change(&mut result);
        let condition = condition("wall > 5%", Demand::FailIf, &result);
        result.check_conditions(&[condition]);
        let gate = &result.gates[0];
        (
            gate.outcome,
            gate.why_not_judged.clone().unwrap_or_default(),
        )
    };
    let whole: fn(&mut Comparison) = |_| ();
    assert_eq!(outcome(&good, whole).0, Passed);
    assert_eq!(outcome(&worse, whole).0, Failed);

    let mut with_failure = good.clone();
    with_failure[3][1] = None;
    let (got, why) = outcome(&with_failure, whole);
    assert_eq!(got, Outcome::NotJudged);
    assert!(why.contains("1 run of `hot` failed"), "{why}");
    let mut with_missing = good.clone();
    with_missing[3][0] = Some(f64::NAN);
    let (got, why) = outcome(&with_missing, whole);
    assert_eq!(got, Outcome::NotJudged);
    assert!(why.contains("`never` lacks 1"), "{why}");
    assert_eq!(
        outcome(&good, |c| c.interrupted = true).0,
        Outcome::NotJudged
    );
    assert_eq!(
        outcome(&good, |c| c.aborted = Some("x".into())).0,
        Outcome::NotJudged
    );
    // The remaining values suffice to fail it.
    let mut with_failure = worse.clone();
    with_failure[3][1] = None;
    assert_eq!(outcome(&with_failure, whole).0, Failed);

    let (got, why) = outcome(&good[..4], whole);
    assert_eq!(got, Outcome::NotJudged);
    assert!(why.contains("4 values, and it takes 5"), "{why}");
    let none: Vec<_> = good.iter().map(|[a, _]| [*a, None]).collect();
    let (got, why) = outcome(&none, whole);
    assert_eq!(got, Outcome::NotJudged);
    assert!(why.contains("no good run: exit status 9"), "{why}");
    let to_zero: Vec<_> = good.iter().map(|[_, b]| [Some(0.0), *b]).collect();
    let (got, why) = outcome(&to_zero, whole);
    assert_eq!(got, Outcome::NotJudged);
    assert!(why.contains("no ratio"), "{why}");
    // Zeros on both sides are no change.
    let zeros = vec![[Some(0.0), Some(0.0)]; 8];
    assert_eq!(outcome(&zeros, whole).0, Passed);
    let mut nothing = wall(&zeros);
    assert_eq!(
        judged(&mut nothing, "wall < 5%"),
        (Failed, Passed, vec![Holds])
    );
    assert_eq!(
        judged(&mut nothing, "wall > 5%"),
        (Passed, Failed, vec![DoesNotHold])
    );
    assert_eq!(judged(&mut wall(&good[..4]), "wall > 5%").2, [NotJudged]);
}

/// Equal arms, of which there are enough for the removal of slow rounds: gates have the promised rate of false alarms, and a threshold is judged by the
/// values of which the table is made.
#[test]
fn gates_and_table_are_of_the_same_values() {
    let mut failed = 0_u64;
    let mut found = [0; 2];
    for seed in 0..200 {
        let mut equal = compare(NoiseModel::SlowRounds, &[1.0; 7], 1, 8, 100, seed);
        let conditions = ["m0 < 0%", "m0 > 0%"];
        let conditions = conditions.map(|text| condition(text, Demand::FailIf, &equal));
        equal.check_conditions(&conditions);
        failed += u64::from(equal.gates.iter().any(|gate| gate.outcome == Failed));

        let mut factors = [1.0; 7];
        factors[1] = 1.15;
        let mut worse = compare(NoiseModel::SlowRounds, &factors, 1, 8, 100, seed);
        let evened = worse.against("m0", 1).unwrap().is_beyond_chance();
        let gate = judged(&mut worse, "arm1: m0 > 0%").2 == [Holds];
        found[0] += u32::from(evened);
        found[1] += u32::from(gate);
    }
    // 2.5 % of 200 and three standard errors.
    assert!(failed <= 11, "{failed} of 200");
    // A gate asks one question, and the table six.
    assert!(found[1] >= found[0], "{found:?}");
}

/// Counts how often the smallest loss that the gate names is found: in four of five cases.
#[test]
fn the_loss_that_is_said_to_be_found_is_found() {
    let noise = 0.05;
    for (runs, questions) in [(8, 1), (12, 1), (10, 2)] {
        let least = superhue_measure::power::detectable(runs, questions).unwrap() * noise;
        let conditions: &[&str] = match questions {
            1 => &["m0 > 2%"],
            // Equal p-values: both take the whole correction.
            _ => &["m0 > 2%", "m0 > 2%"],
        };
        let found = (0..300).filter(|&seed| {
            let loss = 1.02 * f64::exp(least);
            let mut result = compare(NoiseModel::Normal(noise), &[1.0, loss], 1, runs, 400, seed);
            let conditions: Vec<Condition> = conditions
                .iter()
                .map(|text| condition(text, Demand::FailIf, &result))
                .collect();
            result.check_conditions(&conditions);
            result.gates[0].outcome == Failed
        });
        let share = found.count() as f64 / 300.0;
        assert!((0.70..=0.90).contains(&share), "{runs} runs: {share}");
    }
}

#[test]
fn a_gate_that_passes_says_what_it_would_have_found() {
    let mut result = compare(NoiseModel::Normal(0.02), &[1.0, 1.0], 1, 10, 500, 3);
    result.check_conditions(&[condition("m0 > 5%", Demand::FailIf, &result)]);
    let finding = &result.gates[0].findings[0];
    let least = finding.detectable.unwrap();
    assert!((1.055..1.12).contains(&least), "{least}");
    let line = &result.gate_lines()[1];
    assert!(line.ends_with("to be above it in 4 of 5 cases."), "{line}");
}

#[test]
fn gates_are_kept_in_the_document_and_shown() {
    let mut result = compare(NoiseModel::Normal(0.01), &[1.0, 1.1], 1, 10, 500, 3);
    let before = result.to_json().unwrap();
    assert!(!before.contains("\"gates\""));
    let conditions = [
        condition("m0 > 5%", Demand::FailIf, &result),
        condition("m0 > 0%", Demand::FailUnless, &result),
    ];
    result.check_conditions(&conditions);
    let read = Comparison::from_json(&result.to_json().unwrap()).unwrap();
    assert_eq!(read, result);
    let lines = read.gate_lines();
    assert_eq!(lines[0], "`--fail-if 'm0 > 5%'`: FAILED.");
    assert!(lines[1].contains("`arm1`: 1."), "{lines:?}");
    assert!(
        lines[1].ends_with("), shown to be above 1.050."),
        "{lines:?}"
    );
    assert_eq!(lines[2], "`--fail-unless 'm0 > 0%'`: passed.");
    for line in &lines {
        assert!(
            ComparisonView(&read).table(100).contains(line.trim_start()),
            "{line}"
        );
    }
    let planted = result.to_json().unwrap().replace(
        "\"findings\": [\n        {\n          \"arm\": 1",
        "\"findings\": [\n        {\n          \"arm\": 7",
    );
    assert!(planted.contains("\"arm\": 7") && Comparison::from_json(&planted).is_err());
}
