//! `superhue lab`.

mod here;
mod program;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use superhue::state::read_regular;
use superhue_papers::cachesim::{Machine, machines};
use superhue_papers::document::{Document, Figure, Frames, SCHEMA};
use superhue_papers::figure::{self, Kind, Settings};
use superhue_papers::memory::{FILES, Memory};
use superhue_papers::native::Native;
use superhue_papers::page::{self, ExtraResults};
use superhue_papers::witness::Witness;
use superhue_papers::{ReplayError, picture, table};

use crate::lab_args::LabArgs;
use crate::output::{FAILED, Failure, USAGE, VerbResult, note, print, print_document};
use crate::verb::document::{MAX_DOCUMENT_BYTES, read_document};
use crate::verb::report_file::ReportFile;

/// Larger files are no machine files.
const LARGEST_MACHINE: u64 = 1 << 20;
/// A guest's frames are some MiB.
const LARGEST_FRAMES: u64 = 256 << 20;

/// The emulator's plugin, relative to the folder that contains the command's `bin`: scripts/install-files puts it there.
const PLUGIN: &str = "lib/superhue/trace.so";
/// The witness, in the folder of the page.
const WITNESS: &str = "witness.json";
/// Guests whose files witness/run leaves.
const GUESTS: [&str; 3] = [
    "unpatched-aged-base",
    "unpatched-aged-thp",
    "spread-aged-base",
];

/// Makes the figures.
pub fn lab(args: &LabArgs) -> VerbResult {
    if args.list {
        return print(&list());
    }
    if let Some(path) = &args.from {
        return again(args, path);
    }
    if let Some(folder) = &args.witness {
        return witness(args, folder);
    }
    if !args.command.is_empty() {
        return program::predict(args);
    }
    if args.machine.is_some() && args.figures.is_empty() {
        let what = "--machine needs to know for what: name a FIGURE (--list), or give a command behind `--`";
        return Err(Failure::new(USAGE, what));
    }
    let kinds = kinds(&args.figures)?;
    let (machine, notes) = match args.machine.as_deref().map(machine).transpose()? {
        Some(chosen) => (Some(chosen.machine), chosen.notes),
        None => (None, Vec::new()),
    };
    let settings = Settings {
        quick: args.quick,
        draws: args.draws.map(|draws| draws as usize),
        machine,
        plugin: plugin(args),
    };
    let memory = memory(args)?;
    prepare(args.output.as_deref())?;
    let mut document = Document {
        schema: SCHEMA.to_owned(),
        seed: args.seed,
        quick: args.quick,
        frames: memory
            .dumps()
            .map(|(name, dump)| Frames {
                name: name.to_owned(),
                how: dump.how.clone(),
                sum: format!("{:016x}", dump.sum),
            })
            .collect(),
        figures: Vec::new(),
    };
    for (index, kind) in kinds.iter().enumerate() {
        note(&format!(
            "figure {} of {}: {}",
            index + 1,
            kinds.len(),
            kind.name
        ));
        let mut figure = kind
            .make(&settings, &memory)
            .map_err(|ReplayError(what)| Failure::new(USAGE, what))?;
        figure.not_modelled.extend(notes.iter().cloned());
        document.figures.push(figure);
        // Each figure at once: an interruption loses none that is finished.
        keep(args.output.as_deref(), &document)?;
    }
    finish(args, &document)
}

/// Returns the emulator's plugin: the one that belongs to this command, unless an option names another. Never looks in
/// the current folder, which may belong to another user.
fn plugin(args: &LabArgs) -> PathBuf {
    args.plugin.clone().unwrap_or_else(|| {
        let own = env::current_exe().unwrap_or_default();
        let prefix = own.ancestors().nth(2).unwrap_or(Path::new("/usr"));
        prefix.join(PLUGIN)
    })
}

/// Shows a kept document, or draws it again: its points, in the words of this version.
fn again(args: &LabArgs, path: &Path) -> VerbResult {
    let mut document = read_document(path, MAX_DOCUMENT_BYTES)
        .and_then(|text| Document::from_json(&text).map_err(anyhow::Error::from))
        .with_context(|| format!("cannot show {}", path.display()))
        .map_err(failed)?;
    prepare(args.output.as_deref())?;
    for figure in &mut document.figures {
        match figure::named(&figure.name) {
            Some(kind) => {
                let told = kind.retell(figure);
                *figure = told.map_err(|ReplayError(what)| Failure::new(FAILED, what))?;
            }
            None if figure.name == superhue_papers::program::NAME => {}
            // The name may come from a foreign document.
            None => {
                let what = format!(
                    "cannot show {}: there is no figure {:?}",
                    path.display(),
                    figure.name
                );
                return Err(Failure::new(FAILED, what));
            }
        }
        draw(args.output.as_deref(), figure)?;
    }
    if let Some(folder) = &args.output {
        write(folder, "lab.json", &json(&document)?)?;
    }
    finish(args, &document)
}

/// Writes the page if all figures are there, and prints the result.
fn finish(args: &LabArgs, document: &Document) -> VerbResult {
    if let Some(folder) = &args.output
        && document.figures.len() == figure::ALL.len()
    {
        let beside = ExtraResults {
            witness: kept_witness(folder)?,
            native: kept_sweeps(&args.results)?,
        };
        write(folder, "README.md", &page::markdown(document, &beside))?;
    }
    if args.json {
        print_document(&json(document)?)
    } else {
        print(&table::text(document))
    }
}

/// Replays the programs that guests ran under the plugin, and fails unless the counts agree.
fn witness(args: &LabArgs, folder: &Path) -> VerbResult {
    let trouble = |ReplayError(what)| {
        let what = format!(
            "{}: {what}; make it again with witness/run",
            folder.display()
        );
        Failure::new(FAILED, what)
    };
    let read = |name: &str| {
        let path = folder.join(name);
        read_regular(&path, LARGEST_FRAMES)
            .with_context(|| format!("cannot read {}: witness/run makes it", path.display()))
            .map_err(failed)
    };
    let text = |name: &str| read(name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let mut witness = Witness::new();
    let mut seconds = 0.0;
    for guest in GUESTS {
        let (counts, frames) = (
            text(&format!("{guest}.counts"))?,
            read(&format!("{guest}.frames"))?,
        );
        witness
            .add(guest, &counts, &frames, &mut seconds)
            .map_err(trouble)?;
    }
    witness
        .ground(&text("cachegrind.counts")?)
        .map_err(trouble)?;
    let json = witness
        .to_json()
        .context("cannot write the result as JSON")
        .map_err(failed)?;
    prepare(args.output.as_deref())?;
    if let Some(folder) = &args.output {
        write(folder, WITNESS, &json)?;
    }
    let done = print(if args.json { json } else { witness.markdown() }.as_str())?;
    match witness.disagreeing() {
        0 => Ok(done),
        apart => {
            let what = format!(
                "replay and plugin differ by more than they may at {apart} of {} points",
                witness.points.len()
            );
            Err(Failure::new(FAILED, what))
        }
    }
}

/// Reads the witness in a folder; `None` if there is none.
fn kept_witness(folder: &Path) -> Result<Option<Witness>, Failure> {
    let path = folder.join(WITNESS);
    if !path.exists() {
        return Ok(None);
    }
    let text = read_document(&path, MAX_DOCUMENT_BYTES)
        .with_context(|| format!("cannot read {}", path.display()))
        .map_err(failed)?;
    let witness = Witness::from_json(&text).map_err(|ReplayError(what)| {
        let what = format!(
            "cannot use {}: {what}; make it again with `make lab-witness`",
            path.display()
        );
        Failure::new(FAILED, what)
    })?;
    Ok(Some(witness))
}

/// Reads P4's sweeps, if a folder has them.
fn kept_sweeps(folder: &Path) -> Result<Option<Native>, Failure> {
    let mut native = Native::default();
    for file in Native::files() {
        let path = folder.join(&file);
        if !path.exists() {
            note(&format!(
                "{} is not there: the page has no section on P4 (--results says where results are kept)",
                path.display()
            ));
            return Ok(None);
        }
        let text = read_document(&path, MAX_DOCUMENT_BYTES)
            .with_context(|| format!("cannot read {}", path.display()))
            .map_err(failed)?;
        native.add(&file, &text).map_err(|ReplayError(what)| {
            Failure::new(FAILED, format!("cannot use {}: {what}", path.display()))
        })?;
    }
    Ok(Some(native))
}

fn prepare(folder: Option<&Path>) -> Result<(), Failure> {
    let Some(folder) = folder else { return Ok(()) };
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))
        .map_err(failed)
}

fn failed(error: anyhow::Error) -> Failure {
    Failure::new(FAILED, error)
}

fn list() -> String {
    let mut text = String::from("figures:\n");
    for kind in figure::ALL {
        text.push_str(&format!("  {:<22} {}\n", kind.name, kind.paper));
    }
    text.push_str("machines:\n");
    for (file, _) in machines::ALL {
        let name = file.trim_end_matches(".toml");
        if let Some(Ok(machine)) = machines::named(name) {
            text.push_str(&format!("  {name:<22} {}\n", machine.about));
        }
    }
    text.push_str(&format!("  {:<22} this machine\n", here::NAME));
    text
}

fn kinds(names: &[String]) -> Result<Vec<Kind>, Failure> {
    if names.is_empty() {
        return Ok(figure::ALL.to_vec());
    }
    names
        .iter()
        .map(|name| {
            figure::named(name).ok_or_else(|| {
                let what = format!("there is no figure {name:?}; see `superhue lab --list`");
                Failure::new(USAGE, what)
            })
        })
        .collect()
}

/// A machine, and notes for the reader of its figures.
struct SelectedMachine {
    machine: Machine,
    notes: Vec<String>,
    /// Text of the machine file, if it has just been written.
    text: Option<String>,
}

impl From<Machine> for SelectedMachine {
    fn from(machine: Machine) -> Self {
        Self {
            machine,
            notes: Vec::new(),
            text: None,
        }
    }
}

/// Returns a machine: one of ours by its name, this one, or the one in a file.
fn machine(path: &Path) -> Result<SelectedMachine, Failure> {
    let name = path.to_string_lossy();
    if name == here::NAME {
        let here::HostMachine {
            machine,
            text,
            notes,
        } = here::here()?;
        return Ok(SelectedMachine {
            machine,
            notes,
            text: Some(text),
        });
    }
    if let Some(machine) = machines::named(&name) {
        return machine
            .map(SelectedMachine::from)
            .map_err(|error| Failure::new(FAILED, error));
    }
    let text = read_document(path, LARGEST_MACHINE)
        .with_context(|| {
            format!(
                "cannot read the machine file {name}; `superhue lab --list` has names of machines"
            )
        })
        .map_err(failed)?;
    Machine::parse(&name, &text)
        .map(SelectedMachine::from)
        .map_err(|error| Failure::new(USAGE, error))
}

/// Returns the frames of real kernels, as far as there are any.
fn memory(args: &LabArgs) -> Result<Memory, Failure> {
    let mut memory = Memory::drawn(args.seed);
    if args.drawn {
        return Ok(memory);
    }
    for name in FILES {
        let path = args.frames.join(format!("{name}.frames"));
        if !path.exists() {
            continue;
        }
        let bytes = read_regular(&path, LARGEST_FRAMES)
            .with_context(|| format!("cannot read {}", path.display()))
            .map_err(failed)?;
        memory.add(name, &bytes).map_err(|ReplayError(what)| {
            let what = format!(
                "{}: {what}; make it again with kernel/frames, or give --drawn",
                path.display()
            );
            Failure::new(FAILED, what)
        })?;
    }
    if !memory.is_whole() {
        note(&format!(
            "not all frames that real kernels dealt are in {}: what is missing is drawn by the kernels' rules (make them with kernel/frames)",
            args.frames.display()
        ));
    }
    Ok(memory)
}

fn json(document: &Document) -> Result<String, Failure> {
    document
        .to_json()
        .context("cannot write the result as JSON")
        .map_err(failed)
}

fn keep(folder: Option<&Path>, document: &Document) -> Result<(), Failure> {
    let (Some(folder), Some(figure)) = (folder, document.figures.last()) else {
        return Ok(());
    };
    write(
        folder,
        &format!("{}.svg", figure.name),
        &picture::draw(figure),
    )?;
    write(folder, "lab.json", &json(document)?)
}

fn draw(folder: Option<&Path>, figure: &Figure) -> Result<(), Failure> {
    let Some(folder) = folder else { return Ok(()) };
    write(
        folder,
        &format!("{}.svg", figure.name),
        &picture::draw(figure),
    )
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let file = ReportFile::open(&folder.join(name)).map_err(failed)?;
    file.write_bytes(text.as_bytes()).map_err(failed)
}
