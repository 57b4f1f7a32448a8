//! Deciding: which color comes next, and which masks explain colors. Pure: no clock, no system call.

mod masks;
mod walk;

pub use masks::masks_of;
pub use walk::Walk;
