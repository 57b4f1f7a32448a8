//! The report in lines of text.

use std::fmt::Write;

use superhue_model::{Action, counted};

use super::{CostReport, Report, StallReport};
use crate::Pages;
use crate::account::ActionCounts;
use crate::allocator::AllocatorReport;
use crate::colors::ColorsReport;
use crate::options::in_percent;
use crate::shared_report::object_lines;

impl StallReport {
    /// Returns the end of a line about collapses.
    pub(super) fn describe(&self) -> String {
        let mut line = String::new();
        if self.bounded_seconds > 0.0 {
            let _ = write!(
                line,
                "; they took {:.1} ms of any 100 ms of one process's memory, or of one shared object, at most",
                self.bounded_seconds * 1e3
            );
        }
        if let Some(max) = self.max_seconds.filter(|_| self.is_broken()) {
            let _ = write!(
                line,
                ", more than the {:.1} ms of --max-stall: some took longer than those before them",
                max * 1e3
            );
        }
        if self.unbounded_seconds > 0.0 {
            let without = match self.max_seconds {
                Some(_) => "while --max-stall did not apply",
                None => "without a bound",
            };
            let _ = write!(
                line,
                "; {:.1} ms of any 100 ms {without}",
                self.unbounded_seconds * 1e3
            );
        }
        line
    }
}

impl CostReport {
    /// Returns the line on superhue's own cost. A watch without results does not show how much of it was watching.
    pub(super) fn line(&self, wall_seconds: f64, is_missing: bool) -> String {
        let counts = &self.counts;
        let share = match wall_seconds > 0.0 {
            true => format!(
                " ({:.1} % of one)",
                counts.cpu_seconds / wall_seconds * 100.0
            ),
            false => String::new(),
        };
        if is_missing {
            return format!(
                "own cost: {:.2} s CPU{share}; {} resident",
                counts.cpu_seconds, self.max_rss_bytes
            );
        }
        let bound = match self.is_broken() {
            true => "more than",
            false => "of",
        };
        let saving = match counts.saving_seconds >= 0.5 {
            true => format!(", reached for {:.0} s", counts.saving_seconds),
            false => String::new(),
        };
        format!(
            "own cost: {:.2} s CPU{share}: {:.2} s for placing memory, {:.2} s for watching, {bound} the {:.2} s of --max-overhead{saving}; {} resident",
            counts.cpu_seconds,
            counts.acting_seconds,
            counts.watching_seconds,
            self.max_watching_seconds,
            self.max_rss_bytes
        )
    }
}

/// Appends the actions that failed, and those that were skipped.
fn write_refusals(line: &mut String, counts: &ActionCounts) {
    for (errno, count) in &counts.failed {
        let _ = write!(line, ", {count} failed with {errno} ({})", meaning(errno));
    }
    for (reason, count) in &counts.skipped {
        let _ = write!(line, ", {count} not tried ({reason})");
    }
}

/// Returns the meaning of an error of `madvise(2)` for a collapse or split, in a few words.
fn meaning(errno: &str) -> &'static str {
    match errno {
        "EAGAIN" | "EBUSY" => "pages were locked, pinned or on their way somewhere",
        "ENOMEM" => "no huge page was free",
        "EINVAL" => "the mapping holds no huge pages, or changed meanwhile",
        "EPERM" | "EACCES" => "not permitted",
        "ENOSYS" => "this kernel does not offer it",
        _ => "see madvise(2)",
    }
}

impl Report {
    /// Returns the report for people: a few lines, each without the program's name in front.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.time_line(), self.coverage_line()];
        lines.extend(self.earlier.map(|earlier| {
            format!(
                "the figures are of the last {:.0} s: a process held superhue up, and it began anew; in {:.0} s before, memory grew by up to {}",
                self.wall_seconds, earlier.seconds, earlier.charged_bytes
            )
        }));
        if self.pages.promotes() && !self.is_missing() {
            lines.push(self.collapse_line());
        }
        lines.extend(self.split_line());
        lines.extend(object_lines(&self.objects));
        lines.extend(self.tracking_lines());
        lines.extend(self.colors.iter().flat_map(ColorsReport::lines));
        lines.extend(self.allocator.iter().map(AllocatorReport::line));
        lines.extend(self.mechanism.notes.iter().cloned());
        if self.processes.denied > 0 {
            lines.push(format!(
                "left alone: processes that you may not look at: {} (needs CAP_SYS_PTRACE)",
                self.processes.denied
            ));
        }
        if self.processes.unreachable > 0 {
            lines.push(format!(
                "left alone: processes of other PID namespaces: {} (run superhue outside of them)",
                self.processes.unreachable
            ));
        }
        for (name, reason) in &self.processes.unreadable {
            lines.push(format!("left alone: {name} ({reason})"));
        }
        for (reason, processes) in &self.processes.given_up {
            lines.push(format!(
                "given up: {} ({reason})",
                superhue_model::counted(*processes, "process")
            ));
        }
        for restored in &self.settings.restored {
            lines.push(format!(
                "{} is `{}` again",
                restored.path.display(),
                restored.value
            ));
        }
        for path in &self.settings.swap_removed {
            lines.push(format!(
                "{}, swap in memory made for this run, was removed",
                path.display()
            ));
        }
        for left in &self.settings.left {
            lines.push(format!(
                "{} was left as it is: {}",
                left.path.display(),
                left.reason
            ));
        }
        lines.extend(self.plan_lines());
        lines.push(self.superhue.line(self.wall_seconds, self.is_missing()));
        lines
    }

    fn time_line(&self) -> String {
        let mut line = format!("{}: {:.2} s wall", self.pages, self.wall_seconds);
        if let Some(cpu) = &self.cpu {
            let _ = write!(
                line,
                ", {:.2} s user, {:.2} s system",
                cpu.user_seconds, cpu.system_seconds
            );
        }
        if let Some(rss) = self.memory.max_rss_bytes {
            let _ = write!(line, ", max RSS {rss}");
        }
        if let Some(charged) = self.memory.peak_charged_seen_bytes {
            let _ = write!(line, ", group charged {charged} at most");
        }
        if self.processes.seen > 1 {
            let _ = write!(line, ", {}", counted(self.processes.seen, "process"));
        }
        line
    }

    fn coverage_line(&self) -> String {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        match (self.coverage.peak, self.coverage.mean, self.coverage.last) {
            (Some(peak), Some(mean), Some(last)) => {
                let mut line = format!(
                    "coverage: {} at most, {} on average, {} in the end",
                    percent(peak),
                    percent(mean),
                    percent(last)
                );
                let settled =
                    (self.coverage.settled).filter(|settled| (settled - last).abs() > 0.01);
                let seconds = self.coverage.seconds_to_95_percent_of_last;
                let _ = match (settled, seconds) {
                    (None, Some(seconds)) => write!(line, " (95 % of that after {seconds:.2} s)"),
                    (Some(settled), Some(seconds)) => write!(
                        line,
                        " ({} before memory was given back, 95 % of that after {seconds:.2} s)",
                        percent(settled)
                    ),
                    (_, None) => Ok(()),
                };
                if let Some(bound) = self.memory.bloat_bound_bytes {
                    let _ = write!(line, "; bloat at most {bound}");
                }
                line
            }
            _ => format!(
                "coverage: not known: {}",
                self.coverage
                    .unknown_because
                    .unwrap_or("nothing anonymous was resident")
            ),
        }
    }

    fn collapse_line(&self) -> String {
        let (collapses, c) = (&self.collapses, &self.collapses.counts);
        let mut line = format!("collapses: {} tried, {} done", collapses.tried, c.done);
        write_refusals(&mut line, c);
        if c.vanished > 0 {
            let _ = write!(line, ", {} too late", c.vanished);
        }
        if collapses.tried > 0 {
            let (p99, longest) = (c.p99_seconds * 1e3, c.longest_seconds * 1e3);
            let _ = write!(
                line,
                "; each took {p99:.2} ms (99 %), {longest:.2} ms at most{}",
                collapses.stall.describe()
            );
        }
        for (what, count) in &collapses.waiting {
            let _ = write!(line, "; {count} waited in the end ({what})");
        }
        let _ = write!(line, "; memory grew by {}", self.memory.growth_bytes);
        match self.memory.budget_bytes {
            // A budget can be a share of the programs' memory, which may have shrunk since. What ended or was split is not charged any more.
            Some(budget) if budget < self.memory.growth_bytes => {
                let _ = write!(
                    line,
                    " in all; the budget for what is there was {budget} in the end"
                );
            }
            Some(budget) => {
                let _ = write!(line, " of a budget of {budget}");
            }
            None => {}
        }
        line
    }

    fn split_line(&self) -> Option<String> {
        let splits = &self.splits.counts;
        if splits.done == 0 && splits.failed.is_empty() && splits.skipped.is_empty() {
            return None;
        }
        let mut line = format!("taken back: {}", counted(splits.done, "huge page"));
        write_refusals(&mut line, splits);
        let _ = write!(line, "; {} returned", self.splits.returned_bytes);
        Some(line)
    }

    fn tracking_lines(&self) -> Vec<String> {
        let Some(tracking) = &self.tracking else {
            return match self.pages {
                Pages::Auto | Pages::Resident => {
                    vec![format!("{}: {}", self.pages, self.pages_because)]
                }
                _ => Vec::new(),
            };
        };
        let mut line = format!(
            "tracking: {}, {}, {:.2} % of the time (at most {} %), targets held up {:.2} s",
            tracking.tracker,
            counted(tracking.samples, "sample"),
            tracking.overhead * 100.0,
            in_percent(tracking.max_overhead),
            tracking.estimated_target_seconds
        );
        if tracking.samples == 0 {
            line.push_str(
                "; no sample was due: memory that a huge page fits grew until the end, or none needed evidence",
            );
        }
        if tracking.overhead > tracking.max_overhead {
            let advance = tracking.max_overhead * (self.wall_seconds + 10.0);
            line.push_str(match tracking.overhead * self.wall_seconds <= advance {
                true => " (the ceiling may be used for ten seconds in advance)",
                false => " (more than the ceiling)",
            });
        }
        if let Some([half, most, nearly_all]) = tracking.hot_set_bytes {
            let _ = write!(
                line,
                "; 50/90/99 % of accesses in {half} / {most} / {nearly_all}"
            );
        }
        if tracking.compaction_regions > 0 {
            let _ = write!(
                line,
                "; in {} few pages get most accesses: no huge page pays there, the program could move such pages together",
                counted(tracking.compaction_regions, "region")
            );
        }
        let mut lines = vec![line];
        if !tracking.flushed && tracking.samples > 0 {
            lines.push(
                "the TLB of targets could not be flushed: pages it kept were missed".to_owned(),
            );
        }
        for (name, reason) in &tracking.untracked {
            lines.push(format!("not tracked: {name} ({reason})"));
        }
        lines
    }

    fn plan_lines(&self) -> Vec<String> {
        let line = |action: &Action| {
            let range = action.region().range();
            match action {
                Action::Collapse { owner, growth, .. } => format!(
                    "would collapse {range} of {owner} (adds {})",
                    growth.bytes()
                ),
                Action::Split { owner, .. } => format!("would split {range} of {owner}"),
            }
        };
        self.planned.iter().map(line).collect()
    }
}
