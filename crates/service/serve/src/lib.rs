//! Parts that the services of Superhue share: the daemon, its workers and `superhue track`.
//!
//! * [`Listener`]: a socket whose path one service has at a time, and no other user can take;
//! * [`drop_privileges`]: a service keeps the capabilities that it needs, and can get no others.

mod listener;
mod privileges;

pub use listener::{Access, ListenError, Listener};
pub use privileges::{HeldCapabilities, drop_privileges};
