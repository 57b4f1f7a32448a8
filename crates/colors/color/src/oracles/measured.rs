//! The oracle that measures by timing.

use superhue_model::Color;

use super::held::PagePins;
use super::pinned::CpuPin;
use super::{Oracle, OracleError, OracleKind, Palette, Probe, SharedPalette};
use crate::Page;

/// Pages classified between two tests of the palette.
const BETWEEN_TESTS: usize = 4_096;

/// Source of the palette, kept alive while the palette is used.
#[derive(Debug)]
enum Source {
    Shared(SharedPalette),
    Private(Palette),
}

/// Finds colors by the conflicts with the sets of a palette.
///
/// Pins the calling thread to the CPU it is on while it times, and tests the palette every few thousand pages.
#[derive(Debug)]
pub struct MeasuredOracle<P> {
    source: Source,
    probe: P,
    /// Pages since the palette was tested.
    untested: usize,
    /// Keeps the palette's pages in their frames.
    _held: PagePins,
}

impl<P: Probe> MeasuredOracle<P> {
    /// Uses the palette that all processes share.
    #[must_use]
    pub fn new(palette: SharedPalette, probe: P) -> Self {
        Self::over(Source::Shared(palette), probe)
    }

    /// Uses a private palette: its color numbers mean nothing to other processes.
    #[must_use]
    pub fn private(palette: Palette, probe: P) -> Self {
        Self::over(Source::Private(palette), probe)
    }

    fn over(source: Source, probe: P) -> Self {
        let palette = match &source {
            Source::Shared(shared) => shared.palette(),
            Source::Private(palette) => palette,
        };
        let pages: Vec<Page> = palette.sets().iter().flatten().copied().collect();
        Self {
            _held: PagePins::hold(&pages),
            source,
            probe,
            untested: 0,
        }
    }

    /// Returns the palette in use.
    #[must_use]
    pub const fn palette(&self) -> &Palette {
        match &self.source {
            Source::Shared(shared) => shared.palette(),
            Source::Private(palette) => palette,
        }
    }

    /// The probe.
    pub const fn probe(&mut self) -> &mut P {
        &mut self.probe
    }

    /// Returns its palette and its probe, for a test that needs both.
    pub const fn parts(&mut self) -> (&Palette, &mut P) {
        let palette = match &self.source {
            Source::Shared(shared) => shared.palette(),
            Source::Private(palette) => palette,
        };
        (palette, &mut self.probe)
    }

    /// Tests the palette; a first bad result is checked by a longer test. Returns an error if the colors have drifted.
    fn test(&mut self) -> Result<(), OracleError> {
        let (palette, probe) = self.parts();
        let mut test = palette.self_test(probe, 1);
        if !test.passed() {
            test = palette.self_test(probe, 3);
        }
        if test.passed() {
            return Ok(());
        }
        Err(OracleError::Drifted(format!(
            "{} of {} pages are no longer evicted by those of their color, {} of {} are by others",
            test.own_kept, test.own, test.foreign_evicted, test.foreign
        )))
    }
}

impl<P: Probe> Oracle for MeasuredOracle<P> {
    fn kind(&self) -> OracleKind {
        OracleKind::Measured
    }

    fn colors(&self) -> usize {
        self.palette().colors()
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        colors.fill(None);
        let _pinned = CpuPin::here();
        self.untested = self.untested.saturating_add(pages.len());
        if self.untested >= BETWEEN_TESTS {
            self.test()?;
            self.untested = 0;
        }
        let (palette, probe) = self.parts();
        palette.classify(probe, pages, colors);
        Ok(())
    }
}
