use superhue_measure::trial::{TrialEffect, TrialPair};

use super::*;

/// A document of an earlier version: without estimates, frames, and the newer settings.
const OLDER: &str = include_str!("../../../measure/fixtures/trial-older.json");

fn older() -> Trial {
    Trial::from_json(OLDER).unwrap()
}

/// The document with these pairs, of which each has the value 1 with the policy off.
fn with_pairs(on: &[f64]) -> Trial {
    let pair = |on: &f64| TrialPair {
        at_seconds: 1.0,
        on_first: true,
        block_seconds: 1.0,
        settle_seconds: 0.1,
        on: *on,
        off: 1.0,
        huge_on: Some(1.0),
        huge_off: Some(0.0),
        effect: TrialEffect::default(),
    };
    Trial {
        pairs: on.iter().map(pair).collect(),
        ..older()
    }
}

/// Returns the numbers of an attribute in the drawing, in the order of its marks.
fn numbers(svg: &str, attribute: &str) -> Vec<f64> {
    let begin = format!(" {attribute}=\"");
    let values = svg.split(&begin).skip(1);
    values
        .filter_map(|rest| rest.split('"').next()?.parse().ok())
        .collect()
}

#[test]
fn an_only_pair_is_a_dot_with_its_interval() {
    let mut trial = with_pairs(&[0.95]);
    trial.pairs[0].at_seconds = trial.seconds;
    let without_bounds = to_svg(&trial);
    let effect = TrialEffect {
        estimate: Some(-0.05),
        low: Some(-0.09),
        high: Some(-0.01),
    };
    (trial.effect, trial.pairs[0].effect) = (effect, effect);
    let bounded = to_svg(&trial);
    for svg in [&without_bounds, &bounded] {
        assert!(!svg.contains("<polygon"), "a slab: {svg}");
        // The dots of the legend, and that of the pair, which lies inside the axes.
        let x = numbers(svg, "cx");
        assert_eq!(x.len(), 3, "{svg}");
        assert!(x.iter().any(|&x| (600.0..900.0).contains(&x)), "{x:?}");
    }
    // Ends that are bounds are straight, the others are arrows.
    let ends = |svg: &str| {
        let paths = svg.split("<path d=\"").skip(1);
        let paths = paths.filter_map(|path| path.split('"').next());
        let corners = paths.map(|path| path.split(['M', 'L']).skip(1).collect::<Vec<_>>());
        let heights = |path: Vec<&str>| -> Vec<String> {
            let ends = path.iter().filter_map(|corner| corner.split(' ').nth(1));
            ends.map(str::to_owned).collect()
        };
        let heights = corners.filter(|path| path.len() == 3).map(heights);
        heights.map(|y| y[0] == y[1]).collect::<Vec<bool>>()
    };
    assert_eq!(ends(&bounded), [true, true]);
    assert_eq!(ends(&without_bounds), [false, false]);
}

#[test]
fn several_pairs_are_drawn_over_their_band() {
    let mut trial = with_pairs(&[0.95, 0.96, 0.94]);
    assert!(!to_svg(&trial).contains("<polygon"), "no bound yet");
    trial.pairs[1].effect.low = Some(-0.2);
    let svg = to_svg(&trial);
    assert_eq!(svg.matches("<polygon").count(), 1);
    assert_eq!(numbers(&svg, "cx").len(), 2 + 3);
}

#[test]
fn pairs_beyond_the_axis_are_triangles_and_are_counted() {
    let mut on = vec![0.98; 38];
    on.extend([9.0, 0.01]);
    let svg = to_svg(&with_pairs(&on));
    assert!(svg.contains("2 beyond the axis"), "{svg}");
    // Two for the pairs, one for the legend.
    assert_eq!(svg.matches("Z\" fill=").count(), 3);
    assert_eq!(numbers(&svg, "cx").len(), 2 + 38);
    assert!(!to_svg(&with_pairs(&on[..38])).contains("beyond the axis"));
}
