//! The machine's colors, found by timing.

use std::path::Path;

use superhue_color::Page;
use superhue_color::oracles::{
    Agreement, HardwareProbe, MeasuredOracle, Oracle, OracleError, OracleKind, PaletteConfig,
    PaletteError, SharedPalette,
};
use superhue_model::Color;

use crate::{ColorError, Judge};

/// Oracle by the palette that all processes share. Forked children continue to use it: its pages are those of a file.
#[derive(Debug)]
pub struct PaletteOracle(MeasuredOracle<HardwareProbe>);

impl PaletteOracle {
    /// Opens the palette; if there is none and `search` is set, finds the colors.
    ///
    /// # Errors
    /// [`ColorError::Unknown`] with the reason.
    pub fn open(search: bool) -> Result<Self, ColorError> {
        let unknown = |why: String| ColorError::Unknown(why);
        let mut probe = HardwareProbe::new().map_err(|error| unknown(error.to_string()))?;
        let folder = std::env::var_os("XDG_RUNTIME_DIR");
        let config = PaletteConfig::new(Path::new("/"), folder.as_deref().map(Path::new));
        let palette = if search {
            SharedPalette::open_or_find(&mut probe, &config, |_| {})
        } else {
            SharedPalette::open(&mut probe, &config)
        };
        let palette = palette.map_err(|error: PaletteError| unknown(error.to_string()))?;
        Ok(Self(MeasuredOracle::new(palette, probe)))
    }
}

impl Oracle for PaletteOracle {
    fn kind(&self) -> OracleKind {
        self.0.kind()
    }

    fn colors(&self) -> usize {
        self.0.colors()
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        self.0.classify(pages, colors)
    }
}

impl Judge for PaletteOracle {
    fn agreement(&mut self, pages: &[(Page, Color)]) -> Result<Agreement, OracleError> {
        let (palette, probe) = self.0.parts();
        Ok(palette.agreement(probe, pages))
    }

    fn retest(&mut self) -> Result<(), OracleError> {
        let (palette, probe) = self.0.parts();
        // One bad result may be noise from other processes.
        if palette.self_test(probe, 1).passed() || palette.self_test(probe, 3).passed() {
            return Ok(());
        }
        let why = "the palette's pages no longer push out their own color, or push out others";
        Err(OracleError::Drifted(why.to_owned()))
    }
}
