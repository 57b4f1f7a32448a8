//! Selection of the rows to show, and the effect of keys on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use superhue::SharedObject;
use superhue::model::ProcessId;

use crate::terminal::Key;
use crate::top_args::ViewName;

use super::columns::{self, Column};
use super::reader::DataRequest;
use super::rows::{Row, Rows, Subject};
use crate::utc::{self, RecordTime};

/// Longest text that is typed, in bytes.
const FILTER: usize = 100;
/// Most processes whose accesses are sampled.
pub const TRACKED: usize = 64;

/// Seconds of the longer step in a record.
const MINUTE: i64 = 60;

/// Result of a key: `End` if it ends the program, `Go` if it leads to another snapshot of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOutcome {
    No,
    End,
    Go(TimeStep),
}

/// A way from one snapshot of a record to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeStep {
    /// Number of snapshots later, or earlier.
    Snapshots(isize),
    /// Least number of seconds later, or earlier.
    Seconds(i64),
    /// The snapshot of this time.
    To(RecordTime),
}

/// Position in a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Playhead {
    /// Time and number of the snapshot, as they are shown.
    pub position: String,
    /// The time to go to, while it is typed.
    pub typed: Option<String>,
    /// Reason why that time cannot be shown.
    pub complaint: Option<String>,
}

/// The opened view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewScope {
    /// A list of everything.
    List,
    /// The processes of a service.
    Service(Arc<str>),
    /// The mappings of a process, and the service to go back to.
    Process(ProcessId, Option<Arc<str>>),
}

/// State of the view.
#[derive(Debug, Clone)]
pub struct State {
    pub view: ViewName,
    pub opened: ViewScope,
    /// Only rows that contain this, in lower case, are shown.
    pub filter: String,
    /// True if keys are letters of the filter.
    pub is_typing: bool,
    pub help: bool,
    /// Position in the record, if one is shown.
    pub playhead: Option<Playhead>,
    sort: [Column; 3],
    reversed: bool,
    /// The selected line among all lines, and its subject, by which it is found again when lines move.
    selected: usize,
    subject: Option<Subject>,
    /// The first line on the screen.
    first: usize,
    /// From the last drawing: the columns, the subjects of lines, the number of lines, the lines that fit.
    columns: Vec<Column>,
    subjects: Vec<Subject>,
    lines: usize,
    room: usize,
    wishes: DataRequest,
}

impl State {
    /// The initial state.
    #[must_use]
    pub fn new(view: ViewName) -> Self {
        Self {
            view,
            opened: ViewScope::List,
            filter: String::new(),
            is_typing: false,
            help: false,
            playhead: None,
            sort: [Column::Resident; 3],
            reversed: false,
            selected: 0,
            subject: None,
            first: 0,
            columns: Vec::new(),
            subjects: Vec::new(),
            lines: 0,
            room: 0,
            wishes: DataRequest::default(),
        }
    }

    /// Returns the sort column, and true if the order is reversed.
    #[must_use]
    pub fn sorted_by(&self) -> (Column, bool) {
        (self.sort[self.kind()], self.reversed)
    }

    fn kind(&self) -> usize {
        match (self.view, &self.opened) {
            (_, ViewScope::Service(_)) | (ViewName::Processes, _) => 1,
            (ViewName::Services, _) => 0,
            (ViewName::Objects, _) => 2,
        }
    }

    /// Returns the data that the view needs.
    #[must_use]
    pub fn wishes(&self) -> DataRequest {
        self.wishes.clone()
    }

    /// Returns the position of the list: the selected line, and the lines on the screen.
    #[must_use]
    pub fn window(&self) -> (usize, std::ops::Range<usize>) {
        let end = (self.first + self.room).min(self.lines);
        (self.selected, self.first.min(end)..end)
    }

    /// Returns the services or processes to show, in order, in a list with `room` lines.
    pub fn rows<'a>(&mut self, rows: &'a Rows, columns: &[Column], room: usize) -> Vec<&'a Row> {
        let (all, service) = match (&self.opened, self.view) {
            (ViewScope::Service(service), _) => (&rows.processes, Some(Arc::clone(service))),
            (_, ViewName::Services) => (&rows.services, None),
            _ => (&rows.processes, None),
        };
        let is_of = |row: &&Row| {
            service
                .as_ref()
                .is_none_or(|service| row.service == *service)
        };
        let mut shown: Vec<&Row> = all
            .iter()
            .filter(is_of)
            .filter(|it| self.passes(it))
            .collect();
        let (column, reversed) = self.sorted_by();
        shown.sort_by(|a, b| {
            let order = column.order(a, b);
            if reversed { order.reverse() } else { order }
        });
        self.columns = columns.to_vec();
        let found = |subject: &Subject| shown.iter().position(|row| row.subject == *subject);
        self.place(shown.len(), room, found);
        self.subjects = shown.iter().map(|row| row.subject.clone()).collect();
        self.subject = self.subjects.get(self.selected).cloned();
        self.wish_for(rows, &shown);
        shown
    }

    /// Returns the shared objects to show, likewise.
    pub fn objects<'a>(&mut self, rows: &'a Rows, room: usize) -> Vec<&'a SharedObject> {
        let passes = |it: &&SharedObject| self.contains(&it.name);
        let mut shown: Vec<&SharedObject> = rows.objects.iter().filter(passes).collect();
        let (column, reversed) = self.sorted_by();
        shown.sort_by(|a, b| {
            let order = column.order_of_objects(a, b);
            if reversed { order.reverse() } else { order }
        });
        self.columns = columns::of_objects();
        let found = |subject: &Subject| {
            shown
                .iter()
                .position(|it| *subject == Subject::Object(it.object))
        };
        self.place(shown.len(), room, found);
        let subjects = shown.iter().map(|it| Subject::Object(it.object));
        self.subjects = subjects.collect();
        self.subject = self.subjects.get(self.selected).cloned();
        self.wishes = DataRequest {
            objects: true,
            ..DataRequest::default()
        };
        shown
    }

    /// Sets up a list of `lines` lines without subjects: the mappings of a process.
    pub fn mappings(&mut self, id: ProcessId, lines: usize, room: usize) {
        self.columns.clear();
        self.subjects.clear();
        self.place(lines, room, |_| None);
        self.wishes = DataRequest {
            processes: vec![id.pid],
            tracked: vec![id],
            detail: Some(id.pid),
            objects: false,
        };
    }

    /// Finds the selected line again, and keeps it on the screen.
    fn place(&mut self, lines: usize, room: usize, find: impl Fn(&Subject) -> Option<usize>) {
        if let Some(index) = self.subject.as_ref().and_then(find) {
            self.selected = index;
        }
        (self.lines, self.room) = (lines, room);
        self.selected = self.selected.min(lines.saturating_sub(1));
        self.first = self
            .first
            .min(lines.saturating_sub(room))
            .min(self.selected);
        self.first = self
            .first
            .max((self.selected + 1).saturating_sub(room.max(1)));
    }

    /// Requests the data on the screen first.
    fn wish_for(&mut self, rows: &Rows, shown: &[&Row]) {
        let on_screen = &shown[self.window().1];
        let services: BTreeSet<&Arc<str>> = (on_screen.iter())
            .filter_map(|row| match &row.subject {
                Subject::Service(name) => Some(name),
                _ => None,
            })
            .collect();
        let mut wanted: Vec<&Row> = if services.is_empty() {
            on_screen.to_vec()
        } else {
            let of_these = |row: &&Row| services.contains(&row.service);
            rows.processes.iter().filter(of_these).collect()
        };
        wanted.sort_by(|a, b| Column::Resident.order(a, b));
        let ids: Vec<ProcessId> = (wanted.iter())
            .filter_map(|row| match row.subject {
                Subject::Process(id) => Some(id),
                _ => None,
            })
            .collect();
        // Only processes that may be read; superhue's own accesses do not matter.
        let own = std::process::id();
        let trackable = wanted.iter().filter(|row| row.processes_read > 0);
        let trackable = trackable.filter_map(|row| match row.subject {
            Subject::Process(id) if id.pid != own => Some(id),
            _ => None,
        });
        self.wishes = DataRequest {
            processes: ids.iter().map(|id| id.pid).collect(),
            tracked: trackable.take(TRACKED).collect(),
            detail: None,
            objects: false,
        };
    }

    fn passes(&self, row: &Row) -> bool {
        let pid = match row.subject {
            Subject::Process(id) => id.pid.to_string(),
            _ => String::new(),
        };
        [&*row.name, &*row.service, &pid]
            .into_iter()
            .any(|text| self.contains(text))
            || row.rules.iter().any(|rule| self.contains(rule))
    }

    fn contains(&self, text: &str) -> bool {
        self.filter.is_empty() || text.to_lowercase().contains(&self.filter.to_lowercase())
    }

    /// Handles a key.
    pub fn press(&mut self, key: Key) -> KeyOutcome {
        if key == Key::Control('c') {
            return KeyOutcome::End;
        }
        if self.is_typing {
            self.type_filter(key);
            return KeyOutcome::No;
        }
        if let Some(outcome) = self.press_in_record(key) {
            return outcome;
        }
        if std::mem::take(&mut self.help) {
            return if key == Key::Char('q') {
                KeyOutcome::End
            } else {
                KeyOutcome::No
            };
        }
        let page = self.room.saturating_sub(1).max(1);
        match key {
            Key::Char('q') => return KeyOutcome::End,
            Key::Char('h' | '?') => self.help = true,
            Key::Char('s') => self.show(ViewName::Services),
            Key::Char('p') => self.show(ViewName::Processes),
            Key::Char('o') => self.show(ViewName::Objects),
            Key::Tab => self.show(match self.view {
                ViewName::Services => ViewName::Processes,
                ViewName::Processes => ViewName::Objects,
                ViewName::Objects => ViewName::Services,
            }),
            Key::BackTab => self.show(match self.view {
                ViewName::Services => ViewName::Objects,
                ViewName::Processes => ViewName::Services,
                ViewName::Objects => ViewName::Processes,
            }),
            Key::Char('/') => self.is_typing = true,
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Char('<') | Key::Left => self.sort_by_next(false),
            Key::Char('>') | Key::Right => self.sort_by_next(true),
            Key::Up | Key::Char('k') => self.select(self.selected.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(self.selected + 1),
            Key::PageUp => self.select(self.selected.saturating_sub(page)),
            Key::PageDown => self.select(self.selected + page),
            Key::Home => self.select(0),
            Key::End => self.select(self.lines),
            Key::Enter => self.open(),
            Key::Escape | Key::Backspace => self.go_back(),
            _ => {}
        }
        KeyOutcome::No
    }

    /// Handles a key that moves in a record; `None` if it is not one, or no record is shown.
    fn press_in_record(&mut self, key: Key) -> Option<KeyOutcome> {
        let playhead = self.playhead.as_mut()?;
        playhead.complaint = None;
        if playhead.typed.is_some() {
            return Some(playhead.type_time(key));
        }
        let step = match key {
            _ if self.help => return None,
            Key::Char('n') => TimeStep::Snapshots(1),
            Key::Char('b') => TimeStep::Snapshots(-1),
            Key::Char('N') => TimeStep::Seconds(MINUTE),
            Key::Char('B') => TimeStep::Seconds(-MINUTE),
            Key::Char('g') => {
                playhead.typed = Some(String::new());
                return Some(KeyOutcome::No);
            }
            _ => return None,
        };
        Some(KeyOutcome::Go(step))
    }

    /// Shows the reason why a time cannot be shown, until the next key.
    pub fn complain(&mut self, why: String) {
        if let Some(playhead) = &mut self.playhead {
            playhead.complaint = Some(why);
        }
    }

    fn type_filter(&mut self, key: Key) {
        if edit(&mut self.filter, key) {
            return;
        }
        match key {
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            _ => {}
        }
    }

    fn show(&mut self, view: ViewName) {
        self.view = view;
        self.go_to(ViewScope::List, None);
    }

    fn go_to(&mut self, opened: ViewScope, subject: Option<Subject>) {
        self.opened = opened;
        self.subject = subject;
        self.subjects.clear();
        (self.selected, self.first) = (0, 0);
    }

    fn select(&mut self, line: usize) {
        self.selected = line.min(self.lines.saturating_sub(1));
        self.subject = self.subjects.get(self.selected).cloned();
    }

    fn open(&mut self) {
        let opened = match (&self.subject, &self.opened) {
            (Some(Subject::Service(name)), _) => ViewScope::Service(Arc::clone(name)),
            (Some(Subject::Process(id)), ViewScope::Service(name)) => {
                ViewScope::Process(*id, Some(Arc::clone(name)))
            }
            (Some(Subject::Process(id)), ViewScope::List) => ViewScope::Process(*id, None),
            _ => return,
        };
        self.filter.clear();
        self.go_to(opened, None);
    }

    fn go_back(&mut self) {
        match self.opened.clone() {
            ViewScope::Process(id, Some(service)) => {
                self.go_to(ViewScope::Service(service), Some(Subject::Process(id)));
            }
            ViewScope::Process(id, None) => self.go_to(ViewScope::List, Some(Subject::Process(id))),
            ViewScope::Service(name) => self.go_to(ViewScope::List, Some(Subject::Service(name))),
            ViewScope::List => self.filter.clear(),
        }
    }

    fn sort_by_next(&mut self, forward: bool) {
        let kind = self.kind();
        let count = self.columns.len();
        if count == 0 {
            return;
        }
        // A column that is not on the screen has no neighbours.
        let now = self
            .columns
            .iter()
            .position(|&it| it == self.sort[kind])
            .unwrap_or(0);
        let next = if forward { now + 1 } else { now + count - 1 } % count;
        self.sort[kind] = self.columns[next];
        // Selects the first line of the new order, whatever its subject.
        (self.selected, self.subject) = (0, None);
    }
}

impl Playhead {
    /// Handles a key while a time is typed.
    fn type_time(&mut self, key: Key) -> KeyOutcome {
        let typed = self.typed.get_or_insert_default();
        if edit(typed, key) {
            return KeyOutcome::No;
        }
        match key {
            Key::Enter => {
                let text = self.typed.take().unwrap_or_default();
                // An empty line means nowhere.
                if text.trim().is_empty() {
                    return KeyOutcome::No;
                }
                match utc::parse(&text) {
                    Ok(time) => return KeyOutcome::Go(TimeStep::To(time)),
                    Err(why) => self.complaint = Some(why),
                }
            }
            Key::Escape => self.typed = None,
            _ => {}
        }
        KeyOutcome::No
    }
}

/// Changes a typed text; returns false for a key that does not.
fn edit(text: &mut String, key: Key) -> bool {
    match key {
        Key::Char(letter) if text.len() < FILTER => text.push(letter),
        Key::Char(_) => {}
        Key::Backspace => drop(text.pop()),
        Key::Control('u') => text.clear(),
        _ => return false,
    }
    true
}
