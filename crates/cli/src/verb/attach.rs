//! `superhue attach`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use superhue::live::WatchAccount;
use superhue::model::ByteCount;
use superhue::procfs::{ReadError, Roots};
use superhue::{AttachError, ColorsError, EarlierAttempts, Pages, Report};

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
    let targets = targets(&Roots::default(), &args.targets)?;
    recover(args.quiet);
    let report_file =
        ReportFile::open_if(args.report.as_ref()).map_err(|error| Failure::new(FAILED, error))?;
    let mut config = args.placement.config();
    args.colors.add_to(&mut config);
    let mut limit = args
        .duration
        .or(config.dry_run.then_some(Duration::from_secs(1)));
    // A process held it up, and it begins anew: the budget and the time go on.
    let earlier = in_two::earlier();
    if let Some((passed, charged)) = earlier {
        config.carried = ByteCount(charged);
        config.has_advance = false;
        limit = limit.map(|limit| limit.saturating_sub(passed));
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
        // At the end, since a process that holds superhue up makes this verb begin anew.
        resctrl_hint::show_for(&args.colors.colors);
    }
    let written = write_if_given(report_file, &report);
    let code = match args.json {
        true => print_json(&report)?,
        false => ExitCode::SUCCESS,
    };
    written.map(|()| code)
}
