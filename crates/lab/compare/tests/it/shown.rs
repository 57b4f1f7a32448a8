//! Output for people: tables, sentences, plots.

use regex::Regex;
use superhue_compare::ComparisonView;
use superhue_measure::{
    Arm, Builtin, Comparison, Context, Design, Execution, Metric, Record, Sample, Settings,
    UserMetric,
};
use superhue_plot::svg::text_width;

use crate::simulation::{NoiseModel, compare};

/// Runs of two or three arms, each metric around the value given for the arm; NaN is a missing value.
struct Story {
    arms: Vec<Arm>,
    metrics: Vec<Metric>,
    execution: Execution,
    runs: usize,
}

impl Story {
    fn new(arms: &[(&str, &str)], metrics: &[(Metric, &[f64])], runs: usize) -> Self {
        let mut execution = Execution::default();
        for round in 0..runs {
            for arm in 0..arms.len() {
                let mut sample = Sample::new();
                for (index, (metric, values)) in metrics.iter().enumerate() {
                    let value = values[arm];
                    // The values vary by about one percent, differently for each arm.
                    let step = (round * 7 + arm * 3 + index) % 10;
                    let noisy = value * (1.0 + 0.002 * (step as f64 - 4.5));
                    if value.is_nan() {
                        sample.set_missing(&metric.name, "never reached 95 %");
                    } else if value.fract() == 0.0 {
                        sample.set(&metric.name, noisy.round());
                    } else {
                        sample.set(&metric.name, noisy);
                    }
                }
                execution.records.push(Record {
                    arm,
                    round,
                    position: (arm + round) % arms.len(),
                    warmup: false,
                    failed: None,
                    sample,
                });
            }
        }
        Self {
            arms: (arms.iter())
                .map(|(name, options)| Arm::new(*name, *options))
                .collect(),
            metrics: metrics.iter().map(|(metric, _)| metric.clone()).collect(),
            execution,
            runs,
        }
    }

    fn tell(self, command: &[&str]) -> Comparison {
        let settings = Settings {
            runs: self.runs,
            resamples: 1000,
            seed: 42,
            ..Settings::default()
        };
        let design = Design::new(self.arms, self.metrics, settings).unwrap();
        let context = Context {
            command: command.iter().map(ToString::to_string).collect(),
            ..Context::default()
        };
        Comparison::new(design, self.execution, context)
    }
}

const ARMS: [(&str, &str); 3] = [
    ("never", "--pages never"),
    ("always", "--pages always"),
    ("hot", "--pages hot --budget 5%"),
];

fn typical() -> Story {
    let ops = UserMetric::parse("ops=([0-9.]+) ops/s").unwrap();
    let mib = 1024.0 * 1024.0;
    Story::new(
        &ARMS,
        &[
            (Builtin::Wall.metric(), &[1.243, 0.978, 1.012]),
            (ops.metric().clone(), &[40_212.5, 51_125.5, 49_410.5]),
            (Builtin::Cpu.metric(), &[1.21, 1.21, 1.26]),
            (
                Builtin::MaxRss.metric(),
                &[206.0 * mib, 231.0 * mib, 207.0 * mib],
            ),
            (Builtin::MinorFaults.metric(), &[51_200.0, 900.0, 4000.0]),
            (Builtin::MajorFaults.metric(), &[0.0, 0.0, 0.0]),
            (Builtin::CoveragePeak.metric(), &[0.0, 0.981, 0.952]),
            (Builtin::SecondsTo95.metric(), &[f64::NAN, 0.0213, 0.352]),
            (Builtin::SuperhueCpu.metric(), &[0.0, 0.0, 0.0213]),
        ],
        10,
    )
}

#[test]
fn a_typical_table() {
    let comparison = typical().tell(&["./tree-walk", "--nodes", "3000000"]);
    insta::assert_snapshot!("typical_100", ComparisonView(&comparison).table(100));
}

#[test]
fn a_brief_table_has_the_metrics_that_decide_and_names_the_others() {
    let text = ComparisonView(&typical().tell(&["./tree-walk"])).brief(100);
    for shown in ["wall time (lower is better)", "is 27 % faster than"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    let (tables, others) = text.split_once("Measured as well: ").unwrap();
    let name = Builtin::SecondsTo95.metric().label;
    assert!(!tables.contains(&name) && others.contains(&name), "{text}");
}

#[test]
fn a_table_between_failures() {
    let arms = [
        ("never", ""),
        ("--pages hot --budget 5% --colors off", ""),
        ("--pages hot --budget 9% --colors off", ""),
        ("broken", ""),
    ];
    let metrics = [
        (Builtin::Wall.metric(), &[0.0124, 0.0101, 0.0102, 0.02][..]),
        (Builtin::MaxRss.metric(), &[4e6, 4.1e6, 4e6, 1e6][..]),
    ];
    let mut story = Story::new(&arms, &metrics, 6);
    for record in &mut story.execution.records {
        if record.arm == 3 || (record.arm == 1 && record.round == 2) {
            record.failed = Some("killed by SIGSEGV".to_owned());
        }
    }
    story.runs = 10;
    story.execution.interrupted = true;
    let comparison = story.tell(&["sh", "-c", "sort < /etc/words | uniq -c \x1b[2J"]);
    insta::assert_snapshot!("failures_80", ComparisonView(&comparison).table(80));
}

#[test]
fn a_table_of_too_few_runs() {
    let metrics = [
        (Builtin::Wall.metric(), &[1.2, 0.9][..]),
        (Builtin::MaxRss.metric(), &[4e6, 8e6][..]),
    ];
    let comparison = Story::new(&ARMS[..2], &metrics, 3).tell(&["true"]);
    insta::assert_snapshot!("too_few_80", ComparisonView(&comparison).table(80));
}

#[test]
fn lines_fit_the_width() {
    for (width, limit) in [(0, 40), (72, 72), (80, 80), (100, 100), (400, 120)] {
        let comparison = typical().tell(&["./x", &"long ".repeat(50)]);
        for line in ComparisonView(&comparison).table(width).lines() {
            assert!(line.chars().count() <= limit, "{width}: {line}");
            assert_eq!(line.trim_end(), line);
        }
    }
}

/// Narrow terminals lose the spread and the median, but neither an arm nor its verdict and its change with the interval.
#[test]
fn narrow_tables_keep_what_matters() {
    let long = "--pages hot --budget 5% --colors off";
    let arms = [ARMS[0], ARMS[1], (long, "")];
    for width in [40, 50, 59] {
        let mut story = typical();
        story.arms = (arms.iter())
            .map(|(name, options)| Arm::new(*name, *options))
            .collect();
        let table = ComparisonView(&story.tell(&["./tree-walk"])).table(width);
        for line in table.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
        let (_, block) = table.split_once("wall time (lower is better)\n").unwrap();
        let block = block.split("\n\n").next().unwrap();
        for shown in [
            "arm",
            "verdict",
            "95 % interval",
            "2: always",
            "better",
            "0.787",
        ] {
            assert!(block.contains(shown), "{width}: {shown}: {block}");
        }
        assert!(block.contains("0.781 to 0.793"), "{width}: {block}");
        // The names of the arms are above the tables, where there is room for all of each.
        assert!(
            block.contains("3: ") && block.contains('\u{2026}'),
            "{block}"
        );
        let unfolded = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(unfolded.contains(&format!("3: {long}")), "{table}");
        // With two lines for each arm there is room for all numbers again.
        assert_eq!(unfolded.contains("No room for: "), width != 50, "{table}");
    }
}

#[test]
fn sentences_of_every_kind() {
    let sentence = |wall: f64, ops: f64, rss: f64| {
        let latency = UserMetric::parse("p99:lower=x").unwrap();
        let metrics = [
            (Builtin::Wall.metric(), &[1.0 + 1e-9, wall][..]),
            (latency.metric().clone(), &[5.5, ops][..]),
            (Builtin::MaxRss.metric(), &[1e6, rss][..]),
        ];
        let comparison = Story::new(&ARMS[..2], &metrics, 8).tell(&["x"]);
        comparison.sentences().remove(0)
    };
    let same = 1.0 + 1e-9;
    let told = [
        sentence(0.8, 5.5, 1e6),
        sentence(1.25, 5.5, 1.12e6),
        sentence(0.31, 5.5, 0.5e6),
        sentence(2.6, 4.1, 3.1e6),
        sentence(same, 7.1, 1.2e6),
        sentence(same, 5.5, 1e6),
        sentence(0.8, 0.0, 1e6),
    ];
    insta::assert_snapshot!("sentences", told.join("\n"));
}

/// Asserts that everything drawn lies inside the picture.
fn assert_inside(svg: &str) {
    let number = |text: &str| text.parse::<f64>().unwrap();
    let size = Regex::new(r#"<svg [^>]*width="(\d+)" height="(\d+)""#).unwrap();
    let size = size.captures(svg).unwrap();
    let (width, height) = (number(&size[1]), number(&size[2]));
    let position = Regex::new(r#" c?(x|y)[12]?="([^"]*)""#).unwrap();
    let mut seen = 0;
    for found in position.captures_iter(svg) {
        let limit = if &found[1] == "x" { width } else { height };
        assert!((0.0..=limit).contains(&number(&found[2])), "{}", &found[0]);
        seen += 1;
    }
    let point = Regex::new(r"[ML]([0-9.-]+) ([0-9.-]+)").unwrap();
    for found in point.captures_iter(svg) {
        assert!((0.0..=width).contains(&number(&found[1])), "{}", &found[0]);
        assert!((0.0..=height).contains(&number(&found[2])), "{}", &found[0]);
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
    let text = r#"<text x="([^"]*)"[^>]*font-size="([^"]*)" fill="[^"]*"([^>]*)>([^<]*)</text>"#;
    let entity = Regex::new("&[a-z]+;").unwrap();
    let mut texts = 0;
    for found in Regex::new(text).unwrap().captures_iter(svg) {
        let shown = entity.replace_all(&found[4], "?");
        let long = f64::from(text_width(&shown, found[2].parse().unwrap()));
        let x = number(&found[1]);
        let (left, right) = match &found[3] {
            style if style.contains("end") => (x - long, x),
            style if style.contains("middle") => (x - long / 2.0, x + long / 2.0),
            _ => (x, x + long),
        };
        assert!(left >= 0.0 && right <= width, "{left}..{right}: {shown}");
        texts += 1;
    }
    assert!(texts > 5, "{texts}");
}

#[test]
fn every_good_run_is_a_dot() {
    let mut story = typical();
    story.execution.records[4].failed = Some("exit status 1".to_owned());
    let svg = ComparisonView(&story.tell(&["./tree-walk"])).plot();
    assert_inside(&svg);
    let dots = svg.matches(r#"opacity="0.55""#).count();
    // There are nine metrics of 30 runs, less the missing times and the values of the failed run.
    assert_eq!(dots, 9 * 30 - 10 - 9);
    for label in [
        "wall time [s]",
        "peak memory [MiB]",
        "x, better",
        "reference",
    ] {
        assert!(svg.contains(label), "{label}");
    }
}

/// The picture says first what the table says first: a sentence for each arm, and the program's name without folder and arguments.
#[test]
fn a_plot_begins_with_the_verdicts() {
    let comparison = typical().tell(&["./tree-walk", "--depth", "9"]);
    let svg = ComparisonView(&comparison).plot();
    let texts: Vec<&str> = (svg.split("</text>"))
        .filter_map(|part| part.rsplit_once('>').map(|(_, text)| text))
        .collect();
    assert_eq!(texts[0], "tree-walk", "{texts:?}");
    let first = texts.iter().position(|text| text.contains("wall time [s]"));
    let above = texts[..first.unwrap()].join(" ");
    let sentences = comparison.sentences();
    assert_eq!(sentences.len(), 2);
    for sentence in sentences {
        assert!(above.contains(&sentence), "{sentence} in {above}");
    }
    assert!(above.contains("./tree-walk --depth 9"), "{above}");
}

#[test]
fn plots_of_any_size_stay_inside() {
    for (arms, metrics) in [(2, 1), (2, 2), (3, 5), (6, 10), (9, 3)] {
        let factors: Vec<f64> = (0..arms).map(|arm| 1.0 + 0.1 * arm as f64).collect();
        let comparison = compare(NoiseModel::Mixed, &factors, metrics, 8, 100, 1);
        assert_inside(&ComparisonView(&comparison).plot());
    }
}

/// Without 0 on its axis a difference looks larger than it is, so the picture says so; the shares from 0 to 98 % need no such words.
#[test]
fn an_axis_without_zero_is_labelled() {
    let of = |metric: Metric, values: &[f64]| {
        let story = Story::new(&ARMS, &[(metric, values)], 10);
        ComparisonView(&story.tell(&["./tree-walk"])).plot()
    };
    let cut = of(Builtin::Wall.metric(), &[1.243, 0.978, 1.012]);
    assert_eq!(cut.matches("axis cut, without 0").count(), 1);
    assert_inside(&cut);
    let whole = of(Builtin::CoveragePeak.metric(), &[0.0, 0.981, 0.952]);
    assert!(!whole.contains("axis cut"), "{whole}");
}

fn is_control_but_newline(c: char) -> bool {
    c.is_control() && c != '\n'
}

#[test]
fn what_users_write_cannot_break_a_plot() {
    let nasty = "<script>&\"'\u{1b}[31m\0]]>";
    let long = "long name ".repeat(30);
    let arms = [(nasty, nasty), (long.as_str(), long.as_str())];
    let mut own = UserMetric::parse("x=y").unwrap().metric().clone();
    own.label = format!("{nasty}{long}");
    let metrics = [
        (Builtin::Wall.metric(), &[1.1, 1.2][..]),
        (own, &[1.1, 9.1]),
    ];
    let mut story = Story::new(&arms, &metrics, 5);
    story.execution.records[0].failed = Some(format!("{nasty}{long}"));
    story.execution.aborted = Some(long.clone());
    let comparison = story.tell(&[nasty, &long]);
    let svg = ComparisonView(&comparison).plot();
    assert_inside(&svg);
    assert!(!svg.contains("<script") && !svg.contains(is_control_but_newline));
    let table = ComparisonView(&comparison).table(80);
    assert!(!table.contains(is_control_but_newline));
}

#[test]
fn nothing_measured_can_still_be_shown() {
    let mut story = typical();
    story.execution.records.clear();
    story.execution.interrupted = true;
    let comparison = story.tell(&["./tree-walk"]);
    assert_inside(&ComparisonView(&comparison).plot());
    let table = ComparisonView(&comparison).table(80);
    assert!(table.contains("`hot` cannot be judged: `hot` has no good run."));
    assert!(table.contains("Interrupted after 0 of 10 rounds"));
}
