//! `superhue lab`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

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
    /// Draws of each point, and loops of pairs. [default: 24, or fewer of large points; 300 loops]
    #[arg(long, short = 'n', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub draws: Option<u32>,
    /// Another machine than the papers' one: a machine file, or the name of one in --list. Needs figures.
    #[arg(long, value_name = "FILE|NAME", value_hint = ValueHint::FilePath, requires = "figures")]
    pub machine: Option<PathBuf>,
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
    /// are; with --witness, witness.json.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
}
