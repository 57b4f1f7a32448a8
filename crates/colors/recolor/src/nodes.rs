//! NUMA nodes of a process and of this one.
//!
//! A page that this process has the kernel bring in comes from a node that the policy and the cpuset of *our* thread allow
//! (`mm/swap_state.c`, `read_swap_cache_async`). Only if both processes may use one node, and the same one, is that where the
//! program's own fault would have put it.

use superhue_procfs::process::status;
use superhue_procfs::{ReadError, Roots};

use crate::error::RecolorError;

/// Checks that process `pid` and this process may allocate memory from one node only, the same one. For machines on which several nodes have
/// memory.
///
/// # Errors
/// [`RecolorError::Nodes`] if not, or if the kernel does not show it; [`RecolorError::Gone`]; [`RecolorError::NotPermitted`].
pub(crate) fn check(roots: &Roots, pid: u32) -> Result<(), RecolorError> {
    let theirs = only_node(roots, pid)?;
    if theirs.is_some() && theirs == only_node(roots, std::process::id())? {
        return Ok(());
    }
    Err(RecolorError::Nodes)
}

/// Returns the node from which a process may allocate memory; `None` if there are several, or if it is not known.
fn only_node(roots: &Roots, pid: u32) -> Result<Option<u32>, RecolorError> {
    let status = status(roots, pid).map_err(|error| match error {
        ReadError::Vanished { .. } => RecolorError::Gone,
        error => RecolorError::NotPermitted(error.to_string()),
    })?;
    let nodes = status.nodes_allowed.unwrap_or_default();
    Ok(match nodes.numbers() {
        [node] => Some(*node),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn both_processes_must_be_on_the_same_node() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let write = |pid: u32, nodes: &str| {
            let process = roots.proc.join(pid.to_string());
            fs::create_dir_all(&process).unwrap();
            let text = format!("Name:\tx\nUid:\t0\t0\t0\t0\n{nodes}");
            fs::write(process.join("status"), text).unwrap();
        };
        let (us, other) = (std::process::id(), std::process::id() ^ 1);
        assert_eq!(check(&roots, other), Err(RecolorError::Gone));
        let [zero, one, both] =
            ["0", "1", "0-1"].map(|nodes| format!("Mems_allowed_list:\t{nodes}\n"));
        let refused = Err(RecolorError::Nodes);
        for (theirs, ours, expected) in [
            (&*one, &*one, Ok(())),
            (&*one, &*zero, refused.clone()),
            (&*one, &*both, refused.clone()),
            (&*both, &*both, refused.clone()),
            ("", "", refused),
        ] {
            write(other, theirs);
            write(us, ours);
            assert_eq!(check(&roots, other), expected, "{theirs:?} {ours:?}");
        }
    }
}
