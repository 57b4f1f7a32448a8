//! Carries plans out in another process: the daemon starts it for a user who lacks `CAP_SYS_NICE`.
//!
//! ```text
//!   client, as the user                       worker, as the same user, with CAP_SYS_NICE
//!     UserService::connect   ──socket──►        (the daemon starts it, or refuses)
//!     RemoteActuator         ◄──Greeting──      which terms hold
//!       perform(plan)        ──Order──►         serve: LimitedActuator<KernelActuator>
//!                            ◄──Reply──           each action tried, within the terms
//!       stop                 ──half-closed──►     the rest is cancelled
//! ```
//!
//! A message is a length in four bytes (little endian) and that many bytes of JSON, at most [`MAX_MESSAGE_BYTES`]. Neither side trusts the other: a malformed
//! message, or a reply to another order, ends the connection. The worker has the credentials of the user, so the kernel decides which processes it
//! can reach. The worker itself enforces the terms: it counts the memory that each collapse adds ([`LimitedActuator`]).

mod client;
mod metered;
mod serve;
mod wire;

pub use client::{
    Connection, DEFAULT_SOCKET, RemoteActuator, SOCKET_VARIABLE, ServiceError, UserService,
};
pub use metered::{LimitedActuator, ResidencyView};
pub use serve::{MapperTable, ServeError, serve};
pub use wire::{Frames, Greeting, MAX_MESSAGE_BYTES, Terms, VERSION, framed, framed_within};

#[cfg(test)]
mod tests;
