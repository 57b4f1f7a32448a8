//! The oracles of this machine, each put to the test.

use superhue_color::Page;
use superhue_color::observe::{
    Backing, DiscoverError, HardwareProbe, Judgement, OffsetOracle, Oracle, OracleError,
    OracleKind, Palette, PfnOracle, ProbeError, Sample, Search, Trust, judge,
};
use superhue_model::{ByteCount, Color, ColorIndex};
use superhue_observe::hardware::{Machine, Virtualization};

use super::cache::Claim;

/// The order in which they are asked: the cheapest first, as whoever classifies a million pages wants it.
pub const ORDER: [OracleKind; 3] = [OracleKind::Pfn, OracleKind::Offset, OracleKind::Measured];

/// Ways where the cache does not say: as many as any second level has.
const MOST_WAYS: u64 = 16;

/// Times colors are searched for at most.
const SEARCHES: usize = 4;

/// What oracles are made from.
pub(super) struct Surroundings<'a> {
    pub(super) claim: Claim,
    /// Masks from a file, instead of the index that follows from the geometry.
    pub(super) index: Option<ColorIndex>,
    pub(super) pool: ByteCount,
    pub(super) virtualization: &'a Virtualization,
}

/// An oracle that was put to the test, with the memory that it was tried on.
pub(super) struct Tried {
    pub(super) judgement: Judgement,
    /// `None` where it could not be asked.
    pub(super) oracle: Option<Box<dyn Oracle>>,
    pub(super) sample: Option<Sample>,
}

impl Surroundings<'_> {
    /// Ways to reckon with.
    pub(super) fn ways(&self) -> usize {
        let ways = self.claim.ways.unwrap_or(MOST_WAYS);
        usize::try_from(ways).unwrap_or(usize::MAX)
    }

    /// Opens an oracle and tests it.
    pub(super) fn try_oracle(&self, kind: OracleKind, probe: &mut HardwareProbe) -> Tried {
        let untested = |reason: String| Tried {
            judgement: Judgement::untested(kind, reason),
            oracle: None,
            sample: None,
        };
        let backing = match kind {
            OracleKind::Offset => Backing::Superpages,
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
        let mut oracle = match self.open(kind, sample.pages()) {
            Ok(oracle) => oracle,
            Err(error) => return untested(error.to_string()),
        };
        let mut judgement = judge(probe, oracle.as_mut(), sample.pages(), self.ways());
        self.explain(&mut judgement);
        Tried {
            judgement,
            oracle: Some(oracle),
            sample: Some(sample),
        }
    }

    fn open(&self, kind: OracleKind, pages: &[Page]) -> Result<Box<dyn Oracle>, OracleError> {
        let no_colors = || {
            OracleError::Unavailable(
                "the cache's description gives no number of colors to calculate with".to_owned(),
            )
        };
        match kind {
            OracleKind::Pfn => {
                let index = match &self.index {
                    Some(index) => index.clone(),
                    None => ColorIndex::plain(self.claim.colors.ok_or_else(no_colors)?)
                        .map_err(|error| OracleError::Unavailable(error.to_string()))?,
                };
                Ok(Box::new(PfnOracle::open(index)?))
            }
            OracleKind::Offset => {
                let colors = self.claim.colors.ok_or_else(no_colors)?;
                let colors = usize::try_from(colors).map_err(|_| no_colors())?;
                Ok(Box::new(OffsetOracle::open(colors)?))
            }
            OracleKind::Measured | OracleKind::Kernel => {
                let small = |number: Option<u64>| number.and_then(|n| u32::try_from(n).ok());
                let search = Search {
                    ways: small(self.claim.ways),
                    colors: small(self.claim.colors),
                };
                Ok(Box::new(Measured::open(pages, &search)?))
            }
        }
    }

    /// Says why a calculation is wrong, where the machine tells.
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
                ": the host does not back superpages with superpages, or the index is hashed"
            }
            OracleKind::Offset => ": the index is hashed with higher address bits",
            OracleKind::Measured | OracleKind::Kernel => "",
        };
        reason.push_str(because);
    }
}

/// Colors by timing, with eviction sets found just now.
struct Measured {
    probe: HardwareProbe,
    palette: Palette,
}

impl Measured {
    fn open(pages: &[Page], search: &Search) -> Result<Self, OracleError> {
        let unavailable =
            |error: &dyn std::fmt::Display| OracleError::Unavailable(error.to_string());
        let mut probe = HardwareProbe::new().map_err(|error: ProbeError| unavailable(&error))?;
        let mut discover = || Palette::discover(&mut probe, pages, search);
        let mut found = discover();
        // On a busy machine a search can fail that succeeds a moment later.
        for _ in 1..SEARCHES {
            if !matches!(found, Err(DiscoverError::Incomplete { .. })) {
                break;
            }
            found = discover();
        }
        let palette = found.map_err(|error| unavailable(&error))?;
        Ok(Self { probe, palette })
    }
}

impl Oracle for Measured {
    fn kind(&self) -> OracleKind {
        OracleKind::Measured
    }

    fn colors(&self) -> usize {
        self.palette.colors()
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        self.palette.classify(&mut self.probe, pages, colors);
        Ok(())
    }
}
