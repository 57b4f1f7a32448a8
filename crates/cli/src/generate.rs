//! Completions and manual pages, from the one definition of the command line.

mod values;

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::args::Cli;
use crate::manual;
use crate::output::{FAILED, Failure, VerbResult, print_as_it_is};

/// `superhue completions SHELL`.
pub fn completions(shell: clap_complete::Shell) -> VerbResult {
    let mut script = Vec::new();
    let mut command = Cli::command();
    clap_complete::generate(shell, &mut command, "superhue", &mut script);
    let script = String::from_utf8_lossy(&script);
    print_as_it_is(&values::added(shell, &command, &script))
}

/// `superhue man FOLDER`.
pub fn man_pages(folder: &Path) -> VerbResult {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    fs::create_dir_all(folder)
        .and_then(|()| write_pages(&command, "", folder))
        .with_context(|| format!("cannot write manual pages to {}", folder.display()))
        .map_err(|error| Failure::new(FAILED, error))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of `command`, which is `verb` (`ctl-why`), and of all commands below it.
fn write_pages(command: &Command, verb: &str, folder: &Path) -> io::Result<()> {
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        let name = format!("{verb}-{}", inner.get_name());
        write_pages(inner, name.trim_start_matches('-'), folder)?;
    }
    let page = Man::new(command.clone())
        .source(concat!("superhue ", env!("CARGO_PKG_VERSION")))
        .manual("Superhue");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        page.render_subcommands_section(&mut text)?;
    }
    let after = command.get_after_help().map(ToString::to_string);
    manual::sections(verb, after.as_deref()).to_writer(&mut text)?;
    fs::write(folder.join(page.get_filename()), text)
}
