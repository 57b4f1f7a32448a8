//! Visits: what must be done from inside a process, without leaving anything there.
//!
//! Some things can only be done by a process to itself: moving pages of its memory (`UFFDIO_MOVE`), timing the lines of a
//! page, collapsing memory without `CAP_SYS_NICE`. A visit stops all threads of a program for some milliseconds, runs a
//! small piece of code on one of them, puts everything back and lets go, as debuggers do. Between visits nothing of ours
//! is in the program: no thread, no library, no descriptor, no userfaultfd.
//!
//! ```
//! use std::os::unix::net::UnixStream;
//!
//! use superhue_procfs::{Roots, process::identify};
//! use superhue_sys::scratch_child::{Backing, ScratchChild};
//! use superhue_visit::{Limits, Visitor, Work};
//!
//! // A program with 2 MiB of memory.
//! let program = ScratchChild::start()?;
//! let region = program.map(Backing::BasePages)?;
//! program.fill(1)?;
//! // The visiting process: here a thread, else `superhue visitor`.
//! let (ours, theirs) = UnixStream::pair()?;
//! std::thread::spawn(move || superhue_visit::serve(theirs));
//!
//! let process = identify(&Roots::default(), program.pid())?;
//! let collapse = Work::Collapse(vec![region]);
//! match Visitor::over(ours).visit(process, &collapse, Limits::default()) {
//!     Ok(visited) => println!("{:?}, it stood still for {:?}", visited.done, visited.pause),
//!     Err(obstacle) => println!("left alone: {obstacle:?}"),
//! }
//! assert!(program.is_intact(1)?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!   superhue ──messages──> visiting process ──ptrace──> program
//!   Visitor                look      anything that speaks against it?
//!                          stop      all threads
//!                          inside    code in, orders, code out          inside/inside.c
//!                          probe     trials of page colors as orders
//!                          exchange  pages get frames of other colors
//! ```
//!
//! Whatever speaks against a visit is an [`Obstacle`](superhue_model::Obstacle): the program is left alone, and counted.

#[cfg(target_arch = "x86_64")]
mod calls;
mod client;
#[cfg(target_arch = "x86_64")]
mod desk;
#[cfg(target_arch = "x86_64")]
mod exchange;
#[cfg(target_arch = "x86_64")]
mod inside;
#[cfg(target_arch = "x86_64")]
mod look;
mod message;
#[cfg(target_arch = "x86_64")]
mod probe;
#[cfg(target_arch = "x86_64")]
mod stock;
#[cfg(target_arch = "x86_64")]
mod stop;
#[cfg(not(target_arch = "x86_64"))]
#[path = "unsupported.rs"]
mod visitor;
#[cfg(target_arch = "x86_64")]
mod visitor;
#[cfg(target_arch = "x86_64")]
mod vmas;
#[cfg(target_arch = "x86_64")]
mod waits;
mod work;

pub use client::{Visitor, VisitorError};
pub use visitor::{is_untidy, serve};
pub use work::{Advised, Done, Left, Limits, Placed, Visited, Want, Work};
