//! State that outlives the daemon, in files beside its control socket: whether it is paused, and the results of trials.
//!
//! ```text
//!   ctl.sock           the socket
//!   ctl.sock.paused    is there while the daemon is paused
//!   ctl.sock.trials    the last trial of each rule, as JSON
//! ```
//!
//! The files last until the machine restarts (`/run`). Only files that no other user can have written are trusted ([`superhue_state`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use superhue_state::{Folder, StateError};

use crate::account::{MAX_METRIC_CHARS, TrialAccount};
use crate::rules::Rule;

/// Largest file of results: that of [`MOST_RESULTS`] rules with long names.
const MAX_RESULTS_BYTES: u64 = 4 << 20;

/// Rules whose results are kept.
const MOST_RESULTS: usize = 1000;

/// A file beside the control socket.
#[derive(Debug)]
struct FileBeside {
    folder: PathBuf,
    name: PathBuf,
}

impl FileBeside {
    /// Returns the file whose name is that of the socket with an `ending`.
    fn of(socket: &Path, ending: &str) -> Self {
        let folder = socket.parent().filter(|it| !it.as_os_str().is_empty());
        let mut name = socket.file_name().unwrap_or_default().to_owned();
        name.push(ending);
        Self {
            folder: folder.unwrap_or(Path::new(".")).to_owned(),
            name: name.into(),
        }
    }

    /// Opens it for reading; `None` if it or its folder is missing.
    fn open(&self) -> Result<Option<(Folder, File)>, StateError> {
        let Some(folder) = Folder::open(&self.folder)? else {
            return Ok(None);
        };
        let file = folder.open_file(&self.name)?;
        Ok(file.map(|file| (folder, file)))
    }

    /// Replaces its contents at once: a reader finds the old ones or the new ones. Does nothing without the folder.
    fn replace(&self, contents: &[u8]) -> Result<(), StateError> {
        let Some(folder) = Folder::open(&self.folder)? else {
            return Ok(());
        };
        let mut new = self.name.clone().into_os_string();
        new.push(".new");
        // A daemon that was killed may have left one.
        folder.remove(&new)?;
        let written = folder.create_file(&new)?.write_all(contents);
        written.map_err(|source| StateError::Io {
            what: "write",
            path: self.folder.join(&new),
            source,
        })?;
        folder.rename(&new, &self.name)
    }
}

/// A file which records that the daemon is paused, so that a restart of the daemon does not undo it. It is in `/run`, so a reboot removes it.
#[derive(Debug)]
pub(crate) struct PauseFile(FileBeside);

impl PauseFile {
    pub(crate) fn beside(socket: &Path) -> Self {
        Self(FileBeside::of(socket, ".paused"))
    }

    pub(crate) fn is_there(&self) -> Result<bool, StateError> {
        Ok(self.0.open()?.is_some())
    }

    pub(crate) fn set(&self, paused: bool) -> Result<(), StateError> {
        let FileBeside { folder: path, name } = &self.0;
        let Some(folder) = Folder::open(path)? else {
            // Without the folder, nothing says that it is paused.
            return match paused {
                false => Ok(()),
                true => Err(StateError::Io {
                    what: "write below",
                    path: path.clone(),
                    source: std::io::ErrorKind::NotFound.into(),
                }),
            };
        };
        if !paused {
            return folder.remove(name);
        }
        if folder.open_file(name)?.is_none() {
            folder.create_file(name)?;
        }
        Ok(())
    }
}

/// The last trial of each rule, for as long as the rule stays the same.
#[derive(Debug)]
pub(crate) struct TrialResults {
    file: FileBeside,
    kept: BTreeMap<String, TriedRule>,
}

/// A trial, and the rule that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct TriedRule {
    /// Conditions and placement of the rule: a rule that says something else was not tried.
    rule: String,
    trial: TrialAccount,
}

impl TrialResults {
    /// Reads the results that an earlier daemon kept. A file that cannot be read counts as empty, with a warning: no act depends on it.
    pub(crate) fn beside(socket: &Path) -> Self {
        let file = FileBeside::of(socket, ".trials");
        let kept = read_results(&file).unwrap_or_else(|error| {
            tracing::warn!(%error, "earlier results of trials are not known");
            BTreeMap::new()
        });
        Self { file, kept }
    }

    /// Returns the last trial of a rule; `None` if there was none since the rule has been what it is.
    pub(crate) fn of(&self, rule: &str) -> Option<&TrialAccount> {
        self.kept.get(rule).map(|tried| &tried.trial)
    }

    /// Keeps the result of a trial of a rule, in place of an earlier one.
    ///
    /// # Errors
    /// There are too many, or the file cannot be written; the result is known until the daemon ends in the second case.
    pub(crate) fn keep(&mut self, rule: &Rule, trial: TrialAccount) -> Result<(), String> {
        if self.kept.len() >= MOST_RESULTS && !self.kept.contains_key(&*rule.name) {
            return Err(format!("results of {MOST_RESULTS} rules are kept already"));
        }
        let tried = TriedRule {
            rule: meaning(rule),
            trial: shown(trial),
        };
        self.kept.insert(rule.name.to_string(), tried);
        self.write()
            .map_err(|error| format!("{error}; a restart of the daemon loses the result"))
    }

    /// Drops the results of rules that are not the same among `rules`.
    pub(crate) fn follow(&mut self, rules: &[Rule]) {
        let before = self.kept.len();
        self.kept.retain(|name, tried| {
            let rule = rules.iter().find(|rule| *rule.name == **name);
            rule.is_some_and(|rule| meaning(rule) == tried.rule)
        });
        if self.kept.len() != before
            && let Err(error) = self.write()
        {
            tracing::warn!(%error, "results of trials of earlier rules stay in their file");
        }
    }

    fn write(&self) -> Result<(), StateError> {
        // Writing fails only for a map whose keys are no text, and there is none.
        let text = serde_json::to_vec(&self.kept).unwrap_or_default();
        self.file.replace(&text)
    }
}

fn read_results(file: &FileBeside) -> Result<BTreeMap<String, TriedRule>, StateError> {
    let Some((folder, open)) = file.open()? else {
        return Ok(BTreeMap::new());
    };
    let text = folder.read(&file.name, &open, MAX_RESULTS_BYTES)?;
    serde_json::from_slice(&text).map_err(|error| StateError::Io {
        what: "understand",
        path: file.folder.join(&file.name),
        source: io::Error::new(io::ErrorKind::InvalidData, error),
    })
}

/// Returns the conditions and the placement of a rule, without its place.
fn meaning(rule: &Rule) -> String {
    let placement = serde_json::to_string(&rule.placement).unwrap_or_default();
    format!("{} -> {placement}", rule.conditions)
}

/// Returns a trial whose text is short and has no control characters, since people see it in terminals.
fn shown(mut trial: TrialAccount) -> TrialAccount {
    let clean = trial.metric.chars().filter(|char| !char.is_control());
    trial.metric = clean.take(MAX_METRIC_CHARS).collect();
    trial
}

#[cfg(test)]
mod tests {
    use superhue::PlacementOptions;

    use super::*;
    use crate::rules::Conditions;

    fn rule(name: &str, placement: PlacementOptions) -> Rule {
        Rule {
            name: name.into(),
            place: "rules.toml:1".to_owned(),
            conditions: Conditions::default(),
            placement: Some(placement),
        }
    }

    #[test]
    fn being_paused_outlives_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let file = PauseFile::beside(&folder.path().join("ctl.sock"));
        assert!(!file.is_there().unwrap());
        for paused in [true, true, false, false] {
            file.set(paused).unwrap();
            assert_eq!(file.is_there().unwrap(), paused);
        }
    }

    #[test]
    fn a_result_outlives_the_daemon_as_long_as_its_rule_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("ctl.sock");
        let [a, b] = ["a", "b"].map(|name| rule(name, PlacementOptions::default()));
        let mut results = TrialResults::beside(&socket);
        assert_eq!(results.of("a"), None);
        results.keep(&a, TrialAccount::example(0.5)).unwrap();
        results.keep(&a, TrialAccount::example(0.03)).unwrap();
        results.keep(&b, TrialAccount::example(0.07)).unwrap();

        let mut again = TrialResults::beside(&socket);
        assert_eq!(again.of("a"), Some(&TrialAccount::example(0.03)));
        // The place of a rule does not matter.
        let moved = Rule {
            place: "other.toml:7".to_owned(),
            ..a.clone()
        };
        let changed = rule(
            "b",
            PlacementOptions {
                max_overhead: 0.003,
                ..PlacementOptions::default()
            },
        );
        again.follow(&[moved, changed]);
        assert_eq!(again.of("a"), Some(&TrialAccount::example(0.03)));
        assert_eq!(again.of("b"), None, "it was not this rule");
        assert_eq!(TrialResults::beside(&socket).kept.len(), 1);
        again.follow(&[]);
        assert_eq!(TrialResults::beside(&socket).kept.len(), 0);
    }

    #[test]
    fn a_spoiled_file_and_a_planted_one_count_as_none() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("ctl.sock");
        let path = folder.path().join("ctl.sock.trials");
        for text in ["", "[", "{\"a\":1}"] {
            std::fs::write(&path, text).unwrap();
            assert!(TrialResults::beside(&socket).kept.is_empty());
        }
        let a = rule("a", PlacementOptions::default());
        let mut results = TrialResults::beside(&socket);
        results.keep(&a, TrialAccount::example(0.03)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        assert_eq!(TrialResults::beside(&socket).of("a"), None);
        // A folder in the way of the new file is no reason to forget.
        std::fs::create_dir(folder.path().join("ctl.sock.trials.new")).unwrap();
        let error = results.keep(&a, TrialAccount::example(0.07)).unwrap_err();
        assert!(error.contains("restart"), "{error}");
        assert_eq!(results.of("a"), Some(&TrialAccount::example(0.07)));
    }

    #[test]
    fn a_metric_cannot_speak_to_a_terminal() {
        let trial = TrialAccount {
            metric: format!("a\x1b[2J\n{}", "é".repeat(500)),
            ..TrialAccount::example(0.01)
        };
        let metric = shown(trial).metric;
        assert!(metric.starts_with("a[2J\u{e9}"), "{metric}");
        assert_eq!(metric.chars().count(), MAX_METRIC_CHARS);
    }
}
