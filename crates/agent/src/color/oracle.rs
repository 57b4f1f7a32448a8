//! What tells colors in this process: the shared palette, or, for tests, something that needs no timing.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fd::OwnedFd;
use superhue_color::Page;
use superhue_color::observe::{
    HardwareProbe, MeasuredOracle, Oracle, OracleError, OracleKind, PaletteError, SharedPalette,
};
use superhue_mailbox::Aside;
use superhue_model::{BASE_PAGE_SIZE, Color};

use crate::raw::{self, Shared};

/// The shared palette's, which Superhue has opened.
///
/// # Errors
/// Why colors cannot be told in this process.
pub(super) fn measured(mailbox: Shared, colors: u16) -> Result<Box<dyn Oracle>, Aside> {
    let number = mailbox.color().palette.load(Relaxed);
    let file = raw::open_of_superhue(number).ok_or(Aside::NoPalette)?;
    let mut probe = HardwareProbe::new().map_err(|_| Aside::NoPalette)?;
    let palette = SharedPalette::from_file(&mut probe, file, Path::new("palette"));
    let palette = palette.map_err(|error| match error {
        PaletteError::Stale(_) => Aside::Refuted,
        _ => Aside::NoPalette,
    })?;
    if palette.palette().colors() != usize::from(colors) {
        return Err(Aside::Refuted);
    }
    Ok(Box::new(MeasuredOracle::new(palette, probe)))
}

/// The frame number modulo the number of colors, whatever the caches. For tests by root.
#[derive(Debug)]
pub(super) struct Frames {
    pagemap: OwnedFd,
    colors: u16,
}

impl Frames {
    pub(super) const fn new(pagemap: OwnedFd, colors: u16) -> Self {
        Self { pagemap, colors }
    }

    fn color_of(&self, page: Page) -> Option<Color> {
        const PRESENT: u64 = 1 << 63;
        const FRAME: u64 = (1 << 55) - 1;
        let mut entry = [0; 8];
        let offset = page.start().0 / BASE_PAGE_SIZE * 8;
        let read = rustix::io::pread(&self.pagemap, &mut entry, offset).ok()?;
        let entry = u64::from_ne_bytes(entry);
        let frame = entry & FRAME;
        let is_told = read == 8 && entry & PRESENT != 0 && frame != 0;
        let color = frame.checked_rem(u64::from(self.colors))?;
        is_told.then_some(Color(u16::try_from(color).ok()?))
    }
}

impl Oracle for Frames {
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
        for (&page, color) in pages.iter().zip(colors) {
            *color = self.color_of(page);
        }
        Ok(())
    }
}

/// Pages that [`Drifting`] tells the colors of.
const STEADY: usize = 3000;

/// Frame numbers, until so many pages were told: then colors are said to have changed. For tests by root.
#[derive(Debug)]
pub(super) struct Drifting {
    frames: Frames,
    told: usize,
}

impl Drifting {
    pub(super) const fn new(pagemap: OwnedFd, colors: u16) -> Self {
        Self {
            frames: Frames::new(pagemap, colors),
            told: 0,
        }
    }
}

impl Oracle for Drifting {
    fn kind(&self) -> OracleKind {
        OracleKind::Pfn
    }

    fn colors(&self) -> usize {
        self.frames.colors()
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        self.told = self.told.saturating_add(pages.len());
        if self.told > STEADY {
            return Err(OracleError::Drifted(String::new()));
        }
        self.frames.classify(pages, colors)
    }
}

/// Numbers dealt out in turn, which mean nothing. For tests by others.
#[derive(Debug)]
pub(super) struct Dealt {
    next: u16,
    colors: u16,
    /// Of these, the first ones are dealt.
    dealt: u16,
}

impl Dealt {
    pub(super) const fn new(colors: u16, dealt: u16) -> Self {
        Self {
            next: 0,
            colors,
            dealt,
        }
    }
}

impl Oracle for Dealt {
    fn kind(&self) -> OracleKind {
        OracleKind::Offset
    }

    fn colors(&self) -> usize {
        usize::from(self.colors)
    }

    fn classify(
        &mut self,
        _pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        for color in colors {
            *color = Some(Color(self.next));
            self.next = (self.next + 1).checked_rem(self.dealt).unwrap_or(0);
        }
        Ok(())
    }
}
