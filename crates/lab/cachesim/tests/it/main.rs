//! Models of caches, TLBs and machines.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod models;
