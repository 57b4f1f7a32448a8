//! The next color of a walk, and the masks that explain measured colors. Pure: no clock, no system call.

mod balance;
mod masks;
mod walk;

pub use balance::{HotPage, balance, counts};
pub use masks::masks_of;
pub use walk::Walk;
