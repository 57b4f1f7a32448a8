//! Report on colors, over all processes of a command.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use superhue_model::{ByteCount, ColorSet, PageCount, counted};

use super::{ColorSetup, Keeper, KernelColors};

/// Programs listed one by one; the rest is in the sums.
pub(super) const LISTED: usize = 32;

/// Result of the placement on colors. Bytes and seconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ColorsReport {
    /// The request, as the user wrote it.
    pub request: String,
    /// The colors wanted, as a list.
    pub wanted: String,
    /// Number of wanted colors.
    pub wanted_count: usize,
    /// Number of colors of the machine.
    pub colors: usize,
    /// True if a program was to end rather than get another color.
    pub strict: bool,
    /// Mechanism that placed memory: `kernel`, `recolor`, or `none`.
    pub placement: String,
    /// Source of the colors; "none" where there was none.
    pub oracle: String,
    /// Reason if programs ran without colors: nothing was placed, and all numbers are 0.
    pub without: Option<String>,
    /// Seconds until the colors were known, before anything was placed.
    pub palette_seconds: f64,
    /// Processes that were looked at.
    pub processes: u64,
    /// Resident memory, by the look at each process that saw most of it.
    pub resident_bytes: ByteCount,
    /// The part of it on wanted colors.
    pub right_bytes: ByteCount,
    /// The part of it in huge pages, which span all colors.
    pub huge_page_bytes: ByteCount,
    /// The part of it whose color is not known: it was not recolored, or its frame could not be read.
    pub unknown_bytes: ByteCount,
    /// The share on wanted colors of the memory whose color is known, 0 to 1; `None` without any.
    pub share: Option<f64>,
    /// Pages taken at random that were measured again; where the kernel placed them, their frame numbers were checked.
    pub verified_pages: u64,
    /// Further such pages whose color could not be measured.
    pub unmeasured_pages: u64,
    /// The share of these that had the expected color; where the kernel placed them, a wanted one.
    pub verified_share: Option<f64>,
    /// Memory on other colors, by reason, by the last look at each process.
    pub left_bytes: BTreeMap<&'static str, ByteCount>,
    /// The processes with the most memory.
    pub programs: Vec<ColoredProgram>,
    /// Figures of recoloring; `None` where the kernel places memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recoloring: Option<Recoloring>,
    /// Figures of the kernel that placed memory; `None` where it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelColors>,
    /// Sentences about the machine.
    pub notes: Vec<String>,
}

/// Work of recoloring, and its price.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Recoloring {
    /// Criterion by which pages were chosen: `accesses`, or `residency` where these cannot be tracked.
    pub chosen_by: &'static str,
    /// Pages that got a frame of a wanted color.
    pub recolored_pages: u64,
    /// Tries to take a page out of memory.
    pub attempts: u64,
    /// Pages that were taken out (to swap in memory).
    pub outs: u64,
    /// Of these, pages that Superhue brought in again; the programs faulted in the others.
    pub ins: u64,
    /// Passes over pages that were to be recolored.
    pub rounds: u64,
    /// Page faults of the programs that waited for swap meanwhile.
    pub program_faults: u64,
    /// Seconds of CPU time that Superhue used for it, measurements of frames included.
    pub cpu_seconds: f64,
    /// The share of accesses, by the samples, that goes to wanted colors, 0 to 1; if all colors are wanted, to pages whose color is known.
    pub share_of_accesses: Option<f64>,
    /// The fewest and the most hot pages that a color has, if all colors are wanted.
    pub hot_pages_per_color: Option<(usize, usize)>,
    /// Processes for which the last attempt failed, by reason.
    pub left_alone: BTreeMap<String, u64>,
}

/// Result of the placement in one process.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ColoredProgram {
    /// Process number while the program lived.
    pub pid: u32,
    /// The program, as the kernel shortens its name.
    pub name: String,
    /// Resident memory, as in [`ColorsReport`], of this process alone.
    pub resident_bytes: ByteCount,
    /// The part of it on wanted colors.
    pub right_bytes: ByteCount,
}

#[allow(clippy::cast_precision_loss, reason = "shares for people")]
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl ColorsReport {
    /// Returns the part of the memory whose color is known.
    pub(crate) const fn known_bytes(&self) -> ByteCount {
        ByteCount(self.resident_bytes.0.saturating_sub(self.unknown_bytes.0))
    }

    /// Makes the report on the state before anything was placed.
    pub(crate) fn of(prepared: &ColorSetup) -> Self {
        let set = prepared.set.as_ref();
        Self {
            request: prepared.request.to_string(),
            wanted: set.map(ToString::to_string).unwrap_or_default(),
            wanted_count: set.map_or(0, ColorSet::len),
            colors: set.map_or(0, ColorSet::colors),
            strict: prepared.strict,
            placement: prepared.placement().to_owned(),
            oracle: prepared.oracle.to_owned(),
            without: prepared.without.clone(),
            palette_seconds: prepared.took.as_secs_f64(),
            notes: prepared.notes(),
            ..Self::default()
        }
    }

    /// Makes the report on the state after memory was recolored.
    pub(crate) fn of_recoloring(prepared: &ColorSetup, keeper: Option<&Keeper>) -> Self {
        let mut report = Self::of(prepared);
        let Some(keeper) = keeper else {
            return report;
        };
        let price = keeper.price();
        if let Some(why) = keeper.trouble() {
            if price.attempts == 0 {
                report.without = Some(why.to_owned());
                "none".clone_into(&mut report.placement);
                return report;
            }
            report
                .notes
                .push(format!("ended before the programs: {why}"));
        }
        let figures = keeper.figures();
        let bytes = |pages: u64| PageCount(pages).bytes();
        report.processes = keeper.seen;
        report.resident_bytes = bytes(figures.pages);
        report.right_bytes = bytes(figures.right);
        report.unknown_bytes = bytes(figures.pages.saturating_sub(figures.known));
        report.share = share(figures.right, figures.known);
        report.verified_pages = figures.checked;
        report.unmeasured_pages = figures.unmeasured;
        report.verified_share = share(figures.confirmed, figures.checked);
        let left = figures.left.iter().filter(|(_, pages)| **pages > 0);
        report.left_bytes = left
            .map(|(left, pages)| (left.describe(), bytes(*pages)))
            .collect();
        for (reason, pages) in figures.unchosen.iter().filter(|(_, pages)| **pages > 0) {
            report.left_bytes.insert(reason, bytes(*pages));
        }
        let accesses = figures.accesses;
        if figures.missed > 0 {
            let reason = "came to lie in other frames than those dealt (the program was too busy)";
            report.left_bytes.insert(reason, bytes(figures.missed));
        }
        report.recoloring = Some(Recoloring {
            chosen_by: if keeper.is_blind() {
                "residency"
            } else {
                "accesses"
            },
            recolored_pages: figures.recolored,
            attempts: price.attempts,
            outs: price.outs,
            ins: price.ins,
            rounds: price.rounds,
            program_faults: price.program_faults,
            cpu_seconds: price.cpu.as_secs_f64(),
            share_of_accesses: (accesses > 0.0).then(|| figures.right_accesses / accesses),
            hot_pages_per_color: figures.now,
            left_alone: keeper
                .left_alone()
                .map(|(why, processes)| (why.to_owned(), processes as u64))
                .collect(),
        });
        let mut programs: Vec<ColoredProgram> = keeper
            .each()
            .map(|(pid, name, figures)| ColoredProgram {
                pid,
                name: name.to_owned(),
                resident_bytes: bytes(figures.pages),
                right_bytes: bytes(figures.right),
            })
            .collect();
        programs.sort_by_key(|program| std::cmp::Reverse(program.resident_bytes));
        programs.truncate(LISTED);
        report.programs = programs;
        report
    }

    /// Returns a few lines for people.
    pub(crate) fn lines(&self) -> Vec<String> {
        if let Some(why) = &self.without {
            let notes = self.notes.iter().map(|note| format!("colors: {note}"));
            let mut lines = vec![format!("colors: programs ran without: {why}")];
            lines.extend(notes);
            return lines;
        }
        let mut line = format!(
            "colors: {} of {} ({}), by oracle {}",
            self.wanted_count, self.colors, self.request, self.oracle
        );
        match (self.share, &self.recoloring) {
            // With all colors wanted, every page is on a wanted one.
            (Some(_), Some(_)) if self.wanted_count == self.colors => {}
            (Some(share), _) => {
                let _ = write!(
                    line,
                    "; {:.1} % of {} {}memory is on them",
                    share * 100.0,
                    self.known_bytes(),
                    match &self.recoloring {
                        Some(it) if it.chosen_by == "accesses" => "accessed ",
                        _ => "",
                    }
                );
            }
            (None, _) if self.unknown_bytes.0 > 0 => {}
            (None, _) => line.push_str("; no memory was looked at"),
        }
        if self.unknown_bytes.0 > 0 {
            let _ = write!(line, "; the colors of {} are not known", self.unknown_bytes);
        }
        if let Some(verified) = self.verified_share {
            let _ = write!(
                line,
                "; {:.1} % of {} taken at random confirm it",
                verified * 100.0,
                counted(self.verified_pages, "page")
            );
        }
        if self.unmeasured_pages > 0 {
            let _ = write!(
                line,
                "; {} could not be measured",
                counted(self.unmeasured_pages, "page")
            );
        }
        let mut lines = vec![line];
        match (&self.kernel, &self.recoloring) {
            (Some(kernel), _) => lines.extend(kernel.lines(self)),
            (None, Some(recoloring)) => lines.extend(recoloring.lines()),
            (None, None) => {}
        }
        for (reason, bytes) in &self.left_bytes {
            lines.push(format!("colors: {bytes} left: {reason}"));
        }
        lines.extend(self.notes.iter().map(|note| format!("colors: {note}")));
        lines
    }
}

impl Recoloring {
    fn lines(&self) -> Vec<String> {
        let mut line = format!(
            "colors: pages chosen by {}; {} recolored ({} out and {} in, {} page faults of the program, {:.2} s of CPU)",
            if self.chosen_by == "residency" {
                "what is in memory, as accesses cannot be tracked"
            } else {
                "accesses"
            },
            self.recolored_pages,
            self.outs,
            self.ins,
            self.program_faults,
            self.cpu_seconds
        );
        if let Some((fewest, most)) = self.hot_pages_per_color {
            let _ = write!(line, "; hot pages of each color: {fewest} to {most}");
        } else if let Some(share) = self.share_of_accesses {
            let _ = write!(line, "; {:.1} % of accesses go there", share * 100.0);
        }
        let mut lines = vec![line];
        for (reason, processes) in &self.left_alone {
            lines.push(format!(
                "colors: left alone: {reason}: {}",
                counted(*processes, "process")
            ));
        }
        lines
    }
}
