//! The oracle `pfn`: frame numbers, and the bits of them that index the cache.

use superhue_model::{Color, ColorIndex, Pfn};

use super::pagemap::{Frames, Pagemap};
use super::{Oracle, OracleError, OracleKind};
use crate::Page;

/// Pages looked up at a time.
const BATCH: usize = 256;

/// Colors by calculation: right if frame numbers are those of the hardware and the index is known.
///
/// Needs `CAP_SYS_ADMIN`. Frame numbers are never shown.
#[derive(Debug)]
pub struct PfnOracle<F = Pagemap> {
    frames: F,
    index: ColorIndex,
}

impl PfnOracle {
    /// With this process's pagemap.
    ///
    /// # Errors
    /// [`OracleError::NotAllowed`] where frame numbers are hidden; [`OracleError::Unavailable`] where there is
    /// no pagemap.
    pub fn open(index: ColorIndex) -> Result<Self, OracleError> {
        let mut oracle = Self::with(Pagemap::open()?, index);
        // The page of the stack is in memory, so a missing number is a hidden one.
        let here = 0_u8;
        let address = (&raw const here).addr() & !(superhue_model::BASE_PAGE_SIZE as usize - 1);
        // SAFETY: the page of a live variable; it is not even read.
        if let Some(page) = unsafe { Page::at(address) } {
            oracle.classify(&[page], &mut [None])?;
        }
        Ok(oracle)
    }
}

impl<F: Frames> PfnOracle<F> {
    /// Takes the frame numbers from `frames`.
    pub const fn with(frames: F, index: ColorIndex) -> Self {
        Self { frames, index }
    }
}

impl<F: Frames> Oracle for PfnOracle<F> {
    fn kind(&self) -> OracleKind {
        OracleKind::Pfn
    }

    fn colors(&self) -> usize {
        self.index.colors()
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        colors.fill(None);
        let mut frames = [None::<Pfn>; BATCH];
        for (pages, colors) in pages.chunks(BATCH).zip(colors.chunks_mut(BATCH)) {
            let Some(frames) = frames.get_mut(..pages.len()) else {
                break;
            };
            self.frames.frames(pages, frames)?;
            for (color, frame) in colors.iter_mut().zip(frames.iter()) {
                *color = frame.map(|frame| self.index.color_of(frame));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use superhue_testing::skip;

    use super::*;

    #[test]
    fn a_page_of_ones_own_has_a_color_where_frame_numbers_are_shown() {
        let index = ColorIndex::plain(32).unwrap();
        match PfnOracle::open(index) {
            Ok(oracle) => assert_eq!((oracle.colors(), oracle.kind()), (32, OracleKind::Pfn)),
            Err(error) => {
                assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
                skip("pfn", "frame numbers are hidden");
            }
        }
    }
}
