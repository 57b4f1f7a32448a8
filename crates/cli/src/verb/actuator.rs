//! `superhue actuator`: acts for a user's program, started by the daemon.

use std::process::ExitCode;

use superhue_daemon::users::{WorkError, work};

use crate::args::ActuatorArgs;
use crate::output::{FAILED, Failure, USAGE, VerbResult};

/// Acts until the program disconnects.
pub fn actuator(args: &ActuatorArgs) -> VerbResult {
    work(&args.terms, args.parent).map_err(|error| {
        let code = match error {
            WorkError::NotStartedSo(_) => USAGE,
            _ => FAILED,
        };
        Failure::new(code, error)
    })?;
    Ok(ExitCode::SUCCESS)
}
