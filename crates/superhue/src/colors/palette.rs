//! The palette that all processes of this machine share.

use superhue_act::OracleWish;

use super::ColorsError;

/// Opens the palette, or finds the colors if there is none yet; with how many there are.
///
/// # Errors
/// When colors cannot be told here.
pub(crate) fn open() -> Result<(OracleWish, usize), ColorsError> {
    Err(ColorsError::Oracle("not written yet".to_owned()))
}
