//! What became of colors, over all processes of a command.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;
use superhue_act::ColoredProcess;
use superhue_mailbox::Left;
use superhue_model::{ByteCount, ColorSet, PageCount};

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
    /// Who placed memory: `kernel`, `agent`, or `none`.
    pub placement: String,
    /// What told colors; "none" where nothing could.
    pub oracle: String,
    /// Why the command ran without colors, if it did: nothing was placed, and all numbers are 0.
    pub without: Option<String>,
    /// Seconds until the palette was ready, before the command started.
    pub palette_seconds: f64,
    /// What pools may hold at most, each.
    pub pool_limit_bytes: ByteCount,
    /// Processes in which an agent began.
    pub processes: u64,
    /// Of these, those in which it was told of page faults; in the others it was ahead of them where it could.
    pub processes_with_faults: u64,
    /// Processes in which it stopped, or never got anywhere, by reason.
    pub stepped_aside: BTreeMap<&'static str, u64>,
    /// Processes that found no place for their agent.
    pub turned_away: u32,
    /// Placed into holes, answered faults included.
    pub placed_bytes: ByteCount,
    /// Moved while in use.
    pub replaced_bytes: ByteCount,
    /// Page faults answered.
    pub faults: u64,
    /// Filled without regard to color, so that the program went on.
    pub uncolored_bytes: ByteCount,
    /// Resident private anonymous memory, by the look at each process that saw most of it; where the kernel placed it,
    /// resident memory of every kind.
    pub resident_bytes: ByteCount,
    /// Of that, on wanted colors, superpages included where all colors are wanted.
    pub right_bytes: ByteCount,
    /// Of that, in superpages, which span all colors.
    pub superpage_bytes: ByteCount,
    /// The share on wanted colors, 0 to 1; `None` without any memory.
    pub share: Option<f64>,
    /// Pages taken at random and measured again, at lines that are used for nothing else; where the kernel placed them,
    /// their frame numbers were looked at.
    pub verified_pages: u64,
    /// The share of these that was on a wanted color.
    pub verified_share: Option<f64>,
    /// Left as it was, by reason, by the last look at each process.
    pub left_bytes: BTreeMap<&'static str, ByteCount>,
    /// CPU time of the agents.
    pub agent_cpu_seconds: f64,
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
    pub placed_bytes: ByteCount,
    /// Likewise.
    pub replaced_bytes: ByteCount,
    /// Likewise.
    pub resident_bytes: ByteCount,
    /// Likewise.
    pub right_bytes: ByteCount,
    /// Likewise.
    pub agent_cpu_seconds: f64,
    /// Why the agent stopped, if it did.
    pub stepped_aside: Option<&'static str>,
}

fn bytes(pages: u64) -> ByteCount {
    PageCount(pages).bytes()
}

fn seconds(nanoseconds: u64) -> f64 {
    std::time::Duration::from_nanos(nanoseconds).as_secs_f64()
}

#[allow(clippy::cast_precision_loss, reason = "shares for people")]
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl ColorsReport {
    /// What is known before anything was placed.
    pub(super) fn of(prepared: &Prepared) -> Self {
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
            pool_limit_bytes: prepared.pool.bytes(),
            notes: prepared.notes.clone(),
            ..Self::default()
        }
    }

    pub(crate) fn new(
        prepared: &Prepared,
        mut processes: Vec<ColoredProcess>,
        turned_away: u32,
    ) -> Self {
        let sum = |count: fn(&ColoredProcess) -> u64| processes.iter().map(count).sum::<u64>();
        let (resident, right) = (sum(|p| p.counts.resident), sum(|p| p.counts.right));
        let (tested, confirmed) = (sum(|p| p.counts.tested), sum(|p| p.counts.confirmed));
        // A superpage spans all colors, evenly.
        let superpages = sum(|p| p.counts.superpages);
        let right = if prepared.set.as_ref().is_some_and(ColorSet::is_all) {
            right + superpages
        } else {
            right
        };
        let mut stepped_aside = BTreeMap::new();
        for aside in processes.iter().filter_map(|p| p.counts.aside) {
            *stepped_aside.entry(aside.describe()).or_default() += 1;
        }
        let mut left_bytes = BTreeMap::new();
        for left in Left::ALL {
            let pages = processes
                .iter()
                .filter_map(|p| p.counts.left.get(left as usize));
            let pages: u64 = pages.sum();
            if pages > 0 {
                left_bytes.insert(left.describe(), bytes(pages));
            }
        }
        let mut report = Self {
            processes: processes.len() as u64,
            processes_with_faults: sum(|p| u64::from(p.counts.mode == 1)),
            stepped_aside,
            turned_away,
            placed_bytes: bytes(sum(|p| p.counts.placed)),
            replaced_bytes: bytes(sum(|p| p.counts.replaced)),
            faults: sum(|p| p.counts.faults),
            uncolored_bytes: bytes(sum(|p| p.counts.uncolored)),
            resident_bytes: bytes(resident),
            right_bytes: bytes(right),
            superpage_bytes: bytes(superpages),
            share: share(right, resident),
            verified_pages: tested,
            verified_share: share(confirmed, tested),
            left_bytes,
            agent_cpu_seconds: seconds(sum(|p| p.counts.cpu_ns)),
            ..Self::of(prepared)
        };
        processes.sort_by_key(|process| std::cmp::Reverse(process.counts.resident));
        report.programs = processes.iter().take(LISTED).map(program).collect();
        report
    }

    /// For people: a few lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        if let Some(why) = &self.without {
            let notes = self.notes.iter().map(|note| format!("colors: {note}"));
            let mut lines = vec![format!("colors: the command ran without: {why}")];
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
                    "; {:.1} % of {}{} memory is on them",
                    share * 100.0,
                    self.resident_bytes,
                    if self.kernel.is_some() {
                        ""
                    } else {
                        " anonymous"
                    }
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
            None => lines.push(self.agents_line()),
        }
        for (reason, bytes) in &self.left_bytes {
            lines.push(format!("colors: {bytes} left: {reason}"));
        }
        for (reason, processes) in &self.stepped_aside {
            lines.push(format!(
                "colors: left alone: {processes} processes: {reason}"
            ));
        }
        if self.turned_away > 0 {
            lines.push(format!(
                "colors: {} processes ran without: too many at the same time",
                self.turned_away
            ));
        }
        lines.extend(self.notes.iter().map(|note| format!("colors: {note}")));
        lines
    }
}

impl ColorsReport {
    fn agents_line(&self) -> String {
        format!(
            "colors: {} placed ({} faults), {} moved while in use, {} filled without regard to color; \
             agents took {:.2} s CPU in {} processes, the palette {:.2} s",
            self.placed_bytes,
            self.faults,
            self.replaced_bytes,
            self.uncolored_bytes,
            self.agent_cpu_seconds,
            self.processes,
            self.palette_seconds
        )
    }
}

fn program(process: &ColoredProcess) -> ColoredProgram {
    let counts = &process.counts;
    ColoredProgram {
        pid: process.pid,
        name: process.name.clone(),
        placed_bytes: bytes(counts.placed),
        replaced_bytes: bytes(counts.replaced),
        resident_bytes: bytes(counts.resident),
        right_bytes: bytes(counts.right),
        agent_cpu_seconds: seconds(counts.cpu_ns),
        stepped_aside: counts.aside.map(superhue_mailbox::Aside::describe),
    }
}
