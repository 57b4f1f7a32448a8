//! A victim and a partner on one CPU: the value of private colors to a task with deadlines.
//!
//! After Zhang, Guan and Wang (2014): the victim is a periodic task, which sleeps, wakes, does one *job* over its
//! working set and sleeps again. While it sleeps, the partner has the CPU and the caches. The time of a job is the CPU
//! time of its thread: the partner's time slices do not count, but its effect on the caches does.
//!
//! ```text
//!   victim   |job|          |job|          |job|         time slicing by the kernel, both threads
//!   partner       ~~~~~~~~~~     ~~~~~~~~~~     ~~~      pinned to one CPU
//! ```
//!
//! The partner `alone` spins in registers: the CPU is as busy as with any other partner, and the caches are left alone.

mod image;
mod run;
mod task;

pub use run::measure;
