//! Placing memory that somebody has already.

use superhue_color::act::Placer;
use superhue_color::decide::Walk;
use superhue_model::VirtRange;

use crate::colors::pool_error;
use crate::{ColorError, Judge, Placement};

/// Has `range`, whole pages, in the colors of `walk`.
///
/// # Errors
/// When nothing could be done at all.
///
/// # Safety
/// The range is mapped and may be written, and nobody else touches it until this returns.
pub unsafe fn exclusive(
    range: VirtRange,
    walk: &mut Walk,
    placer: &mut Placer,
    judge: &mut dyn Judge,
) -> Result<Placement, ColorError> {
    let filled = placer.fill(range, walk, judge).map_err(pool_error)?;
    Ok(filled.into())
}
