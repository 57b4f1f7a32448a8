//! Arenas, and memory that a program already has, in chosen colors.
//!
//! What the lock protects ([`superhue_testing::alone`]): a fork shares all memory of this process with the child, and shared
//! memory stays where it is.

#![allow(
    clippy::unwrap_used,
    reason = "tests, of which clippy sees only the functions as such"
)]

// These use made-up colors, which a released library has none of.
#[cfg(debug_assertions)]
mod arena;
mod live;
#[cfg(debug_assertions)]
mod own_memory;
