//! The oracle `offset`: the position inside a huge page.

use superhue_model::{BASE_PAGE_SHIFT, Color};

use super::pagemap::{HugePages, PAGES_IN_HUGE_PAGE, Pagemap};
use super::{Oracle, OracleError, OracleKind};
use crate::Page;

/// Colors by position: a huge page is 2 MiB of aligned frames, so the low 21 bits of an address in it are those of the
/// hardware, if the hypervisor backs it with a huge page as well.
///
/// Unprivileged. It does not see index bits above the huge page: a cache of more than 512 colors has 512 here, each of
/// which stands for several, and the test refutes an index that is hashed with higher bits.
#[derive(Debug)]
pub struct OffsetOracle<S = Pagemap> {
    huge_pages: S,
    colors: usize,
}

impl OffsetOracle {
    /// With this process's pagemap, for a cache of `colors` colors.
    ///
    /// # Errors
    /// [`OracleError::Unavailable`] where there is no pagemap, or `colors` is no power of two.
    pub fn open(colors: usize) -> Result<Self, OracleError> {
        Self::with(Pagemap::open()?, colors)
    }
}

impl<S: HugePages> OffsetOracle<S> {
    /// Takes the huge pages from `huge pages`.
    ///
    /// # Errors
    /// [`OracleError::Unavailable`] where `colors` is no power of two.
    pub fn with(huge_pages: S, colors: usize) -> Result<Self, OracleError> {
        if !colors.is_power_of_two() {
            return Err(OracleError::Unavailable(format!(
                "{colors} colors are no power of two, so no bits of the address make them"
            )));
        }
        let most = usize::try_from(PAGES_IN_HUGE_PAGE.0).unwrap_or(usize::MAX);
        Ok(Self {
            huge_pages,
            colors: colors.min(most),
        })
    }
}

impl<S: HugePages> Oracle for OffsetOracle<S> {
    fn kind(&self) -> OracleKind {
        OracleKind::Offset
    }

    fn colors(&self) -> usize {
        self.colors
    }

    fn wants_huge_pages(&self) -> bool {
        true
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        colors.fill(None);
        for (page, color) in pages.iter().zip(colors) {
            if self.huge_pages.is_in_huge_page(*page)? {
                let low = (page.address() >> BASE_PAGE_SHIFT) & (self.colors - 1);
                *color = u16::try_from(low).ok().map(Color);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every second 2 MiB is a huge page.
    #[derive(Debug)]
    struct Alternating;

    impl HugePages for Alternating {
        fn is_in_huge_page(&mut self, page: Page) -> Result<bool, OracleError> {
            Ok(page.address() >> 21 & 1 == 0)
        }
    }

    #[test]
    fn only_pages_in_huge_pages_have_a_color() {
        let mut oracle = OffsetOracle::with(Alternating, 32).unwrap();
        // SAFETY: never read.
        let page = |address| unsafe { Page::at(address).unwrap() };
        let pages = [page(4 << 21), page((4 << 21) + (37 << 12)), page(5 << 21)];
        let mut colors = [Some(Color(9)); 3];
        oracle.classify(&pages, &mut colors).unwrap();
        assert_eq!(colors, [Some(Color(0)), Some(Color(5)), None]);
        assert!(oracle.wants_huge_pages());
    }

    #[test]
    fn a_huge_page_shows_512_colors_at_most() {
        assert_eq!(OffsetOracle::with(Alternating, 1024).unwrap().colors(), 512);
        let error = OffsetOracle::with(Alternating, 48).unwrap_err();
        assert!(error.to_string().contains("no power of two"));
    }
}
