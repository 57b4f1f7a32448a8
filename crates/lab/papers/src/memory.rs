//! Frames of programs' pages: as real kernels dealt them, or drawn by the same rules.

use std::collections::BTreeMap;

use superhue_cachesim::dump::{Draw, Dump};
use superhue_cachesim::{Placement, Random};

use crate::ReplayError;
use crate::arm::Arm;

/// The files of `kernel/frames` that the figures use.
pub const FILES: [&str; 6] = [
    "unpatched-fresh-base",
    "unpatched-aged-base",
    "unpatched-aged-thp",
    "spread-aged-base",
    "spread-aged-thp",
    "sets-aged-base",
];

/// Number of colors that drawn placements take in turn, as the kernel of `kernel/frames` does: bits 12 to 20.
const COLORS: u64 = 512;
const PAGE: u64 = 4096;

/// Returns a field of the first line of a dump: `linux=6.12.117`.
fn field<'a>(how: &'a str, key: &str) -> Option<&'a str> {
    how.split(' ')
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// Returns the name of the file that the first line of a dump belongs to: `unpatched-aged-base` for `off,aged,base ... kernel=unpatched`.
fn guest(how: &str) -> Option<String> {
    let (_, state) = how.split(' ').next()?.split_once(',')?;
    Some(format!(
        "{}-{}",
        field(how, "kernel")?,
        state.replace(',', "-")
    ))
}

/// Returns true if two dumps are of one release, and, where both kernels have the patches or both lack them, of one build.
fn are_of_one_build(one: &str, other: &str) -> bool {
    let is_unpatched = |how| field(how, "kernel") == Some("unpatched");
    let same = |key| field(one, key) == field(other, key);
    same("linux") && (is_unpatched(one) != is_unpatched(other) || same("made"))
}

/// Source of placements: dumps of real kernels, and a seed for drawn ones.
#[derive(Debug, Default)]
pub struct Memory {
    dumps: BTreeMap<String, Dump>,
    seed: u64,
}

/// Placement, with its origin.
#[derive(Debug)]
pub struct SourcedPlacement {
    /// The frames of the pages.
    pub pages: Placement,
    /// True if a real kernel dealt them.
    pub real: bool,
}

impl Memory {
    /// Makes a memory without files: everything is drawn.
    #[must_use]
    pub fn drawn(seed: u64) -> Self {
        Self {
            dumps: BTreeMap::new(),
            seed,
        }
    }

    /// Adds a file of `kernel/frames`.
    ///
    /// # Errors
    /// If it is damaged, of a guest that died, of another guest than its name says, or of another kernel than the files before it.
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), ReplayError> {
        let dump =
            Dump::parse(bytes).map_err(|error| ReplayError(format!("{name}.frames {error}")))?;
        let told = guest(&dump.how);
        if told.as_deref() != Some(name) {
            let told =
                told.unwrap_or_else(|| format!("a guest that it does not name ({})", dump.how));
            return Err(ReplayError(format!("{name}.frames is of {told}")));
        }
        let other = self.dumps.iter();
        let mut other = other.filter(|(_, other)| !are_of_one_build(&dump.how, &other.how));
        if let Some((other, _)) = other.next() {
            let what = format!("{name}.frames is of another kernel than {other}.frames");
            return Err(ReplayError(what));
        }
        self.dumps.insert(name.to_owned(), dump);
        Ok(())
    }

    /// The dumps by name; each has the description of its guest and its sum.
    pub fn dumps(&self) -> impl Iterator<Item = (&str, &Dump)> {
        self.dumps.iter().map(|(name, dump)| (name.as_str(), dump))
    }

    /// Returns true if all files that the figures use are there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        FILES.iter().all(|name| self.dumps.contains_key(*name))
    }

    /// Seed of all that is drawn.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// A generator for a named draw.
    #[must_use]
    pub fn random(&self, name: &str, draw: usize) -> Random {
        Random::named(self.seed, &format!("{name}/{draw}"))
    }

    /// Places the memory of a program, as a draw of an arm; draws the frames itself if no kernel dealt that much.
    #[must_use]
    pub fn place(&self, arm: Arm, bytes: u64, draw: usize) -> SourcedPlacement {
        let pages = usize::try_from(bytes.div_ceil(PAGE)).unwrap_or(usize::MAX);
        // Memory smaller than a huge page has none.
        let large = pages >= 512;
        let file = match arm {
            Arm::Fresh => "unpatched-fresh-base",
            Arm::Kernel => "unpatched-aged-base",
            Arm::Superpages if large => "unpatched-aged-thp",
            Arm::Superpages => "unpatched-aged-base",
            Arm::Colored => "spread-aged-base",
            Arm::Both if large => "spread-aged-thp",
            Arm::Both => "spread-aged-base",
            Arm::Random | Arm::Halves | Arm::NoRule => "",
        };
        let with_superpages = large && matches!(arm, Arm::Superpages | Arm::Both);
        let fits = |draw: &&Draw| {
            draw.frames.len() >= pages
                && !matches!(draw.plan.as_str(), "task" | "partner")
                // A process with more memory would have other huge pages.
                && (!with_superpages || draw.frames.len() == pages)
        };
        if let Some(dealt) = self.dealt(file, fits, draw) {
            return SourcedPlacement {
                pages: dealt.prefix(pages),
                real: true,
            };
        }
        let mut random = self.random(&format!("{}/{pages}", arm.name()), draw);
        let pages = match arm {
            Arm::Fresh => {
                let first = 1 << 18 | random.below(1 << 17);
                Placement::sequential(pages, PAGE, first)
            }
            Arm::Colored | Arm::Both => Placement::colored(pages, PAGE, COLORS, &mut random),
            _ => Placement::random(pages, PAGE, &mut random),
        };
        let pages = if with_superpages {
            let lead = random.below(512);
            Placement::superpages(pages.len(), (PAGE, 2 << 20), lead, &pages, &mut random)
        } else {
            pages
        };
        SourcedPlacement { pages, real: false }
    }

    /// Places the memory of a pair's two tasks: each on one half of 64 colors, or on any colors.
    #[must_use]
    pub fn pair(&self, arm: Arm, draw: usize) -> [SourcedPlacement; 2] {
        let halves = arm == Arm::Halves;
        let (file, plans) = if halves {
            ("sets-aged-base", ["task-low", "partner-high"])
        } else {
            ("unpatched-aged-base", ["task", "partner"])
        };
        [0, 1].map(|which: usize| {
            let mut random = self.random(&format!("{}/{}", arm.name(), plans[which]), draw);
            let wanted = |draw: &&Draw| draw.plan == plans[which];
            if let Some(pages) = self.dealt(file, wanted, draw) {
                return SourcedPlacement { pages, real: true };
            }
            let pages = [256, 1024][which];
            let pages = if halves {
                let half: Vec<u64> = (0..32).map(|color| color + 32 * which as u64).collect();
                Placement::colored_set(pages, PAGE, 64, &half, &mut random)
            } else {
                Placement::random(pages, PAGE, &mut random)
            };
            SourcedPlacement { pages, real: false }
        })
    }

    /// Returns draw number `draw` of those that match `wanted` and have the fewest pages.
    fn dealt(&self, file: &str, wanted: impl Fn(&&Draw) -> bool, draw: usize) -> Option<Placement> {
        let dump = self.dumps.get(file)?;
        let fewest = dump
            .draws
            .iter()
            .filter(&wanted)
            .map(|draw| draw.frames.len())
            .min()?;
        let of_them: Vec<&Draw> = dump
            .draws
            .iter()
            .filter(&wanted)
            .filter(|draw| draw.frames.len() == fewest)
            .collect();
        let found = of_them.get(draw)?;
        let mut random = self.random(&format!("tables/{file}/{}", found.plan), draw);
        Placement::dealt(&found.frames, found.lead, &mut random).ok()
    }
}
