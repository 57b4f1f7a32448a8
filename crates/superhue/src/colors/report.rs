//! What became of colors, over all processes of a command.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use superhue_model::{ByteCount, ColorSet};

use super::{KernelColors, Prepared};

/// Programs listed one by one; the rest is in the sums.
pub(super) const LISTED: usize = 32;

/// What became of colors. Bytes and seconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ColorsReport {
    /// As the user wrote it.
    pub request: String,
    /// The colors wanted, as a list.
    pub wanted: String,
    /// How many were wanted.
    pub wanted_count: usize,
    /// How many there are.
    pub colors: usize,
    /// Whether a program was rather to end than to get another color.
    pub strict: bool,
    /// Who placed memory: `kernel`, `visits`, or `none`.
    pub placement: String,
    /// What told colors; "none" where nothing could.
    pub oracle: String,
    /// Why programs ran without colors, if they did: nothing was placed, and all numbers are 0.
    pub without: Option<String>,
    /// Seconds until it was known what colors there are, before anything was placed.
    pub palette_seconds: f64,
    /// Processes that were looked at.
    pub processes: u64,
    /// Resident memory, by the look at each process that saw most of it.
    pub resident_bytes: ByteCount,
    /// Of that, on wanted colors.
    pub right_bytes: ByteCount,
    /// Of that, in superpages, which span all colors.
    pub superpage_bytes: ByteCount,
    /// The share on wanted colors, 0 to 1; `None` without any memory.
    pub share: Option<f64>,
    /// Pages taken at random whose frame numbers were looked at.
    pub verified_pages: u64,
    /// The share of these that was on a wanted color.
    pub verified_share: Option<f64>,
    /// On other colors, by reason, by the last look at each process.
    pub left_bytes: BTreeMap<&'static str, ByteCount>,
    /// The processes with the most memory.
    pub programs: Vec<ColoredProgram>,
    /// The kernel that placed memory; `None` where it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelColors>,
    /// Sentences about the machine.
    pub notes: Vec<String>,
}

/// What became of colors in one process.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ColoredProgram {
    /// Its number while it lived.
    pub pid: u32,
    /// The program, as the kernel shortens its name.
    pub name: String,
    /// As above, for it alone.
    pub resident_bytes: ByteCount,
    /// Likewise.
    pub right_bytes: ByteCount,
}

#[allow(clippy::cast_precision_loss, reason = "shares for people")]
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl ColorsReport {
    /// What is known before anything was placed.
    pub(crate) fn of(prepared: &Prepared) -> Self {
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
            notes: prepared.notes.clone(),
            ..Self::default()
        }
    }

    /// For people: a few lines.
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
        match self.share {
            Some(share) => {
                let _ = write!(
                    line,
                    "; {:.1} % of {} memory is on them",
                    share * 100.0,
                    self.resident_bytes
                );
            }
            None => line.push_str("; no memory was looked at"),
        }
        if let Some(verified) = self.verified_share {
            let _ = write!(
                line,
                "; {:.1} % of {} pages taken at random confirm it",
                verified * 100.0,
                self.verified_pages
            );
        }
        let mut lines = vec![line];
        match &self.kernel {
            Some(kernel) => lines.extend(kernel.lines(self)),
            None => lines.push(format!(
                "colors: nothing was placed; the palette took {:.2} s",
                self.palette_seconds
            )),
        }
        for (reason, bytes) in &self.left_bytes {
            lines.push(format!("colors: {bytes} left: {reason}"));
        }
        lines.extend(self.notes.iter().map(|note| format!("colors: {note}")));
        lines
    }
}
