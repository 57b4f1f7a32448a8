//! The document. Each row rewrites it, so that a killed measurement keeps the rows it has.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::Facts;
use crate::plan::StepName;

/// Name of the document's format: `docs/schemas/big.schema.json`.
pub const SCHEMA: &str = "superhue-big/1";

/// Outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The step runs, or ran when the whole measurement was killed.
    Running,
    /// The step finished.
    Done,
    /// This machine cannot measure the step.
    Skipped,
    /// The step's time ended before the step did; its rows are kept.
    Cut,
    /// The step ended in another way; its rows are kept.
    Failed,
}

/// One step of the measurement.
#[derive(Debug, Serialize)]
pub struct Step {
    name: &'static str,
    about: &'static str,
    /// Time since the start of the whole measurement.
    started_seconds: f64,
    ended_seconds: Option<f64>,
    bound_seconds: f64,
    /// Load averages over one, five and fifteen minutes.
    load_before: Option<[f64; 3]>,
    load_after: Option<[f64; 3]>,
    outcome: Outcome,
    why: Option<String>,
    notes: Vec<String>,
    rows: Vec<Value>,
}

/// Message of a step, one on each line of its output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// A result.
    Row(Value),
    /// Remark for readers of the results.
    Note(String),
    /// Reason why this machine cannot measure the step.
    Skip(String),
}

/// The whole document.
#[derive(Debug, Serialize)]
pub struct Document {
    schema: &'static str,
    version: &'static str,
    commit: Option<&'static str>,
    started: String,
    seconds_asked: u64,
    seconds: f64,
    /// True if the measurement ended by itself or by a signal.
    is_complete: bool,
    machine: Facts,
    steps: Vec<Step>,
    #[serde(skip)]
    begun: Instant,
    #[serde(skip)]
    path: PathBuf,
}

impl Document {
    /// Begins a document and writes it at once, so that an unwritable path fails before any measurement.
    pub fn begin(path: &Path, begun: Instant, seconds_asked: u64, machine: Facts) -> Result<Self> {
        let document = Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("SUPERHUE_COMMIT"),
            started: humantime::format_rfc3339_seconds(SystemTime::now() - begun.elapsed())
                .to_string(),
            seconds_asked,
            seconds: 0.0,
            is_complete: false,
            machine,
            steps: Vec::new(),
            begun,
            path: path.to_path_buf(),
        };
        document.write()?;
        Ok(document)
    }

    /// Adds a step that begins now.
    pub fn begin_step(&mut self, name: StepName, bound: Duration) -> Result<()> {
        self.steps.push(Step {
            name: name.name(),
            about: name.about(),
            started_seconds: rounded(self.begun.elapsed().as_secs_f64()),
            ended_seconds: None,
            bound_seconds: rounded(bound.as_secs_f64()),
            load_before: crate::machine::load(),
            load_after: None,
            outcome: Outcome::Running,
            why: None,
            notes: Vec::new(),
            rows: Vec::new(),
        });
        self.write()
    }

    /// Adds a message of the running step.
    pub fn add(&mut self, line: Line) -> Result<()> {
        let Some(step) = self.steps.last_mut() else {
            return Ok(());
        };
        match line {
            Line::Row(row) => step.rows.push(row),
            Line::Note(note) => step.notes.push(note),
            Line::Skip(why) => {
                step.outcome = Outcome::Skipped;
                step.why = Some(why);
            }
        }
        self.write()
    }

    /// Ends the running step. A step that reported `Skip` stays skipped.
    pub fn end_step(&mut self, outcome: Outcome, why: Option<String>) -> Result<()> {
        let now = rounded(self.begun.elapsed().as_secs_f64());
        if let Some(step) = self.steps.last_mut() {
            step.ended_seconds = Some(now);
            step.load_after = crate::machine::load();
            if step.outcome != Outcome::Skipped {
                let is_empty = outcome == Outcome::Done && step.rows.is_empty();
                step.outcome = if is_empty { Outcome::Failed } else { outcome };
                let nothing = || {
                    format!(
                        "it has no results: {}",
                        step.notes
                            .first()
                            .map_or("nothing was said", String::as_str)
                    )
                };
                step.why = why.or_else(|| is_empty.then(nothing));
            }
        }
        self.write()
    }

    /// Returns the last step's outcome, number of rows and reason, for a line on standard error.
    pub fn last(&self) -> Option<(Outcome, usize, Option<&str>)> {
        self.steps
            .last()
            .map(|step| (step.outcome, step.rows.len(), step.why.as_deref()))
    }

    /// Marks the document as complete: all steps have ended.
    pub fn end(&mut self) -> Result<()> {
        self.is_complete = true;
        self.write()
    }

    /// Writes a second file and renames it over the document, which is therefore always whole.
    fn write(&self) -> Result<()> {
        let mut value = serde_json::to_value(self)?;
        value["seconds"] = rounded(self.begun.elapsed().as_secs_f64()).into();
        let mut name = self.path.clone().into_os_string();
        name.push(".part");
        let text = text(&value)?;
        let write = || -> std::io::Result<()> {
            File::create(&name)?.write_all(text.as_bytes())?;
            fs::rename(&name, &self.path)
        };
        write().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn rounded(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

/// Formats JSON with one line for each part and one for each row.
fn text(value: &Value) -> Result<String> {
    let mut lines = Vec::new();
    for (name, part) in value.as_object().into_iter().flatten() {
        let part = match (name.as_str(), part.as_array()) {
            ("steps", Some(steps)) => {
                let steps = steps.iter().map(step_text).collect::<Result<Vec<_>>>()?;
                format!("[\n{}\n]", steps.join(",\n"))
            }
            _ => serde_json::to_string(part)?,
        };
        lines.push(format!("{}: {part}", serde_json::to_string(name)?));
    }
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

fn step_text(step: &Value) -> Result<String> {
    let mut step = step.clone();
    let rows = step.as_object_mut().and_then(|step| step.remove("rows"));
    let rows = rows.iter().filter_map(Value::as_array).flatten();
    let rows = rows
        .map(serde_json::to_string)
        .collect::<Result<Vec<_>, _>>()?;
    let head = serde_json::to_string(&step)?;
    let head = head.strip_suffix('}').unwrap_or(&head);
    let rows = if rows.is_empty() {
        String::new()
    } else {
        format!("\n{}\n", rows.join(",\n"))
    };
    Ok(format!("{head},\"rows\":[{rows}]}}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn what_there_is_is_written_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("big.json");
        let mut document = Document::begin(&path, Instant::now(), 60, Facts::default()).unwrap();
        assert_eq!(read(&path)["steps"], json!([]));
        document
            .begin_step(StepName::Looks, Duration::from_secs(3))
            .unwrap();
        document.add(Line::Row(json!({"a": 1}))).unwrap();
        document.add(Line::Row(json!({"a": 2}))).unwrap();
        document.add(Line::Note("a \"note\"\n".to_owned())).unwrap();
        // A measurement killed at this point leaves these rows.
        let cut = read(&path);
        assert_eq!(cut["steps"][0]["rows"], json!([{"a": 1}, {"a": 2}]));
        assert_eq!(
            (&cut["steps"][0]["outcome"], &cut["is_complete"]),
            (&json!("running"), &json!(false))
        );
        document
            .end_step(Outcome::Cut, Some("time".to_owned()))
            .unwrap();
        document
            .begin_step(StepName::Daemon, Duration::ZERO)
            .unwrap();
        document.add(Line::Note("each failed".to_owned())).unwrap();
        document.end_step(Outcome::Done, None).unwrap();
        assert_eq!(read(&path)["steps"][1]["outcome"], "failed");
        assert_eq!(
            read(&path)["steps"][1]["why"],
            "it has no results: each failed"
        );
        document
            .begin_step(StepName::Colors, Duration::ZERO)
            .unwrap();
        document.add(Line::Skip("no clock".to_owned())).unwrap();
        document.end_step(Outcome::Done, None).unwrap();
        document.end().unwrap();
        let whole = read(&path);
        assert_eq!(
            (&whole["steps"][2]["outcome"], &whole["steps"][2]["why"]),
            (&json!("skipped"), &json!("no clock"))
        );
        assert_eq!(
            (
                &whole["steps"][0]["outcome"],
                &whole["steps"][0]["notes"][0]
            ),
            (&json!("cut"), &json!("a \"note\"\n"))
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_said_at_once() {
        let error = Document::begin(
            Path::new("/proc/no/big.json"),
            Instant::now(),
            60,
            Facts::default(),
        )
        .unwrap_err();
        assert!(error.to_string().contains("/proc/no/big.json"));
    }
}
