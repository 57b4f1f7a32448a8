//! The result document is complete and stable, and reading it checks it.

use proptest::prelude::*;
use serde_json::{Value, json};
use superhue_compare::ComparisonView;
use superhue_measure::{
    Arm, Builtin, Comparison, Context, Design, Execution, ReadError, Record, Sample, Settings,
    Verdict,
};

fn comparison(values: &[(f64, f64)]) -> Comparison {
    let arms = vec![
        Arm::new("never", "--pages never"),
        Arm::new("hot", "--pages hot"),
    ];
    let metrics = vec![Builtin::Wall.metric(), Builtin::CoveragePeak.metric()];
    let settings = Settings {
        resamples: 100,
        seed: u64::MAX,
        ..Settings::default()
    };
    let mut execution = Execution::default();
    for (round, (a, b)) in values.iter().enumerate() {
        for (arm, value) in [*a, *b].into_iter().enumerate() {
            let mut sample = Sample::new();
            sample.set("wall", value);
            execution.records.push(Record {
                arm,
                round,
                position: arm,
                warmup: round == 0,
                failed: (round == 2 && arm == 1).then(|| "exit status 1".to_owned()),
                sample,
            });
        }
    }
    let context = Context {
        command: vec!["./program".into(), "with spaces".into()],
        machine: json!({"cpu": "imagined", "mhz": 2449.998, "thp": ["madvise", null]}),
        started: Some(1_760_000_000.25),
        finished: None,
    };
    let design = Design::new(arms, metrics, settings).unwrap();
    Comparison::new(design, execution, context)
}

fn usual() -> Comparison {
    let values: Vec<(f64, f64)> = (0..9)
        .map(|i| (1.0 + 0.01 * f64::from(i), 0.8 + 0.01 * f64::from(i)))
        .collect();
    comparison(&values)
}

/// Returns the document as JSON with one change.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Comparison, ReadError> {
    let mut value: Value = serde_json::from_str(&usual().to_json().unwrap()).unwrap();
    change(&mut value);
    Comparison::from_json(&value.to_string())
}

#[test]
fn the_document_says_everything() {
    let value: Value = serde_json::from_str(&usual().to_json().unwrap()).unwrap();
    assert_eq!(value["schema"], "superhue-compare/1");
    assert_eq!(value["command"][1], "with spaces");
    assert_eq!(value["arms"][1]["options"], "--pages hot");
    assert_eq!(value["settings"]["seed"], u64::MAX);
    assert_eq!(value["machine"]["mhz"], 2449.998);
    assert_eq!(value["started"], 1_760_000_000.25);
    assert_eq!(value["finished"], Value::Null);
    assert_eq!(value["interrupted"], false);
    let samples = value["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 18);
    assert_eq!(samples[0]["warmup"], true);
    assert_eq!(samples[0]["values"]["wall"], 1.0);
    // A value that was not measured is null, with a reason.
    assert_eq!(samples[0]["values"]["coverage_peak"], Value::Null);
    assert_eq!(samples[0]["missing"]["coverage_peak"], "not reported");
    assert_eq!(samples[5]["failed"], "exit status 1");
    let hot = &value["summaries"][0]["arms"][1];
    assert_eq!(hot["measured"], 7);
    assert_eq!(hot["against"]["verdict"]["is"], "better");
    let coverage = &value["summaries"][1]["arms"][1];
    assert_eq!(coverage["against"]["verdict"]["is"], "not-measured");
}

#[test]
fn tallies_count_measured_runs() {
    let comparison = usual();
    let tally = comparison.tally(1);
    assert_eq!((tally.good, tally.failed), (7, 1));
    assert_eq!(tally.why_failed, Some("exit status 1"));
    assert_eq!(comparison.tally(0).failed, 0);
    let verdict = comparison.against("wall", 1).unwrap().verdict;
    assert_eq!(verdict, Verdict::Better);
    assert!(comparison.against("wall", 0).is_none());
    assert!(comparison.against("no such", 1).is_none());
}

#[test]
fn unknown_fields_are_ignored() {
    let read = changed(|value| {
        value["weather"] = json!("rain");
        value["samples"][0]["humidity"] = json!(0.9);
        value["summaries"][0]["arms"][0]["comment"] = json!([]);
        value["settings"]["colour"] = json!(null);
    });
    assert_eq!(read.unwrap(), usual());
}

#[test]
fn other_documents_are_refused() {
    let error = changed(|value| value["schema"] = json!("superhue-compare/2")).unwrap_err();
    assert!(matches!(error, ReadError::OtherSchema(ref name) if name == "superhue-compare/2"));
    assert!(error.to_string().contains("superhue-compare/1"));
    assert!(matches!(
        Comparison::from_json("{}"),
        Err(ReadError::NoSchema)
    ));
    for text in ["", "[", "nonsense"] {
        assert!(matches!(
            Comparison::from_json(text),
            Err(ReadError::Json(_))
        ));
    }
    assert!(matches!(
        Comparison::from_json("[1, 2]"),
        Err(ReadError::NoSchema)
    ));
    let incomplete = changed(|value| {
        value.as_object_mut().unwrap().remove("samples");
    });
    assert!(matches!(incomplete, Err(ReadError::Json(_))));
}

#[test]
fn contradictions_are_refused() {
    type Change = fn(&mut Value);
    let changes: [Change; 6] = [
        |value| value["samples"][3]["arm"] = json!(2),
        |value| value["settings"]["reference"] = json!(7),
        |value| value["summaries"][0]["metric"] = json!("cpu"),
        |value| value["summaries"][0]["arms"][1]["arm"] = json!(0),
        |value| value["arms"][1]["name"] = json!("never"),
        |value| value["summaries"] = json!([]),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let error = changed(change).unwrap_err();
        assert!(
            matches!(error, ReadError::Inconsistent(_) | ReadError::Design(_)),
            "{index}: {error}"
        );
    }
}

fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        0.5..2.0f64,
        Just(0.0),
        Just(1e300),
        Just(-1e300),
        Just(1e-308)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Every document reads back the same, and can be shown.
    #[test]
    fn every_document_survives_a_round_trip(
        values in prop::collection::vec((value(), value()), 0..9)
    ) {
        let comparison = comparison(&values);
        let read = Comparison::from_json(&comparison.to_json().unwrap()).unwrap();
        prop_assert_eq!(&read, &comparison);
        prop_assert_eq!(ComparisonView(&read).table(80), ComparisonView(&comparison).table(80));
        let plot = ComparisonView(&comparison).plot();
        prop_assert!(!plot.contains("NaN") && !plot.contains("inf"));
    }
}
