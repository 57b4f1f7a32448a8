//! One thin, typed function per Linux system call that Superhue needs and the standard crates lack.
//!
//! Every function names its man page or kernel document, returns `rustix::io::Errno` on failure and
//! carries the only `unsafe` of its subject. Policy, retries and meaning live elsewhere.

pub mod advise;
pub mod anonymous;
pub mod atfork;
pub mod bpf;
pub mod cachestat;
pub mod cgroup;
pub mod collapse;
pub mod frames;
pub mod hugetlb;
pub mod page_color;
pub mod pagemap;
pub mod perf;
pub mod process;
pub mod procmap;
pub mod ptrace;
pub mod scheduling;
pub mod scratch;
pub mod scratch_child;
pub mod seccomp;
pub mod seqpacket;
pub mod signal;
pub mod split;
pub mod thp;
pub mod user;
pub mod userfaultfd;
