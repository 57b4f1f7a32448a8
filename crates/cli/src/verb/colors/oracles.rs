//! The oracles of this machine, each tested.

use std::path::{Path, PathBuf};

use superhue::model::{ByteCount, ColorIndex};
use superhue::page_colors::Page;
use superhue::page_colors::kernel::{ColoredSample, deal};
use superhue::page_colors::oracles::{
    Backing, HardwareProbe, Judgement, LocalOracle, OffsetOracle, Oracle, OracleError, OracleKind,
    PaletteConfig, PfnOracle, Sample, Search, Trust, judge_here,
};
use superhue::pool_for_colors;
use superhue::procfs::hardware::{Machine, Virtualization};
use superhue::procfs::system::PageColors;
use superhue::procfs::{ReadError, Roots};

use super::cache::Claim;

/// Ways assumed if the cache does not report them: as many as any second level has.
const MOST_WAYS: usize = 16;

/// An oracle, and its properties.
struct OpenOracle {
    oracle: Box<dyn Oracle>,
    /// Measured ways.
    ways: Option<usize>,
    palette: Option<PathBuf>,
    /// Memory to try it on, if it knows the colors of no other memory.
    sample: Option<Sample>,
}

impl OpenOracle {
    fn measured(local: LocalOracle) -> Self {
        let ways = local.oracle.palette().ways();
        Self {
            ways: ways.and_then(|ways| usize::try_from(ways).ok()),
            oracle: Box::new(local.oracle),
            palette: local.shared,
            sample: None,
        }
    }

    fn calculated(oracle: impl Oracle + 'static) -> Self {
        Self {
            oracle: Box::new(oracle),
            ways: None,
            palette: None,
            sample: None,
        }
    }

    fn dealt(dealt: ColoredSample) -> Self {
        Self {
            sample: Some(dealt.sample),
            ..Self::calculated(dealt.oracle)
        }
    }
}

/// Returns the places of this user's palettes, with the known properties of the cache.
pub(super) fn palettes(search: Search) -> PaletteConfig {
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    PaletteConfig {
        search,
        ..PaletteConfig::new(Path::new("/"), runtime_dir.as_deref())
    }
}

/// Attempts with an oracle that measures by timing.
const MAX_TIMING_ATTEMPTS: usize = 4;

/// Inputs of the oracles.
pub(super) struct OracleInputs<'a> {
    pub(super) claim: Claim,
    /// Masks from a file, which replace the index that follows from the geometry.
    pub(super) index: Option<ColorIndex>,
    pub(super) pool: ByteCount,
    pub(super) virtualization: &'a Virtualization,
    /// The state of the kernel's page coloring, if it has one.
    pub(super) coloring: &'a Result<PageColors, ReadError>,
}

/// A tested oracle, with the memory that it was tried on.
pub(super) struct TestedOracle {
    pub(super) judgement: Judgement,
    /// Ways that the test assumed.
    pub(super) ways: usize,
    /// The file of the palette, if the colors come from one.
    pub(super) palette: Option<PathBuf>,
    /// `None` if it could not be used.
    pub(super) oracle: Option<Box<dyn Oracle>>,
    pub(super) sample: Option<Sample>,
}

fn no_colors() -> OracleError {
    OracleError::Unavailable(
        "the cache's description gives no number of colors to calculate with".to_owned(),
    )
}

impl OracleInputs<'_> {
    /// Opens an oracle and tests it; up to [`MAX_TIMING_ATTEMPTS`] times if it measures by timing, which other processes can disturb.
    pub(super) fn try_patiently(
        &self,
        kind: OracleKind,
        probe: &mut HardwareProbe,
    ) -> TestedOracle {
        let mut tried = self.try_oracle(kind, probe);
        for _ in 1..MAX_TIMING_ATTEMPTS {
            let disturbed = matches!(tried.judgement.trust, Trust::Untested(_));
            if kind != OracleKind::Measured || !disturbed {
                break;
            }
            tried = self.try_oracle(kind, probe);
        }
        tried
    }

    /// Opens an oracle and tests it.
    fn try_oracle(&self, kind: OracleKind, probe: &mut HardwareProbe) -> TestedOracle {
        let untested = |reason: String| TestedOracle {
            judgement: Judgement::untested(kind, reason),
            ways: MOST_WAYS,
            palette: None,
            oracle: None,
            sample: None,
        };
        if kind == OracleKind::Kernel {
            return match self.deal() {
                Ok(opened) => self.judge(opened, None, probe),
                Err(error) => untested(error.to_string()),
            };
        }
        let backing = match kind {
            OracleKind::Offset => Backing::HugePages,
            _ => Backing::BasePages,
        };
        let sample = match Sample::new(self.pool, backing) {
            Ok(sample) => sample,
            Err(error) => {
                let pool = self.pool;
                return untested(format!(
                    "no memory for a pool of {pool} to try it on: {error}"
                ));
            }
        };
        match self.open(kind, sample.pages()) {
            Ok(opened) => self.judge(opened, Some(sample), probe),
            Err(error) => untested(error.to_string()),
        }
    }

    /// Tests an oracle on the memory that it came with, or else on `sample`.
    fn judge(
        &self,
        mut opened: OpenOracle,
        sample: Option<Sample>,
        probe: &mut HardwareProbe,
    ) -> TestedOracle {
        let sample = opened.sample.take().or(sample);
        let pages = sample.as_ref().map_or(&[][..], Sample::pages);
        // The ways that firmware reports, else those that the palette measured.
        let known = (self.claim.ways).and_then(|ways| usize::try_from(ways).ok());
        let ways = known.or(opened.ways).unwrap_or(MOST_WAYS);
        let mut judgement = judge_here(probe, opened.oracle.as_mut(), pages, ways);
        self.explain(&mut judgement);
        TestedOracle {
            judgement,
            ways,
            palette: opened.palette,
            oracle: Some(opened.oracle),
            sample,
        }
    }

    /// Has the kernel deal pages by color.
    fn deal(&self) -> Result<OpenOracle, OracleError> {
        let unavailable = |error: &ReadError| OracleError::Unavailable(error.to_string());
        let coloring = self.coloring.as_ref().map_err(unavailable)?;
        let pool = self.pool.max(pool_for_colors(coloring.colors()));
        deal(&Roots::default(), coloring, pool).map(OpenOracle::dealt)
    }

    /// Returns the masks given, or those that follow from the cache's description.
    pub(super) fn calculated(&self) -> Result<ColorIndex, OracleError> {
        match &self.index {
            Some(index) => Ok(index.clone()),
            None => ColorIndex::plain(self.claim.colors.ok_or_else(no_colors)?)
                .map_err(|error| OracleError::Unavailable(error.to_string())),
        }
    }

    fn open(&self, kind: OracleKind, pages: &[Page]) -> Result<OpenOracle, OracleError> {
        match kind {
            OracleKind::Pfn => Ok(OpenOracle::calculated(PfnOracle::open(self.calculated()?)?)),
            OracleKind::Offset => {
                let colors = self.claim.colors.ok_or_else(no_colors)?;
                let colors = usize::try_from(colors).map_err(|_| no_colors())?;
                Ok(OpenOracle::calculated(OffsetOracle::open(colors)?))
            }
            OracleKind::Kernel => self.deal(),
            OracleKind::Measured => {
                let small = |number: Option<u64>| number.and_then(|n| u32::try_from(n).ok());
                let search = Search {
                    ways: small(self.claim.ways),
                    colors: small(self.claim.colors),
                };
                let local = LocalOracle::open(&palettes(search), pages)?;
                if let Some(error) = &local.private_because {
                    tracing::debug!("no palette is shared: {error}");
                }
                Ok(OpenOracle::measured(local))
            }
        }
    }

    /// Adds the reason why a calculation is wrong, if the machine shows one.
    fn explain(&self, judgement: &mut Judgement) {
        let Trust::Refuted(reason) = &mut judgement.trust else {
            return;
        };
        let guest = self.virtualization.machine == Machine::Virtual;
        let because = match judgement.kind {
            OracleKind::Pfn if guest => ": the host puts frames elsewhere, or the index is hashed",
            OracleKind::Pfn if self.index.is_none() => {
                ": the index is not made of plain address bits (give its masks with --index)"
            }
            OracleKind::Pfn => ": the index is not made of these masks",
            OracleKind::Offset if guest => {
                ": the host does not back huge pages with huge pages, or the index is hashed"
            }
            OracleKind::Offset => ": the index is hashed with higher address bits",
            OracleKind::Kernel if guest => {
                ": the kernel's geometry is not that of this cache, or the host does not back memory with huge pages"
            }
            OracleKind::Kernel => {
                ": the geometry that the kernel colors by (vm.page_color_geometry) is not that of this cache"
            }
            OracleKind::Measured => "",
        };
        reason.push_str(because);
    }
}
