//! Processors without timing code.

use super::{Lines, Probe, ProbeError};
use crate::Page;

/// Timing by the processor's own clock: not written for this architecture, so this type has no value.
#[derive(Debug)]
pub enum HardwareProbe {}

impl HardwareProbe {
    /// Always fails.
    ///
    /// # Errors
    /// [`ProbeError::Architecture`].
    pub fn new() -> Result<Self, ProbeError> {
        Err(ProbeError::Architecture)
    }
}

impl Probe for HardwareProbe {
    fn trial(&mut self, _: &Lines, _: &[Page], _: &[Page], _: &mut [u32]) -> bool {
        match *self {}
    }

    fn chase(&mut self, _: &[Page], _: u64) -> Option<f64> {
        match *self {}
    }
}
