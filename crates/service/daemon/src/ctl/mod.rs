//! The control socket, at which `superhue ctl` sends requests to the daemon.

mod ask;
mod protocol;
mod server;

pub use ask::{AskError, ask};
pub use protocol::{
    Answer, DEFAULT_SOCKET, LONGEST_ANSWER, LONGEST_REQUEST, PassedRule, Request, RuleSummary,
    VERSION, Why,
};
pub(crate) use protocol::{read_request, written};
pub(crate) use server::Server;
