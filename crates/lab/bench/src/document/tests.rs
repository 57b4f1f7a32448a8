use serde_json::json;

use super::isolation::{Case, Partition};
use super::*;
use crate::findings::findings;
use crate::{plot, table};

fn arm(arm: Arm, base: f64) -> ArmResult {
    ArmResult {
        arm,
        samples: (0..20)
            .map(|n| vec![base + f64::from(n) * 0.01 * base; 3])
            .collect(),
        pages: FillCounts::default(),
        failed: Vec::new(),
        summary: None,
    }
}

fn point(percent: f64, kernel: f64, colored: f64) -> PointResult {
    let bytes = ((1 << 20) as f64 * percent / 100.0) as u64;
    PointResult {
        point: Point {
            label: format!("{percent} %"),
            parameter: bytes,
            bytes,
            level: 2,
            share: percent / 100.0,
        },
        times: 3,
        arms: vec![arm(Arm::Kernel, kernel), arm(Arm::Colored, colored)],
    }
}

fn sweep(workload: &str, lower_is_better: bool) -> SweepResult {
    let points = if lower_is_better {
        vec![
            point(50.0, 4.0, 4.0),
            point(90.0, 6.0, 4.4),
            point(94.0, 8.0, 4.0),
        ]
    } else {
        vec![
            point(50.0, 100.0, 100.0),
            point(90.0, 70.0, 95.0),
            point(94.0, 50.0, 90.0),
        ]
    };
    SweepResult {
        workload: workload.to_owned(),
        about: "something".to_owned(),
        figure: Figure {
            unit: "u".to_owned(),
            lower_is_better,
            per: 1.0,
        },
        points,
    }
}

pub(crate) fn document() -> Document {
    let case = |partner: &str, placement, job| Case {
        victim: "mcol".to_owned(),
        victim_bytes: 393_216,
        partner: partner.to_owned(),
        partner_bytes: 0,
        partner_cpu: None,
        placement,
        rounds: vec![vec![job, job + 5]; 4],
        failed: Vec::new(),
        summary: None,
    };
    let mut document = Document {
        schema: SCHEMA.to_owned(),
        command: vec!["superhue".to_owned(), "bench".to_owned()],
        machine: json!({"cpu": "imagined"}),
        cpu: 1,
        caches: Caches(Vec::new()),
        colors: Some(Colors {
            count: 32,
            oracle: "measured".to_owned(),
        }),
        settings: Settings {
            arms: vec![Arm::Kernel, Arm::Colored],
            allocations: 20,
            passes: 3,
            pass_seconds: 0.001,
            sweep: Sweep::Full,
            seed: 1,
        },
        started: Some(1.0),
        finished: Some(2.0),
        interrupted: false,
        skipped: vec![SkippedPart {
            what: "fft".to_owned(),
            reason: "not there".to_owned(),
        }],
        sweeps: vec![sweep("chase", true), sweep("copy", false)],
        isolation: Some(Isolation {
            jobs: 2,
            pause_seconds: 0.0003,
            victim_colors: Some("0-15".to_owned()),
            partner_colors: Some("16-31".to_owned()),
            capacity_given_up: Some(0.5),
            cases: vec![
                case("alone", Partition::Kernel, 1000),
                case("thrasher", Partition::Kernel, 3000),
                case("alone", Partition::Colored, 1100),
                case("thrasher", Partition::Colored, 1200),
            ],
        }),
    };
    document.summarise();
    document
}

#[test]
fn what_is_written_is_read_back_and_worked_out_again() {
    let document = document();
    let text = document.to_json().unwrap();
    assert_eq!(Document::from_json(&text).unwrap(), document);
    let forged = text.replacen("\"spread\": 1", "\"spread\": 9", 1);
    assert_ne!(forged, text);
    assert_eq!(
        Document::from_json(&forged).unwrap(),
        document,
        "summaries are not believed"
    );
}

#[test]
fn the_papers_questions_are_answered() {
    let said = findings(&document()).join("\n");
    for wanted in [
        "chase: colored is 2.00x",
        "at 94 % (94 % of the L2)",
        "chase: from 50 to 90 % of the L2 colored is at most 1.10x its time at 50 % (at 90 %)",
        "copy: kernel keeps 80 % of its best rate up to 50 % of the L2",
        "copy: colored keeps 80 % of its best rate up to 94 % of the L2",
        "mcol (384 KiB) beside thrasher, against alone: p99.9 kernel 2.99x",
        "give up 50 % of the L2",
    ] {
        assert!(said.contains(wanted), "{wanted} is not in\n{said}");
    }
}

#[test]
fn the_table_and_the_plots_tell_every_arm_and_what_was_skipped() {
    let document = document();
    let text = table::text(&document);
    for wanted in [
        "kernel",
        "colored",
        "mcol",
        "skipped: fft: not there",
        "p95/p5",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    for sweep in &document.sweeps {
        let svg = plot::sweep(&document, sweep);
        assert!(svg.contains("colored") && svg.contains("94 %"));
    }
    let svg = plot::isolation(&document, document.isolation.as_ref().unwrap());
    assert!(svg.contains("thrasher"));
}

#[test]
fn allocations_beyond_the_axis_are_triangles_and_are_counted() {
    let mut document = document();
    let beyond = |document: &Document| {
        let svg = plot::sweep(document, &document.sweeps[0]);
        let triangles = svg.matches("Z\" fill=").count();
        let circles = svg.matches("<circle").count();
        (triangles, circles, svg.contains("2 beyond the axis"))
    };
    let (none, all, _) = beyond(&document);
    assert_eq!(none, 0);
    // Two of twenty: the 95th percentile stays within the axis or is cut off by its end.
    let samples = &mut document.sweeps[0].points[0].arms[0].samples;
    samples[3] = vec![1e3; 3];
    samples[7] = vec![2e3; 3];
    document.summarise();
    // One more triangle explains them.
    assert_eq!(beyond(&document), (3, all - 2, true));
}

#[test]
fn other_documents_are_refused_with_the_reason() {
    let good = document().to_json().unwrap();
    let refused = |text: &str| Document::from_json(text).unwrap_err().to_string();
    assert!(refused("no json").contains("not a result of"));
    assert!(refused("{}").contains("its schema is missing"));
    assert!(
        refused(&good.replace("superhue-bench/1", "superhue-bench/9")).contains("superhue-bench/9")
    );
    assert!(refused(&good.replacen("[[4.0,", "[[-4.0,", 1)).contains("not above 0"));
    assert!(refused(&good.replacen("[[1000,", "[[0,", 1)).contains("no time"));
    assert!(refused(&good.replacen("[[4.0, 4.0, 4.0]", "[[]", 1)).contains("not measured"));
}
