//! Reason why a process cannot be recolored.

use superhue_color::oracles::OracleError;

/// Reason why a process cannot be recolored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecolorError {
    /// The process has ended, or is executing another program.
    #[error("the process has ended")]
    Gone,
    /// The kernel does not allow it.
    #[error("{0}")]
    NotPermitted(String),
    /// A userfaultfd watches memory of it: `UFFDIO_MOVE` fails on pages that are in swap.
    #[error("a userfaultfd watches memory of it, whose UFFDIO_MOVE fails on pages in swap")]
    Userfaultfd,
    /// Several NUMA nodes have memory, and it is not confined to the one node to which this process is confined.
    #[error(
        "its memory may lie on several NUMA nodes, or on another one than superhue's, and pages that come in again would ignore \
         its policy: confine it and superhue to one node (cpuset.mems)"
    )]
    Nodes,
    /// The oracle failed.
    #[error(transparent)]
    Oracle(#[from] OracleError),
}
