//! One thin, typed function per Linux system call that Superhue needs and the standard crates lack.
//!
//! ```
//! use std::fs::File;
//!
//! use rustix::io::Errno;
//! use superhue_sys::pagemap::{PAGE_IS_PRESENT, PageRegion, pagemap_scan};
//! use superhue_sys::scratch::Scratch;
//!
//! // 512 pages, of which the first is present.
//! let mut memory = Scratch::in_base_pages(2 << 20)?;
//! memory.touch_page(300);
//! let (pagemap, range) = (File::open("/proc/self/pagemap")?, memory.range());
//! let mut runs = [PageRegion::default(); 8];
//! match pagemap_scan(&pagemap, range, PAGE_IS_PRESENT, PAGE_IS_PRESENT, &mut runs) {
//!     Ok((count, _)) => assert_eq!(count, 2),
//!     Err(errno) => assert_eq!(errno, Errno::NOTTY, "before Linux 6.7"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Every function names its man page or kernel document, returns `rustix::io::Errno` on failure and
//! carries the only `unsafe` of its subject. Policy, retries and meaning live elsewhere.

pub mod advise;
pub mod aliases;
pub mod anonymous;
pub mod atfork;
pub mod bpf;
pub mod busy;
pub mod cachestat;
pub mod cgroup;
pub mod collapse;
pub mod frames;
pub mod heap;
pub mod hugetlb;
pub mod image;
pub mod overdue;
pub mod page_color;
pub mod pagemap;
pub mod perf;
pub mod process;
pub mod scheduling;
pub mod scratch;
pub mod scratch_child;
pub mod seccomp;
pub mod self_filter;
pub mod seqpacket;
pub mod signal;
pub mod split;
pub mod swap;
pub mod thp;
pub mod urgency;
pub mod user;
pub mod userfaultfd;
