//! `superhue lab`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use superhue_papers::program::LEAST;

use crate::values::{parse_count, parse_some_time};

/// What the exit status says.
pub const EXIT_HELP: &str = "\
Exit status with a command: 0 there is a prediction, whatever the command's own status was (which is told); 1 failed, or the command \
ended at once; 2 wrong usage; 3 there is no emulator or no plugin, or this machine is not known; 126 the command cannot be traced; 127 it was not found.
Exit status otherwise: 0 done, 1 failed, 2 wrong usage.";

/// A count of references that something can be predicted from.
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
    /// Which figures; see --list. [default: all]
    #[arg(value_name = "FIGURE", conflicts_with = "list")]
    pub figures: Vec<String>,
    /// Say which figures and machines there are.
    #[arg(long)]
    pub list: bool,
    /// Few points and few draws: a look at everything.
    #[arg(long)]
    pub quick: bool,
    /// Draws of each point, and loops of pairs. [default: 24, or fewer of large points; 300 loops; with a command 5]
    #[arg(long, short = 'n', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub draws: Option<u32>,
    /// Another machine than the papers' one: a machine file, the name of one in --list, or `here` for this machine, whose L2 is
    /// that which `superhue colors` measured. Needs figures or a command. [default with a command: here]
    #[arg(long, value_name = "FILE|NAME", value_hint = ValueHint::FilePath)]
    pub machine: Option<PathBuf>,
    /// Replay no more references of the command than so many; then it is ended (SIGTERM). With k, M, G for thousands.
    /// [default: 200M, with --quick 20M]
    #[arg(long, value_name = "COUNT", value_parser = parse_references, requires = "command")]
    pub references: Option<u64>,
    /// References of the command that only touch pages, before those that are replayed: its start.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "0", requires = "command")]
    pub skip: u64,
    /// End the command after this time (SIGTERM), and tell what there is, as after Ctrl-C.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_some_time, requires = "command")]
    pub time: Option<Duration>,
    /// The plugin of the emulator that tells what the command refers to. [default: ../lib/superhue/trace.so from the folder that
    /// superhue is in, where packages, `make install` and `make lab-trace` put it]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub plugin: Option<PathBuf>,
    /// Seed of all that is drawn.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Where the frames are that real kernels dealt, as kernel/frames wrote them.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath, default_value = "target/lab/frames")]
    pub frames: PathBuf,
    /// Draw all placements by the kernels' rules, whatever frames there are.
    #[arg(long, conflicts_with = "frames")]
    pub drawn: bool,
    /// Make nothing: show what --json or --output wrote again, or draw it anew with --output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["figures", "quick", "draws", "machine", "seed", "frames", "drawn"])]
    pub from: Option<PathBuf>,
    /// Make no figures: replay what ran under the plugin (witness/run leaves it in this folder), and compare the counts.
    /// Fails if they differ by more than 2 %.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath,
          conflicts_with_all = ["figures", "quick", "draws", "machine", "seed", "frames", "drawn", "from", "list"])]
    pub witness: Option<PathBuf>,
    /// Where results of `superhue compare` are kept (hps-*.json), for the page's section on P4.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath, default_value = "docs/results")]
    pub results: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Write lab.json and a picture of each figure into this folder as they are done, and the page README.md when all
    /// are; with --witness, witness.json; with a command, its picture, and the machine as machine.toml if that is `here`.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Predict what this command would miss by where its pages lie: it is run under an emulator (qemu-x86_64), and its loads and
    /// stores are replayed meanwhile, on frames drawn at random, by color, and in superpages.
    #[arg(last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments,
          conflicts_with_all = ["figures", "list", "frames", "drawn", "from", "witness"])]
    pub command: Vec<OsString>,
}
