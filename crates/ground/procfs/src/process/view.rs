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
    read(roots, scanner, id, |vmas| vmas)
}

/// Finds out whether [`view`] of `id` would succeed now, at the cost of reading its mappings and one region: a view reads all page tables.
///
/// # Errors
/// Errors of [`view`].
pub fn check_view(
    roots: &Roots,
    scanner: &mut PageScanner,
    id: ProcessId,
) -> Result<(), ReadError> {
    read(roots, scanner, id, first_region).map(drop)
}

/// Returns the first whole region of the mappings, as one mapping; nothing if there is none.
fn first_region(vmas: Vec<Vma>) -> Vec<Vma> {
    let first = |vma: Vma| {
        let range = vma.range.regions().next()?.range();
        Some(Vma { range, ..vma })
    };
    vmas.into_iter().find_map(first).into_iter().collect()
}

/// Reads a view of the mappings that `choose` returns.
fn read(
    roots: &Roots,
    scanner: &mut PageScanner,
    id: ProcessId,
    choose: fn(Vec<Vma>) -> Vec<Vma>,
) -> Result<ProcessView, ReadError> {
    let pid = id.pid;
    let before = stat(roots, pid)?;
    if before.start_ticks != id.start_ticks || before.is_zombie() {
        return Err(ReadError::Vanished { pid });
    }
    if before.is_kernel_thread() {
        return Err(ReadError::KernelThread { pid });
    }

    let vmas = choose(maps(roots, pid)?);
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
