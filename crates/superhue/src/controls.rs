//! State shared by a watch and its owner.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use superhue_model::Share;

use crate::account::{Members, WatchAccount};
use crate::stop::Stop;

/// Called in the watch's thread: it must not wait.
type AccountCallback = Arc<dyn Fn() + Send + Sync>;

/// Shared by a watch's thread and its owner. No thread holds the lock for longer than it takes to copy a pointer.
#[derive(Debug, Clone)]
pub(crate) struct Controls {
    shared: Arc<Mutex<SharedState>>,
    stop: Stop,
}

struct SharedState {
    members: Arc<Members>,
    wishes: LiveSettings,
    account: Arc<WatchAccount>,
    /// Called after each new account.
    told: Option<AccountCallback>,
    /// True while the owner wants the watch to stand still; `stands_still` is true once it does.
    held: bool,
    stands_still: bool,
    /// CPU time that the owner's threads have taken for the watch, and that it has not counted yet.
    spent_beside: Duration,
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("members", &self.members.len())
            .field("wishes", &self.wishes)
            .finish_non_exhaustive()
    }
}

/// Present wishes of the owner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LiveSettings {
    pub(crate) paused: bool,
    pub(crate) max_overhead: f64,
    /// Budget that replaces the one in the watch's configuration.
    pub(crate) budget: Option<Share>,
}

impl Controls {
    pub(crate) fn new(max_overhead: f64) -> Self {
        let shared = SharedState {
            members: Arc::default(),
            wishes: LiveSettings {
                paused: false,
                max_overhead,
                budget: None,
            },
            account: Arc::default(),
            told: None,
            held: false,
            stands_still: false,
            spent_beside: Duration::ZERO,
        };
        Self {
            shared: Arc::new(Mutex::new(shared)),
            stop: Stop::default(),
        }
    }

    pub(crate) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    pub(crate) fn feed(&self, members: Members) {
        let mut shared = self.lock();
        if *shared.members == members {
            return;
        }
        shared.members = Arc::new(members);
        drop(shared);
        self.stop.nudge();
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.wish(|wishes| wishes.paused = paused);
    }

    pub(crate) fn limit(&self, max_overhead: f64) {
        self.wish(|wishes| wishes.max_overhead = max_overhead);
    }

    pub(crate) fn allow(&self, budget: Share) {
        self.wish(|wishes| wishes.budget = Some(budget));
    }

    /// Makes the watch call `told` after each account from now on.
    pub(crate) fn tell(&self, told: AccountCallback) {
        self.lock().told = Some(told);
    }

    fn wish(&self, change: impl FnOnce(&mut LiveSettings)) {
        let mut shared = self.lock();
        let before = shared.wishes;
        change(&mut shared.wishes);
        if shared.wishes != before {
            drop(shared);
            self.stop.nudge();
        }
    }

    /// Adds CPU time that another thread has taken for the watch.
    pub(crate) fn spend(&self, time: Duration) {
        self.lock().spent_beside += time;
    }

    /// Takes that time.
    pub(crate) fn take_spent(&self) -> Duration {
        std::mem::take(&mut self.lock().spent_beside)
    }

    pub(crate) fn wishes(&self) -> LiveSettings {
        self.lock().wishes
    }

    pub(crate) fn members(&self) -> Arc<Members> {
        self.lock().members.clone()
    }

    pub(crate) fn account(&self) -> Arc<WatchAccount> {
        self.lock().account.clone()
    }

    pub(crate) fn publish(&self, account: WatchAccount) {
        let account = Arc::new(account);
        let mut shared = self.lock();
        shared.account = account;
        let told = shared.told.clone();
        drop(shared);
        if let Some(told) = told {
            told();
        }
    }

    /// Makes the watch stand still once its present step ends, or continue.
    pub(crate) fn hold(&self, held: bool) {
        let before = std::mem::replace(&mut self.lock().held, held);
        if before != held {
            self.stop.nudge();
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.lock().held
    }

    pub(crate) fn say_still(&self, stands_still: bool) {
        self.lock().stands_still = stands_still;
    }

    pub(crate) fn stands_still(&self) -> bool {
        self.lock().stands_still
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The members that an owner sets.
#[derive(Debug)]
pub(crate) struct MemberFeed {
    controls: Controls,
    taken: Option<Arc<Members>>,
}

impl MemberFeed {
    pub(crate) fn by(controls: &Controls) -> Self {
        let controls = controls.clone();
        let taken = None;
        Self { controls, taken }
    }

    /// Returns the present members; `None` if they are the same as at the last call.
    pub(crate) fn take(&mut self) -> Option<Arc<Members>> {
        let now = self.controls.members();
        let is_new = (self.taken.as_ref()).is_none_or(|taken| !Arc::ptr_eq(taken, &now));
        is_new.then(|| self.taken.insert(now).clone())
    }
}
