//! `--follow`: live in the terminal.
//!
//! Signals that end superhue are held back and asked for, so that the terminal is restored before
//! it ends; for a panic there is ratatui's hook.

mod screen;

use std::io::{stdin, stdout};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use superhue::sys::process::SignalSet;
use superhue_plot::{Ended, Heat};

use crate::output::{FAILED, Failure, USAGE};

use super::watch::Watching;

use screen::{Colors, draw};

/// Longest wait for a key: how late a signal may be noticed.
const KEYS: Duration = Duration::from_millis(100);
/// The figures are drawn again this often, even without a new sample.
const AGAIN: Duration = Duration::from_secs(1);

/// Says so if there is no terminal to draw in.
pub(super) fn check_terminal() -> Result<(), Failure> {
    let is_terminal = rustix::termios::isatty(stdin()) && rustix::termios::isatty(stdout());
    if is_terminal {
        return Ok(());
    }
    Err(Failure::new(
        USAGE,
        "--follow needs a terminal for its input and output; without one use --json or --plot",
    ))
}

/// Shows the process until somebody ends it, or the time is over.
pub(super) fn follow(mut watching: Watching, signals: &SignalSet) -> Result<Heat, Failure> {
    let mut terminal = ratatui::try_init().map_err(|error| {
        Failure::new(
            FAILED,
            anyhow::Error::from(error).context("cannot use the terminal for --follow"),
        )
    })?;
    let ended = live(&mut watching, signals, &mut terminal);
    ratatui::restore();
    watching.finish(ended?)
}

fn live(
    watching: &mut Watching,
    signals: &SignalSet,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<Ended, Failure> {
    let fail = |error: std::io::Error| {
        Failure::new(
            FAILED,
            anyhow::Error::from(error).context("the terminal failed"),
        )
    };
    let colors = Colors::of_terminal();
    let mut shown = watching.recent();
    let mut drawn: Option<Instant> = None;
    let mut exited = false;
    loop {
        let mut changed = drawn.is_none();
        if !exited {
            changed |= watching.step()?;
            match watching.ended() {
                // What was seen last stays until somebody has looked at it.
                Some(Ended::Exited) => (exited, changed) = (true, true),
                Some(ended) => return Ok(ended),
                None => {}
            }
        }
        if changed || drawn.is_some_and(|drawn| !exited && drawn.elapsed() >= AGAIN) {
            shown = watching.recent();
            show(terminal, &shown, exited, colors).map_err(fail)?;
            drawn = Some(Instant::now());
        }
        let pause = if exited {
            KEYS
        } else {
            watching.pause().min(KEYS)
        };
        match wait_for_input(pause).map_err(fail)? {
            Input::Gone => return Ok(ending(exited)),
            Input::None => {}
            Input::Some => {
                if event::poll(Duration::ZERO).map_err(fail)? {
                    match event::read().map_err(fail)? {
                        Event::Key(key) if ends(key) => return Ok(ending(exited)),
                        Event::Resize(..) => {
                            show(terminal, &shown, exited, colors).map_err(fail)?
                        }
                        _ => {}
                    }
                }
            }
        }
        if signals.wait(Duration::ZERO).is_some() {
            return Ok(ending(exited));
        }
    }
}

/// What waiting for the terminal came to.
enum Input {
    None,
    Some,
    /// Nobody is at the other end any more.
    Gone,
}

/// Waits for input. Not left to crossterm, which reads a terminal that was hung up for ever.
fn wait_for_input(pause: Duration) -> std::io::Result<Input> {
    let input = stdin();
    let mut fds = [PollFd::new(&input, PollFlags::IN)];
    let timeout = Timespec::try_from(pause).unwrap_or_default();
    match poll(&mut fds, Some(&timeout)) {
        // A change of the terminal's size is told by a signal.
        Err(Errno::INTR) => return Ok(Input::Some),
        found => found?,
    };
    let found = fds[0].revents();
    Ok(
        if found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            Input::Gone
        } else if found.contains(PollFlags::IN) {
            Input::Some
        } else {
            Input::None
        },
    )
}

fn ending(exited: bool) -> Ended {
    if exited {
        Ended::Exited
    } else {
        Ended::Interrupted
    }
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    heat: &Heat,
    exited: bool,
    colors: Colors,
) -> std::io::Result<()> {
    let hint = if exited {
        "the process has exited; q ends"
    } else {
        "q ends"
    };
    terminal.draw(|frame| {
        let area = frame.area();
        draw(frame.buffer_mut(), area, heat, hint, colors);
    })?;
    Ok(())
}

/// Whether a key ends it: `q`, Escape, or Ctrl-C, which is but a key here.
fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind != KeyEventKind::Release
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => control,
            _ => false,
        }
}
