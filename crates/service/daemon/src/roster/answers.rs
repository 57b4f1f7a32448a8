//! Facts about processes: the questions, the answers, and the rule that follows from them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::group::AGAIN_TOGETHER;
use super::lists::of_user;
use super::{Roster, Source};
use crate::rules::ProcessFacts;
use crate::turns::ProcessQuery;
use crate::workers::ProcessAnswer;

/// Age of a process below which its program and its user may still change: it may have been forked and not have executed yet.
pub(super) const YOUNG: Duration = Duration::from_secs(5);

/// The next question about a process follows after this share of the time for which it is known, within these bounds: its number may have been used
/// again, or it may change its user or program late.
const AGAIN_SHARE: u32 = 8;
const AGAIN_AT_LEAST: Duration = Duration::from_secs(10);
const AGAIN_AT_MOST: Duration = Duration::from_secs(60);

impl Roster {
    /// Returns true if this process is left alone because it has held up a reader.
    pub(crate) fn avoids(&self, pid: u32, at: Duration) -> bool {
        self.turns.avoids(pid, at)
    }

    /// Leaves a process alone for a while: it has held up a reader.
    pub(crate) fn avoid(&mut self, pid: u32, at: Duration) {
        if !self.turns.avoids(pid, at) {
            self.turns.avoid(pid, None, at);
        }
    }

    /// Takes the reader's answers, and sends the next questions.
    pub(super) fn take_answers(&mut self, at: Duration) {
        for (ask, answer) in self.turns.step(at) {
            match (&ask.place, &ask.tenant) {
                (None, _) => self.place(&ask, answer, at),
                (Some(path), None) => {
                    // The tenant is known now; the other facts come in its turn.
                    let user = answer.and_then(|answer| answer.user);
                    match user {
                        Some(user) => {
                            let tenant = Some(of_user(user));
                            self.turns.ask(ProcessQuery { tenant, ..ask }, at);
                        }
                        None => self.forget_asked(&path.clone(), ask.pid),
                    }
                }
                (Some(path), Some(_)) => {
                    let (path, rules) = (path.clone(), &self.rules);
                    if let Some(group) = self.groups.get_mut(&*path) {
                        self.changed |= group.take(&ask, answer, rules, at);
                    }
                }
            }
        }
    }

    fn forget_asked(&mut self, path: &str, pid: u32) {
        if let Some(group) = self.groups.get_mut(path) {
            group.asked.remove(&pid);
        }
    }

    /// Notes the cgroup of a process.
    pub(super) fn place(
        &mut self,
        ask: &ProcessQuery,
        answer: Option<ProcessAnswer>,
        at: Duration,
    ) {
        let Source::Processes { places, .. } = &mut self.source else {
            return;
        };
        let Some(place) = places.get_mut(&ask.pid) else {
            return;
        };
        (place.is_asked, place.asked_at) = (false, at);
        let Some(answer) = answer.filter(|answer| answer.user.is_some()) else {
            return;
        };
        let path: Arc<str> = answer.cgroup.unwrap_or_else(|| "/".to_owned()).into();
        place.tenant = answer.user.map(of_user);
        let before = place.path.replace(path.clone());
        if before.as_ref() == Some(&path) {
            return;
        }
        if let Some(group) = before.and_then(|before| self.groups.get_mut(&*before)) {
            self.changed |= group.remove(ask.pid);
        }
        self.note_pod(&path);
        self.make_group(&path);
        if let Some(group) = self.groups.get_mut(&*path) {
            let tenant = answer.user.map(of_user);
            group.add(ask.pid, tenant, &self.rules, &mut self.turns, at);
        }
    }
}

/// Returns the time of the next question about a process that is known since `since`, with the last question at `asked_at`.
pub(super) fn next_question(since: Duration, asked_at: Duration) -> Duration {
    let known_for = asked_at.saturating_sub(since);
    let due = asked_at + (known_for / AGAIN_SHARE).clamp(AGAIN_AT_LEAST, AGAIN_AT_MOST);
    let together = AGAIN_TOGETHER.as_secs();
    Duration::from_secs(due.as_secs().div_ceil(together) * together)
}

/// Facts about a process, from an answer.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    user: Option<u32>,
    executable: Option<PathBuf>,
}

impl Facts {
    pub(crate) fn of(answer: &ProcessAnswer) -> Self {
        let path = answer.executable.clone().map(|bytes| {
            // The file was replaced since, as in an upgrade.
            let bytes = match bytes.strip_suffix(b" (deleted)") {
                Some(before) => before.to_vec(),
                None => bytes,
            };
            PathBuf::from(OsString::from_vec(bytes))
        });
        Self {
            user: answer.user,
            executable: path,
        }
    }
}

impl ProcessFacts for Facts {
    fn user(&mut self) -> Option<u32> {
        self.user
    }

    fn executable(&mut self) -> Option<&Path> {
        self.executable.as_deref()
    }
}
