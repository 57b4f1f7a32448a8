//! Pages of chosen colors, in a pool and in their places, by an oracle that needs no timing.
//!
//! What the lock protects ([`superhue_testing::alone`]): during a fork a child shares all memory of this process, and shared
//! pages cannot be moved.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests, of which clippy sees only the functions as such; numbers of colors are small"
)]

mod placing;
mod planning;
mod pooling;
mod support;
