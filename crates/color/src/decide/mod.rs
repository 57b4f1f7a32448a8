//! Deciding: which color comes next. Pure: no clock, no system call.

mod walk;

pub use walk::Walk;
