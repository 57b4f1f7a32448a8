//! Preparation for recoloring, beside the command that runs already.
//!
//! The preparation takes a tenth of a second, and longer where the colors have to be found anew. Most short programs end before the first page is to
//! be placed: for them there is no preparation at all.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use superhue_color::oracles::{HardwareProbe, MeasuredOracle};
use superhue_procfs::Roots;
use superhue_recolor::{Price, Recolorer};

use super::palette;
use super::swap::SwapOnDemand;

/// Number of changes of the colors after which they are no longer found anew.
const AGAIN: u32 = 5;

/// The recolorer, which is made when it is first needed.
#[derive(Debug)]
pub(super) struct Readiness {
    /// Number of colors.
    colors: usize,
    /// Swap that pages will go out to.
    swap: Option<SwapOnDemand>,
    roots: Roots,
    state: State,
    /// Number of times that the colors have changed.
    changes: u32,
    /// Price of the recolorers that were replaced.
    before: Price,
}

#[derive(Debug)]
enum State {
    NotAsked,
    UnderWay(Receiver<Result<Recolorer, String>>),
    Ready(Box<Recolorer>),
    /// Recoloring is impossible, for this reason.
    Never(String),
}

impl Readiness {
    pub(super) fn new(colors: usize, swap: Option<SwapOnDemand>, roots: &Roots) -> Self {
        Self {
            colors,
            swap,
            roots: roots.clone(),
            state: State::NotAsked,
            changes: 0,
            before: Price::default(),
        }
    }

    /// Returns true if a recolorer is ready; the first call begins the preparation.
    pub(super) fn is_given(&mut self) -> bool {
        if let State::NotAsked = self.state {
            self.state = self.begin();
        }
        if let State::UnderWay(end) = &self.state {
            match end.try_recv() {
                Ok(Ok(recolorer)) => self.state = State::Ready(Box::new(recolorer)),
                Ok(Err(why)) => self.state = State::Never(why),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    self.state = State::Never("the search for colors did not end well".to_owned());
                }
            }
        }
        matches!(self.state, State::Ready(_))
    }

    /// Returns the recolorer, once it is ready.
    pub(super) fn recolorer(&mut self) -> Option<&mut Recolorer> {
        match &mut self.state {
            State::Ready(recolorer) => Some(recolorer),
            _ => None,
        }
    }

    /// Finds the colors anew; `why` is the reason why the known ones no longer hold.
    pub(super) fn begin_again(&mut self, why: &str) {
        tracing::debug!(why, "colors have changed");
        self.before = self.price();
        self.changes += 1;
        self.state = if self.changes > AGAIN {
            State::Never(why.to_owned())
        } else {
            State::NotAsked
        };
    }

    /// Returns true while the preparation runs.
    pub(super) const fn is_under_way(&self) -> bool {
        matches!(self.state, State::UnderWay(_))
    }

    /// Returns the reason why recoloring is impossible, if that is known.
    pub(super) fn trouble(&self) -> Option<&str> {
        match &self.state {
            State::Never(why) => Some(why),
            _ => None,
        }
    }

    /// Returns the price of recoloring so far.
    pub(super) fn price(&self) -> Price {
        match &self.state {
            State::Ready(recolorer) => self.before + recolorer.price(),
            _ => self.before,
        }
    }

    fn begin(&self) -> State {
        let (done, end) = channel();
        let (colors, roots, swap) = (self.colors, self.roots.clone(), self.swap.clone());
        let work = move || {
            let swap = swap.map_or(Ok(()), |swap| swap.see_to());
            // The receiver is gone if the command has ended.
            let _ = done.send(swap.and_then(|()| prepare(colors, &roots)));
        };
        match thread::Builder::new().name("colors".to_owned()).spawn(work) {
            Ok(_) => State::UnderWay(end),
            Err(error) => State::Never(format!("no thread to test the colors: {error}")),
        }
    }
}

/// Opens the palette, which tests it, or finds the colors if they no longer hold.
fn prepare(colors: usize, roots: &Roots) -> Result<Recolorer, String> {
    let palette = palette::open(false).map_err(|error| error.to_string())?;
    let found = palette.palette().colors();
    if found != colors {
        return Err(format!(
            "there are {found} colors now, and there were {colors} when the command was started"
        ));
    }
    let probe = HardwareProbe::new().map_err(|error| error.to_string())?;
    let oracle = MeasuredOracle::new(palette, probe);
    Recolorer::new(oracle, roots).map_err(|error| error.to_string())
}
