//! The service that tells applications which of their pages are accessed: `superhue track`.
//!
//! ```text
//!   applications ==socket==> Server ---add, remove---> Heat     (what samples accesses)
//!        ^                     |   <---samples---------
//!        |                     v
//!        +--- list (memfd) -- Client: who it is, what it was told, what it has fetched
//!        +--- notice, signal
//! ```
//!
//! One thread, one epoll. What a client can cost is bounded: it holds three descriptors, one list of at
//! most [`Limits::max_pages`], 72 bytes for each active region, and nothing is queued for it: a list
//! that it does not fetch is replaced by the next one. A client that never says what it wants is let go
//! after [`Limits::greeting`].
//!
//! A process may ask for itself only; root for any. Why that takes a challenge says
//! [`superhue_client::protocol`]. A client that executes another program is let go, so that nobody who
//! holds its socket learns the addresses of a setuid program.

mod budget;
mod client;
mod heat;
mod image;
mod listener;
mod privileges;
mod publish;
mod sampled;
mod server;

pub use heat::{Heat, Lost, Sampled};
pub use listener::{Access, ListenError, Listener};
pub use privileges::{Held, drop_privileges};
pub use sampled::SampledHeat;
pub use server::{Limits, Served, Server, ServerError};
