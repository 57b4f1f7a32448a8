//! The command line: one definition for parsing, help, manual pages and completions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use superhue::model::{BASE_PAGE_SIZE, ByteCount};
use superhue::page_colors::oracles::OracleKind;
use superhue_bench::arm::Arm;

use crate::advise_args::AdviseArgs;
use crate::compare_args::{self, ExportArgs, GateArgs, ScanArgs, SuiteArgs};
use crate::lab_args::{self, LabArgs};
use crate::top_args::TopArgs;

use crate::named::{arms, oracles};
use crate::placement_args::{ColorArgs, PlacementArgs, SystemArgs, TrackingArgs};
use crate::trial_args::{self, TrialArgs};
use crate::values::{parse_picture, parse_some_time};

const EXIT_HELP: &str = "\
Exit status with a command: the command's own; 125 superhue failed, 126 the command cannot be \
executed, 127 it was not found; a command ended by a signal ends superhue by the same one (shells \
show 128+n).
Exit status otherwise: 0 done, 1 failed, 2 wrong usage, 3 this machine cannot, 4 a condition given to compare failed, or a guard of trial was crossed.";

/// What the exit status says where a page or a help says nothing else.
pub const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "Done."),
    ("1", "Failed; standard error says at what, and what to do."),
    ("2", "Wrong usage, or a wrong configuration."),
    (
        "3",
        "This machine cannot do that; standard error says why, and what would change it.",
    ),
];

/// Puts a program's memory on huge pages (2 MiB; superpages) and page colors, and measures whether that helped.
#[derive(Debug, Parser)]
#[command(name = "superhue", version, after_help = EXIT_HELP, max_term_width = 100)]
pub struct Cli {
    /// Say on standard error what is done and why.
    #[arg(long, global = true, display_order = 1000)]
    pub verbose: bool,
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show what this machine lets you do, found out by trying.
    ///
    /// Everything is tried on memory and processes of superhue's own; nothing is changed. What is missing is shown with
    /// what to do about it. Capability: none.
    Check(CheckArgs),
    /// Run a command with its memory on huge pages, and on page colors if asked to; report at exit.
    ///
    /// Everything is done from outside, while the command goes on: nothing of superhue's runs in it, and none of its
    /// threads is stopped.
    ///
    /// Capability: CAP_SYS_NICE to make huge pages, or a daemon that allows the user (its section users: superhue-daemon(1)); else
    /// the command runs as it would alone, and the report says so. --colors needs CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_SYS_NICE, unless the kernel places memory; --system
    /// needs root.
    #[command(after_help = EXIT_HELP)]
    Run(RunArgs),
    /// Put the memory of processes that already run on huge pages and page colors, as `run` does; until interrupted.
    ///
    /// Says on standard error at once what it found, and then when something happens: a process joins or ends, the first
    /// huge pages, a budget that is used up, something that is refused, and why.
    ///
    /// Huge pages and colors stay as they are afterwards: nothing has to be undone. If superhue may not look at a
    /// process given by number, it ends with an error; such processes of --cgroup and --all are left alone and counted.
    ///
    /// At the start it forbids itself ptrace and its like for good: it cannot stop a program or write to its memory.
    ///
    /// Capability: CAP_SYS_NICE to make huge pages, or a daemon that allows the user (its section users: superhue-daemon(1));
    /// CAP_SYS_PTRACE for other users' processes; --colors needs
    /// CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_SYS_NICE. With --dry-run or --pages kernel: none for your own processes.
    Attach(AttachArgs),
    /// Run a command in several ways, taking turns, and say which is better and how sure that is.
    ///
    /// Each way is an arm (--arm): a policy for huge pages, or a name for options of `run`, --colors among them.
    /// With --suite, many programs are compared instead of one command. Capability: that of `run`.
    #[command(after_help = compare_args::EXIT_HELP)]
    Compare(Box<CompareArgs>),
    /// Switch a policy on and off in a server that runs, and say whether it is worth it: keep, leave, or no difference.
    ///
    /// Blocks with the policy on (regions collapsed) and off (the same regions split again) follow each other in pairs, in random order. After each
    /// pair a sequential test looks whether the metric differs; looking often costs no error: a wrong verdict has a probability
    /// of 2.5 % at most, whatever the noise is like. CPU time is a metric only for a server whose load is fixed; otherwise
    /// give --metric.
    ///
    /// Only what the policy makes huge during the trial is switched, and only private memory. On keep it stays huge; on any other end, by
    /// Ctrl-C, SIGTERM or SIGHUP too, it is split again. If superhue is killed it stays as it is at that moment, which harms nobody.
    ///
    /// Capability: that of `attach`.
    #[command(after_help = trial_args::EXIT_HELP)]
    Trial(Box<TrialArgs>),
    /// Measure what page colors and huge pages are worth on this machine: the papers' workloads.
    ///
    /// The memory is superhue's own. Every size is measured over many fresh allocations, placed in several ways in
    /// turns; shown are the median and the spread between allocations. Keeps to one CPU. Capability: none.
    Bench(BenchArgs),
    /// Replay the papers' loops on models of their machines, and show our figures beside theirs.
    ///
    /// Pages lie where real kernels put them (kernel/frames boots them, with the patches and without), or are drawn by the
    /// same rules; it says which. Misses of caches and TLBs are counted, over many draws; modelled time is a sum of
    /// counts by the costs that a machine's file declares. The same seed and frames give the same result, byte for byte.
    ///
    /// With a command, it predicts what that program would miss by where its pages lie, on this machine (--machine here) or
    /// another one: it is run under an emulator, and its references are replayed meanwhile, many draws at once. Nothing is kept
    /// on a disk. Its input and output are its own. Expect it to take some hundred times as long.
    ///
    /// Capability: none.
    #[command(after_help = lab_args::EXIT_HELP)]
    Lab(LabArgs),
    /// Show the memory of one process or of all (resident, coverage, bloat), and why it is not huge (--why); and the shared memory they map.
    ///
    /// Coverage is the share of anonymous memory that huge pages map. Bloat is memory that huge pages hold although the program never
    /// touched it; it cannot be seen from outside, so the table shows the most that it can be.
    ///
    /// Shared memory belongs to all who map it: it is listed by object, with its mappers, what huge pages map of it in them, and the page
    /// tables that this saves.
    ///
    /// Capability: none for your own processes, CAP_SYS_PTRACE for others'.
    Status(StatusArgs),
    /// Say who would gain from huge pages, how much, and what stands in the way. Changes nothing.
    ///
    /// For every process and service: memory, how much of it is used at a time beside what the TLB reaches, what is huge and could be, and an
    /// estimate of the CPU time that huge pages would save, with its interval. The estimate is made of two things that are
    /// measured here: how often the program touches pages that the TLB cannot hold, and what such a miss costs. Ends with the
    /// command or the rule to try.
    ///
    /// Capability: none for your own processes and what anybody may see. Gains need the tracker ptwalk (CAP_BPF, CAP_PERFMON) and
    /// CAP_SYS_NICE, CAP_SYS_ADMIN; for others' processes CAP_SYS_PTRACE. Without, they are not known, and it says so.
    Advise(AdviseArgs),
    /// Show which memory of a process is accessed: counts per page, the hot set, pictures.
    ///
    /// Capability: that of the tracker (see --tracker); none for --from. Clears accessed bits of the
    /// process; its memory stays as it is.
    Heat(HeatArgs),
    /// Serve applications: tell each which of its pages are accessed, through libsuperhue (hps(3)).
    ///
    /// At the start it forbids itself ptrace and its like for good: it cannot stop a program or write to its memory.
    ///
    /// Runs until SIGTERM or SIGINT, best as a system service (superhue-track.service). A process may
    /// ask for itself only, root for any. Capability: that of the tracker (see --tracker), CAP_DAC_OVERRIDE
    /// and CAP_KILL for other users' processes; all others are given up.
    Track(TrackArgs),
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "a table in TOML, for readers of the help"
    )]
    /// Place the memory of services by rules, for as long as the machine runs: the system service
    ///
    /// Rules stand in superhue.toml and conf.d/*.toml of the configuration folder.
    /// The first rule that holds for a process says what becomes of its memory:
    ///
    ///   [[rule]]
    ///   name = "redis"
    ///   unit = "redis*.service"  # or cgroup, user, executable, pod-label..., any = true
    ///   pages = "auto"           # as run --pages; "auto" is the default; or "off"
    ///   budget = "5%"            # also max-overhead, max-stall, colors, swap
    ///
    /// It also makes huge pages for programs of users without CAP_SYS_NICE, whose superhue asks it:
    ///
    ///   [users]
    ///   allow = ["alice", "1000", "@staff"]   # also budget, rate, clients, clients-per-user
    ///
    /// Services are followed over restarts. SIGHUP and `superhue ctl reload` read the
    /// rules anew; a wrong file is refused, and the rules before it stay. Killed at any
    /// moment, it takes up what is there when it is started again.
    ///
    /// At the start it forbids itself ptrace and its like for good: it cannot stop a
    /// program or write to its memory.
    ///
    /// Capability: root, of which it keeps what the rules need: to look CAP_SYS_PTRACE,
    /// CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE; to collapse CAP_SYS_NICE; to track
    /// CAP_BPF, CAP_PERFMON, CAP_DAC_OVERRIDE; for colors CAP_SYS_RESOURCE; for swap in memory
    /// CAP_SYS_ADMIN; for users CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_KILL.
    ///
    /// Exit status 2 if the configuration is wrong.
    #[command(verbatim_doc_comment)]
    Daemon(DaemonArgs),
    /// Ask the daemon: how it stands, which rule a process belongs to; pause it, or have its rules read anew.
    ///
    /// Capability: none; for root, and members of the group superhue.
    Ctl(CtlArgs),
    /// Show live who has which memory: services, processes or shared objects, with coverage, hot sets, and what the daemon does.
    ///
    /// A full screen, with keys: s services, p processes, o shared objects; Enter opens (processes of a service, mappings of
    /// a process), Escape goes back; / filters, < and > choose the column to sort by, r turns the order round; h explains
    /// the columns; q ends. Without a terminal, or with --once, one table.
    ///
    /// What the daemon does (collapses, stalls, hot sets, its cost) is shown where one listens and the caller may ask it
    /// (root and the group superhue). What may not be read is shown as - and counted. Reading is bounded by
    /// --max-overhead: what is on the screen is read first, then the largest, then the rest in turn; AGE says how old the
    /// figures of a line are.
    ///
    /// At the start it forbids itself ptrace and its like for good: it cannot stop a program or write to its memory.
    ///
    /// Capability: none for your own processes, CAP_SYS_PTRACE for others'; --track as `heat`.
    ///
    /// Exit status: 0 when ended by a key; 128+n by a signal, 129 also when the terminal is gone.
    Top(TopArgs),
    /// Show the page colors of this machine's caches, and test what can tell the color of a page.
    ///
    /// Pages of one color compete for the same sets of a cache. Their color can be told by an oracle: by frame
    /// numbers, by the position in a huge page, by timing, or by a kernel with page coloring. What each predicts is
    /// compared with conflicts that really happen, on memory of superhue's own; the first that is right is used.
    /// Exit status 3 if none is right, or if --verify finds that it is not.
    ///
    /// Capability: none; CAP_SYS_ADMIN for oracle pfn, which is left out otherwise. Leaves a palette of 2 to 3 MiB in
    /// memory (see --forget); changes nothing else. To place memory by color: `superhue run --colors`.
    Colors(ColorsArgs),
    /// Undo what a killed superhue left behind. Harmless when there is nothing.
    ///
    /// Capability: root, if there is something to undo.
    Restore(RestoreArgs),
    /// Act for a program of a user; superhue daemon starts this by itself.
    #[command(hide = true)]
    Actuator(ActuatorArgs),
    /// Read and change processes for superhue daemon, which starts this by itself.
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// Print the completion script for a shell.
    #[command(hide = true)]
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder.
    #[command(hide = true)]
    Man {
        /// Where to.
        #[arg(value_hint = ValueHint::DirPath)]
        folder: PathBuf,
    },
}

impl Verb {
    /// Whether it watches other programs until it is ended, and starts none. Whoever runs so gives up calls for good (`main`).
    #[must_use]
    pub const fn runs_for_long(&self) -> bool {
        matches!(
            self,
            Self::Attach(_) | Self::Track(_) | Self::Daemon(_) | Self::Top(_)
        )
    }
}

/// `superhue check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Show only these capabilities (see the first column).
    pub ids: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Also try what changes the machine for a moment (sets up a DAMON monitor if nobody uses one).
    #[arg(long)]
    pub thorough: bool,
}

/// `superhue run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub system: SystemArgs,
    /// Write the report as JSON to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Print the report as JSON on standard output, after the command's own output.
    #[arg(long)]
    pub json: bool,
    /// Print no report on standard error.
    #[arg(long, short)]
    pub quiet: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// `superhue attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub colors: ColorArgs,
    /// Stop after this time. [default: until interrupted, or one second with --dry-run]
    #[arg(long = "for", alias = "duration", value_name = "TIME", value_parser = parse_some_time)]
    pub duration: Option<Duration>,
    /// Write the report as JSON to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Print the report as JSON on standard output.
    #[arg(long)]
    pub json: bool,
    /// Print nothing on standard error but errors: neither what was found and what happens, nor the report.
    #[arg(long, short)]
    pub quiet: bool,
    /// All processes of this cgroup and of those below it, whoever comes and goes: its path below
    /// /sys/fs/cgroup (system.slice/foo.service) or in full. Waits while it is empty, ends when it
    /// is removed. Capability: as for processes by number.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath,
          conflicts_with_all = ["pids", "all", "user", "no_follow"])]
    pub cgroup: Option<PathBuf>,
    /// All processes that you may look at, whoever comes and goes, but superhue itself.
    /// CAP_SYS_PTRACE (root) for those of others.
    #[arg(long, conflicts_with_all = ["pids", "no_follow"])]
    pub all: bool,
    /// With --all: only those of this (effective) user, by name or number.
    #[arg(long, value_name = "USER", requires = "all", conflicts_with = "pids")]
    pub user: Option<String>,
    /// The processes, by number.
    #[arg(required_unless_present_any = ["cgroup", "all", "user"], value_name = "PID",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,
}

/// `superhue compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// An arm: a value of --pages (never), or a name for options of `run` (mine="--pages resident
    /// --budget 10%", even="--colors spread"), and for --env NAME=VALUE, a variable of the command's environment
    /// (jemalloc="--pages never --env LD_PRELOAD=libjemalloc.so.2"). The first arm is what the others are compared with.
    /// Repeatable.
    #[arg(
        long = "arm",
        value_name = "NAME[=OPTIONS]",
        required_unless_present_any = ["from", "suite"]
    )]
    pub arms: Vec<String>,
    /// Measure nothing: show a result written by --report again, draw it with --plot, export it, or judge it by --fail-if.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["arms", "command", "report", "load", "metrics", "prepare", "parameter_scan",
                                "parameter_list", "suite"])]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub suite: SuiteArgs,
    /// Measured runs of each arm. [default: 8, or what the suite says]
    #[arg(long, short = 'n', value_name = "RUNS", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub runs: Option<u32>,
    /// Runs of each arm beforehand that do not count.
    #[arg(long, value_name = "RUNS", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub warmup: u32,
    /// Run this (by `sh -c`) before each run, and before a server is started; it is not measured. If it fails, the
    /// comparison ends.
    #[arg(long, value_name = "COMMAND")]
    pub prepare: Option<String>,
    #[command(flatten)]
    pub scan: ScanArgs,
    /// The command is a server: start it, wait until it is ready, run this load (by `sh -c`),
    /// stop the server by SIGTERM.
    #[arg(long, value_name = "COMMAND", requires = "ready")]
    pub load: Option<String>,
    /// When the server is ready: once it listens on tcp:PORT of this host.
    #[arg(long, value_name = "tcp:PORT", requires = "load", value_parser = parse_ready)]
    pub ready: Option<u16>,
    /// Give up if the server is not ready after this time, or has not stopped this long after SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_some_time)]
    pub patience: Duration,
    /// End a run (of a server: its load) that takes longer than this, with all that it has started. It counts as failed.
    #[arg(long, value_name = "TIME", value_parser = parse_some_time)]
    pub timeout: Option<Duration>,
    /// A figure to read from the output (of the load, if there is one): the first group of the
    /// expression where it matches. Higher is better unless NAME ends in :lower. If it matches different numbers in one
    /// run, that is an error: use an expression that matches one, or NAME@first or NAME@last. Repeatable.
    #[arg(long = "metric", value_name = "NAME[:lower][@last]=REGEX")]
    pub metrics: Vec<String>,
    #[command(flatten)]
    pub gates: GateArgs,
    /// Call two arms different only if the figures differ by more than this.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    pub smallest: f64,
    /// Seed of the order and of the statistics.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Draw every sample into this file, SVG or PNG by its name; of a suite, how fast each program is under each arm.
    #[arg(long, value_name = "FILE.svg|FILE.png", value_hint = ValueHint::FilePath, value_parser = parse_picture)]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub exports: ExportArgs,
    /// Write the result with every sample as JSON to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Print that JSON on standard output instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Let the command's output through (to standard error), too.
    #[arg(long)]
    pub show_output: bool,
    /// Count runs that exit with another status than 0 as well.
    #[arg(long)]
    pub ignore_failure: bool,
    /// The command and its arguments.
    #[arg(required_unless_present_any = ["from", "suite"], trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// `superhue bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure; see --list. `all` is everything.
    #[arg(value_name = "WORKLOAD", required_unless_present_any = ["list", "from"])]
    pub workloads: Vec<String>,
    /// Say which workloads and arms there are.
    #[arg(long, conflicts_with_all = ["workloads", "from"])]
    pub list: bool,
    /// Ways of placing memory, to be compared with `kernel`. `isolation` has arms of its own.
    #[arg(long, value_name = "ARM,...", value_delimiter = ',', value_parser = arms(),
          default_value = "kernel,superpage,colored,both")]
    pub arms: Vec<Arm>,
    /// Fresh allocations of each arm at each size. [default: 24, or 5 with --quick]
    #[arg(long, short = 'n', value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub allocations: Option<u32>,
    /// The CPU to keep to. [default: the last one this process may use]
    #[arg(long, value_name = "NUMBER")]
    pub cpu: Option<u32>,
    /// A few sizes near the capacity and few allocations: enough to see that it works.
    #[arg(long)]
    pub quick: bool,
    /// Seed of the order and of all that is random.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Print the result with every sample as JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Write colors-WORKLOAD.json and .svg into this folder.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Measure nothing: show a result written by --json or --output again, or draw it anew with --output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["workloads", "arms", "allocations", "cpu", "quick", "seed"])]
    pub from: Option<PathBuf>,
}

/// `superhue status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The processes, by number; all that can be seen if none is named.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pids: Vec<u32>,
    /// Say of all memory that no huge page maps why that is so, and what can be done about it.
    ///
    /// By mapping and in total, with the first reason that holds: mappings that do not fill 2 MiB windows, addresses that
    /// do not suit the file's offset, files, memory for which huge pages were forbidden, pages shared since a fork,
    /// memory that is too sparse or swapped out; or nothing that can be seen from outside. With every resident page
    /// counted once, the reasons and what is huge add up to the resident memory. Whether memory is accessed cannot be
    /// told by one look: see `superhue heat`.
    #[arg(long, requires = "pids")]
    pub why: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `superhue heat`.
#[derive(Debug, Args)]
pub struct HeatArgs {
    /// The process, by number.
    #[arg(value_name = "PID", required_unless_present = "from",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    /// Watch nothing: show what --report or --json wrote again, or draw it with --plot.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["pid", "duration", "interval", "tracker", "max_overhead",
                                "anonymous", "follow", "report"])]
    pub from: Option<PathBuf>,
    /// Stop after this time. [default: 5s, or until q is pressed with --follow]
    #[arg(long = "for", alias = "duration", value_name = "TIME", value_parser = parse_some_time)]
    pub duration: Option<Duration>,
    /// How long accesses are gathered for a sample. [default: 50ms to 10s, longer while nothing
    /// changes]
    #[arg(long, value_name = "TIME", value_parser = parse_some_time)]
    pub interval: Option<Duration>,
    #[command(flatten)]
    pub tracking: TrackingArgs,
    /// Leave out mapped files and shared memory.
    #[arg(long)]
    pub anonymous: bool,
    /// List pages with how many samples saw them accessed, neighbours with the same number together; a big process has many
    /// thousands of lines. [default: one line for each mapping]
    #[arg(long, conflicts_with_all = ["json", "follow"])]
    pub list_pages: bool,
    /// Draw memory over time and the hot set into this file: SVG or PNG, by its name. Repeatable.
    #[arg(long = "plot", value_name = "FILE.svg|FILE.png", value_hint = ValueHint::FilePath,
          value_parser = parse_picture)]
    pub plots: Vec<PathBuf>,
    /// Write everything as JSON to this file, for --from.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Print that JSON on standard output instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Show it live in the terminal; q ends it.
    #[arg(long, conflicts_with = "json")]
    pub follow: bool,
}

/// `superhue track`.
#[derive(Debug, Args)]
pub struct TrackArgs {
    /// Where to listen. Its folder is made if it is missing; everybody may connect.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath,
          default_value = superhue_client::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// How many clients are served at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_clients: u32,
    /// How much memory the service may take for its clients, all together; whoever takes most is let
    /// go when that does not suffice. About 2 bytes a page tracked, 48 a page active.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_track_memory)]
    pub max_memory: ByteCount,
    #[command(flatten)]
    pub tracking: TrackingArgs,
}

/// `superhue daemon`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// The folder of the configuration. Believed is only what nobody but root can write.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath,
          default_value = superhue_daemon::DEFAULT_FOLDER)]
    pub config: PathBuf,
    /// Where to listen for `superhue ctl`. Its folder is made if it is missing.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath,
          default_value = superhue_daemon::ctl::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Serve nobody: say what is wrong with the configuration, which processes its rules are about now, and warn of rules
    /// that match nothing.
    #[arg(long)]
    pub check: bool,
    /// With --check: print JSON.
    #[arg(long, requires = "check")]
    pub json: bool,
}

/// `superhue actuator`, whose standard input is the user's connection.
#[derive(Debug, Args)]
pub struct ActuatorArgs {
    /// What is allowed, as JSON.
    #[arg(long)]
    pub terms: String,
    /// The number of the daemon's process.
    #[arg(long)]
    pub parent: u32,
}

/// `superhue worker`, whose standard input is the daemon.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The number of the daemon's process.
    #[arg(long)]
    pub parent: u32,
}

/// `superhue ctl`.
#[derive(Debug, Args)]
pub struct CtlArgs {
    /// What to ask for.
    #[command(subcommand)]
    pub request: CtlRequest,
    /// Where the daemon listens.
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath,
          default_value = superhue_daemon::ctl::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Print the daemon's answer as JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

/// What to ask the daemon for.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum CtlRequest {
    /// Show services by rule: memory, coverage, what was done, what it cost.
    Status,
    /// Show the rules in force, in the order in which they are tried.
    Rules,
    /// Say which rule a process belongs to, and why none before it.
    Why {
        /// The process, by number.
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        pid: u32,
    },
    /// Print the daemon's metrics as Prometheus would be served them: for the textfile collector of node_exporter, or to look.
    Metrics {
        /// Print OpenMetrics 1.0.0 rather than Prometheus' text format.
        #[arg(long)]
        openmetrics: bool,
    },
    /// Have the daemon only look on, until `resume`; over restarts, too.
    Pause,
    /// Have the daemon go on.
    Resume,
    /// Have the configuration read anew. If it is wrong, says what is, and the rules in force stay.
    Reload,
}

/// `superhue colors`.
#[derive(Debug, Args)]
pub struct ColorsArgs {
    /// Test this oracle only. [default: all, and use the first that is right]
    #[arg(long, value_name = "NAME", value_parser = oracles())]
    pub oracle: Option<OracleKind>,
    /// How oracle pfn computes colors, for caches with a hashed index: a file with one hexadecimal mask on each line. The
    /// parity of the physical address bits that a mask selects is one bit of the color; # begins a comment.
    /// [default: the bits that follow from the size and the ways of the cache]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub index: Option<PathBuf>,
    /// Measure on this CPU. [default: the one superhue happens to be on]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(0..65_536))]
    pub cpu: Option<u32>,
    /// Prove it: measure how latency rises with the number of pages, for pages of one color, of a quarter of the
    /// colors, of half, of all, and as the kernel places them. Of one color, the cache must hold as many pages as it has
    /// ways, and not one more.
    #[arg(long)]
    pub verify: bool,
    /// Draw what --verify measured into this file: SVG or PNG, by its name. Repeatable.
    #[arg(long = "plot", value_name = "FILE.svg|FILE.png", value_hint = ValueHint::FilePath,
          value_parser = parse_picture)]
    pub plots: Vec<PathBuf>,
    /// Measure each size 3 times instead of 9.
    #[arg(long, requires = "verify")]
    pub quick: bool,
    /// Memory to test on. [default: 32M, or 16 times the cache]
    #[arg(long, value_name = "SIZE", value_parser = parse_pool)]
    pub pool: Option<ByteCount>,
    /// Measure nothing: remove the palette, the file of eviction sets that processes share (/run/superhue/palette for
    /// root, else below $XDG_RUNTIME_DIR). It is made again when needed.
    #[arg(long, exclusive = true)]
    pub forget: bool,
    /// Measure nothing: show what --report or --json wrote again, or draw it with --plot.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["oracle", "index", "cpu", "verify", "pool", "report"])]
    pub from: Option<PathBuf>,
    /// Write everything as JSON to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `superhue restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Some pages of each color, and what a test may take of a machine.
fn parse_pool(text: &str) -> Result<ByteCount, String> {
    const LEAST: ByteCount = ByteCount(2 << 20);
    const MOST: ByteCount = ByteCount(4 << 30);
    let size: ByteCount = text.parse().map_err(|error| format!("{error}"))?;
    if size < LEAST || size > MOST || !size.0.is_multiple_of(BASE_PAGE_SIZE) {
        return Err(format!("a pool has {LEAST} to {MOST}, in whole pages"));
    }
    Ok(size)
}

/// What `--max-memory` is unless somebody says otherwise: 1G.
pub const DEFAULT_TRACK_MEMORY: ByteCount = ByteCount(1 << 30);

/// Less than this has no room for the smallest list in the making.
const LEAST_TRACK_MEMORY: ByteCount = ByteCount(16 << 20);

fn parse_track_memory(text: &str) -> Result<ByteCount, String> {
    let memory: ByteCount = text.parse().map_err(|error| format!("{error}"))?;
    if memory < LEAST_TRACK_MEMORY {
        return Err(format!("at least {LEAST_TRACK_MEMORY} is needed"));
    }
    Ok(memory)
}

pub(crate) fn parse_ready(text: &str) -> Result<u16, String> {
    text.strip_prefix("tcp:")
        .and_then(|port| port.parse().ok())
        .filter(|&port| port != 0)
        .ok_or_else(|| format!("`{text}` is not tcp:PORT (e.g. tcp:11211)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
