//! Output of the command: results to standard output, notes to standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::builder::StyledStr;
use comfy_table::{Table, presets};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;
use superhue::model::{ByteCount, words};

use crate::paint::Paint;
use crate::sheet::{Sheet, wrapped};

/// Narrower terminals get lines of this width, which they break themselves.
const LEAST_ROOM: usize = 20;

/// A failed verb: its message and its exit status.
#[derive(Debug)]
pub struct Failure {
    /// The explanation, causes included.
    pub text: String,
    /// The documented status.
    pub code: ExitCode,
}

/// A verb without a child: 1 failed.
pub const FAILED: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// This machine cannot do it.
pub const UNABLE: u8 = 3;
/// A condition of the command line failed.
pub const GATE: u8 = 4;
/// Exit status: ended early by an interrupt, with a result (128 + `SIGINT`, as in shells).
pub const INTERRUPTED: u8 = 130;
/// Superhue failed before or beside the command.
pub const SUPERHUE_FAILED: u8 = 125;

impl Failure {
    /// Makes a failure with the given status. The library's errors contain their causes; of an `anyhow` error the whole
    /// chain is used. The text becomes one line, even if a cause has several.
    pub fn new(code: u8, error: impl Display) -> Self {
        let text = format!("{error:#}");
        let words: Vec<&str> = text.lines().map(str::trim).collect();
        Self {
            text: words.join(" "),
            code: ExitCode::from(code),
        }
    }
}

/// Result of a verb.
pub type VerbResult = Result<ExitCode, Failure>;

/// Prints the reason if a verb has failed; returns the exit status.
pub fn ended(result: VerbResult) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(failure) => {
            note(&failure.text);
            failure.code
        }
    }
}

/// Writes one line to standard error, under the program's name.
///
/// In one write, so that it does not mix with the command's own output; and without an error if standard error is
/// closed. Foreign text in it cannot control a terminal.
pub fn note(line: &str) {
    let line = words::harmless(line);
    let _ = io::stderr().write_all(format!("superhue: {line}\n").as_bytes());
}

/// True if the caller closed standard output. Rust's runtime opens `/dev/null` in its place, and treats writes to a
/// closed descriptor as successful.
static NO_STDOUT: AtomicBool = AtomicBool::new(false);

/// Records that the caller closed standard output, so that a result is not lost silently.
pub fn note_closed_stdout() {
    NO_STDOUT.store(true, Ordering::Relaxed);
}

/// Writes a result to standard output. A closed pipe is no failure; a missing standard output is one. Foreign text in
/// it cannot control a terminal: see [`words`].
pub fn print(text: &str) -> VerbResult {
    print_as_it_is(&prose(text))
}

/// Makes a text fit for standard output: foreign characters are made harmless, and on a terminal long lines are broken at spaces.
pub fn prose(text: &str) -> String {
    let text = words::harmless_lines(text);
    match room() {
        Some(room) => broken(&text, room),
        None => text.into_owned(),
    }
}

/// Breaks lines that are longer than `room`. What follows stands below the sentence, behind its indent or the label before it:
///
/// ```text
///  machine   virtual, in a
///            container
/// ```
fn broken(text: &str, room: usize) -> String {
    let mut lines = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches('\n');
        let start = bare.len() - bare.trim_start().len();
        // Two blanks in a row end a label, or a column of a table.
        let start = bare.rfind("  ").map_or(start, |at| start.max(at + 2));
        let (label, sentence) = bare.split_at(start);
        let indent = label.chars().count();
        if bare.chars().count() <= room || indent > room / 2 {
            lines += line;
            continue;
        }
        let mut before = label.to_owned();
        for part in wrapped(sentence, room - indent) {
            lines += &format!("{before}{part}\n");
            before = " ".repeat(indent);
        }
    }
    lines
}

/// Writes a JSON document to standard output; escapes, as JSON does, characters that could control a terminal.
pub fn print_document(json: &str) -> VerbResult {
    let is_fine = |letter: char| words::is_harmless(letter) || letter == '\n';
    if json.chars().all(is_fine) {
        return print_as_it_is(json);
    }
    let mut text = String::with_capacity(json.len() + 64);
    for letter in json.chars() {
        if is_fine(letter) {
            text.push(letter);
        } else {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                text += &format!("\\u{unit:04x}");
            }
        }
    }
    print_as_it_is(&text)
}

/// Writes a text whose foreign words are harmless already.
pub fn print_as_it_is(text: &str) -> VerbResult {
    if NO_STDOUT.load(Ordering::Relaxed) {
        return Err(Failure::new(
            FAILED,
            "cannot write the result to standard output: it is closed; redirect it to a file, or to /dev/null",
        ));
    }
    match write_all(text.as_bytes()) {
        Err(error) if error != Errno::PIPE => Err(Failure::new(
            FAILED,
            anyhow::Error::from(error).context("cannot write the result to standard output"),
        )),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Writes a text to standard output, in colors if that is a terminal that wants them.
pub fn print_styled(text: &StyledStr) -> VerbResult {
    match Paint::of_stdout() {
        Paint::Plain => print_as_it_is(&text.to_string()),
        Paint::Ansi => print_as_it_is(&text.ansi().to_string()),
    }
}

fn write_all(mut bytes: &[u8]) -> Result<(), Errno> {
    let stdout = io::stdout().lock();
    while !bytes.is_empty() {
        match rustix::io::write(&stdout, bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            // The descriptor is non-blocking because another process made it so: a terminal, a pipe.
            Err(Errno::AGAIN) => {
                let mut wait = [PollFd::new(&stdout, PollFlags::OUT)];
                match poll(&mut wait, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// The processes that this one was ordered to leave out, because they hold up a reader.
static LEFT_OUT: OnceLock<Vec<u32>> = OnceLock::new();

/// Records the processes that a result lacks. To be called once, before there is a result.
pub fn leave_out(processes: Vec<u32>) {
    let _ = LEFT_OUT.set(processes);
}

/// Returns the columns of the terminal at standard output; `None` without one, or if it does not say.
pub fn terminal_width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    size.map(|size| size.ws_col).filter(|&columns| columns > 0)
}

/// Returns the columns of which tables may make use; `None` without a terminal, where nothing is cut.
pub fn room() -> Option<usize> {
    let columns = terminal_width().filter(|_| io::stdout().is_terminal());
    columns.map(|columns| usize::from(columns).max(LEAST_ROOM))
}

/// Formats a table for standard output; in full if `wide`, and without a terminal. To be printed by [`print_as_it_is`]: it may have colors.
pub fn fitted(sheet: &Sheet, wide: bool) -> String {
    let room = room().filter(|_| !wide);
    let fitted = sheet.fitted(room, Paint::of_stdout());
    let note = prose(&fitted.note());
    fitted.text + &note
}

/// Writes a result to standard output as JSON; adds `left_out` if processes are missing in it.
pub fn print_json(value: &impl Serialize) -> VerbResult {
    let left_out = LEFT_OUT.get().filter(|all| !all.is_empty());
    let text = match left_out {
        None => serde_json::to_string_pretty(value),
        Some(all) => serde_json::to_value(value).and_then(|mut value| {
            if let Some(document) = value.as_object_mut() {
                document.insert("left_out".to_owned(), all.clone().into());
            }
            serde_json::to_string_pretty(&value)
        }),
    };
    let mut text = text.map_err(|error| {
        Failure::new(
            FAILED,
            anyhow::Error::from(error).context("cannot write the result as JSON"),
        )
    })?;
    text.push('\n');
    print_document(&text)
}

/// Makes an empty table in the project's style.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

/// Formats an amount of memory; `?` if it is not known.
pub fn size(bytes: Option<ByteCount>) -> String {
    bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string())
}

/// Returns a table's text, without the padding that would wrap in narrow terminals.
pub fn text_of(table: &Table) -> String {
    let mut text = String::new();
    for line in table.to_string().lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Prints the library's log messages to standard error if `verbose`.
pub fn start_tracing(verbose: bool) {
    if verbose {
        tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .with_max_level(tracing::Level::DEBUG)
            .without_time()
            .init();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_below_their_sentences() {
        let text =
            "a sentence of some words\n  indented words that go on\n label  text beside a label\n";
        let expected = "\
a sentence of
some words
  indented words
  that go on
 label  text
        beside a
        label
";
        assert_eq!(broken(text, 17), expected);
        // What has no room to be broken in, and what fits, stays.
        for line in ["a table with  many   columns  here\n", "short\n", "", "\n"] {
            assert_eq!(broken(line, 17), line);
        }
    }
}
