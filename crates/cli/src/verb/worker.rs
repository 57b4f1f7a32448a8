//! `superhue worker`: reads and changes processes for the daemon, started by it.

use std::process::ExitCode;

use superhue_daemon::workers::{WorkError, work};

use crate::args::WorkerArgs;
use crate::output::{FAILED, Failure, USAGE, VerbResult};

/// Works until the daemon disconnects.
pub fn worker(args: &WorkerArgs) -> VerbResult {
    work(args.parent).map_err(|error| {
        let code = match error {
            WorkError::NotStartedSo(_) => USAGE,
            _ => FAILED,
        };
        Failure::new(code, error)
    })?;
    Ok(ExitCode::SUCCESS)
}
