//! What a visit is to do, and what it did.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue_model::{Color, ColorSet, Errno, PageCount, Region, VirtAddr};

/// What is to be done inside a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Collapse each region (`MADV_COLLAPSE`).
    Collapse(Vec<Region>),
    /// Split each region's huge page (`MADV_COLD` of one base page of it).
    Split(Vec<Region>),
    /// Measure the color of each page.
    Colors(Vec<VirtAddr>),
    /// Give each page a frame of a wanted color.
    Place {
        /// The pages.
        pages: Vec<VirtAddr>,
        /// The colors wanted.
        want: Want,
    },
    /// Remove what a killed visitor left.
    Tidy,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collapse(regions) => write!(f, "collapse {} regions", regions.len()),
            Self::Split(regions) => write!(f, "split {} regions", regions.len()),
            Self::Colors(pages) => write!(f, "measure {} pages", pages.len()),
            Self::Place { pages, .. } => write!(f, "place {} pages", pages.len()),
            Self::Tidy => f.write_str("tidy"),
        }
    }
}

/// Which colors pages are to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Want {
    /// Each page the color in its place; as many as there are pages.
    Each(Vec<Color>),
    /// Any color of the set.
    Within(ColorSet),
}

/// How long a program may be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// In one visit. Work that does not fit is left for another.
    pub max_pause: Duration,
    /// In the long run, in percent of the time.
    pub share: u8,
    /// Pages that it may be given for the time of a visit.
    pub room: PageCount,
    /// Pages of the machine's that may be held to find those of wanted colors among them.
    pub hold: PageCount,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_pause: Duration::from_millis(2),
            share: 25,
            room: PageCount(1024),
            hold: PageCount(1 << 16),
        }
    }
}

/// What a visit came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Visited {
    /// What was done.
    pub done: Done,
    /// How long the program stood still.
    pub pause: Duration,
    /// Threads that were stopped.
    pub threads: u32,
    /// System calls that the stop interrupted and that were begun again.
    pub begun_again: u32,
}

/// What was done. Results are those of the first pages or regions asked for: the time ended before the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    /// Of [`Work::Collapse`] and [`Work::Split`].
    Advised(Vec<Advised>),
    /// Of [`Work::Colors`]: each page's color, `None` if it could not be told.
    Colors(Vec<Option<Color>>),
    /// Of [`Work::Place`].
    Placed(Vec<Placed>),
    /// Of [`Work::Tidy`]: mappings removed.
    Tidied(u32),
}

/// What became of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Advised {
    /// The kernel did it.
    Done,
    /// It refused.
    Refused(Errno),
    /// Another process maps pages of it as well, since a fork: to collapse it would use their memory twice.
    Shared,
}

/// What became of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placed {
    /// It was given a frame of this color.
    Exchanged(Color),
    /// It was left as it was.
    Left(Left),
}

/// Why a page was left as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// It was not there: never touched, given back, or in swap.
    Absent,
    /// It is shared since a fork, or pinned for I/O.
    Busy,
    /// It is locked in memory.
    Locked,
    /// It is not private anonymous memory, or may not be written.
    NotAnonymous,
    /// A thread's restartable sequence is in it (`rseq(2)`), which the kernel reads whenever the thread goes on: while the page is
    /// out, the very thread that is to put it back would wait for it.
    Rseq,
    /// Its color could not be told.
    Untold,
    /// No page of a wanted color was found.
    NoPage,
    /// The kernel refused for another reason.
    Refused,
}

impl Left {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Absent,
        Self::Busy,
        Self::Locked,
        Self::NotAnonymous,
        Self::Rseq,
        Self::Untold,
        Self::NoPage,
        Self::Refused,
    ];

    /// A few words for a report.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Absent => "not in memory any more",
            Self::Busy => "shared since a fork, or pinned for I/O",
            Self::Locked => "locked in memory",
            Self::NotAnonymous => "of a file, shared, or read-only",
            Self::Rseq => "used by the kernel for a thread (rseq)",
            Self::Untold => "of no color that could be told",
            Self::NoPage => "no page of a wanted color was found in time",
            Self::Refused => "refused by the kernel",
        }
    }
}
