//! Visits: what must be done from inside a process, without leaving anything there.
//!
//! A visit stops all threads of a program for some milliseconds, runs a small piece of code on one of them, puts
//! everything back and lets go. Between visits nothing of ours is in the program.

mod client;
mod work;

pub use client::{Visitor, VisitorError};
pub use work::{Done, Left, Limits, Placed, Visited, Want, Work};
