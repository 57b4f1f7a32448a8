use super::answers::bound;
use super::*;
use crate::account::RuleAccount;
use crate::ctl::LONGEST_ANSWER;

#[test]
fn the_service_manager_reads_how_many_rules_there_are() {
    assert_eq!(status_line(0, false, false), "0 rules");
    assert_eq!(status_line(1, false, false), "1 rule");
    assert_eq!(
        status_line(2, true, true),
        "paused, 2 rules, the last configuration was refused"
    );
}

#[test]
fn an_answer_is_bounded_however_many_there_are() {
    use superhue::live::{PROCESSES_LISTED, ProcessAccount, WatchAccount};
    let process = ProcessAccount {
        pid: 1,
        start_ticks: 1,
        name: "x".repeat(15),
        service: "y".repeat(200),
        memory: Default::default(),
        hot_set_bytes: None,
        collapses_done: 0,
        collapsing_seconds: 0.0,
    };
    let watch = Arc::new(WatchAccount {
        processes: vec![process; PROCESSES_LISTED],
        services: (0..1000)
            .map(|n| (format!("{n:0>200}"), Default::default()))
            .collect(),
        ..WatchAccount::default()
    });
    let names = watch.services.keys().cloned();
    let rule = RuleAccount {
        converged_seconds: names.map(|name| (name, 1.0 / 3.0)).collect(),
        watch: Some(watch),
        ..RuleAccount::default()
    };
    for count in [1, 20, 256] {
        let mut rules = vec![rule.clone(); count];
        bound(&mut rules);
        let text = serde_json::to_string(&rules).unwrap();
        assert!(text.len() < LONGEST_ANSWER, "{count}: {}", text.len());
        let left = rules[0].watch.as_ref().unwrap();
        assert_eq!(left.processes.is_empty(), count > 1, "{count}");
    }
}
