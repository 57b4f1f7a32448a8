//! The palette that all processes of this machine share.

use std::env;
use std::path::{Path, PathBuf};

use superhue_color::oracles::{HardwareProbe, PaletteConfig, SharedPalette};

use super::ColorsError;

/// Opens the palette, or finds the colors if there is no palette yet (and one will be used).
///
/// # Errors
/// Fails when colors cannot be measured here; in a dry run, also when there is no palette yet.
pub(super) fn open(dry_run: bool) -> Result<SharedPalette, ColorsError> {
    let mut probe = HardwareProbe::new().map_err(|error| told(&error))?;
    let config = config();
    let progress = |step| tracing::debug!(?step, "palette");
    let palette = if dry_run {
        SharedPalette::open(&mut probe, &config)
    } else {
        SharedPalette::open_or_find(&mut probe, &config, progress)
    };
    palette.map_err(|error| told(&error))
}

/// Returns the existing palette, if there is one. Its user tests whether its colors still hold.
pub(super) fn peek() -> Option<SharedPalette> {
    SharedPalette::peek(&config())
}

fn config() -> PaletteConfig {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    PaletteConfig::new(Path::new("/"), runtime.as_deref())
}

fn told(error: &dyn std::error::Error) -> ColorsError {
    ColorsError::Oracle(error.to_string())
}
