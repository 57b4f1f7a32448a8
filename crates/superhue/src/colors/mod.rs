//! Page colors for a command: from what the user asks for to what agents are told, and what they say back.

mod headroom;
mod palette;
mod prepare;
mod report;

pub use prepare::ColorsError;
pub(crate) use prepare::Prepared;
pub use report::{ColoredProgram, ColorsReport};
