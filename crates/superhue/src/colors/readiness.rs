//! Preparation for recoloring, beside the command that runs already.
//!
//! The preparation takes a tenth of a second, and longer where the colors have to be found again. Most short programs end before the first page is to
//! be placed: for them there is no preparation at all.

use std::mem;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use superhue_color::oracles::{HardwareProbe, MeasuredOracle};
use superhue_procfs::Roots;
use superhue_recolor::{Price, Recolorer};

use super::palette;
use super::swap::SwapOnDemand;
use crate::cpu::cpu_time;

/// Number of changes of the colors after which they are no longer found again, and the time after which earlier ones do not count.
const AGAIN: u32 = 5;
const FORGIVEN: Duration = Duration::from_secs(3600);

/// Time after which a preparation that failed is tried again: another program may have held what it needs.
const AGAIN_AFTER: Duration = Duration::from_secs(300);

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
    /// Time of the last change.
    changed: Option<Instant>,
    /// Price of the recolorers that were replaced.
    before: Price,
    /// CPU time of preparations that no caller has collected yet.
    cpu: Duration,
}

/// A recolorer, or the reason why there is none; and the CPU time that the preparation took.
type Prepared = (Result<Recolorer, String>, Duration);

#[derive(Debug)]
enum State {
    NotAsked,
    UnderWay(Receiver<Prepared>),
    Ready(Box<Recolorer>),
    /// Recoloring is impossible, for this reason, and until this time at least.
    Failed(String, Option<Instant>),
}

impl Readiness {
    pub(super) fn new(colors: usize, swap: Option<SwapOnDemand>, roots: &Roots) -> Self {
        Self {
            colors,
            swap,
            roots: roots.clone(),
            state: State::NotAsked,
            changes: 0,
            changed: None,
            before: Price::default(),
            cpu: Duration::ZERO,
        }
    }

    /// Returns true if a recolorer is ready; the first call begins the preparation.
    pub(super) fn is_given(&mut self) -> bool {
        let is_over = |until: Instant| Instant::now() >= until;
        if matches!(&self.state, State::Failed(_, until) if until.is_some_and(is_over)) {
            self.state = State::NotAsked;
        }
        if let State::NotAsked = self.state {
            self.state = self.begin();
        }
        if let State::UnderWay(end) = &self.state {
            match end.try_recv() {
                Ok((prepared, cpu)) => {
                    self.cpu += cpu;
                    self.state = match prepared {
                        Ok(recolorer) => State::Ready(Box::new(recolorer)),
                        Err(why) => State::Failed(why, Instant::now().checked_add(AGAIN_AFTER)),
                    };
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    let why = "the search for colors did not end well".to_owned();
                    self.state = State::Failed(why, None);
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

    /// Finds the colors again; `why` is the reason why the known ones no longer hold.
    pub(super) fn begin_again(&mut self, why: &str) {
        tracing::debug!(why, "colors have changed");
        self.before = self.price();
        // A change now and then, in the life of a daemon, is not the same as colors that never hold.
        let is_long_ago = |it: Instant| it.elapsed() >= FORGIVEN;
        if self
            .changed
            .replace(Instant::now())
            .is_some_and(is_long_ago)
        {
            self.changes = 0;
        }
        self.changes += 1;
        self.state = if self.changes > AGAIN {
            State::Failed(why.to_owned(), None)
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
            State::Failed(why, _) => Some(why),
            _ => None,
        }
    }

    /// Returns the CPU time of preparations since the last call.
    pub(super) fn take_cpu(&mut self) -> Duration {
        mem::take(&mut self.cpu)
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
            let swap = swap.map_or(Ok(()), |swap| swap.see_to(&roots));
            let prepared = swap.and_then(|()| prepare(colors, &roots));
            // The receiver is gone if the command has ended.
            let _ = done.send((prepared, cpu_time()));
        };
        match thread::Builder::new().name("colors".to_owned()).spawn(work) {
            Ok(_) => State::UnderWay(end),
            Err(error) => {
                let why = format!("no thread to test the colors: {error}");
                State::Failed(why, Instant::now().checked_add(AGAIN_AFTER))
            }
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
