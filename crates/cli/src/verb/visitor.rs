//! `superhue visitor`: the visiting process, which superhue starts by itself.

use std::io::{IsTerminal, stdin};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use crate::output::{FAILED, Failure, USAGE, VerbResult};

pub fn visitor() -> VerbResult {
    let input = stdin();
    let messages = input.as_fd().try_clone_to_owned();
    let messages = messages.map_err(|error| Failure::new(FAILED, error))?;
    let messages = UnixStream::from(messages);
    if input.is_terminal() || messages.peer_addr().is_err() {
        let reason =
            "superhue visitor is started by superhue itself: its standard input is no socket";
        return Err(Failure::new(USAGE, reason));
    }
    superhue::visit::serve(messages).map_err(|error| Failure::new(FAILED, error))?;
    Ok(ExitCode::SUCCESS)
}
