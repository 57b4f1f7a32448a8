//! The driver and its document.

#![allow(
    clippy::unwrap_used,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod driver;
