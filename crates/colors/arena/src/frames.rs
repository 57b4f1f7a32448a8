//! For tests: an oracle that needs no timing, because it computes colors from page frame numbers.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use superhue_color::Page;
use superhue_color::oracles::{Agreement, Oracle, OracleError, OracleKind};
use superhue_model::{BASE_PAGE_SIZE, Color};

use crate::Judge;

/// Uses the page frame number modulo the number of colors as the color. Only root can read page frame numbers. Tests need only
/// that a color belongs to the frame, at whatever address it is mapped.
#[derive(Debug)]
pub struct FrameOracle {
    colors: u16,
    drifted: Arc<AtomicBool>,
}

impl FrameOracle {
    /// Makes an oracle with this number of colors; `None` where page frame numbers cannot be read.
    #[must_use]
    pub fn new(colors: u16) -> Option<Self> {
        let oracle = Self {
            colors,
            drifted: Arc::default(),
        };
        let here: u64 = 1;
        // SAFETY: the page that holds a variable is mapped for the lifetime of the variable.
        let page = unsafe { Page::at(round(std::ptr::from_ref(&here) as usize)) };
        let told = oracle.color(&pagemap().ok()?, page?);
        told.map(|_| oracle)
    }

    /// Returns the switch that makes the oracle fail with drift from then on.
    #[must_use]
    pub fn drift(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.drifted)
    }

    fn color(&self, pagemap: &File, page: Page) -> Option<Color> {
        let mut entry = [0; 8];
        let offset = page.start().0 / BASE_PAGE_SIZE * 8;
        pagemap.read_exact_at(&mut entry, offset).ok()?;
        let frame = u64::from_ne_bytes(entry) & ((1 << 55) - 1);
        let color = u16::try_from(frame % u64::from(self.colors)).ok()?;
        (frame > 0).then_some(Color(color))
    }

    fn hold(&self) -> Result<(), OracleError> {
        if self.drifted.load(Ordering::Relaxed) {
            return Err(OracleError::Drifted("as the test wants it".to_owned()));
        }
        Ok(())
    }
}

/// Opens the pagemap of this process; a forked child has to open its own.
fn pagemap() -> Result<File, OracleError> {
    File::open("/proc/self/pagemap").map_err(|error| OracleError::Unavailable(error.to_string()))
}

fn round(address: usize) -> usize {
    address - address % crate::heap::PAGE
}

impl Oracle for FrameOracle {
    fn kind(&self) -> OracleKind {
        OracleKind::Pfn
    }

    fn colors(&self) -> usize {
        usize::from(self.colors)
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        colors.fill(None);
        self.hold()?;
        let pagemap = pagemap()?;
        for (page, color) in pages.iter().zip(colors) {
            *color = self.color(&pagemap, *page);
        }
        Ok(())
    }
}

impl Judge for FrameOracle {
    fn agreement(&mut self, pages: &[(Page, Color)]) -> Result<Agreement, OracleError> {
        self.hold()?;
        let pagemap = pagemap()?;
        let own = pages
            .iter()
            .filter(|(page, color)| self.color(&pagemap, *page) == Some(*color));
        Ok(Agreement {
            tested: pages.len(),
            own: own.count(),
            foreign: 0,
        })
    }

    fn retest(&mut self) -> Result<(), OracleError> {
        self.hold()
    }
}
