//! `superhue attach`.

use std::process::ExitCode;
use std::time::Duration;

use superhue::AttachError;
use superhue_observe::ReadError;
use superhue_sys::process::SignalSet;

use crate::args::AttachArgs;
use crate::output::{FAILED, Failure, UNABLE, VerbResult, note, print_json};
use crate::size_check::check_budget;
use crate::verb::report_file::ReportFile;
use crate::verb::restore::recover_quietly;

/// `SIGHUP`, `SIGINT`, `SIGTERM`.
const ENDING: [i32; 3] = [1, 2, 15];

/// Watches processes until interrupted.
pub fn attach(args: &AttachArgs) -> VerbResult {
    check_budget(args.placement.budget)?;
    recover_quietly();
    let report_file =
        ReportFile::open_if(args.report.as_ref()).map_err(|error| Failure::new(FAILED, error))?;
    let config = args.placement.config();
    let limit = args
        .duration
        .or(config.dry_run.then_some(Duration::from_secs(1)));
    let signals = SignalSet::of(&ENDING);
    let before = signals.block();
    let mut pids = args.pids.clone();
    pids.sort_unstable();
    pids.dedup();
    let result = superhue::attach(&config, &pids, limit, |pause| signals.wait(pause).is_some());
    before.apply();
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            if let Some(file) = report_file {
                file.abandon();
            }
            let code = match error {
                AttachError::MayNotAct | AttachError::Read(ReadError::Denied { .. }) => UNABLE,
                _ => FAILED,
            };
            return Err(Failure::new(code, error));
        }
    };
    if !args.json {
        report.lines().iter().for_each(|line| note(line));
    }
    if let Some(file) = report_file {
        file.write_json(&report)
            .map_err(|error| Failure::new(FAILED, error))?;
    }
    if args.json {
        return print_json(&report);
    }
    Ok(ExitCode::SUCCESS)
}
