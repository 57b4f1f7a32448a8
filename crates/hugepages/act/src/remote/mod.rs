//! Plans that another process carries out: for users who may not collapse from outside (no `CAP_SYS_NICE`), by leave of the daemon.
//!
//! ```text
//!   client, as the user                       worker, as the same user, with CAP_SYS_NICE
//!     UserService::connect   ──socket──►        (the daemon starts it, or refuses)
//!     RemoteActuator         ◄──Greeting──      which terms hold
//!       perform(plan)        ──Order──►         serve: Metered<KernelActuator>
//!                            ◄──Reply──           each action tried, within the terms
//!       stop                 ──half-closed──►     the rest is cancelled
//! ```
//!
//! A message is its length in four bytes (little endian) and as many bytes of JSON, at most [`LONGEST`]. Neither side believes the other:
//! what is malformed, or no answer to what was asked, ends the connection. The kernel decides what the worker can reach, since it has the
//! credentials of the user; the terms are kept by the worker, which looks itself how much memory a collapse would add ([`Metered`]).

mod client;
mod metered;
mod serve;
mod wire;

pub use client::{
    Connection, DEFAULT_SOCKET, RemoteActuator, SOCKET_VARIABLE, ServiceError, UserService,
};
pub use metered::{Metered, Sight};
pub use serve::{ServeError, Ways, serve};
pub use wire::{Greeting, LONGEST, Terms, VERSION, framed};

#[cfg(test)]
mod tests;
