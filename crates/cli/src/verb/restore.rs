//! `superhue restore`.

use superhue::model::counted;

use crate::args::RestoreArgs;
use crate::output::{FAILED, Failure, UNABLE, VerbResult, print, print_json};
use crate::undo::{describe, undo};

/// Undoes the changes that killed superhues left behind, and prints them.
pub fn restore(args: &RestoreArgs) -> VerbResult {
    let undone = undo()?;
    let report = &undone.settings;
    let failed = (report.left.iter())
        .filter(|left| left.reason.starts_with("cannot"))
        .count();
    if args.json {
        print_json(&undone)?;
    } else {
        print(&describe(&undone))?;
    }
    if failed > 0 {
        let text = format!(
            "{} could not be undone (reasons above): remove the cause, then run `superhue restore` as root",
            counted(failed as u64, "change")
        );
        return Err(Failure::new(FAILED, text));
    }
    if report.hidden {
        let text = "this user may not see if root's superhue left changes behind: run `superhue restore` as root";
        return Err(Failure::new(UNABLE, text));
    }
    Ok(std::process::ExitCode::SUCCESS)
}
