//! Markdown, CSV, and the output of scans.

use superhue_compare::ComparisonView;
use superhue_measure::{Comparison, Demand};

use crate::simulation::{NoiseModel, compare, scan, scan_seeded};

/// Returns the rows of the CSV as maps from column to cell.
fn rows(comparison: &Comparison) -> Vec<std::collections::HashMap<String, String>> {
    let text = ComparisonView(comparison).csv().unwrap();
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().map(Result::unwrap).collect()
}

#[test]
fn csv_has_every_figure_in_full() {
    let result = compare(NoiseModel::Normal(0.02), &[1.0, 1.2], 2, 8, 200, 4);
    let rows = rows(&result);
    assert_eq!(rows.len(), 4);
    let against = result.against("m1", 1).unwrap();
    let row = &rows[3];
    assert_eq!(
        (row["metric"].as_str(), row["arm"].as_str()),
        ("m1", "arm1")
    );
    let number = |name: &str| row[name].parse::<f64>().unwrap();
    let ratio = against.ratio.unwrap();
    // The export loses no digit.
    assert_eq!(number("ratio"), ratio.value);
    assert_eq!(number("ratio_high"), ratio.interval.unwrap().high);
    assert_eq!(number("p_corrected"), against.p_corrected.unwrap());
    assert_eq!(
        number("median"),
        result
            .summary("m1", 1)
            .unwrap()
            .values
            .unwrap()
            .median
            .value
    );
    assert_eq!(
        (row["verdict"].as_str(), row["better"].as_str()),
        ("worse", "lower")
    );
    assert_eq!(
        (row["measured"].as_str(), row["unit"].as_str()),
        ("8", "seconds")
    );
    assert_eq!(
        (rows[2]["verdict"].as_str(), rows[2]["ratio"].as_str()),
        ("reference", "")
    );
    let few = compare(NoiseModel::Normal(0.02), &[1.0, 1.2], 1, 3, 200, 4);
    let row = &self::rows(&few)[1];
    assert_eq!(
        (row["verdict"].as_str(), row["runs_needed"].as_str()),
        ("too-few-runs", "5")
    );
}

#[test]
fn names_break_neither_csv_nor_markdown() {
    let mut result = compare(NoiseModel::Normal(0.02), &[1.0, 1.2], 1, 8, 200, 4);
    result.arms[1].name = "a|b,\"c\"\n<b>*x*".to_owned();
    result.arms[1].options = "--pages hot,\n\"".to_owned();
    result.command = vec![
        "sh".to_owned(),
        "-c".to_owned(),
        "echo `date` | cat".to_owned(),
    ];
    let rows = rows(&result);
    assert_eq!(rows[1]["arm"], result.arms[1].name);
    assert_eq!(rows[1]["options"], result.arms[1].options);
    let markdown = ComparisonView(&result).markdown();
    let row = markdown
        .lines()
        .find(|line| line.starts_with("| a\\|"))
        .unwrap();
    assert!(row.starts_with(r#"| a\|b,"c""#), "{row}");
    assert!(row.contains(r"\<b\>\*x\*"), "{row}");
    // A row has as many cells as there are headings.
    let bars = |line: &str| line.replace(r"\|", "").matches('|').count();
    assert_eq!(bars(row), 7, "{row}");
    assert!(
        markdown.starts_with("## `` sh -c 'echo `date` | cat' ``\n"),
        "{markdown}"
    );
}

#[test]
fn a_scan_is_shown_by_value() {
    let result = scan(&[&[1.0, 1.0], &[100.0, 50.0]], 8);
    let table = ComparisonView(&result).table(100);
    let mut wanted = [" size=1", "  arm0", "  arm1", " size=2", "  arm0", "  arm1"]
        .iter()
        .peekable();
    for line in table.lines() {
        wanted.next_if(|wanted| line.starts_with(**wanted));
    }
    assert_eq!(wanted.next(), None, "{table}");
    assert!(
        table.contains("2 arms at 2 values, 8 runs per arm and value"),
        "{table}"
    );
    assert!(
        table.contains("With size=2: `arm1` has 50 % lower `m0` (better) than `arm0`"),
        "{table}"
    );
    let markdown = ComparisonView(&result).markdown();
    assert!(markdown.contains("| size | arm | median |"), "{markdown}");
    assert!(markdown.contains("| 2 | arm1 | "), "{markdown}");
    let rows = rows(&result);
    assert_eq!(
        (
            rows[3]["parameter_size"].as_str(),
            rows[3]["reference"].as_str()
        ),
        ("2", "arm0")
    );
    // Values are relative to the reference at the same value; otherwise one of the two would be a dot at the edge.
    let plot = ComparisonView(&result).plot();
    assert!(plot.contains("relative to the reference"), "no ratios");
    assert!(plot.contains("arm1, size=2"));
    let read = Comparison::from_json(&result.to_json().unwrap()).unwrap();
    assert_eq!(
        (
            ComparisonView(&read).table(100),
            ComparisonView(&read).plot()
        ),
        (table, plot)
    );
}

#[test]
fn a_scan_at_one_value_is_corrected_for_all_values() {
    let alone = scan(&[&[1.0, 1.2]], 6);
    let among_ten = scan(&[&[1.0, 1.2][..]].repeat(10), 6);
    let p = |result: &Comparison| {
        let against = result.against("m0", 1).unwrap();
        (against.p.unwrap(), against.p_corrected.unwrap())
    };
    assert_eq!(p(&alone).0, p(&alone).1);
    let (raw, corrected) = p(&among_ten);
    assert!((corrected / raw - 10.0).abs() < 1e-9, "{raw} {corrected}");
}

#[test]
fn equals_show_no_difference_anywhere_in_a_scan() {
    let alarm = |seed: &u64| {
        let result = scan_seeded(&[&[1.0, 1.0][..]].repeat(20), 9, *seed);
        let mut arms = result.summaries.iter().flat_map(|summary| &summary.arms);
        arms.any(|arm| arm.against.is_some_and(|a| a.verdict.is_difference()))
    };
    // Each has 20 questions. 2.5 % of 120 are 3; without the correction over values it would be every third.
    let alarms = (0..120).filter(alarm).count();
    assert!(alarms <= 6, "{alarms}");
}

#[test]
fn gates_stand_in_the_markdown() {
    let mut result = compare(NoiseModel::Normal(0.01), &[1.0, 1.2], 1, 8, 200, 4);
    let condition = superhue_measure::Condition::parse(
        "m0 > 5%",
        Demand::FailIf,
        &result.arms,
        &result.metrics,
        0,
    );
    result.check_conditions(&[condition.unwrap()]);
    let markdown = ComparisonView(&result).markdown();
    assert!(
        markdown.contains("- `--fail-if 'm0 > 5%'`: FAILED.\n  - `arm1`: 1."),
        "{markdown}"
    );
}
