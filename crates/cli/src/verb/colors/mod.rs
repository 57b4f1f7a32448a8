//! `superhue colors`.
//!
//! ```text
//!   caches ──> claim ──> oracles, each tested ──> the first trusted one ──> curves ──> table, JSON, pictures
//!   (sysfs)             (kernel, pfn, offset, ...)                         (--verify)
//! ```

mod cache;
mod cpu;
mod document;
mod kernel;
mod oracles;
mod plan;
mod show;
mod table;

use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use superhue::coloring_of_machine;
use superhue::model::{BASE_PAGE_SIZE, ByteCount, ColorIndex};
use superhue::page_colors::oracles::{
    Backing, HardwareProbe, OracleKind, Sample, Search, SharedPalette,
};
use superhue::procfs::Roots;
use superhue::procfs::hardware::{AssessedCache, Cpuid, Hardware, between_cpus};
use superhue::procfs::system::PageColors;
use superhue::state::read_regular;
use superhue_bench::verify::{Subject, verify};
use superhue_plot::Latency;

use crate::args::ColorsArgs;
use crate::output::{FAILED, Failure, UNABLE, USAGE, VerbResult, print};

use super::outputs::Outputs;
use cache::Claim;
use document::{Document, SCHEMA};
use kernel::Kernel;
use oracles::{OracleInputs, TestedOracle};

/// Least memory to try oracles on, and that memory as a multiple of the cache.
const POOL: ByteCount = ByteCount(32 << 20);
const CACHES: u64 = 16;
/// Repetitions of each point of --verify, normally and with --quick.
const REPETITIONS: usize = 9;
const QUICK: usize = 3;
/// Largest file of masks: hundreds of times more than makes sense.
const LARGEST_INDEX: u64 = 64 << 10;

/// Shows the colors of this machine's caches, and the oracles that find them.
pub fn colors(args: &ColorsArgs) -> VerbResult {
    if let Some(path) = &args.from {
        return show::again(args, path);
    }
    if args.forget {
        return forget();
    }
    let hint = |_: &std::process::ExitCode| {
        // A plan --of other colors is for another machine.
        if !args.json && args.of.is_none() {
            super::resctrl_hint::show();
        }
    };
    if let Some(path) = &args.plan {
        return plan::show(args, path).inspect(hint);
    }
    if !args.plots.is_empty() && !args.verify {
        return Err(Failure::new(
            USAGE,
            "--plot draws what --verify measures: give both, or --from FILE",
        ));
    }
    let index = (args.index.as_deref()).map(read_index).transpose()?;
    let outputs = Outputs::open(args.report.as_ref(), &args.plots)?;
    match survey(args, index) {
        Ok(document) => {
            let code = show::write(args, outputs, &document);
            code.and_then(|code| verdict(args, &document, code))
                .inspect(hint)
        }
        Err(failure) => {
            outputs.abandon();
            Err(failure)
        }
    }
}

/// Returns a failure after the output if no oracle is trusted, or the verification failed.
fn verdict(args: &ColorsArgs, document: &Document, code: std::process::ExitCode) -> VerbResult {
    let unable = |reason: String| Err(Failure::new(UNABLE, reason));
    let Some(used) = document.used else {
        let of = args.oracle.map_or("no oracle", OracleKind::name);
        let reasons: Vec<String> = (document.oracles.iter())
            .filter_map(|oracle| Some(format!("{}: {}", oracle.name, oracle.reason.as_ref()?)))
            .collect();
        let reasons = reasons.join("; ");
        return unable(match args.oracle {
            Some(_) => format!("oracle {reasons}"),
            None => format!("{of} can be trusted here: {reasons}"),
        });
    };
    match (&document.verification, &document.verification_reason) {
        (Some(latency), _) if !latency.cliff.holds() => {
            let found = latency.cliff.found_pages;
            let found =
                found.map_or_else(|| "nowhere".to_owned(), |pages| format!("at {pages} pages"));
            unable(format!(
                "oracle {used} is refused: the cliff of one color stands {found}, not at {}",
                latency.cliff.expected_pages
            ))
        }
        (None, Some(reason)) => unable(format!("the colors could not be verified: {reason}")),
        _ => Ok(code),
    }
}

fn survey(args: &ColorsArgs, index: Option<ColorIndex>) -> Result<Document, Failure> {
    let hardware = Hardware::read(&Roots::default(), &Cpuid::native());
    let online = hardware.cpu.as_ref().ok().map(|cpu| &cpu.online);
    let cpu = cpu::stay_on(args.cpu, online)?;
    let processor = (hardware.cpu.as_ref().ok()).and_then(|cpu| cpu.model.clone());
    let (caches, caches_reason) = match hardware.caches {
        Ok(caches) => (caches, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let mine = cache::of_cpu(&caches, cpu);
    let coloring = PageColors::read(&Roots::default());
    let surroundings = OracleInputs {
        claim: Claim::of(mine),
        index,
        pool: args.pool.unwrap_or_else(|| pool_for(mine)),
        virtualization: &hardware.virtualization,
        coloring: &coloring,
    };
    let mut probe = HardwareProbe::new().map_err(|error| Failure::new(UNABLE, error))?;
    let bar = progress_bar();
    let mut tried: Vec<TestedOracle> = Vec::new();
    for kind in OracleKind::ALL {
        // A kernel without page coloring is not mentioned, unless --oracle names it.
        let is_there = kind != OracleKind::Kernel || coloring.is_ok();
        if args.oracle.map_or(is_there, |only| only == kind) {
            bar.set_message(format!("testing oracle {}", kind.name()));
            tried.push(surroundings.try_patiently(kind, &mut probe));
        }
    }
    let cache = mine.map_or_else(|| "cache".to_owned(), |judged| judged.cache.name());
    let oracles = tried
        .iter()
        .map(|tried| (&tried.judgement).into())
        .collect();
    let kernel = coloring_of_machine(&Roots::default()).ok().flatten();
    let calculated = surroundings.calculated().ok();
    let kernel = kernel.map(|coloring| Kernel::new(coloring, &mut tried, calculated.as_ref()));
    let used = tried.into_iter().find(|tried| tried.judgement.is_trusted());
    let palette = used.as_ref().and_then(|used| used.palette.clone());
    let used_name = used.as_ref().map(|used| used.judgement.kind.name());
    let verification = match used {
        Some(used) if args.verify => {
            let repetitions = if args.quick { QUICK } else { REPETITIONS };
            let about = VerificationFacts {
                cache: cache.clone(),
                processor: processor.clone(),
                ways: used.ways,
                repetitions,
            };
            Some(verified(used, about, &mut probe, &bar))
        }
        _ => None,
    };
    bar.finish_and_clear();
    let (verification, verification_reason) = match verification {
        Some(Ok(latency)) => (Some(latency), None),
        Some(Err(reason)) => (None, Some(reason)),
        None => (None, None),
    };
    Ok(Document {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        cpu,
        processor,
        pool_bytes: surroundings.pool.0,
        virtualization: hardware.virtualization.clone(),
        caches_reason,
        between_cpus: between_cpus(&hardware.partitions),
        partitions: hardware.partitions,
        cache,
        caches,
        oracles,
        kernel,
        used: used_name,
        palette,
        verification,
        verification_reason,
    })
}

/// Removes the palettes of this user; processes that use one keep it.
fn forget() -> VerbResult {
    let gone = SharedPalette::forget(&oracles::palettes(Search::default()));
    let gone = gone.map_err(|error| Failure::new(FAILED, error))?;
    if gone.is_empty() {
        return print("There was no palette of this user.\n");
    }
    let lines = gone
        .iter()
        .map(|path| format!("removed {}\n", path.display()));
    print(&lines.collect::<String>())
}

/// Facts for a verification besides the colors.
struct VerificationFacts {
    cache: String,
    processor: Option<String>,
    ways: usize,
    repetitions: usize,
}

fn verified(
    used: TestedOracle,
    about: VerificationFacts,
    probe: &mut HardwareProbe,
    bar: &ProgressBar,
) -> Result<Latency, String> {
    let kind = used.judgement.kind;
    let (Some(mut oracle), Some(sample)) = (used.oracle, used.sample) else {
        return Err("the oracle is gone".to_owned());
    };
    let pages = sample.pages();
    let mut colors = vec![None; pages.len()];
    oracle
        .classify(pages, &mut colors)
        .map_err(|error| error.to_string())?;
    // The pages that the kernel dealt by color differ from those of a process that requests no color.
    let plain = match kind {
        OracleKind::Kernel => {
            let size = ByteCount(pages.len() as u64 * BASE_PAGE_SIZE);
            let plain = Sample::new(size, Backing::BasePages);
            Some(plain.map_err(|error| format!("no memory to compare with: {error}"))?)
        }
        _ => None,
    };
    bar.set_message(format!(
        "measuring latency by colors of oracle {}",
        kind.name()
    ));
    let subject = Subject {
        cache: about.cache,
        oracle: kind.name(),
        processor: about.processor,
        ways: about.ways,
        pages,
        colors: &colors,
        plain: plain.as_ref().map_or(pages, Sample::pages),
        number_of_colors: oracle.colors(),
        repetitions: about.repetitions,
    };
    verify(probe, &subject, &|share| {
        bar.set_position(percent(share));
    })
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share between 0 and 1"
)]
fn percent(share: f64) -> u64 {
    (share * 100.0) as u64
}

fn pool_for(cache: Option<&AssessedCache>) -> ByteCount {
    let size = cache
        .and_then(|judged| judged.cache.size)
        .unwrap_or_default();
    POOL.max(ByteCount(size.0.saturating_mul(CACHES)))
}

/// A bar that is drawn on a terminal only.
fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {percent:>3} %") {
        bar.set_style(style);
    }
    bar
}

fn read_index(path: &Path) -> Result<ColorIndex, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::new(
            FAILED,
            format!("cannot read the masks in {}: {error}", path.display()),
        )
    };
    let text = read_regular(path, LARGEST_INDEX).map_err(|error| failed(&error))?;
    let text = String::from_utf8(text).map_err(|_| failed(&"it is no text (UTF-8)"))?;
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::new(USAGE, format!("--index {}: {error}", path.display()))
    };
    let index = ColorIndex::parse(&text).map_err(|error| wrong(&error))?;
    if index.colors() < 2 {
        return Err(wrong(&"the masks make one color only"));
    }
    Ok(index)
}
