//! `superhue attach`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use superhue::live::WatchAccount;
use superhue::model::ByteCount;
use superhue::procfs::process::identify;
use superhue::procfs::{ReadError, Roots};
use superhue::{AttachError, ColorsError, EarlierAttempts, Pages, Report, Targets, since_boot};

use crate::args::AttachArgs;
use crate::in_two;
use crate::output::{FAILED, Failure, UNABLE, USAGE, VerbResult, note, print_json};
use crate::size_check::check_budget;
use crate::undo::recover;
use crate::verb::attach_news::News;
use crate::verb::ending::EndingSignals;
use crate::verb::members::{check_follow, code_of, targets};
use crate::verb::outputs::write_if_given;
use crate::verb::report_file::ReportFile;
use crate::verb::resctrl_hint;

/// Watches processes until interrupted.
pub fn attach(args: &AttachArgs) -> VerbResult {
    check_budget(args.placement.budget)?;
    if args.placement.pages == Some(Pages::Never) {
        return Err(Failure::new(
            USAGE,
            "--pages never is for commands that superhue starts: in a running program huge pages cannot be switched off; restart it under \
             `superhue run --pages never`",
        ));
    }
    (args.placement.check_effect(&args.colors.colors)).map_err(|text| Failure::new(USAGE, text))?;
    check_follow(&args.targets, args.placement.no_follow)?;
    let mut targets = targets(&Roots::default(), &args.targets)?;
    recover(args.quiet);
    let report_file =
        ReportFile::open_if(args.report.as_ref()).map_err(|error| Failure::new(FAILED, error))?;
    let mut config = args.placement.config();
    args.colors.add_to(&mut config);
    let mut limit = args
        .duration
        .or(config.dry_run.then_some(Duration::from_secs(1)));
    // A process held it up, and it begins again: the budget and the time continue.
    let earlier = in_two::earlier();
    if let Some((passed, charged)) = earlier {
        config.carried = ByteCount(charged);
        config.has_advance = false;
        limit = limit.map(|limit| limit.saturating_sub(passed));
        targets = still_there(&Roots::default(), targets, passed);
    }
    let signals = EndingSignals::hold();
    let interrupted = |pause| signals.wait(pause);
    let (mut news, begun) = (News::default(), Instant::now());
    let tell = |account: &WatchAccount| {
        if !args.quiet {
            let lines = news.lines(account, begun.elapsed());
            lines.iter().for_each(|line| note(line));
        }
    };
    let result = superhue::attach(&config, &targets, limit, interrupted, tell);
    signals.release();
    let report = match result {
        Ok(report) => Report {
            earlier: earlier.map(|(passed, charged)| EarlierAttempts {
                seconds: passed.as_secs_f64(),
                charged_bytes: ByteCount(charged),
            }),
            ..report
        },
        Err(error) => {
            if let Some(file) = report_file {
                file.abandon();
            }
            let code = match &error {
                AttachError::Cgroup(error) => code_of(error),
                AttachError::MayNotAct(_)
                | AttachError::Tracker(_)
                | AttachError::Colors(ColorsError::Oracle(_) | ColorsError::Kernel(_))
                | AttachError::Read(ReadError::Denied { .. } | ReadError::ForeignProc { .. }) => {
                    UNABLE
                }
                AttachError::Colors(ColorsError::Request { .. }) => USAGE,
                _ => FAILED,
            };
            return Err(Failure::new(code, error));
        }
    };
    if !args.json && !args.quiet {
        report.lines().iter().for_each(|line| note(line));
        // At the end, since a process that holds superhue up makes this verb begin again.
        resctrl_hint::show_for(&args.colors.colors);
    }
    let written = write_if_given(report_file, &report);
    let code = match args.json {
        true => print_json(&report)?,
        false => ExitCode::SUCCESS,
    };
    written.map(|()| code)
}

/// Returns the targets without named processes that are gone, in an attempt that begins `passed` after the first one: others are still to be
/// watched. A process that is left alone looks as if it were gone, and a process that started since then is another one that has got the number.
///
/// Returns the targets as they are if none of their processes is left: the error then names one.
fn still_there(roots: &Roots, targets: Targets, passed: Duration) -> Targets {
    let Targets::Processes(pids) = &targets else {
        return targets;
    };
    let begun = since_boot().saturating_sub(passed).as_millis();
    let second = u128::from(rustix::param::clock_ticks_per_second()).max(1);
    let is_there = |&pid: &u32| {
        identify(roots, pid).is_ok_and(|id| u128::from(id.start_ticks) * 1000 / second <= begun)
    };
    let there: Vec<u32> = pids.iter().copied().filter(is_there).collect();
    match there.is_empty() {
        true => targets,
        false => Targets::Processes(there),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn later_attempts_leave_out_what_is_gone() {
        let roots = Roots::default();
        let own = std::process::id();
        let kept = |pids: &[u32], passed| match still_there(
            &roots,
            Targets::Processes(pids.to_vec()),
            passed,
        ) {
            Targets::Processes(pids) => pids,
            other => panic!("{other:?}"),
        };
        // No process has this number (`pid_max` is at most 2^22).
        let gone = 1 << 22;
        assert_eq!(kept(&[own, gone], Duration::ZERO), [own]);
        assert_eq!(kept(&[gone], Duration::ZERO), [gone]);
        // Start times have a resolution of 10 ms.
        thread::sleep(Duration::from_millis(50));
        let first_attempt = Instant::now();
        thread::sleep(Duration::from_millis(50));
        let mut later = Command::new("sleep").arg("60").spawn().unwrap();
        let pids = [own, later.id()];
        // A thread that is stopped between two reads of the clock takes a later moment for that of the first attempt.
        let still = loop {
            let passed = first_attempt.elapsed();
            let still = kept(&pids, passed);
            if first_attempt.elapsed() - passed < Duration::from_millis(40) {
                break still;
            }
        };
        let now = kept(&pids, Duration::ZERO);
        later.kill().unwrap();
        later.wait().unwrap();
        assert_eq!((still, now), (vec![own], pids.to_vec()));
        let all = still_there(&roots, Targets::All, Duration::ZERO);
        assert!(matches!(all, Targets::All), "{all:?}");
    }
}
