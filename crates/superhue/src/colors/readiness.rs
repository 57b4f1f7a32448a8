//! Making the visiting process ready to tell colors, beside the command that runs already.
//!
//! It takes a tenth of a second, and longer where the colors have to be found anew. Most programs that are short end before
//! anything is to be placed: for them it is not done at all.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use super::palette;
use crate::visits::Visits;

/// Whether colors can be told, which is found out when it is first asked.
#[derive(Debug)]
pub(super) struct Readiness {
    /// The palette, and how many colors it has.
    palette: PathBuf,
    colors: usize,
    visits: Visits,
    state: State,
}

#[derive(Debug)]
enum State {
    NotAsked,
    UnderWay(Receiver<Result<(), String>>),
    Ready,
    /// Why they cannot.
    Never(String),
}

impl Readiness {
    pub(super) fn new(palette: &Path, colors: usize, visits: &Visits) -> Self {
        Self {
            palette: palette.to_owned(),
            colors,
            visits: visits.clone(),
            state: State::NotAsked,
        }
    }

    /// Whether colors can be told by now; if that was never asked, begins to see to it.
    pub(super) fn is_given(&mut self) -> bool {
        if let State::NotAsked = self.state {
            self.state = self.begin();
        }
        if let State::UnderWay(end) = &self.state {
            match end.try_recv() {
                Ok(Ok(())) => self.state = State::Ready,
                Ok(Err(why)) => self.state = State::Never(why),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    self.state = State::Never("the test of its colors did not end well".to_owned());
                }
            }
        }
        matches!(self.state, State::Ready)
    }

    /// Whether it is being seen to.
    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self.state, State::UnderWay(_))
    }

    /// Why colors cannot be told, if that is known.
    pub(super) fn trouble(&self) -> Option<&str> {
        match &self.state {
            State::Never(why) => Some(why),
            _ => None,
        }
    }

    fn begin(&self) -> State {
        let (done, end) = channel();
        let (palette, colors, visits) = (self.palette.clone(), self.colors, self.visits.clone());
        let work = move || {
            // Nobody listens any more if the command has ended.
            let _ = done.send(prepare(&palette, colors, &visits));
        };
        match thread::Builder::new().name("colors".to_owned()).spawn(work) {
            Ok(_) => State::UnderWay(end),
            Err(error) => State::Never(format!("no thread to test the colors: {error}")),
        }
    }
}

/// Has the visiting process test the palette; finds the colors anew if they no longer hold.
fn prepare(path: &Path, colors: usize, visits: &Visits) -> Result<(), String> {
    let told = visits.use_palette(path).or_else(|why| {
        tracing::debug!(why, "the palette does not hold");
        let found = palette::open(false).map_err(|error| error.to_string())?;
        visits.use_palette(found.path())
    })?;
    if told == colors {
        Ok(())
    } else {
        Err(format!(
            "there are {told} colors now, and there were {colors} when the command was started"
        ))
    }
}
