//! `superhue run`.

use std::process::ExitCode;

use superhue::act::SettingsError;
use superhue::sys::process::die_by;
use superhue::{
    ColorsError, Ending, InheritedState, LaunchError, PassedDescriptors, Report, Session,
    SessionError,
};

use crate::args::RunArgs;
use crate::output::{Failure, SUPERHUE_FAILED, UNABLE, USAGE, VerbResult, note, print_json};
use crate::size_check::check_budget;
use crate::undo::recover;
use crate::verb::report_file::ReportFile;
use crate::verb::resctrl_hint;

/// Runs the command; returns its status, or ends superhue by the signal that ended the command.
pub fn run(args: RunArgs, preserved: InheritedState) -> VerbResult {
    let passed = PassedDescriptors::now();
    check_budget(args.placement.budget)?;
    (args.placement.check_effect(&args.system.colors.colors))
        .map_err(|text| Failure::new(USAGE, text))?;
    recover(args.quiet);
    let report_file = ReportFile::open_if(args.report.as_ref())
        .map_err(|error| Failure::new(SUPERHUE_FAILED, error))?;
    let mut config = args.placement.config();
    let colors = args.system.colors.colors.clone();
    args.system.add_to(&mut config);
    let session = match Session::start(config, args.command, preserved, None, None) {
        Ok(session) => session,
        Err(error) => {
            if let Some(file) = report_file {
                file.abandon();
            }
            return Err(Failure::new(exit_status_of(&error), error));
        }
    };
    // The command has its own copies. It must be the only one to hold them, as it would be alone.
    passed.release(args.json);
    if !args.quiet && !args.json {
        resctrl_hint::show_for(&colors);
    }
    let report = session.finish();
    if !args.quiet && !args.json {
        report.lines().iter().for_each(|line| note(line));
    }
    let mut told = true;
    if let Some(file) = report_file
        && let Err(error) = file.write_json(&report)
    {
        note(&format!("{error:#}"));
        told = false;
    }
    if args.json
        && let Err(failure) = print_json(&report)
    {
        note(&failure.text);
        told = false;
    }
    Ok(end_like(&report, told))
}

/// Ends as the command ended. A report that could not be written affects the status only if the command itself
/// succeeded.
fn end_like(report: &Report, told: bool) -> ExitCode {
    match report.ending {
        Some(Ending::Killed { signal }) => {
            die_by(signal);
            // Still running: the signal does not end processes in this environment.
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
        }
        Some(Ending::Exited { status: 0 }) if !told => ExitCode::from(SUPERHUE_FAILED),
        Some(Ending::Exited { status }) => ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)),
        None => ExitCode::from(SUPERHUE_FAILED),
    }
}

/// Returns the documented status for a command that was not started.
pub fn exit_status_of(error: &SessionError) -> u8 {
    match error {
        SessionError::Launch(LaunchError::NotFound { .. }) => 127,
        SessionError::Launch(LaunchError::NotExecutable { .. }) => 126,
        SessionError::Settings(SettingsError::Twice { .. } | SettingsError::Refused { .. }) => {
            USAGE
        }
        SessionError::Settings(SettingsError::Missing { .. }) => UNABLE,
        SessionError::Colors(ColorsError::Request { .. }) => USAGE,
        _ => SUPERHUE_FAILED,
    }
}
