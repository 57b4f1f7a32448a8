//! The command line: one definition for parsing, help, manual pages and completions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueHint};
use superhue::model::{BASE_PAGE_SIZE, ByteCount};
use superhue::page_colors::oracles::OracleKind;
use superhue::parse;
use superhue_bench::arm::Arm;

use crate::advise_args::AdviseArgs;
use crate::compare_args::{self, ExportArgs, GateArgs, ScanArgs, SuiteArgs};
use crate::lab_args::{self, LabArgs};
use crate::top_args::TopArgs;

use crate::named::{arms, capabilities, oracles};
use crate::placement_args::{ColorArgs, PlacementArgs, SystemArgs, TrackingArgs};
use crate::targets_args::{ONE_PROCESS, TARGETS, TargetArgs, WideArgs};
use crate::tlb_args::TlbArgs;
use crate::trial_args::{self, RuleTrialArgs, TrialArgs};
use crate::values::{parse_percentage, parse_picture, parse_some_time};

const EXIT_HELP: &str = "\
Exit status with a command: the command's own; before the command starts 2 wrong usage, and 3 this kernel lacks a setting of --system; \
125 superhue failed, or this machine or this user lacks what is needed, 126 the command cannot be executed, 127 it was not found; a command ended by a signal ends superhue by the same one \
(shells show 128+n).
Exit status otherwise: 0 done, 1 failed, 2 wrong usage, 3 this machine, or this user, lacks what is needed, 4 a condition given to compare failed, \
or a guard of trial was crossed, 130 compare was interrupted.";

/// Exit status after Ctrl-C, by verb.
pub const AFTER_INTERRUPT: [(&str, &str); 7] = [
    (
        "run",
        "That of the command, which receives the signal too; if the signal ends the command, it ends superhue (130 in shells).",
    ),
    (
        "attach, advise, daemon, track",
        "0; the result, where there is one, covers the time until then.",
    ),
    (
        "heat, bench, lab -- COMMAND",
        "0 with the result so far; 1 if there is none.",
    ),
    (
        "trial, ctl trial",
        "1: the trial undoes what it has changed.",
    ),
    (
        "compare",
        "130: the result covers the completed runs; 1 with --fail-if or --fail-unless.",
    ),
    (
        "top, heat --follow",
        "0: on the screen Ctrl-C is a key. A signal ends top with 128+n, and its recorder (--record) with 0.",
    ),
    ("others", "The signal ends superhue (130 in shells)."),
];

/// Meaning of the exit status, unless a page or a help has its own.
pub const EXIT_STATUS: [(&str, &str); 4] = [
    ("0", "Done."),
    (
        "1",
        "Failed; standard error names the failed step and the remedy.",
    ),
    ("2", "Wrong usage, or a wrong configuration."),
    (
        "3",
        "This machine or this user lacks a requirement; standard error names it and the change that would help.",
    ),
];

/// The same for the help of a verb.
pub const COMMON_EXIT_HELP: &str = "\
Exit status: 0 done; 1 failed, with the reason on standard error; 2 wrong usage, or a wrong configuration; 3 this machine, or this user, lacks what \
is needed.";

/// Puts a program's memory on huge pages (2 MiB) and page colors, and measures whether that helped.
#[derive(Debug, Parser)]
#[command(name = "superhue", version, after_help = EXIT_HELP, max_term_width = 100)]
pub struct Cli {
    /// Explain each step on standard error.
    #[arg(long, global = true, display_order = 1000)]
    pub verbose: bool,
    #[command(subcommand)]
    pub verb: Verb,
}

/// Verbs of the command line.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Test what this machine permits.
    ///
    /// Superhue tries everything on its own memory and processes, and changes nothing that lasts. It keeps only the timing of the TLB: below
    /// /var/cache/superhue for root, in superhue below $XDG_CACHE_HOME (~/.cache) for other users. For each missing capability it names the remedy.
    /// Capability: none.
    Check(CheckArgs),
    /// Run a command with its memory on huge pages, and on page colors with --colors; report at exit.
    ///
    /// Superhue works from outside while the command runs: it loads nothing into the command and stops none of its threads.
    ///
    /// Capability: CAP_SYS_NICE to make huge pages, or a daemon that allows the user (the table `users` of superhue.toml(5)). Without either, superhue changes
    /// nothing and reports it; with --pages hot or --tracker, which need a working tracker, it does not start the command. --colors needs CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_SYS_NICE, unless the kernel places memory; --system
    /// needs root.
    #[command(after_help = EXIT_HELP)]
    Run(RunArgs),
    /// Put the memory of running processes on huge pages and page colors, as `run` does, until interrupted.
    ///
    /// Reports on standard error what it finds at the start, and then each event: a process joins or ends, the first
    /// huge pages, a budget that is used up, a refusal and its reason.
    ///
    /// Huge pages and colors remain afterwards. After a kill with --swap or the tracker damon, `superhue restore` undoes the rest. If superhue may not read a process given by number, it ends with
    /// an error. It leaves such processes of --unit, --cgroup, --user and --all alone and counts them.
    ///
    /// At the start superhue gives up ptrace and similar calls for good: it cannot stop a program or write to its memory.
    ///
    /// Capability: CAP_SYS_NICE to make huge pages, or a daemon that allows the user (the table `users` of superhue.toml(5));
    /// CAP_SYS_PTRACE for other users' processes; --colors needs
    /// CAP_SYS_ADMIN, CAP_SYS_PTRACE and CAP_SYS_NICE. With --dry-run or --pages kernel: none for your own processes.
    Attach(AttachArgs),
    /// Run a command in several ways, interleaved, and report which is better and how certain that is.
    ///
    /// Each way is an arm (--arm): a policy for huge pages, or a name for options of `run`, --colors among them. Without --arm, the kernel's
    /// own policy (kernel) is compared with the default of `run` (auto).
    /// With --suite, many programs are compared instead of one command. Capability: that of `run`.
    #[command(after_help = compare_args::EXIT_HELP)]
    Compare(Box<CompareArgs>),
    /// Switch a policy on and off in a running server, and report whether it is worth it: keep, leave, or no difference.
    ///
    /// Blocks with the policy on (regions collapsed) and off (the same regions split again) follow each other in pairs, in random order. After each
    /// pair a sequential test checks whether the metric differs. Testing after every pair does not raise the error rate: if the policy changes
    /// nothing, keep or leave has a probability of at most 2.5 %, for any kind of noise. CPU time is a metric only for a server whose load is fixed; otherwise
    /// give --metric-command.
    ///
    /// The trial switches private memory that the policy makes huge during the trial; with --present also memory that is huge already, which is
    /// huge again at the end. After the verdict "keep" the policy's memory stays huge. After any other end, Ctrl-C, SIGTERM and SIGHUP
    /// included, it is split again. If superhue is killed, the memory stays as it is, which is harmless.
    ///
    /// A split leaves frames side by side. Where they were scattered, the program is faster in the state "off" than before the trial. The report
    /// says so, and --swap scatters them again. Standard error gets a line on the progress every ten seconds or so if it is no terminal.
    ///
    /// Capability: that of `attach`.
    #[command(after_help = trial_args::EXIT_HELP)]
    Trial(Box<TrialArgs>),
    /// Measure the value of page colors and huge pages on this machine with the papers' workloads.
    ///
    /// The memory is superhue's own. Each size is measured over many fresh allocations, placed in several ways in
    /// turns; the table shows the median and the spread between allocations. Uses one CPU. Capability: none.
    Bench(BenchArgs),
    /// Replay the papers' loops on models of their machines, and show our figures beside theirs.
    ///
    /// Real kernels placed the pages (kernel/frames boots them, with the patches and without), or the pages are drawn by the
    /// same rules; the output says which. The models count misses of caches and TLBs over many draws. Modelled time is a sum of
    /// counts, weighted by the costs that a machine's file declares. The same seed and frames give the same result, byte for byte.
    ///
    /// With a command, it predicts the misses of that program by the placement of its pages, on this machine (--machine here) or
    /// another one. The command runs under an emulator while its references are replayed, many draws at once, without files on a disk. The command
    /// keeps its standard input and output. It runs about a hundred times slower.
    ///
    /// Capability: none.
    #[command(after_help = lab_args::EXIT_HELP)]
    Lab(LabArgs),
    /// Show the memory of one process or of all (resident, coverage, bloat), and why it is not huge (--why); and the shared memory they map.
    ///
    /// Coverage is the share of anonymous memory that huge pages map. Bloat is memory that huge pages hold although the program never
    /// touched it. It is not visible from outside, so the table shows an upper bound.
    ///
    /// Shared memory belongs to all processes that map it. It is listed by object, with its mappers, the part that huge pages map, and the page
    /// tables that this saves.
    ///
    /// Capability: none for your own processes, CAP_SYS_PTRACE for others'.
    Status(StatusArgs),
    /// Estimate which services would gain from huge pages, how much, and name the obstacles. Changes no setting and no page size.
    ///
    /// The table shows for each service: CPUs, resident memory, the share that is huge, memory that could be huge, the estimated share of its CPU
    /// time that huge pages would save, and the next step. Instead of an estimate it may show a state: none (below 1 %), idle (ask again under load), blocked (something
    /// keeps the memory from being huge), `is huge`, small, ended, or `?` (not known). The estimate multiplies the rate at which the program touches pages beyond the TLB
    /// by the measured cost of a TLB miss.
    ///
    /// Capability: none for your own processes and for what every user may read. Estimates need the tracker ptwalk (CAP_BPF, CAP_PERFMON) and
    /// CAP_SYS_NICE, CAP_SYS_ADMIN; for other users' processes also CAP_SYS_PTRACE and CAP_DAC_OVERRIDE. Without them the gain is `?`, with the reason.
    Advise(AdviseArgs),
    /// Show the accesses to a process's memory: counts per page, the hot set, pictures.
    ///
    /// Capability: that of the tracker (see --tracker); none for --from. Clears accessed bits of the
    /// process; its memory stays as it is.
    Heat(HeatArgs),
    /// Serve applications: report to each which of its pages are accessed, through libsuperhue (hps(3)).
    ///
    /// At the start it gives up ptrace and similar calls for good: it cannot stop a program or write to its memory.
    ///
    /// Runs until SIGTERM or SIGINT, best as a system service (superhue-track.service). A process may
    /// ask about itself only; root may ask about every process. Capability: that of the tracker (see --tracker), CAP_DAC_OVERRIDE
    /// and CAP_KILL for other users' processes; it drops all others.
    Track(TrackArgs),
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "a table in TOML, for readers of the help"
    )]
    /// Apply rules to the memory of services: the system service
    ///
    /// Rules are in conf.d/*.toml and superhue.toml of the configuration folder.
    /// The first rule that matches a process decides about its memory:
    ///
    ///   [[rule]]
    ///   name = "redis"
    ///   unit = "redis*.service"  # or cgroup, user, executable, pod-label..., any = true
    ///   pages = "auto"           # as run --pages; "auto" is the default; or "off"
    ///   budget = "2%"            # the default is 1% for auto
    ///
    /// Most other options of attach are keys, too: max-stall, colors and others (superhue.toml(5)).
    ///
    /// It also makes huge pages for users without CAP_SYS_NICE who run superhue:
    ///
    ///   [users]
    ///   allow = ["alice", "1000", "@staff"]   # also budget, rate, clients, clients-per-user
    ///
    /// The daemon follows services over restarts. SIGHUP and `superhue ctl reload` read
    /// the rules again; a wrong file is refused, and the old rules stay. After a kill,
    /// the next start finds the same processes by the same rules.
    ///
    /// At the start it gives up ptrace and similar calls for good: it cannot stop a
    /// program or write to its memory.
    ///
    /// Capability: root, of which it keeps what the rules need: to look CAP_SYS_PTRACE,
    /// CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE; to collapse CAP_SYS_NICE; to track
    /// CAP_BPF, CAP_PERFMON, CAP_DAC_OVERRIDE; for colors and for swap in memory
    /// CAP_SYS_ADMIN; for users CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_KILL.
    ///
    /// Exit status 2 if the configuration is wrong.
    #[command(verbatim_doc_comment)]
    Daemon(DaemonArgs),
    /// Ask the daemon for its status or for the rule of a process, pause it, reload its rules, or try whether a rule is worth it.
    ///
    /// Needs root or membership in the group superhue. `trial` also needs what `attach` needs: CAP_SYS_NICE, and CAP_SYS_PTRACE for other users'
    /// processes.
    Ctl(CtlArgs),
    /// Show memory live: services, processes or shared objects, with coverage, hot sets, and the actions of the daemon.
    ///
    /// A full screen, with keys: s services, p processes, o shared objects; Enter opens (processes of a service, mappings of
    /// a process), Escape goes back; / filters, < and > choose the column to sort by, r reverses the order; h explains
    /// the columns; q ends. Without a terminal, or with --once, it prints one table.
    ///
    /// The daemon's actions (collapses, stalls, hot sets, its cost) appear where a daemon listens and the caller may ask it
    /// (root and the group superhue). Figures that the caller may not read are shown as - and counted. --max-overhead bounds the reading:
    /// lines on the screen first, then the largest, then the rest in turn; AGE is the age of a line's figures.
    ///
    /// --record writes a snapshot to a file in each interval, for instance from a service; --replay shows that file later, on the same screen.
    ///
    /// At the start it gives up ptrace and similar calls for good: it cannot stop a program or write to its memory.
    ///
    /// Capability: none for your own processes, CAP_SYS_PTRACE for others'; --track as `heat`; none for --replay.
    ///
    /// Exit status: 0 if a key ends it, 128+n if signal n does, 129 if the terminal is gone. With --record, 0 if a signal ends it.
    Top(TopArgs),
    /// Show the page colors of this machine's caches, and test the methods that find them.
    ///
    /// Pages of one color compete for the same sets of a cache. An oracle finds the color: by frame
    /// number, by the position in a huge page, by timing, or from a kernel with page coloring. Superhue compares the predictions of each oracle
    /// with real conflicts, on its own memory, and uses the first oracle that is right.
    /// Exit status 3 if none is right, or if --verify refutes it.
    ///
    /// Capability: none; CAP_SYS_ADMIN for oracle pfn, which is left out otherwise. Leaves a palette of 2 to 3 MiB in
    /// memory (see --forget); changes nothing else. To place memory by color: `superhue run --colors`.
    Colors(ColorsArgs),
    /// Undo the changes that a killed superhue left behind. Harmless when there are none.
    ///
    /// Users other than root may not see what root's superhue has changed. For them `restore` changes nothing, prints that, and ends with status 3.
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
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder.
    #[command(hide = true)]
    Man {
        /// The folder.
        #[arg(value_hint = ValueHint::DirPath)]
        folder: PathBuf,
    },
}

impl Verb {
    /// Returns true for verbs that watch other programs until they are ended, and start none. They give up calls permanently (`main`).
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
    /// Show only these capabilities, and end with status 3 if one of them is missing. One that works in part, or could not be tried, is not
    /// missing.
    #[arg(value_name = "CAPABILITY", value_parser = capabilities())]
    pub ids: Vec<&'static str>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub width: WideArgs,
    /// Also try capabilities that change the machine for a moment (sets up a DAMON monitor if DAMON is unused).
    #[arg(long)]
    pub thorough: bool,
    #[command(flatten)]
    pub tlb: TlbArgs,
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
#[command(group(ArgGroup::new("who").args(TARGETS).required(true).multiple(true)))]
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
    /// Print only errors on standard error: no events and no report.
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub targets: TargetArgs,
}

/// `superhue compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// An arm: a value of --pages (never), or a name for options of `run` (mine="--pages resident
    /// --budget 10%", even="--colors spread"), and for --env NAME=VALUE, a variable of the command's environment
    /// (jemalloc="--pages never --env LD_PRELOAD=libjemalloc.so.2"). The other arms are compared with the first.
    /// Repeatable. [default: kernel, auto]
    #[arg(long = "arm", value_name = "NAME[=OPTIONS]")]
    pub arms: Vec<String>,
    /// Measure nothing: show a result written by --report again, draw it with --plot, export it, or judge it by --fail-if.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["arms", "command", "report", "load", "metrics", "prepare", "parameter_scan",
                                "parameter_step_size", "parameter_list", "suite", "only", "time", "runs", "warmup",
                                "ready", "patience", "timeout", "smallest", "seed", "show_output", "ignore_failure"])]
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
    /// The server is ready once it listens on this port of 127.0.0.1 or ::1.
    #[arg(long, value_name = "tcp:PORT", requires = "load", value_parser = parse_ready)]
    pub ready: Option<u16>,
    /// Give up if the server is not ready after this time, or has not stopped this long after SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_some_time)]
    pub patience: Duration,
    /// End a run (of a server: its load) that takes longer than this, with all processes that it started. The run counts as failed.
    /// [default: none]
    #[arg(long, value_name = "TIME", value_parser = parse_some_time)]
    pub timeout: Option<Duration>,
    /// A figure to read from the output (of the load, if there is one): the first group of the
    /// expression where it matches. Higher is better unless NAME ends in :lower. If it matches different numbers in one
    /// run, that is an error: use an expression that matches one, or NAME@first or NAME@last. Repeatable.
    #[arg(
        long = "metric-regex",
        alias = "metric",
        value_name = "NAME[:lower][@first|@last]=REGEX"
    )]
    pub metrics: Vec<String>,
    #[command(flatten)]
    pub gates: GateArgs,
    /// Call two arms different only if the figures differ by more than this: 0 to below 100%.
    #[arg(long, value_name = "PERCENT", default_value = "0.5%", value_parser = parse_percentage)]
    pub smallest: f64,
    /// Seed of the order and of the statistics.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Draw every sample into this file, SVG or PNG by its name; of a suite, the speed of each program under each arm.
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
    /// Print the command's output, too (on standard error).
    #[arg(long)]
    pub show_output: bool,
    /// Count runs with an exit status other than 0 as good runs.
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
    /// Workloads to measure; see --list. `all` is every one.
    #[arg(value_name = "WORKLOAD", required_unless_present_any = ["list", "from"])]
    pub workloads: Vec<String>,
    /// List the workloads and arms.
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
    /// The CPU to use. [default: the last one this process may use]
    #[arg(long, value_name = "NUMBER")]
    pub cpu: Option<u32>,
    /// Measure a few sizes near the capacity with few allocations: enough to see that it works.
    #[arg(long)]
    pub quick: bool,
    /// Seed of the order and of all random choices.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Print the result with every sample as JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Write colors-WORKLOAD.json and .svg into this folder.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub output: Option<PathBuf>,
    /// Measure nothing: show a result written by --json or --output again, or redraw it with --output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["workloads", "arms", "allocations", "cpu", "quick", "seed"])]
    pub from: Option<PathBuf>,
}

/// `superhue status`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("who").args(TARGETS).multiple(true)))]
pub struct StatusArgs {
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Give the reason for all memory that no huge page maps, and the remedy.
    ///
    /// By mapping and in total, with the first reason that applies: mappings that do not fill 2 MiB windows, addresses that
    /// do not suit the file's offset, files, memory for which huge pages were forbidden, pages shared since a fork,
    /// memory that is too sparse or swapped out; or no visible obstacle. Each resident page counts once, so the reasons and the huge memory add up
    /// to the resident memory. Accesses need more than one look: see `superhue heat`.
    #[arg(long, requires = "who")]
    pub why: bool,
    #[command(flatten)]
    pub width: WideArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `superhue heat`.
#[derive(Debug, Args)]
#[command(mut_arg("processes", |arg| arg.help(ONE_PROCESS)))]
pub struct HeatArgs {
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Watch nothing: show a result written by --report or --json again, or draw it with --plot.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["processes", "unit", "cgroup", "user", "all", "duration", "interval", "tracker", "max_overhead",
                                "max_stall", "anonymous", "follow", "report"])]
    pub from: Option<PathBuf>,
    /// Stop after this time. [default: 5s, or until q is pressed with --follow]
    #[arg(long = "for", alias = "duration", value_name = "TIME", value_parser = parse_some_time)]
    pub duration: Option<Duration>,
    /// Length of a sample of accesses. [default: 50ms to 10s, longer while nothing changes]
    #[arg(long, value_name = "TIME", value_parser = parse_some_time)]
    pub interval: Option<Duration>,
    #[command(flatten)]
    pub tracking: TrackingArgs,
    /// Refuse a process that a sample would keep from mapping memory for longer than this: 100us to 100ms; 0: no bound. [default: 100ms]
    ///
    /// A sample clears the accessed bits of all base pages in one go, 20 to 110 ns each. A process with many GiB of base pages waits for that, and
    /// slows down while it accesses its pages again.
    #[arg(long, value_name = "TIME", value_parser = parse::max_stall)]
    pub max_stall: Option<Duration>,
    /// Leave out mapped files and shared memory.
    #[arg(long)]
    pub anonymous: bool,
    /// List pages with the number of samples in which they were accessed; neighbors with the same number share a line. A big process has
    /// many thousands of lines. [default: one line for each mapping]
    #[arg(long, conflicts_with_all = ["json", "follow"])]
    pub list_pages: bool,
    /// Draw memory over time and the hot set into this file: SVG or PNG, by its name. Repeatable.
    #[arg(long = "plot", value_name = "FILE.svg|FILE.png", value_hint = ValueHint::FilePath,
          value_parser = parse_picture)]
    pub plots: Vec<PathBuf>,
    /// Write the whole result as JSON to this file, for --from.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Print that JSON on standard output instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Show accesses live in the terminal; q ends it.
    #[arg(long, conflicts_with = "json")]
    pub follow: bool,
    #[command(flatten)]
    pub width: WideArgs,
}

/// `superhue track`.
#[derive(Debug, Args)]
pub struct TrackArgs {
    /// Path of the socket. Its folder is made if it is missing; every user may connect.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath,
          default_value = superhue_client::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Largest number of clients at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_clients: u32,
    /// Largest memory of the service for all its clients together: at least 16M. When that does not suffice, the service drops the client that takes
    /// most. About 2 bytes for a tracked page, 48 for an active one.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_track_memory)]
    pub max_memory: ByteCount,
    #[command(flatten)]
    pub tracking: TrackingArgs,
}

/// `superhue daemon`.
#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// Folder of the configuration. Files that users other than root can write are refused.
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath,
          default_value = superhue_daemon::DEFAULT_FOLDER)]
    pub config: PathBuf,
    /// Path of the socket for `superhue ctl`. Its folder is made if it is missing.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath,
          default_value = superhue_daemon::ctl::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Do not serve: check the configuration, list the processes that match each rule now, and warn of rules
    /// that match nothing.
    #[arg(long)]
    pub check: bool,
    /// With --check: print JSON.
    #[arg(long, requires = "check")]
    pub json: bool,
    #[command(flatten)]
    pub width: WideArgs,
}

/// `superhue actuator`, whose standard input is the user's connection.
#[derive(Debug, Args)]
pub struct ActuatorArgs {
    /// Permissions of the client, as JSON.
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
    /// The request.
    #[command(subcommand)]
    pub request: CtlRequest,
    /// Path of the daemon's socket.
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::FilePath,
          default_value = superhue_daemon::ctl::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Print the daemon's answer, or the result of a trial, as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Show all columns and whole names, wider than the terminal if need be.
    #[arg(long, global = true)]
    pub wide: bool,
}

/// Requests to the daemon.
#[derive(Debug, Clone, Subcommand)]
pub enum CtlRequest {
    /// Show services by rule: memory, coverage, actions, cost. Rules without a process are listed, too.
    Status,
    /// Show the rules in force, in the order in which they are tried.
    Rules,
    /// Show the rule that a process belongs to, and the reason why each rule before it does not match.
    #[command(mut_arg("processes", |arg| arg.help(ONE_PROCESS)))]
    Why {
        #[command(flatten)]
        targets: TargetArgs,
    },
    /// Print the daemon's metrics in Prometheus' text format, for example for the textfile collector of node_exporter.
    Metrics {
        /// Print OpenMetrics 1.0.0 instead of Prometheus' text format.
        #[arg(long)]
        openmetrics: bool,
    },
    /// Stop all actions until `superhue ctl resume`; the daemon goes on watching.
    ///
    /// This survives a restart of the daemon, but not a reboot. To stop for good: `systemctl disable --now superhue`.
    Pause,
    /// Resume actions after `pause`.
    Resume,
    /// Reload the configuration. If it is wrong, the errors are printed and the rules in force stay.
    Reload,
    /// Measure whether a rule is worth it for its processes: switch its huge pages off and on, as `superhue trial --present` does.
    ///
    /// The trial has the policy, the budget and the bounds of the rule, and all its processes, also those that start meanwhile. The daemon leaves them
    /// alone, and acts by its other rules as always. When the trial ends, also by a kill, the daemon acts by the rule again. If the trial is
    /// stopped or hangs, the daemon does so after 60 s. Memory that was huge is huge again at the end; after
    /// a kill, the daemon collapses again what the rule wants.
    ///
    /// Rules that place memory by page colors cannot be tried.
    ///
    /// Capability: that of `attach`, since superhue switches the memory by itself; only root and members of the group superhue may ask the daemon.
    #[command(after_help = trial_args::RULE_EXIT_HELP)]
    Trial(Box<RuleTrialArgs>),
}

/// `superhue colors`.
#[derive(Debug, Args)]
pub struct ColorsArgs {
    /// Test this oracle only. [default: all, and use the first that is right]
    #[arg(long, value_name = "NAME", value_parser = oracles())]
    pub oracle: Option<OracleKind>,
    /// Masks by which oracle pfn computes colors, for caches with a hashed index: a file with one hexadecimal mask on each line. The
    /// parity of the physical address bits that a mask selects is one bit of the color; # begins a comment.
    /// [default: the bits that follow from the size and the ways of the cache]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub index: Option<PathBuf>,
    /// Measure on this CPU. [default: the CPU on which superhue runs]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(0..65_536))]
    pub cpu: Option<u32>,
    /// Prove the colors: measure the latency by the number of pages, for pages of one color, of a quarter of the
    /// colors, of half, of all, and as the kernel places them. The cache must hold as many pages of one color as it has
    /// ways, and not one more.
    #[arg(long)]
    pub verify: bool,
    /// Draw the result of --verify into this file: SVG or PNG, by its name. Repeatable.
    #[arg(long = "plot", value_name = "FILE.svg|FILE.png", value_hint = ValueHint::FilePath,
          value_parser = parse_picture)]
    pub plots: Vec<PathBuf>,
    /// Measure each size 3 times instead of 9.
    #[arg(long, requires = "verify")]
    pub quick: bool,
    /// Memory to test on: 2M to 4G, in whole pages. [default: 32M, or 16 times the cache]
    #[arg(long, value_name = "SIZE", value_parser = parse_pool)]
    pub pool: Option<ByteCount>,
    /// Measure nothing: remove the palette, the file of eviction sets that processes share (/run/superhue/palette for
    /// root, else below $XDG_RUNTIME_DIR). It is made again when needed.
    #[arg(long, exclusive = true)]
    pub forget: bool,
    /// Measure nothing: show a result written by --report or --json again, or draw it with --plot.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["oracle", "index", "cpu", "verify", "pool", "report"])]
    pub from: Option<PathBuf>,
    /// Choose colors for tasks that must not evict each other from the cache. The file has their CPUs, their schedule, and the colors that each
    /// needs, or its cost by number of colors (/usr/share/doc/superhue/guide/page-colors.md). Tasks that may run at the same time get sets without a color in
    /// common. Exit status 3 if the tasks do not fit, with those that need too many colors, and what would make room.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["from", "verify", "plots"])]
    pub plan: Option<PathBuf>,
    /// With --plan: for a cache with this number of colors, of this or another machine. [default: the colors of this machine, as the first
    /// oracle that is right finds them]
    #[arg(long, value_name = "COLORS", requires = "plan", value_parser = clap::value_parser!(u32).range(1..=4096),
          conflicts_with_all = ["oracle", "index", "cpu", "pool"])]
    pub of: Option<u32>,
    /// Write the whole result as JSON to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub width: WideArgs,
}

/// `superhue restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Reads a size that has some pages of each color, and is no more than a test may take of a machine.
fn parse_pool(text: &str) -> Result<ByteCount, String> {
    const MIN_POOL_SIZE: ByteCount = ByteCount(2 << 20);
    const MAX_POOL_SIZE: ByteCount = ByteCount(4 << 30);
    let size: ByteCount = text.parse().map_err(|error| format!("{error}"))?;
    if size < MIN_POOL_SIZE || size > MAX_POOL_SIZE || !size.0.is_multiple_of(BASE_PAGE_SIZE) {
        return Err(format!(
            "a pool has {MIN_POOL_SIZE} to {MAX_POOL_SIZE}, in whole pages"
        ));
    }
    Ok(size)
}

/// Default of `--max-memory`: 1G.
pub const DEFAULT_TRACK_MEMORY: ByteCount = ByteCount(1 << 30);

/// Smallest value of `--max-memory`: room for one list while it is built.
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
