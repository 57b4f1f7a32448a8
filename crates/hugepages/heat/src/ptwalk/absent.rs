//! Replacement of the tracker in builds without it.

use std::convert::Infallible;
use std::time::Duration;

use superhue_model::{ProcessId, VirtRange};
use superhue_procfs::Roots;

use crate::{
    ArmingResult, Reading, RegionBits, Run, RunTouches, Scope, TrackError, Tracker, TrackerKind,
};

/// The tracker `ptwalk`, which this build does not have.
#[derive(Debug)]
pub struct PtwalkTracker(Infallible);

impl PtwalkTracker {
    /// Returns the reason why there is none.
    ///
    /// # Errors
    /// [`TrackError::Unusable`], always.
    pub fn new(_: &Roots, _: Scope) -> Result<Self, TrackError> {
        let why = if cfg!(target_arch = "x86_64") {
            "it was left out of this build; build with the cargo feature `ptwalk`, which needs clang"
        } else {
            "it reads x86-64 page tables, and this is another processor"
        };
        Err(TrackError::Unusable {
            kind: TrackerKind::Ptwalk,
            why: why.to_owned(),
        })
    }

    /// Returns false.
    #[must_use]
    pub const fn may_work(_: &Roots) -> bool {
        false
    }
}

/// A process of which a few pages at a time are watched; this build cannot do that.
#[derive(Debug)]
pub struct FewPages(Infallible);

impl PtwalkTracker {
    /// Never called: there is no tracker.
    ///
    /// # Errors
    /// None.
    pub fn watch_few(&mut self, _: ProcessId) -> Result<FewPages, TrackError> {
        match self.0 {}
    }

    /// Never called: there is no tracker.
    ///
    /// # Errors
    /// None.
    pub fn look(&mut self, few: &FewPages, _: &[VirtRange]) -> Result<Vec<RegionBits>, TrackError> {
        match few.0 {}
    }

    /// Never called: there is no tracker.
    ///
    /// # Errors
    /// None.
    pub fn sample_few(
        &mut self,
        few: &FewPages,
        _: &[Run],
        _: Duration,
        _: &mut dyn FnMut() -> Duration,
    ) -> Result<Vec<RunTouches>, TrackError> {
        match few.0 {}
    }
}

impl Tracker for PtwalkTracker {
    fn kind(&self) -> TrackerKind {
        match self.0 {}
    }

    fn arm(&mut self, _: ProcessId) -> Result<ArmingResult, TrackError> {
        match self.0 {}
    }

    fn read(&mut self, _: ProcessId, _: &[VirtRange]) -> Result<Reading, TrackError> {
        match self.0 {}
    }

    fn release(&mut self, _: ProcessId) {
        match self.0 {}
    }
}
