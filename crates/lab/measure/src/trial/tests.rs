use super::*;

/// A document of an earlier version: without estimates, frames, and the newer settings.
const OLDER: &str = include_str!("../../fixtures/trial-older.json");

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

#[test]
fn documents_of_earlier_versions_are_read() {
    let trial = older();
    assert_eq!((trial.estimates, trial.frames.as_ref()), (None, None));
    assert_eq!(
        (trial.settings.present, trial.settings.earlier_pairs),
        (false, 0)
    );
    assert_eq!(trial.switching.zero_regions, 0);
    assert_eq!(trial.target.rule, None);
    let again = serde_json::to_string(&trial).unwrap();
    assert_eq!(Trial::from_json(&again).unwrap(), trial);
    assert!(
        trial.sentence().contains("nothing ruled out"),
        "{}",
        trial.sentence()
    );
}

#[test]
fn pairs_that_one_state_loses_more_often_than_a_coin_make_the_trial_doubtful() {
    let states = |on, off| TrialStates { on, off };
    assert_eq!(states(0, 0).chance_of_on(), 1.0);
    assert!((states(5, 0).chance_of_on() - 1.0 / 32.0).abs() < 1e-12);
    // C(10,8) + C(10,9) + C(10,10) of 1,024.
    assert!((states(8, 2).chance_of_on() - 56.0 / 1024.0).abs() < 1e-12);
    assert!((states(0, 9).chance_of_on() - 1.0).abs() < 1e-12);
    assert!((states(3000, 3000).chance_of_on() - 0.5).abs() < 0.01);
    assert_eq!(states(5, 0).why_doubtful(0.025), None);
    assert_eq!(states(0, 40).why_doubtful(0.025), None);
    let why = states(6, 0).why_doubtful(0.025).unwrap();
    assert!(
        why.starts_with("6 blocks without a value when on, and 0 when off"),
        "{why}"
    );

    let mut trial = older();
    assert_eq!(trial.without_value, None);
    trial.discarded.insert("the metric did not move".into(), 3);
    let line = |trial: &Trial| {
        let lines = trial.lines();
        lines
            .into_iter()
            .find(|line| line.starts_with("pairs that"))
            .unwrap()
    };
    assert_eq!(
        line(&trial),
        "pairs that do not count: 3 the metric did not move"
    );
    trial.without_value = Some(states(2, 1));
    assert!(line(&trial).ends_with("; without a value: 2 when on, 1 when off"));
}

#[test]
fn a_trial_is_continued_by_one_of_the_same_kind_only() {
    let earlier = with_pairs(&[0.97, 1.01, 0.98]);
    let evidence = earlier.continued_by(&older()).unwrap();
    assert_eq!(evidence.usual().pairs(), 3);
    let differs = |change: fn(&mut Trial)| {
        let mut next = older();
        change(&mut next);
        match earlier.continued_by(&next) {
            Err(ContinueError::Different { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        differs(|next| next.target.name = "web.service".to_owned()),
        "target"
    );
    assert_eq!(
        differs(|next| next.metric.kind = MetricKind::Work),
        "metric"
    );
    assert_eq!(
        differs(|next| next.metric.regex = Some("hits:([0-9]+)".to_owned())),
        "metric"
    );
    assert_eq!(
        differs(|next| next.metric.url = Some("http://127.0.0.1:9090".to_owned())),
        "metric"
    );
    assert_eq!(
        differs(|next| next.policy.pages = Some("resident".to_owned())),
        "policy"
    );
    assert_eq!(
        differs(|next| next.settings.present = true),
        "kind of memory"
    );
    // The policy need not be named, and a process may have another number now.
    let mut unnamed = older();
    unnamed.policy.pages = None;
    assert!(earlier.continued_by(&unnamed).is_ok());
    let mut restarted = [earlier, older()];
    restarted[0].target.name = "4711".to_owned();
    restarted[1].target.name = "815".to_owned();
    assert!(restarted[0].continued_by(&restarted[1]).is_ok());
    // Under another number there may be another program. An unknown one is no reason to refuse.
    restarted[0].target.program = "redis-server".to_owned();
    restarted[1].target.program = "python3".to_owned();
    let refused = restarted[0].continued_by(&restarted[1]).unwrap_err();
    assert!(matches!(
        refused,
        ContinueError::Different {
            what: "program",
            ..
        }
    ));
    restarted[1].target.program.clear();
    assert!(restarted[0].continued_by(&restarted[1]).is_ok());
}

#[test]
fn pairs_without_a_value_count_as_losses_before_a_gain_is_shown() {
    let mut trial = with_pairs(&[0.9, 0.91, 0.9, 0.92, 0.9, 0.91, 0.9, 0.9, 0.91, 0.9]);
    trial.metric.better = Better::Lower;
    assert_eq!(trial.evidence(0.05, 0.02).shown(), Some(Shown::Below));
    (trial.settings.alpha, trial.settings.within) = (0.05, 0.02);
    assert!(trial.shows_despite(Shown::Below, 0));
    assert!(!trial.shows_despite(Shown::Below, 5));
    let many: Vec<f64> = trial.pairs.iter().map(|pair| pair.on).collect();
    let many = with_pairs(&many.repeat(10));
    let many = Trial {
        settings: trial.settings.clone(),
        metric: trial.metric.clone(),
        ..many
    };
    assert!(many.shows_despite(Shown::Below, 5));
}

#[test]
fn a_trial_that_has_decided_is_continued_with_stricter_settings_only() {
    let decided = with_pairs(&[0.9, 0.91, 0.9, 0.92, 0.9, 0.91, 0.9, 0.9, 0.91, 0.9]);
    let refused = decided.continued_by(&older()).unwrap_err();
    assert_eq!(refused, ContinueError::Shown("a difference"));
    let mut strict = older();
    strict.settings.alpha = 1e-6;
    assert!(decided.continued_by(&strict).is_ok());
    let mut withheld = decided;
    withheld.verdict = TrialVerdict {
        outcome: TrialOutcome::Undecided,
        reason: Some("6 blocks without a value".to_owned()),
    };
    let refused = withheld.continued_by(&older()).unwrap_err().to_string();
    assert!(refused.contains("(6 blocks without a value)"), "{refused}");
}

#[test]
fn a_metric_that_never_varies_may_be_stuck() {
    let stuck = with_pairs(&[1.0; 8]);
    assert_eq!(stuck.evidence(0.05, 0.02).shown(), Some(Shown::Small));
    assert!(stuck.why_stuck().unwrap().contains("was 1 in every block"));
    let mut moving = with_pairs(&[1.0; 8]);
    moving.pairs[7].off = 1.001;
    assert_eq!(moving.why_stuck(), None);
    assert_eq!(with_pairs(&[]).why_stuck(), None);
}

#[test]
fn the_lines_have_the_mean_and_what_off_was() {
    let mut trial = with_pairs(&[0.97, 1.01, 0.98]);
    trial.estimates = Some(TrialEstimates {
        usual_as_measured: Some(-0.05),
        mean: Some(-0.031),
        mean_as_measured: Some(-0.04),
        mean_low: Some(-0.1),
        mean_high: Some(0.02),
        orders: 200,
    });
    trial.switching.zero_regions = 2;
    trial.switching.found_huge = 3;
    trial.switching.found_not_restored = Some(0);
    let frames = |before, off| TrialFrames {
        neighbors_before: before,
        neighbors_off: off,
        not_moved_because: Some("no swap".to_owned()),
        ..TrialFrames::default()
    };
    trial.frames = Some(frames(Some(0.02), Some(0.99)));
    let lines = trial.lines().join("\n");
    for words in [
        "mean over all blocks: -3.1 % (-10.0 % to +2.0 %); corrected for the stopping rule, as the pairs stand -5.0 % usually and -4.0 % in the mean",
        "2 regions stayed huge in both states",
        "off was faster than before the policy: a split leaves frames side by side (no swap); 2 % of neighboring pages",
        "3 regions that were huge already are huge again",
    ] {
        assert!(lines.contains(words), "{words}: {lines}");
    }
    for (before, off, words) in [
        (
            Some(0.02),
            Some(0.0),
            "with the policy off, frames lay as before it",
        ),
        (Some(0.9), Some(0.0), "off was slower than before"),
        (None, Some(0.9), "how they lay before is not known"),
        (None, None, "frames side by side"),
    ] {
        trial.frames = Some(frames(before, off));
        let lines = trial.lines().join("\n");
        assert!(lines.contains(words), "{words}: {lines}");
    }
}

#[test]
fn what_the_kernel_does_not_show_is_said_to_be_unknown() {
    let mut trial = with_pairs(&[0.97, 1.01, 0.98]);
    trial.switching.found_huge = 3;
    trial.switching.left_huge = None;
    let lines = trial.lines().join("\n");
    assert!(
        lines.contains("does not show whether it is on base pages"),
        "{lines}"
    );
    assert!(
        lines.contains("3 regions were huge already; this kernel does not show whether"),
        "{lines}"
    );
    trial.switching.left_huge = Some(0);
    let lines = trial.lines().join("\n");
    assert!(lines.contains("is on base pages again"), "{lines}");
}

#[test]
fn a_trial_that_ended_undecided_for_a_reason_names_it() {
    let mut trial = with_pairs(&[0.97, 1.01, 0.98]);
    trial.verdict = TrialVerdict {
        outcome: TrialOutcome::Undecided,
        reason: Some("nothing was switched".to_owned()),
    };
    assert_eq!(trial.sentence(), "undecided: nothing was switched");
}

#[test]
fn an_undecided_trial_names_what_would_decide_it() {
    let noise = |index: usize| 1.0 + ((index * 7 % 11) as f64 - 5.0) * 2e-4;
    let mut on: Vec<f64> = (0..60).map(noise).collect();
    on.iter_mut()
        .skip(9)
        .step_by(10)
        .for_each(|slow| *slow *= 2.0);
    let rarely_slow = with_pairs(&on).sentence();
    assert!(
        rarely_slow.contains("single blocks differ much"),
        "{rarely_slow}"
    );
    let short = with_pairs(&[0.97, 1.01, 0.98]).sentence();
    assert!(short.contains("--continue"), "{short}");
}
