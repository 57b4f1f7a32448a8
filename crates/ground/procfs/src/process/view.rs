//! One process at one moment, assembled for a [`Snapshot`](superhue_model::Snapshot).

use superhue_model::{ProcessId, ProcessView};

use crate::{ReadError, Roots};

use super::identity::still_is;
use super::maps::maps;
use super::pages::PageScanner;
use super::stat::stat;
use super::status::status;

/// Reads the memory of `id`: its VMAs, its regions and its resident size.
///
/// The files are read one after another while the process runs on, so they may differ by
/// changes in between. They certainly belong to `id`: the function checks its identity before
/// and after. Needs ptrace read access.
///
/// # Errors
/// [`ReadError::Vanished`] when `id` has exited, is a zombie, or its number belongs to another
/// process now; [`ReadError::KernelThread`]; [`ReadError::Denied`]; [`ReadError::Malformed`].
pub fn view(
    roots: &Roots,
    scanner: &mut PageScanner,
    id: ProcessId,
) -> Result<ProcessView, ReadError> {
    let pid = id.pid;
    let before = stat(roots, pid)?;
    if before.start_ticks != id.start_ticks || before.is_zombie() {
        return Err(ReadError::Vanished { pid });
    }
    if before.is_kernel_thread() {
        return Err(ReadError::KernelThread { pid });
    }

    let vmas = maps(roots, pid)?;
    let regions = scanner.regions(roots, id, &vmas)?;
    let sizes = status(roots, pid)?;

    if !still_is(roots, id) {
        return Err(ReadError::Vanished { pid });
    }
    Ok(ProcessView {
        id,
        rss: sizes.rss,
        rss_anon: sizes.rss_anon,
        pss_anon: None,
        vmas,
        regions,
        torn: Vec::new(),
        held: None,
        fills: false,
        heat: None,
    })
}
