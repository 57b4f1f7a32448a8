//! Visits: who makes them, how long they may take, and what they came to.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use superhue_act::Inside;
use superhue_model::{Obstacle, PageCount, ProcessId};
use superhue_procfs::process::identities;
use superhue_procfs::{ReadError, Roots};
use superhue_visit::{Done, Limits, Visited, Visitor, Work, is_untidy};

use superhue_policy::Durations;

/// The file name of the program that visits: this one, asked to.
const PROGRAM: &str = "superhue";

/// Makes visits; clones share the visiting process and what is known of its visits.
#[derive(Debug, Clone)]
pub(crate) struct Visits {
    limits: Limits,
    /// `None`: there is no program to start.
    visitor: Arc<Mutex<Option<Visitor>>>,
    /// Apart, so that it can be told while the visitor is busy.
    pauses: Arc<Mutex<Pauses>>,
}

impl Visits {
    /// Within these limits. Nothing is started before the first visit.
    pub(crate) fn new(limits: Limits) -> Self {
        let visitor = visitor_path().map(|path| Visitor::new(&path));
        Self {
            limits,
            visitor: Arc::new(Mutex::new(visitor)),
            pauses: Arc::default(),
        }
    }

    /// What the visits came to so far; `None` if there were none.
    pub(crate) fn report(&self) -> Option<VisitsReport> {
        lock(&self.pauses).report(self.limits)
    }

    /// Has colors told by the palette at `path`.
    ///
    /// # Errors
    /// Why the visiting process cannot.
    pub(crate) fn use_palette(&self, path: &Path) -> Result<usize, String> {
        let mut visitor = lock(&self.visitor);
        let visitor = visitor.as_mut();
        let visitor = visitor.ok_or_else(|| Obstacle::NoVisitor.describe().to_owned())?;
        let colors = visitor.use_palette(&[path.to_owned()]);
        colors.map_err(|error| error.to_string())
    }

    /// As [`Inside::visit`]; the process may be given `room` pages meanwhile, and `hold` pages be held to choose from.
    pub(crate) fn visit_with_room(
        &self,
        process: ProcessId,
        work: &Work,
        (room, hold): (PageCount, PageCount),
    ) -> Result<Visited, Obstacle> {
        let mut limits = self.limits;
        limits.room = limits.room.min(room);
        limits.hold = hold;
        let mut visitor = lock(&self.visitor);
        let visitor = visitor.as_mut().ok_or(Obstacle::NoVisitor)?;
        let visited = visitor.visit(process, work, limits);
        let pause = visitor.last_pause();
        if visited != Err(Obstacle::Paced) && !pause.is_zero() {
            let begun_again = visited.as_ref().map_or(0, |visited| visited.begun_again);
            lock(&self.pauses).add(pause, begun_again);
        }
        visited
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inside for Visits {
    fn visit(&mut self, process: ProcessId, work: &Work) -> Result<Visited, Obstacle> {
        self.visit_with_room(process, work, (self.limits.room, self.limits.hold))
    }

    fn wait_for(&self, process: ProcessId) -> Duration {
        let visitor = lock(&self.visitor);
        let visitor = visitor.as_ref();
        visitor.map_or(Duration::ZERO, |it| it.wait_for(process))
    }
}

/// How long programs stood still.
#[derive(Debug, Default)]
struct Pauses {
    durations: Durations,
    begun_again: u64,
}

impl Pauses {
    fn add(&mut self, pause: Duration, begun_again: u32) {
        self.durations.add(pause);
        self.begun_again += u64::from(begun_again);
    }

    fn report(&self, limits: Limits) -> Option<VisitsReport> {
        let durations = &self.durations;
        let quantile = |quantile| durations.quantile(quantile).as_secs_f64();
        (durations.count() > 0).then(|| VisitsReport {
            count: durations.count(),
            median_pause_seconds: quantile(0.5),
            p99_pause_seconds: quantile(0.99),
            longest_pause_seconds: durations.longest().as_secs_f64(),
            paused_seconds: durations.total().as_secs_f64(),
            max_pause_seconds: limits.max_pause.as_secs_f64(),
            begun_again: self.begun_again,
        })
    }
}

/// What visits came to: for how long programs stood still.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct VisitsReport {
    /// How many there were.
    pub count: u64,
    /// Half of them took no longer.
    pub median_pause_seconds: f64,
    /// 99 of a hundred took no longer.
    pub p99_pause_seconds: f64,
    /// The longest one.
    pub longest_pause_seconds: f64,
    /// All together.
    pub paused_seconds: f64,
    /// What was asked for (`--max-pause`).
    pub max_pause_seconds: f64,
    /// System calls that they interrupted, and that were begun again.
    pub begun_again: u64,
}

impl VisitsReport {
    /// For people.
    pub(crate) fn line(&self) -> String {
        let ms = |seconds: f64| seconds * 1e3;
        format!(
            "visits: {}; programs stood still for {:.2} ms (median), {:.2} ms (99 %), {:.2} ms at most, {:.2} s in all",
            self.count,
            ms(self.median_pause_seconds),
            ms(self.p99_pause_seconds),
            ms(self.longest_pause_seconds),
            self.paused_seconds
        )
    }
}

/// Removes what visits that did not end well have left in programs that the caller may visit; how many pages of code that were.
///
/// # Errors
/// When processes cannot be listed.
pub fn tidy(roots: &Roots) -> Result<u32, ReadError> {
    let visits = Visits::new(Limits::default());
    let untidy = identities(roots)?;
    let untidy = untidy.into_iter().filter(|process| is_untidy(process.pid));
    let removed = untidy.map(|process| {
        let visited = visits.visit_with_room(process, &Work::Tidy, (PageCount(0), PageCount(0)));
        match visited.map(|visited| visited.done) {
            Ok(Done::Tidied(removed)) => removed,
            _ => 0,
        }
    });
    Ok(removed.sum())
}

/// Where the program that visits is: this one; if this is another that uses the library, beside it, one folder up (Cargo
/// puts test programs there), or in `PATH`.
fn visitor_path() -> Option<PathBuf> {
    let own = env::current_exe().ok()?;
    let folders = env::var_os("PATH");
    let folders = folders.iter().flat_map(|path| env::split_paths(path));
    find_visitor(&own, folders)
}

fn find_visitor(own: &Path, path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    if own.file_name().is_some_and(|name| name == PROGRAM) {
        return Some(own.to_owned());
    }
    let near = own.ancestors().skip(1).take(2).map(Path::to_owned);
    let mut found = near.chain(path).map(|folder| folder.join(PROGRAM));
    found.find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pauses_are_summed_up() {
        let visits = Visits::new(Limits::default());
        assert_eq!(visits.report(), None);
        for ms in 1..=100 {
            lock(&visits.pauses).add(Duration::from_millis(ms), 1);
        }
        let report = visits.report().unwrap();
        assert_eq!((report.count, report.begun_again), (100, 100));
        assert!((report.median_pause_seconds - 0.050).abs() < 0.001);
        assert!((report.p99_pause_seconds - 0.099).abs() < 0.001);
        assert!((report.longest_pause_seconds - 0.100).abs() < 1e-9);
        assert!((report.paused_seconds - 5.05).abs() < 1e-9);
        let line = report.line();
        assert!(line.contains("100.00 ms at most, 5.05 s in all"), "{line}");
    }

    #[test]
    fn the_visiting_program_is_looked_for_near_by_first() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        fs::create_dir_all(at("debug/deps")).unwrap();
        fs::create_dir_all(at("bin")).unwrap();
        let find = |own: &str| find_visitor(&at(own), [at("bin")].into_iter());
        assert_eq!(find("debug/superhue"), Some(at("debug/superhue")));
        assert_eq!(find("debug/deps/test"), None);
        for program in ["bin/superhue", "debug/superhue", "debug/deps/superhue"] {
            fs::write(at(program), "").unwrap();
            assert_eq!(find("debug/deps/test"), Some(at(program)));
        }
    }
}
