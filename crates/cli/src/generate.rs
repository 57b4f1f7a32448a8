//! Completions and manual pages, from the one definition of the command line.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::Cli;
use crate::output::{FAILED, Failure, VerbResult, print};

/// `superhue completions SHELL`.
pub fn completions(shell: clap_complete::Shell) -> VerbResult {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "superhue", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// `superhue man FOLDER`.
pub fn man_pages(folder: &Path) -> VerbResult {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .with_context(|| format!("cannot write manual pages to {}", folder.display()))
        .map_err(|error| Failure::new(FAILED, error))?;
    Ok(ExitCode::SUCCESS)
}
