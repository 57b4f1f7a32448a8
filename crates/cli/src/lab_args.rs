//! `superhue lab`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use superhue_papers::program::LEAST;

use crate::values::{parse_count, parse_some_time};

/// Meaning of the exit status.
pub const EXIT_HELP: &str = "\
Exit status with a command: 0 the prediction is complete (the output has the command's own status); 1 failed, or the command \
ended at once; 2 wrong usage; 3 there is no emulator or no plugin, or this machine is not known; 126 the command cannot be traced; 127 it was not found.
Exit status otherwise: 0 done, 1 failed, 2 wrong usage.";

/// Reads a count of references that suffices for a prediction.
fn parse_references(text: &str) -> Result<u64, String> {
    let count = parse_count(text)?;
    if count < LEAST {
        return Err(format!(
            "`{text}` is fewer than {LEAST}, which are of the dynamic loader alone"
        ));
    }
    Ok(count)
}

/// `superhue lab`.
#[derive(Debug, Args)]
pub struct LabArgs {
    /// Figures to replay; see --list. [default: all]
    #[arg(value_name = "FIGURE", conflicts_with = "list")]
    pub figures: Vec<String>,
    /// List the figures and machines.
    #[arg(long)]
    pub list: bool,
    /// Replay few points with few draws.
    #[arg(long)]
    pub quick: bool,
    /// Draws of each point, and loops of pairs. [default: 24, or fewer of large points; 300 loops; with a command 5]
    #[arg(long, short = 'n', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub draws: Option<u32>,
    /// Another machine than the papers' one: a machine file, the name of one in --list, or `here`: this machine, with the L2 that
    /// `superhue colors` measured. Needs figures or a command. [default with a command: here]
    #[arg(long, value_name = "FILE|NAME", value_hint = ValueHint::FilePath)]
    pub machine: Option<PathBuf>,
    /// Largest number of references of the command to replay; then the command is ended (SIGTERM). With k, M, G for thousands.
    /// [default: 200M, with --quick 20M]
    #[arg(long, value_name = "COUNT", value_parser = parse_references, requires = "command")]
    pub references: Option<u64>,
    /// Number of references at the command's start that only touch pages and are not replayed.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "0", requires = "command")]
    pub skip: u64,
    /// End the command after this time (SIGTERM), and show the result so far, as after Ctrl-C.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_some_time, requires = "command")]
    pub time: Option<Duration>,
    /// Plugin of the emulator that reports the command's references. [default: ../lib/superhue/trace.so from the folder that
    /// superhue is in, where packages, `make install` and `make lab-trace` put it]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub plugin: Option<PathBuf>,
    /// Seed of all draws.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Folder with the frames that real kernels dealt, as kernel/frames wrote them.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath, default_value = "target/lab/frames")]
    pub frames: PathBuf,
    /// Draw all placements by the kernels' rules, even where frames exist.
    #[arg(long, conflicts_with = "frames")]
    pub drawn: bool,
    /// Replay nothing: show a result written by --json or --output again, in the words of this version, or write it all again with --output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["figures", "quick", "draws", "machine", "seed", "frames", "drawn"])]
    pub from: Option<PathBuf>,
    /// Replay the runs that witness/run left in this folder, and compare the counts with the plugin's. Makes no figures. Fails if they differ by more than 2 %.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath,
          conflicts_with_all = ["figures", "quick", "draws", "machine", "seed", "frames", "drawn", "from", "list"])]
    pub witness: Option<PathBuf>,
    /// Folder with results of `superhue compare` (hps-*.json), for the page's section on P4.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath, default_value = "docs/results")]
    pub results: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Write lab.json and a picture of each figure into this folder as they are done, and the page README.md when all
    /// are; with --witness, witness.json; with a command, its picture, and the machine as machine.toml if that is `here`.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Predict the misses of this command by the placement of its pages: it runs under an emulator (qemu-x86_64) while its loads and
    /// stores are replayed, on frames drawn at random, by color, and in huge pages.
    #[arg(last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments,
          conflicts_with_all = ["figures", "list", "frames", "drawn", "from", "witness"])]
    pub command: Vec<OsString>,
}
