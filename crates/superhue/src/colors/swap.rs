//! Swap in memory, made when the first page is to go out: most programs are short, and end before that.
//!
//! Superhue verifies before the command starts that swap can be made, so that its lack is an error then.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use superhue_act::{Journal, RestoreReport, SwapError, SwapInUse, ZswapInUse};
use superhue_procfs::Roots;

/// Swap that pages go out to.
#[derive(Debug, Clone)]
pub(crate) struct SwapOnDemand(Arc<Mutex<State>>);

#[derive(Debug)]
enum State {
    /// Swap can be made; an attempt may have failed for this reason.
    Wanted(Option<String>),
    /// Swap is on, and was not tried yet, or the trial failed for this reason.
    Found(Box<(SwapInUse, ZswapInUse)>, Option<String>),
    InUse(Box<(SwapInUse, ZswapInUse)>),
    /// Recoloring has ended; holds the sentence for the report.
    Over(Option<String>),
}

impl SwapOnDemand {
    /// Finds swap in memory; otherwise, if `make`, verifies that it can be made.
    ///
    /// # Errors
    /// Fails if there is none, and none can be made.
    pub(super) fn find(roots: &Roots, make: bool) -> Result<Self, SwapError> {
        let journal = Journal::default();
        let found = SwapInUse::find(roots);
        if make {
            // Found or made later, with a look at the journals: what is on now may end with another superhue.
            ZswapInUse::may_switch(roots)?;
            found.map(drop).or_else(|_| SwapInUse::may_make(roots))?;
            return Ok(Self::with(State::Wanted(None)));
        }
        let zswap = ZswapInUse::find_or_switch(&journal, false)?;
        Ok(Self::with(State::Found(Box::new((found?, zswap)), None)))
    }

    fn with(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the swap, if that was not done yet, and tries it.
    ///
    /// # Errors
    /// The reason why there is none, as a clause.
    pub(super) fn see_to(&self, roots: &Roots) -> Result<(), String> {
        let mut state = self.state();
        if let State::Wanted(_) = *state {
            let journal = Journal::default();
            let made = SwapInUse::find_or_make(&journal, true);
            // The swap is undone if zswap cannot be switched on.
            let made =
                made.and_then(|swap| Ok((swap, ZswapInUse::find_or_switch(&journal, true)?)));
            *state = match made {
                Ok(both) => State::Found(Box::new(both), None),
                Err(error) => State::Wanted(Some(error.to_string())),
            };
        }
        if matches!(*state, State::Found(..)) {
            let why = ZswapInUse::try_out(roots).err();
            *state = match (mem::replace(&mut *state, State::Wanted(None)), why) {
                (State::Found(both, _), None) => State::InUse(both),
                // It may be for the moment only, so a later call tries again.
                (State::Found(both, _), why) => {
                    State::Found(both, why.map(|error| error.to_string()))
                }
                (other, _) => other,
            };
        }
        match &*state {
            State::InUse(..) => Ok(()),
            State::Wanted(Some(why)) | State::Found(_, Some(why)) => Err(why.clone()),
            State::Wanted(None) | State::Found(..) | State::Over(_) => {
                Err("the watch is over".to_owned())
            }
        }
    }

    /// Returns a sentence for the report: the swap in use, or the failure.
    pub(super) fn describe(&self) -> Option<String> {
        match &*self.state() {
            State::Found(both, None) | State::InUse(both) => {
                Some(format!("pages go out to {}", both.0.describe()))
            }
            State::Wanted(Some(why)) | State::Found(_, Some(why)) => {
                Some(format!("no page goes out: {why}"))
            }
            State::Over(said) => said.clone(),
            State::Wanted(None) => None,
        }
    }

    /// Undoes the setup. Must be called after the last recoloring.
    pub(crate) fn finish(&self) -> RestoreReport {
        let said = self.describe();
        match mem::replace(&mut *self.state(), State::Over(said)) {
            State::Found(both, _) | State::InUse(both) => {
                let (swap, zswap) = *both;
                let mut report = swap.finish();
                report.add(zswap.finish());
                report
            }
            _ => RestoreReport::default(),
        }
    }
}
