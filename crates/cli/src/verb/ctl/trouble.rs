//! Obstacles of a rule, for `superhue ctl status`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use superhue::live::WatchAccount;
use superhue::model::counted;

use crate::output::size;

/// Part of the collapses, one in this number, that must come to nothing to be worth a sentence. Fewer are normal: programs change their memory.
const ONE_IN: u64 = 10;

/// Reasons and programs that are listed of each kind.
const LISTED: usize = 3;

/// Reason for waiting, in the account, of regions for which the budget has no room.
const NO_BUDGET: &str = "budget";

/// Returns a sentence on each obstacle, without line ends; none if all goes well.
pub(super) fn sentences(watch: &WatchAccount) -> Vec<String> {
    let mut all: Vec<String> = watch.trouble.iter().cloned().collect();
    if watch.processes_denied > 0 {
        let processes = counted(watch.processes_denied, "process");
        all.push(format!(
            "left alone: no permission to look: {processes} so far"
        ));
    }
    let alone = watch.left_alone.iter().filter(|&(_, &count)| count > 0);
    all.extend(
        alone
            .map(|(reason, &count)| format!("left alone: {reason}: {}", counted(count, "process"))),
    );
    all.extend(programs("left alone", &watch.unreadable));
    all.extend(programs("accesses not tracked", &watch.untracked));
    all.extend(collapses(watch));
    all.extend(budget(watch));
    // The name of a program may have a line end, and what follows would look like a line of superhue's.
    let one_line = |sentence: &String| sentence.replace('\n', " ");
    all.iter().map(one_line).collect()
}

/// Returns sentences on programs that have a reason each.
fn programs(what: &str, reasons: &BTreeMap<String, String>) -> Vec<String> {
    let listed = reasons.iter().take(LISTED);
    let mut all: Vec<String> = listed
        .map(|(name, reason)| format!("{what}: {name} ({reason})"))
        .collect();
    let more = reasons.len().saturating_sub(LISTED);
    if more > 0 {
        all.push(format!(
            "{what}: {} likewise",
            counted(more as u64, "program")
        ));
    }
    all
}

/// Returns sentences on collapses that came to nothing, if there were many.
fn collapses(watch: &WatchAccount) -> Vec<String> {
    let actions = &watch.collapses;
    let kinds = [
        ("refused by the kernel", &actions.failed),
        ("left undone", &actions.skipped),
    ];
    let total = |reasons: &BTreeMap<String, u64>| reasons.values().sum::<u64>();
    let tried = actions.done + total(&actions.failed) + total(&actions.skipped);
    let many = kinds.into_iter().filter(|(_, reasons)| {
        let count = total(reasons);
        count > 0 && count.saturating_mul(ONE_IN) >= tried
    });
    many.map(|(what, reasons)| {
        let count = total(reasons);
        format!(
            "{} {what} of {tried} so far: {}",
            counted(count, "collapse"),
            most(reasons)
        )
    })
    .collect()
}

/// Returns the most frequent reasons, with their counts.
fn most(reasons: &BTreeMap<String, u64>) -> String {
    let mut all: Vec<(&String, &u64)> = reasons.iter().collect();
    all.sort_by_key(|&(_, count)| Reverse(count));
    let listed = all.iter().take(LISTED);
    let mut texts: Vec<String> = listed
        .map(|(reason, count)| format!("{reason} ({count})"))
        .collect();
    if all.len() > LISTED {
        texts.push("others".to_owned());
    }
    texts.join(", ")
}

/// Returns a sentence on the budget, if it keeps regions waiting.
fn budget(watch: &WatchAccount) -> Option<String> {
    let waiting = *watch.waiting.get(NO_BUDGET).filter(|&&count| count > 0)?;
    Some(format!(
        "the budget has no room for {}: {} of {} are used",
        counted(waiting, "region"),
        watch.charged_bytes,
        size(watch.budget_bytes)
    ))
}

#[cfg(test)]
mod tests {
    use superhue::model::ByteCount;

    use super::*;

    fn counts(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
        of.iter()
            .map(|&(reason, count)| (reason.to_owned(), count))
            .collect()
    }

    #[test]
    fn a_watch_without_obstacles_has_no_sentence() {
        let mut watch = WatchAccount::default();
        watch.collapses.done = 91;
        watch.collapses.failed = counts(&[("EAGAIN", 9)]);
        watch.waiting = counts(&[("still being filled or sampled", 5), (NO_BUDGET, 0)]);
        watch.left_alone = counts(&[("its pages are locked", 0)]);
        assert_eq!(sentences(&watch), [""; 0]);
        // One more, and it is one in ten.
        watch.collapses.done = 81;
        assert_eq!(
            sentences(&watch),
            ["9 collapses refused by the kernel of 90 so far: EAGAIN (9)"]
        );
    }

    #[test]
    fn each_obstacle_has_a_sentence_and_no_text_of_a_program_breaks_it() {
        let mut watch = WatchAccount {
            trouble: Some("no tracker works here".to_owned()),
            processes_denied: 1,
            left_alone: counts(&[("its pages are locked", 2)]),
            charged_bytes: ByteCount(3 << 20),
            budget_bytes: Some(ByteCount(4 << 20)),
            waiting: counts(&[(NO_BUDGET, 1)]),
            ..WatchAccount::default()
        };
        let program = |name: &str| (name.to_owned(), "permission denied".to_owned());
        watch.unreadable = ["a\nb", "c", "d", "e"].map(program).into();
        watch.untracked = [program("f")].into();
        watch.collapses.skipped = counts(&[("v", 1), ("w", 2), ("x", 30), ("y", 4)]);
        let told = sentences(&watch);
        assert_eq!(told.len(), 10, "{told:#?}");
        assert!(told.iter().all(|sentence| !sentence.contains('\n')));
        for expected in [
            "no tracker works here",
            "left alone: no permission to look: 1 process so far",
            "left alone: its pages are locked: 2 processes",
            "left alone: c (permission denied)",
            "left alone: 1 program likewise",
            "accesses not tracked: f (permission denied)",
            "37 collapses left undone of 37 so far: x (30), y (4), w (2), others",
            "the budget has no room for 1 region: 3.0 MiB of 4.0 MiB are used",
        ] {
            assert!(
                told.iter().any(|sentence| sentence == expected),
                "{expected}: {told:#?}"
            );
        }
    }
}
