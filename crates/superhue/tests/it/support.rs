//! Runs the probes in a process of their own, in other environments than that of the tests.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Returns the path of the example program.
///
/// Cargo puts examples beside the directory of test programs. A plain `cargo test` builds them; with
/// `--test it` alone, the tests run the examples that were built before.
pub(crate) fn program() -> PathBuf {
    let this = env::current_exe().unwrap();
    let program = this
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples/probe");
    assert!(
        program.exists(),
        "{} is missing: build it with --examples",
        program.display()
    );
    program
}

/// Output of the example.
#[derive(Debug)]
pub(crate) struct Report {
    capabilities: BTreeMap<String, Value>,
    pub(crate) held_before: Value,
    pub(crate) held_after: Value,
}

impl Report {
    /// Runs a command that prints a report. `Err` is its status and standard error instead.
    pub(crate) fn of(command: &mut Command) -> Result<Self, String> {
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{}: {}", output.status, said.trim()));
        }
        let mut report: Value =
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        let listed = |capabilities: &Value| -> BTreeMap<String, Value> {
            let list = capabilities.as_array().unwrap().iter();
            list.map(|one| (one["id"].as_str().unwrap().to_owned(), one.clone()))
                .collect()
        };
        let capabilities = listed(&report["capabilities"]);
        assert!(capabilities.keys().eq(listed(&report["again"]).keys()));
        Ok(Self {
            capabilities,
            held_before: report["held_before"].take(),
            held_after: report["held_after"].take(),
        })
    }

    fn field(&self, id: &str, field: &str) -> &str {
        let capability = self
            .capabilities
            .get(id)
            .unwrap_or_else(|| panic!("no {id}"));
        capability[field].as_str().unwrap_or_default()
    }

    pub(crate) fn verdict(&self, id: &str) -> &str {
        self.field(id, "verdict")
    }

    pub(crate) fn found(&self, id: &str) -> &str {
        self.field(id, "found")
    }

    /// Returns the remedy, empty when there is none.
    pub(crate) fn remedy(&self, id: &str) -> &str {
        self.field(id, "remedy")
    }

    /// Asserts a refusal with the given words in `found` and in the remedy.
    #[track_caller]
    pub(crate) fn assert_no(&self, id: &str, found: &str, remedy: &str) {
        assert_eq!(self.verdict(id), "no", "{id}: {self:#?}");
        assert!(self.found(id).contains(found), "{id}: {}", self.found(id));
        assert!(
            self.remedy(id).contains(remedy),
            "{id}: {}",
            self.remedy(id)
        );
    }
}
