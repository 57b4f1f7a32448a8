//! `superhue restore`, and the same done on the way by other verbs.

use superhue_act::{Journal, RestoreReport};

use crate::args::RestoreArgs;
use crate::output::{FAILED, Failure, VerbResult, note, print, print_json};

/// Undoes what killed superhues left behind, and says what that was.
pub fn restore(args: &RestoreArgs) -> VerbResult {
    let report = Journal::default()
        .recover()
        .map_err(|error| Failure::new(FAILED, error))?;
    let unfinished = report
        .left
        .iter()
        .any(|left| left.reason.starts_with("cannot"));
    if args.json {
        print_json(&report)?;
    } else {
        print(&describe(&report))?;
    }
    if unfinished {
        return Err(Failure::new(FAILED, "not everything could be put back"));
    }
    Ok(std::process::ExitCode::SUCCESS)
}

/// Undoes what there is to undo before something new is begun, if the caller may.
pub fn recover_quietly() {
    if let Ok(report) = Journal::default().recover() {
        let found = !report.restored.is_empty() || !report.left.is_empty();
        if found {
            describe(&report).lines().for_each(note);
        }
    }
}

fn describe(report: &RestoreReport) -> String {
    let mut text = String::new();
    for restored in &report.restored {
        text += &format!(
            "{} is `{}` again\n",
            restored.path.display(),
            restored.value
        );
    }
    for left in &report.left {
        text += &format!(
            "{} was left as it is: {}\n",
            left.path.display(),
            left.reason
        );
    }
    if report.in_use > 0 {
        text += &format!(
            "{} superhue(s) with changed settings still run\n",
            report.in_use
        );
    }
    if text.is_empty() {
        text += "nothing to restore\n";
    }
    text
}
