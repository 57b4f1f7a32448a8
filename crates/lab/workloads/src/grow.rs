//! `grow`: memory that becomes resident step by step, like a filling cache or a growing heap.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

use crate::coverage::CoverageMeter;
use crate::memory::{Mapping, touch};
use crate::{Report, UsageError, access, args, procfs};

/// Upper limit of steps in one run; each step may take an hour, and the run [`MAX_RUN_TIME`] in all.
const MOST_STEPS: u64 = 1 << 20;

/// Upper limit of the run in all.
const MAX_RUN_TIME: Duration = Duration::from_secs(3600);

/// Options of `grow`.
#[derive(Debug, Clone, clap::Args)]
pub struct GrowOptions {
    /// Memory to add at each step
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = args::size)]
    pub step: ByteCount,
    /// Time from one step to the next
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = args::time)]
    pub every: Duration,
    /// Memory at which to stop
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = args::size)]
    pub to: ByteCount,
    /// Time to stay there
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = args::time)]
    pub hold: Duration,
}

/// Grows the memory step by step.
///
/// Prints `steps`, `step_fill_seconds` (median time to touch one step), `coverage`, `rss_bytes`.
///
/// # Errors
/// If it would take more than an hour, there is not enough memory, or the output is closed.
pub fn run(options: &GrowOptions, report: &mut Report<impl Write>) -> Result<()> {
    let steps = options.to.0.div_ceil(options.step.0);
    let time = u32::try_from(steps)
        .ok()
        .filter(|_| steps <= MOST_STEPS)
        .and_then(|steps| options.every.checked_mul(steps));
    if time.is_none_or(|time| time > MAX_RUN_TIME) {
        let text = format!(
            "{steps} steps of {}, one every {:?}, take more than an hour",
            options.step, options.every
        );
        return Err(UsageError(text).into());
    }
    let mapping = Mapping::to_fill(options.to)?;
    let pages: Vec<_> = mapping.pages().collect();
    let pages = &pages[..pages
        .len()
        .min(usize::try_from(options.to.whole_pages().0)?)];
    let per_step = usize::try_from(options.step.0.div_ceil(BASE_PAGE_SIZE))?;

    let start = Instant::now();
    let (mut times, mut due, mut number) = (Vec::new(), Duration::ZERO, 0);
    for step in pages.chunks(per_step) {
        thread::sleep(due.saturating_sub(start.elapsed()));
        due += options.every;
        let began = Instant::now();
        for page in step {
            touch(page, number);
            number += 1;
        }
        times.push(began.elapsed().as_secs_f64());
    }
    thread::sleep(options.hold);
    report.line("steps", times.len())?;
    let median = access::median(&mut times).unwrap_or(f64::NAN);
    report.number("step_fill_seconds", median)?;
    report.number("coverage", CoverageMeter::new(&mapping)?.share()?)?;
    report.line("rss_bytes", procfs::own_rss()?.0)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(step: u64, every: Duration, to: u64) -> GrowOptions {
        GrowOptions {
            step: ByteCount(step),
            every,
            to: ByteCount(to),
            hold: Duration::ZERO,
        }
    }

    #[test]
    fn the_last_step_may_be_short() {
        let mut text = Vec::new();
        let options = options(3 << 20, Duration::ZERO, 8 << 20);
        run(&options, &mut Report::new(&mut text)).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("steps 3\n"), "{text}");
    }

    #[test]
    fn endless_growth_is_refused() {
        for options in [
            options(4096, Duration::from_secs(1), 1 << 40),
            options(4096, Duration::ZERO, 1 << 44),
            options(64 << 20, Duration::from_secs(3600), 1 << 30),
        ] {
            let error = run(&options, &mut Report::new(Vec::new())).unwrap_err();
            assert!(error.is::<UsageError>(), "{error}");
        }
    }
}
