//! The service, with its clients in this process and in others.

#![allow(
    clippy::unwrap_used,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod server;
mod support;
