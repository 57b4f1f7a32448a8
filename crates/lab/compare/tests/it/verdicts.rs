//! Verdicts on samples chosen by hand.

use superhue_measure::verdict::summarise;
use superhue_measure::{
    Better, Builtin, Metric, MetricSummary, Record, ReferenceComparison, Sample, Settings, Unit,
    Verdict,
};

/// Values that one arm measured in its runs.
type Values<'a> = &'a [f64];

fn settings() -> Settings {
    Settings {
        resamples: 500,
        ..Settings::default()
    }
}

fn metric(name: &str, better: Better) -> Metric {
    Metric {
        name: name.to_owned(),
        label: name.to_owned(),
        unit: Unit::Count,
        better,
    }
}

fn record(arm: usize, round: usize) -> Record {
    Record {
        arm,
        round,
        position: arm,
        warmup: false,
        failed: None,
        sample: Sample::new(),
    }
}

/// Makes records of one metric `m`; NaN stands for "not measured".
fn records(arms: &[Values<'_>]) -> Vec<Record> {
    let mut records = Vec::new();
    for (arm, values) in arms.iter().enumerate() {
        for (round, value) in values.iter().enumerate() {
            let mut record = record(arm, round);
            record.sample.set("m", *value);
            records.push(record);
        }
    }
    records
}

fn judge_as(better: Better, reference: Values<'_>, arm: Values<'_>) -> ReferenceComparison {
    let records = records(&[reference, arm]);
    let summaries = summarise(&[metric("m", better)], &[0, 0], &settings(), &records);
    summaries[0].arms[1].against.unwrap()
}

fn judge(reference: Values<'_>, arm: Values<'_>) -> ReferenceComparison {
    judge_as(Better::Lower, reference, arm)
}

const LOW: Values<'_> = &[10.0, 11.0, 12.0, 10.5, 11.5, 12.5];
const HIGH: Values<'_> = &[20.0, 21.0, 22.0, 20.5, 21.5, 22.5];

#[test]
fn the_direction_decides() {
    let verdict = |better, a, b| judge_as(better, a, b).verdict;
    assert_eq!(verdict(Better::Lower, LOW, HIGH), Verdict::Worse);
    assert_eq!(verdict(Better::Lower, HIGH, LOW), Verdict::Better);
    assert_eq!(verdict(Better::Higher, LOW, HIGH), Verdict::Better);
    assert_eq!(verdict(Better::Higher, HIGH, LOW), Verdict::Worse);
    assert_eq!(verdict(Better::Neither, LOW, HIGH), Verdict::Higher);
    assert_eq!(verdict(Better::Neither, HIGH, LOW), Verdict::Lower);
    for better in [Better::Lower, Better::Higher, Better::Neither] {
        assert_eq!(verdict(better, LOW, LOW), Verdict::NoDifferenceShown);
    }
}

#[test]
fn numbers_are_those_of_the_definition() {
    let against = judge(LOW, HIGH);
    let ratio = against.ratio.unwrap();
    assert!((ratio.value - 21.25 / 11.25).abs() < 1e-12);
    let interval = ratio.interval.unwrap();
    assert!(20.0 / 12.5 <= interval.low && interval.low < ratio.value);
    assert!(ratio.value < interval.high && interval.high <= 22.5 / 10.0);
    assert_eq!(against.difference.unwrap().value, 10.0);
    // The p-value is 2 / C(12, 6), and there is only one question.
    assert!((against.p.unwrap() - 2.0 / 924.0).abs() < 1e-12);
    assert_eq!(against.p, against.p_corrected);
    // The ratios of the rounds are 20/10, 21/11, 22/12, ...
    let paired = against.paired_ratio.unwrap();
    assert!((paired.value - f64::midpoint(21.0 / 11.0, 21.5 / 11.5)).abs() < 1e-12);
}

#[test]
fn constant_samples_show_nothing() {
    let against = judge(&[7.0; 8], &[7.0; 8]);
    assert_eq!(against.verdict, Verdict::NoDifferenceShown);
    let ratio = against.ratio.unwrap();
    let interval = ratio.interval.unwrap();
    assert_eq!((ratio.value, interval.low, interval.high), (1.0, 1.0, 1.0));
    assert_eq!(against.p_corrected, None, "no question was asked");

    let zeros = judge(&[0.0; 8], &[0.0; 8]);
    assert_eq!(zeros.verdict, Verdict::NoDifferenceShown);
    assert_eq!(zeros.ratio, None);
    assert_eq!(zeros.difference.unwrap().value, 0.0);
}

#[test]
fn constants_that_differ_are_told_apart() {
    assert_eq!(judge(&[7.0; 8], &[8.0; 8]).verdict, Verdict::Worse);
}

#[test]
fn zero_faults_against_a_thousand_is_worse_without_a_ratio() {
    let thousand = [1000.0, 1001.0, 998.0, 1003.0, 999.0, 1000.0];
    let against = judge(&[0.0; 6], &thousand);
    assert_eq!(against.verdict, Verdict::Worse);
    assert_eq!((against.ratio, against.paired_ratio), (None, None));
    assert!(against.difference.unwrap().interval.unwrap().low > 990.0);

    let against = judge(&thousand, &[0.0; 6]);
    assert_eq!(against.verdict, Verdict::Better);
    assert_eq!(against.ratio.unwrap().value, 0.0);
}

#[test]
fn a_reference_that_is_often_zero_has_no_ratio() {
    let against = judge(&[0.0, 0.0, 0.0, 3.0, 3.0, 4.0, 5.0], &[9.0; 7]);
    assert_eq!(against.ratio, None);
    assert!(against.difference.is_some());
}

#[test]
fn negative_values_are_compared_by_difference() {
    let against = judge(&[-20.0, -21.0, -22.0, -20.5, -21.5], &[-10.0; 5]);
    assert_eq!(against.ratio, None);
    assert_eq!(against.verdict, Verdict::Worse);
}

#[test]
fn what_is_too_small_to_matter_is_not_called_a_difference() {
    let low = [1000.0, 1000.1, 1000.2, 1000.3, 1000.4, 1000.5];
    let high = low.map(|value| value + 4.0);
    let against = judge(&low, &high);
    assert_eq!(against.verdict, Verdict::NoDifferenceShown);
    assert!(against.is_beyond_chance());
    assert_eq!(judge(&low, &high.map(|v| v + 2.0)).verdict, Verdict::Worse);
    assert!(!judge(&low, &low).is_beyond_chance());
}

#[test]
fn missing_values_are_dropped_and_counted() {
    let mut arm = HIGH.to_vec();
    arm.extend([f64::NAN, f64::INFINITY]);
    let summaries = summarise(
        &[metric("m", Better::Lower)],
        &[0, 0],
        &settings(),
        &records(&[LOW, &arm]),
    );
    let summary = &summaries[0].arms[1];
    assert_eq!((summary.measured, summary.missing), (6, 2));
    let why = summary.why_missing.as_deref();
    assert_eq!(why, Some("not a finite number"));
    assert_eq!(summary.against.unwrap(), judge(LOW, HIGH));
}

#[test]
fn failed_runs_and_warmups_do_not_count() {
    let mut records = records(&[LOW, HIGH]);
    for (arm, warmup) in [(0, true), (1, true), (0, false), (1, false)] {
        let mut odd = record(arm, 7);
        odd.warmup = warmup;
        odd.failed = (!warmup).then(|| "exit status 1".to_owned());
        odd.sample.set("m", 1e9);
        records.push(odd);
    }
    let summaries = summarise(
        &[metric("m", Better::Lower)],
        &[0, 0],
        &settings(),
        &records,
    );
    assert_eq!(summaries[0].arms[1].measured, 6);
    assert_eq!(summaries[0].arms[1].against.unwrap(), judge(LOW, HIGH));
}

#[test]
fn an_arm_without_values_is_not_measured() {
    for (reference, arm) in [
        (LOW, &[][..]),
        (&[], LOW),
        (&[], &[]),
        (LOW, &[f64::NAN; 5]),
    ] {
        let against = judge(reference, arm);
        assert_eq!(against.verdict, Verdict::NotMeasured);
        assert_eq!((against.p, against.ratio), (None, None));
    }
}

#[test]
fn too_few_runs_say_how_many_are_needed() {
    for n in 1..=4 {
        let against = judge(&LOW[..n], &HIGH[..n]);
        assert_eq!(against.verdict, Verdict::TooFewRuns { needed: 5 }, "{n}");
        assert_eq!(against.ratio.unwrap().interval.is_none(), n < 4);
    }
    assert_eq!(judge(&LOW[..5], &HIGH[..5]).verdict, Verdict::Worse);
    // Three values against many would pass the test, but three values give no interval.
    let many: Vec<f64> = (0..20).map(f64::from).collect();
    let against = judge(&many, &[90.0, 91.0, 92.0]);
    assert_eq!(against.verdict, Verdict::TooFewRuns { needed: 5 });
}

/// Makes records with `metrics` metrics `m0`, `m1`, ..., each of which separates the arms.
fn all_different(metrics: usize, arms: usize, runs: usize) -> Vec<MetricSummary> {
    let described: Vec<Metric> = (0..metrics)
        .map(|index| metric(&format!("m{index}"), Better::Lower))
        .collect();
    let mut records = Vec::new();
    for arm in 0..arms {
        for round in 0..runs {
            let mut record = record(arm, round);
            for metric in &described {
                record
                    .sample
                    .set(&metric.name, (100 * arm + round) as f64 + 1.0);
            }
            records.push(record);
        }
    }
    summarise(&described, &vec![0; arms], &settings(), &records)
}

#[test]
fn more_questions_need_more_runs_and_just_as_many_as_said() {
    for (metrics, arms) in [(1, 2), (3, 2), (10, 2), (12, 6)] {
        let verdicts = |runs| -> Vec<Verdict> {
            let summaries = all_different(metrics, arms, runs);
            (summaries.iter().flat_map(|s| &s.arms))
                .filter_map(|arm| Some(arm.against?.verdict))
                .collect()
        };
        let Verdict::TooFewRuns { needed } = verdicts(3)[0] else {
            panic!("three runs are enough?");
        };
        let short = Verdict::TooFewRuns { needed };
        assert!(verdicts(needed - 1).iter().all(|v| *v == short));
        let enough = verdicts(needed);
        assert!(enough.iter().all(|v| *v == Verdict::Worse), "{enough:?}");
    }
}

#[test]
fn questions_that_cannot_be_answered_take_no_share() {
    let constant = |name: &str| metric(name, Better::Lower);
    let mut records = records(&[LOW, HIGH]);
    for record in &mut records {
        for index in 0..50 {
            record.sample.set(&format!("c{index}"), 0.0);
        }
    }
    let mut metrics = vec![metric("m", Better::Lower)];
    metrics.extend((0..50).map(|index| constant(&format!("c{index}"))));
    let summaries = summarise(&metrics, &[0, 0], &settings(), &records);
    let against = summaries[0].arms[1].against.unwrap();
    assert_eq!(against.p, against.p_corrected);
    assert_eq!(against.verdict, Verdict::Worse);
    let constant = summaries[1].arms[1].against.unwrap();
    assert_eq!(constant.verdict, Verdict::NoDifferenceShown);
}

#[test]
fn any_arm_can_be_the_reference() {
    let settings = Settings {
        reference: 1,
        ..settings()
    };
    let records = records(&[LOW, HIGH, LOW]);
    let summaries = summarise(
        &[metric("m", Better::Lower)],
        &[1, 1, 1],
        &settings,
        &records,
    );
    let verdict = |arm: usize| summaries[0].arms[arm].against.map(|a| a.verdict);
    assert_eq!(verdict(0), Some(Verdict::Better));
    assert_eq!(verdict(1), None);
    assert_eq!(verdict(2), Some(Verdict::Better));
}

#[test]
fn adding_a_metric_leaves_the_intervals_of_the_others_alone() {
    let mut records = records(&[LOW, HIGH]);
    for record in &mut records {
        record.sample.set(Builtin::Wall.name(), record.round as f64);
    }
    let one = [metric("m", Better::Lower)];
    let two = [metric("m", Better::Lower), Builtin::Wall.metric()];
    let (one, two) = (
        summarise(&one, &[0, 0], &settings(), &records),
        summarise(&two, &[0, 0], &settings(), &records),
    );
    let ratio = |summaries: &[MetricSummary]| summaries[0].arms[1].against.unwrap().ratio;
    assert_eq!(ratio(&one), ratio(&two));
}
