//! The oracle `kernel`: pages that a patched kernel dealt by color.
//!
//! Such a kernel (`kernel/`) does not report the color of a page. It gives a thread pages of the colors that the thread
//! requests; so memory that was populated color by color has known colors, without a privilege. Pages outside that
//! memory have no color here.
//!
//! ```text
//!   first             + part           + 2 part
//!   | pages of color 0 | pages of color 1 | ...
//! ```

use superhue_model::{BASE_PAGE_SIZE, Color};

use super::{Oracle, OracleError, OracleKind, Sample};
use crate::Page;

/// The colors of one sample's pages.
#[derive(Debug)]
pub struct KernelOracle {
    first: usize,
    pages_of_color: usize,
    /// For each color: true if its pages are known to have it.
    dealt: Vec<bool>,
}

impl KernelOracle {
    /// For a sample whose pages were dealt in turn: equally many of each color, those of color 0 first.
    ///
    /// # Errors
    /// [`OracleError::Unavailable`] for a sample without a page of each color.
    pub fn new(sample: &Sample, dealt: Vec<bool>) -> Result<Self, OracleError> {
        let pages = sample.pages();
        let pages_of_color = pages.len().checked_div(dealt.len()).unwrap_or(0);
        let first = pages.first().filter(|_| pages_of_color > 0);
        let first = first.ok_or_else(|| {
            OracleError::Unavailable(format!(
                "{} pages are too few for {} colors",
                pages.len(),
                dealt.len()
            ))
        })?;
        Ok(Self {
            first: first.address(),
            pages_of_color,
            dealt,
        })
    }

    fn color_of(&self, page: Page) -> Option<Color> {
        let offset = page.address().checked_sub(self.first)?;
        let color = offset / BASE_PAGE_SIZE as usize / self.pages_of_color;
        let is_dealt = self.dealt.get(color).copied() == Some(true);
        u16::try_from(color).ok().filter(|_| is_dealt).map(Color)
    }
}

impl Oracle for KernelOracle {
    fn kind(&self) -> OracleKind {
        OracleKind::Kernel
    }

    fn colors(&self) -> usize {
        self.dealt.len()
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        for (&page, color) in pages.iter().zip(colors) {
            *color = self.color_of(page);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use superhue_model::ByteCount;

    use super::super::Backing;
    use super::*;

    #[test]
    fn pages_have_the_color_of_their_part() {
        let mut parts = Vec::new();
        let sample = Sample::in_parts(ByteCount(2 << 20), Backing::BasePages, 4, &mut |part| {
            parts.push(part);
        });
        let sample = sample.unwrap();
        assert_eq!(parts, [0, 1, 2, 3]);
        let mut oracle = KernelOracle::new(&sample, vec![true, true, false, true]).unwrap();
        assert_eq!((oracle.colors(), oracle.kind()), (4, OracleKind::Kernel));
        let pages = sample.pages();
        let mut colors = vec![None; pages.len()];
        oracle.classify(pages, &mut colors).unwrap();
        let told = |index: usize| colors[index].map(|color| color.0);
        assert_eq!((told(0), told(127), told(128)), (Some(0), Some(0), Some(1)));
        assert_eq!((told(256), told(384), told(511)), (None, Some(3), Some(3)));
        let others = Sample::new(ByteCount(2 << 20), Backing::BasePages).unwrap();
        oracle.classify(others.pages(), &mut colors).unwrap();
        assert!(
            colors.iter().all(Option::is_none),
            "memory of somebody else"
        );
    }

    #[test]
    fn a_sample_with_too_few_pages_is_refused() {
        let sample = Sample::new(ByteCount(2 << 20), Backing::BasePages).unwrap();
        assert!(KernelOracle::new(&sample, vec![true; 1024]).is_err());
        assert!(KernelOracle::new(&sample, Vec::new()).is_err());
    }
}
