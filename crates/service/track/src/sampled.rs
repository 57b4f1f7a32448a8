//! The real heat: a [`Sampler`].

use std::time::Duration;

use rustix::io::Errno;
use superhue::heat::Sampler;
use superhue_client::{Page, PageFlags};
use superhue_heat::{HeatMap, PageSize, TrackError, TrackerKind};
use superhue_model::{BASE_PAGE_SIZE, ProcessId};

use crate::heat::{Heat, SampleOutcome, TrackingLoss};

/// Heat from a sampler.
pub struct SampledHeat(Sampler);

impl SampledHeat {
    /// Makes heat of this sampler, which watches no process yet.
    #[must_use]
    pub const fn new(sampler: Sampler) -> Self {
        Self(sampler)
    }

    /// Returns the tracker at work.
    #[must_use]
    pub fn tracker(&self) -> TrackerKind {
        self.0.tracker()
    }
}

impl Heat for SampledHeat {
    fn add(&mut self, process: ProcessId) {
        self.0.add(process);
    }

    fn remove(&mut self, process: ProcessId) {
        self.0.remove(process);
    }

    fn resample_soon(&mut self, process: ProcessId) {
        self.0.resample_soon(process);
    }

    fn step(&mut self, at: Duration) -> Vec<SampleOutcome> {
        let sampled = self.0.step(at).into_iter().map(|sampled| {
            let result = match sampled.result {
                Ok(_) => Ok(()),
                // The server itself sees that another program runs, and ends the client.
                Err(TrackError::Replaced(_)) => Ok(()),
                Err(error) => Err(lost(&error)),
            };
            let process = sampled.process;
            SampleOutcome { process, result }
        });
        sampled.collect()
    }

    fn spend(&mut self, cost: Duration) {
        self.0.spend_beside(cost);
    }

    fn due(&self) -> Option<Duration> {
        self.0.due()
    }

    fn samples(&self, process: ProcessId) -> u64 {
        self.0.map(process).map_or(0, HeatMap::samples)
    }

    fn held(&self, process: ProcessId) -> u64 {
        self.0.map(process).map_or(0, |map| map.held().0)
    }

    fn active(&self, process: ProcessId, min_heat: u32, most: usize) -> Option<Vec<Page>> {
        let mut found = Vec::new();
        let ranges = self.0.map(process).into_iter().flat_map(HeatMap::ranges);
        for range in ranges {
            let heat = per_mille(range.rate);
            if heat < min_heat.max(1) {
                continue;
            }
            let address = range.range.start.0;
            let page = |address, flags| Page {
                address,
                heat,
                flags,
            };
            match range.pages {
                PageSize::Base => found.push(page(address, PageFlags::NONE)),
                PageSize::Huge => found.push(page(address, PageFlags::HUGE)),
                // No single page of it is known to be active: each has the rate of the range.
                PageSize::Range => {
                    let pages = range.range.len().whole_pages().0;
                    let room = most.saturating_sub(found.len());
                    if usize::try_from(pages).is_ok_and(|pages| pages > room) {
                        return None;
                    }
                    let addresses = (0..pages).map(|n| address + n * BASE_PAGE_SIZE);
                    found.extend(addresses.map(|at| page(at, PageFlags::ESTIMATED)));
                }
            }
            if found.len() > most {
                return None;
            }
        }
        Some(found)
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to 1000; a cast of a float saturates"
)]
fn per_mille(rate: f32) -> u32 {
    ((rate * 1000.0).round() as u32).min(1000)
}

fn lost(error: &TrackError) -> TrackingLoss {
    let errno = match error {
        TrackError::Read(read) if read.is_vanished() => Errno::SRCH,
        TrackError::Foreign { .. } => Errno::BUSY,
        _ => Errno::OPNOTSUPP,
    };
    let text = error.to_string();
    TrackingLoss { errno, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_told_per_mille() {
        let told = [0.0, 0.0004, 0.05, 1.0, 7.0, f32::NAN].map(per_mille);
        assert_eq!(told, [0, 0, 50, 1000, 1000, 0]);
    }

    #[test]
    fn what_is_lost_is_told_by_kind() {
        let foreign = TrackError::Foreign {
            by: "somebody".into(),
            remedy: "ask".into(),
        };
        assert_eq!(lost(&foreign).errno, Errno::BUSY);
        let gone = superhue_procfs::ReadError::Vanished { pid: 1 };
        assert_eq!(lost(&gone.into()).errno, Errno::SRCH);
    }
}
