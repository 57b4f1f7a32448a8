//! Undoing what killed superhues have changed: for `superhue restore`, and at the start of other verbs.

use serde::Serialize;
use superhue::act::{Journal, RestoreReport};
use superhue::model::counted;
use superhue::procfs::Roots;
use superhue::trackers::{DamonCleanup, end_left_damon};

use crate::output::{FAILED, Failure, note};

/// Everything that was undone.
#[derive(Debug, Serialize)]
pub struct RestoreOutcome {
    /// Name and version of this layout.
    schema: &'static str,
    #[serde(flatten)]
    pub settings: RestoreReport,
    /// Number of DAMON monitors that were running and were ended.
    kdamonds_ended: u64,
}

impl RestoreOutcome {
    fn new(mut settings: RestoreReport, damon: DamonCleanup) -> Self {
        settings.hidden |= damon == DamonCleanup::Hidden;
        let kdamonds_ended = match damon {
            DamonCleanup::Ended(count) => count,
            DamonCleanup::Nothing
            | DamonCleanup::InUse(_)
            | DamonCleanup::Foreign
            | DamonCleanup::Hidden => 0,
        };
        Self {
            schema: "superhue-restore/1",
            settings,
            kdamonds_ended,
        }
    }
}

/// Undoes the changes that killed superhues left behind.
///
/// # Errors
/// [`FAILED`], with the step of which the kernel refused something.
pub fn undo() -> Result<RestoreOutcome, Failure> {
    let settings = Journal::default()
        .recover()
        .map_err(|error| Failure::new(FAILED, error))?;
    let damon = end_left_damon(&Roots::default()).map_err(|error| {
        Failure::new(
            FAILED,
            format!("cannot end what was left of DAMON: {error}"),
        )
    })?;
    Ok(RestoreOutcome::new(settings, damon))
}

/// Undoes changes that killed superhues left behind before a verb starts, if the caller may; prints them unless `quiet`.
pub fn recover(quiet: bool) {
    if let Ok(settings) = Journal::default().recover() {
        let damon = end_left_damon(&Roots::default()).unwrap_or(DamonCleanup::Nothing);
        let undone = RestoreOutcome::new(settings, damon);
        let settings = &undone.settings;
        let found = !settings.restored.is_empty()
            || !settings.swap_removed.is_empty()
            || !settings.left.is_empty()
            || undone.kdamonds_ended > 0;
        if found && !quiet {
            describe(&undone).lines().for_each(note);
        }
    }
}

/// Returns the lines that say what was undone, and what was left.
pub fn describe(undone: &RestoreOutcome) -> String {
    let mut text = String::new();
    let report = &undone.settings;
    for restored in &report.restored {
        text += &format!(
            "{} is `{}` again\n",
            restored.path.display(),
            restored.value
        );
    }
    for path in &report.swap_removed {
        text += &format!(
            "{}, swap in memory that a killed superhue had left, was removed\n",
            path.display()
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
            "{} with changed settings or swap still running\n",
            counted(report.in_use.into(), "superhue")
        );
    }
    if undone.kdamonds_ended > 0 {
        text += &format!(
            "ended {} of DAMON that a killed superhue had left\n",
            counted(undone.kdamonds_ended, "monitor")
        );
    }
    if text.is_empty() {
        text += if report.hidden {
            "nothing of yours to restore\n"
        } else {
            "nothing to restore\n"
        };
    }
    text
}
