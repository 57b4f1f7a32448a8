//! The measured oracle of this process, with a shared palette or its own.
//!
//! Nothing here is generic, so that all timing is compiled in this crate, which is optimized in every profile.

use std::path::PathBuf;

use super::{
    HardwareProbe, Judgement, MeasuredOracle, Oracle, OracleError, Palette, PaletteConfig,
    PaletteError, ProbeError, SharedPalette, judge,
};
use crate::Page;

/// Attempts to find colors: on a busy machine a search can fail that succeeds a moment later.
const SEARCHES: usize = 3;

/// A measured oracle, and where its palette comes from.
#[derive(Debug)]
pub struct LocalOracle {
    /// The oracle.
    pub oracle: MeasuredOracle<HardwareProbe>,
    /// The file of the palette that all processes share; `None` for one of its own.
    pub shared: Option<PathBuf>,
    /// Reason why the palette is not shared.
    pub private_because: Option<PaletteError>,
}

impl LocalOracle {
    /// Opens the shared palette of `config`, and makes it if it is missing. If no file can hold one, finds a palette in
    /// `pages`, which are in memory.
    ///
    /// # Errors
    /// [`OracleError::Unavailable`]: no clock to time with, or no colors were found.
    pub fn open(config: &PaletteConfig, pages: &[Page]) -> Result<Self, OracleError> {
        let mut probe = HardwareProbe::new().map_err(no_clock)?;
        let mut searches = 0;
        loop {
            match SharedPalette::open_or_find(&mut probe, config, |_| {}) {
                Ok(shared) => {
                    let path = shared.path().to_owned();
                    return Ok(Self {
                        oracle: MeasuredOracle::new(shared, probe),
                        shared: Some(path),
                        private_because: None,
                    });
                }
                Err(PaletteError::Discover(error)) => {
                    searches += 1;
                    if searches >= SEARCHES {
                        return Err(OracleError::Unavailable(error.to_string()));
                    }
                }
                Err(error) => return Self::private(probe, config, pages, error),
            }
        }
    }

    fn private(
        mut probe: HardwareProbe,
        config: &PaletteConfig,
        pages: &[Page],
        because: PaletteError,
    ) -> Result<Self, OracleError> {
        let mut found = Palette::discover(&mut probe, pages, &config.search);
        for _ in 1..SEARCHES {
            if found.is_ok() {
                break;
            }
            found = Palette::discover(&mut probe, pages, &config.search);
        }
        let palette = found.map_err(|error| OracleError::Unavailable(error.to_string()))?;
        Ok(Self {
            oracle: MeasuredOracle::private(palette, probe),
            shared: None,
            private_because: Some(because),
        })
    }
}

fn no_clock(error: ProbeError) -> OracleError {
    OracleError::Unavailable(error.to_string())
}

/// [`judge`] with this processor's clock.
pub fn judge_here(
    probe: &mut HardwareProbe,
    oracle: &mut dyn Oracle,
    pages: &[Page],
    ways: usize,
) -> Judgement {
    judge(probe, oracle, pages, ways)
}
