//! One process at one moment, assembled for a [`Snapshot`](superhue_model::Snapshot).

use superhue_model::{ProcessId, ProcessView, Vma};

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
    lives(roots, id)?;

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
        looked: None,
        vmas,
        regions,
        torn: Vec::new(),
        held: None,
        fills: false,
        heat: None,
    })
}

/// Finds out whether [`view`] of `id` would succeed now, at the cost of reading its mappings and one region: a view reads all page tables.
///
/// # Errors
/// Those of [`view`].
pub fn check_view(
    roots: &Roots,
    scanner: &mut PageScanner,
    id: ProcessId,
) -> Result<(), ReadError> {
    let pid = id.pid;
    lives(roots, id)?;
    let vmas = maps(roots, pid)?;
    let first = |vma: &Vma| {
        let range = vma.range.regions().next()?.range();
        Some(Vma {
            range,
            ..vma.clone()
        })
    };
    let one: Vec<Vma> = vmas.iter().find_map(first).into_iter().collect();
    scanner.regions(roots, id, &one)?;
    status(roots, pid)?;
    match still_is(roots, id) {
        true => Ok(()),
        false => Err(ReadError::Vanished { pid }),
    }
}

/// Finds out whether `id` is a process that has memory.
fn lives(roots: &Roots, id: ProcessId) -> Result<(), ReadError> {
    let pid = id.pid;
    let now = stat(roots, pid)?;
    if now.start_ticks != id.start_ticks || now.is_zombie() {
        return Err(ReadError::Vanished { pid });
    }
    if now.is_kernel_thread() {
        return Err(ReadError::KernelThread { pid });
    }
    Ok(())
}
