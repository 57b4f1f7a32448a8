//! The control socket, at which `superhue ctl` sends requests to the daemon.

mod ask;
mod hold;
mod protocol;
mod server;

pub use ask::{AskError, ask};
pub use hold::{HoldError, RuleHold};
pub use protocol::{
    Answer, DEFAULT_SOCKET, HeldRule, LEASE, LONGEST_ANSWER, LONGEST_REQUEST, PassedRule, Request,
    RuleSummary, VERSION, Why,
};
pub(crate) use protocol::{read_request, written};
pub(crate) use server::{Answers, Server};
