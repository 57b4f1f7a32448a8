//! `--follow`: live in the terminal.

mod screen;

use std::time::{Duration, Instant};

use superhue_plot::{EndReason, Heat};

use crate::output::{Failure, USAGE};
use crate::terminal::{Ending, Event, Key, Screen, is_there};

use super::watch::WatchedProcess;

use screen::{Colors, draw};

/// Interval at which the figures are drawn again, even without a new sample.
const AGAIN: Duration = Duration::from_secs(1);

/// Fails if there is no terminal to draw in.
pub(super) fn check_terminal() -> Result<(), Failure> {
    if is_there() {
        return Ok(());
    }
    Err(Failure::new(
        USAGE,
        "--follow needs a terminal for its input and output; without one use --json or --plot",
    ))
}

/// Shows the process until the user ends that, or the time expires. Returns the samples, and the kind of hangup, if the terminal hung up.
pub(super) fn follow(mut watching: WatchedProcess) -> (Result<Heat, Failure>, Option<Ending>) {
    let ended = Screen::open().and_then(|mut screen| live(&mut watching, &mut screen));
    match ended {
        Ok((ended, ending)) => (watching.finish(ended), ending.filter(|it| it.is_hangup())),
        Err(failure) => (Err(failure), None),
    }
}

fn live(
    watching: &mut WatchedProcess,
    screen: &mut Screen,
) -> Result<(EndReason, Option<Ending>), Failure> {
    let colors = Colors::of_terminal();
    let mut shown = watching.recent();
    let mut drawn: Option<Instant> = None;
    let mut exited = false;
    let ended = |exited| {
        if exited {
            EndReason::Exited
        } else {
            EndReason::Interrupted
        }
    };
    loop {
        let mut changed = drawn.is_none();
        if !exited {
            changed |= watching.step()?;
            match watching.ended() {
                // The last samples stay on the screen until the user has looked at them.
                Some(EndReason::Exited) => (exited, changed) = (true, true),
                Some(over) => return Ok((over, None)),
                None => {}
            }
        }
        if changed || drawn.is_some_and(|drawn| !exited && drawn.elapsed() >= AGAIN) {
            shown = watching.recent();
            if let Err(ending) = show(screen, &shown, exited, colors) {
                return Ok((ended(exited), Some(ending)));
            }
            drawn = Some(Instant::now());
        }
        let pause = if exited { AGAIN } else { watching.pause() };
        match screen.next(pause) {
            Event::Nothing => {}
            Event::Redraw => {
                if let Err(ending) = show(screen, &shown, exited, colors) {
                    return Ok((ended(exited), Some(ending)));
                }
            }
            Event::Key(Key::Char('q') | Key::Escape | Key::Control('c')) => {
                return Ok((ended(exited), None));
            }
            Event::Key(_) => {}
            Event::Ended(ending) => return Ok((ended(exited), Some(ending))),
        }
    }
}

fn show(screen: &mut Screen, heat: &Heat, exited: bool, colors: Colors) -> Result<(), Ending> {
    let hint = if exited {
        "the process has exited; q ends"
    } else {
        "q ends"
    };
    screen.draw(|buffer| {
        let area = buffer.area;
        draw(buffer, area, heat, hint, colors);
    })
}
