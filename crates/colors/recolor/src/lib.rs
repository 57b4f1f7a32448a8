//! Gives pages of running programs frames of chosen colors, through the kernel's own paths.
//!
//! A process of ours frees a frame whose color it has measured, has the kernel take a page of the program out to swap, and
//! has it brought in again on the same CPU. The kernel hands out the frame that was freed last on a CPU first
//! (`mm/page_alloc.c`, lists of free pages per CPU), so the page gets that frame.
//!
//! ```text
//!   learn  the colors of frames of our own, by timing; each is timed twice               stock.rs: Stock::measure
//!   look   which frame does the page have, is that color known, may the page be moved?   target.rs, frames.rs
//!   deal   free a measured frame of the wanted color on this CPU                         stock.rs: Stock::deal
//!   out    process_madvise(MADV_PAGEOUT): the kernel unmaps the page and writes it       round.rs
//!   in     process_madvise(MADV_WILLNEED): the kernel reads it from swap, and the program's next use maps it
//!   look   did it get the frame? if not, again, three rounds at most
//! ```
//!
//! No code of ours runs in the program, and none of its threads is stopped. A thread may use the page at any time: it then
//! waits for the kernel as after any other reclaim. A page that is pinned or has an extra reference (`vmsplice(2)`,
//! `O_DIRECT`, io_uring) stays where it is, as under memory pressure; a page that is shared since a fork is not taken out.
//! The module recolors only processes on its own NUMA node where several nodes have memory (`nodes.rs`).
//!
//! The program may touch the page between *out* and *in*. The thread's own CPU then serves the fault, so frames are dealt there as well.
//!
//! | needs | for |
//! |---|---|
//! | swap in memory (zram) | a place for pages that are out |
//! | `CAP_SYS_NICE`, ptrace read access | `process_madvise(2)` |
//! | `CAP_SYS_ADMIN` | frame numbers in `/proc/PID/pagemap`, and `/proc/kpageflags` |
//! | `CAP_SYS_PTRACE` | other users' processes |

mod cpus;
mod error;
mod frames;
mod nodes;
mod price;
mod recolorer;
mod round;
mod stock;
mod target;
mod want;

pub use error::RecolorError;
pub use frames::FrameColors;
pub use price::Price;
pub use recolorer::{ColorCheck, Recolorer};
pub use target::{MovablePage, Target};
pub use want::{KeptReason, RecolorResult, TargetColors};
