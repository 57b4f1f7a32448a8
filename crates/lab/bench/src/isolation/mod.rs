//! A victim and a partner on one CPU: what colors of its own are worth to a task with deadlines.
//!
//! After Zhang, Guan and Wang (2014): the victim is a periodic task, which sleeps, wakes, does one *job* over its working set and
//! sleeps again. While it sleeps the partner has the CPU and the caches. The time of a job is the CPU time of
//! its thread, so that what the scheduler gives to others does not count, but what they did to the caches does.
//!
//! ```text
//!   victim   |job|          |job|          |job|         time slicing by the kernel, both threads
//!   partner       ~~~~~~~~~~     ~~~~~~~~~~     ~~~      pinned to one CPU
//! ```
//!
//! Alone, the partner spins in registers: the CPU is as busy as with any other, and the caches are left alone.

pub mod document;
mod image;
mod run;
mod task;

pub use run::measure;
