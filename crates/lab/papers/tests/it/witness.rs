//! The witness: counts that agree, counts that do not, and refused files. Also P4's section, from kept results.

use superhue_papers::native::Native;
use superhue_papers::witness::{Misses, Witness};

const POINT: &str = "celeron-900:load:120";

/// A guest's file of frames: one process whose pages lie one after the other.
fn frames(plan: &str) -> Vec<u8> {
    let pages = (2u64 * 120 * 120 * 8).div_ceil(4096) as u32;
    let mut body = format!("draw {plan} {pages} 3\n").into_bytes();
    body.extend((0..pages).flat_map(|page| (70_000 + page).to_le_bytes()));
    let sum = body.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut whole = b"superhue-frames/1 off,aged,base linux=6.12\n".to_vec();
    whole.extend(body);
    whole.extend(format!("\nend {sum:016x}\n").bytes());
    whole
}

fn counts(memory: u64, walks: u64) -> String {
    ["loop", "whole"]
        .map(|scope| {
            let tables = match scope {
                "loop" => " address=139637976739840 directory=90000 table0=90001",
                _ => "",
            };
            format!(
                "point load:120 celeron-900 {scope} loads=14403 stores=14401 outside=4 memory={memory} tlb_misses={walks} \
                 walks={walks} walk_memory=0 write_backs=0 pages_checked=1 seconds=0.001{tables}\n"
            )
        })
        .concat()
}

fn witnessed(memory: u64, walks: u64) -> Witness {
    let mut witness = Witness::new();
    let mut seconds = 0.0;
    witness
        .add(
            "unpatched-aged-base",
            &counts(memory, walks),
            &frames(POINT),
            &mut seconds,
        )
        .unwrap();
    witness
}

#[test]
fn two_percent_is_what_may_be_between_them() {
    let ours = witnessed(0, 0).points[0].replayed;
    assert!(ours.memory > 1000, "{ours:?}");
    let apart = |memory: u64, walks: u64| witnessed(memory, walks).disagreeing();
    assert_eq!(apart(ours.memory, ours.walks), 0);
    assert_eq!(apart(ours.memory * 101 / 100, ours.walks), 0);
    assert_eq!(apart(ours.memory * 103 / 100, ours.walks), 1);
    assert_eq!(apart(ours.memory * 97 / 100, ours.walks), 1);
    // A difference of 2 per 28,800 references is allowed, one of 100 is not.
    assert_eq!(apart(ours.memory, ours.walks + 2), 0);
    assert_eq!(apart(ours.memory, ours.walks + 100), 1);
    assert!(!witnessed(ours.memory + 1, ours.walks).points[0].identical());
    let mut same = witnessed(ours.memory, ours.walks);
    same.points[0].witnessed = Misses {
        references: 2 * ours.references,
        ..ours
    };
    assert!(same.points[0].identical());
    assert!(
        same.markdown()
            .contains("At 1 of 1 points all four counts are exactly the same")
    );
    let told = witnessed(0, 0);
    assert!(
        told.markdown().contains("MISSED: misses"),
        "{}",
        told.markdown()
    );
    assert!(told.markdown().contains("| NO |"));
    let again = Witness::from_json(&told.to_json().unwrap()).unwrap();
    assert_eq!(again, told);
    assert!(Witness::from_json("{}").is_err());
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let add = |counts: &str, frames: &[u8]| {
        let mut witness = Witness::new();
        witness
            .add("guest", counts, frames, &mut 0.0)
            .unwrap_err()
            .to_string()
    };
    let good = counts(1, 1);
    let without_tables = good.replace(" table0=90001", "");
    let elsewhere = good.replace("address=139637976739840", "address=139637976743936");
    for (counts, frames, word) in [
        (without_tables.as_str(), frames(POINT), "page tables"),
        (elsewhere.as_str(), frames(POINT), "page tables"),
        (good.as_str(), frames("celeron-900:load:121"), "another"),
        ("", frames(POINT), "same points"),
        ("nonsense\n", frames(POINT), "line 1"),
        (
            &good.replace("memory=1", "memory=-1"),
            frames(POINT),
            "line 1",
        ),
        (
            &good.replace(" memory=1", ""),
            frames(POINT),
            "has no memory",
        ),
        (
            &good.replace("load:120", "load:1e9"),
            frames(POINT),
            "no point",
        ),
        (&good.replace("loop", "whole"), frames(POINT), "another"),
        (&good, b"superhue-frames/1 x\n".to_vec(), "died"),
    ] {
        let said = add(counts, &frames);
        assert!(said.contains(word), "{said}");
    }
    // The loop needs more memory than the guest was dealt.
    let larger = good.replace("load:120", "load:600");
    assert!(add(&larger, &frames("celeron-900:load:600")).contains("fewer pages"));
}

#[test]
fn kept_sweeps_are_judged() {
    let against = |hot: f64, memory: f64, reference: usize, against: &str| {
        let summary = |metric: &str, values: [f64; 3]| {
            let arm = |(index, value): (usize, f64)| {
                format!(
                    r#"{{"arm": {index}, "values": {{"median": {{"value": {value}}}}}, "against": {against}}}"#
                )
            };
            let arms: Vec<String> = values.into_iter().enumerate().map(arm).collect();
            format!(r#"{{"metric": "{metric}", "arms": [{}]}}"#, arms.join(","))
        };
        format!(
            r#"{{"schema": "superhue-compare/1", "arms": [{{"name": "never"}}, {{"name": "always"}}, {{"name": "hot"}}],
                "settings": {{"runs": 8, "reference": {reference}}}, "summaries": [{}, {}]}}"#,
            summary("gib_per_second", [100.0, 150.0, hot]),
            summary("rss_bytes", [100.0, 200.0, memory])
        )
    };
    let kept = |hot: f64, memory: f64| against(hot, memory, 0, "null");
    let page = |kept: &str| {
        let mut native = Native::default();
        native.add("hps-skewed.json", kept).unwrap();
        native.markdown()
    };
    let said = |hot: f64, memory: f64| page(&kept(hot, memory));
    // Without an interval against `always` nothing is decided in favor.
    assert!(said(150.0, 106.0).contains("Not decided: skewed: 100.0 %"));
    assert!(said(148.0, 106.0).contains("MISSED: skewed: 98.7 %"));
    assert!(said(150.0, 107.0).contains("MISSED: skewed"));
    // An interval against `always` may leave a passing median undecided, but does not excuse a failing one; an interval
    // against another arm has no effect.
    let beside = |hot: f64, low: f64, high: f64, memory: f64, reference: usize| {
        let ratio = format!(r#"{{"ratio": {{"interval": {{"low": {low}, "high": {high}}}}}}}"#);
        page(&against(hot, memory, reference, &ratio))
    };
    assert!(beside(150.0, 0.995, 1.1, 106.0, 1).contains("Met: skewed: 100.0 % [99.5, 110.0]"));
    assert!(beside(150.0, 0.9, 1.1, 106.0, 1).contains("Not decided: skewed"));
    assert!(beside(148.0, 0.9, 1.1, 106.0, 1).contains("MISSED: skewed: 98.7 % [90.0, 110.0]"));
    assert!(beside(142.5, 0.9, 0.99, 106.0, 1).contains("MISSED: skewed"));
    assert!(beside(150.0, 0.995, 1.1, 107.0, 1).contains("MISSED: skewed"));
    assert!(
        page(&against(150.0, 106.0, 1, r#"{"ratio": null}"#))
            .contains("Not decided: skewed: 100.0 % of")
    );
    assert!(beside(150.0, 0.5, 0.6, 106.0, 0).contains("Not decided: skewed: 100.0 % of"));
    let mut native = Native::default();
    let text = kept(1.0, 1.0);
    assert!(native.add("other.json", &text).is_err());
    assert!(native.add("hps-random.json", "{}").is_err());
    assert!(
        native
            .add("hps-random.json", &text.replace("\"hot\"", "\"cold\""))
            .is_err()
    );
}
