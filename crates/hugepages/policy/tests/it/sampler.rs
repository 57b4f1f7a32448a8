//! The model's tracker and heat map: samples in, heat out.

use std::collections::BTreeMap;
use std::time::Duration;

use superhue_model::{PageCount, ProcessHeat, ProcessId, Region, RegionHeat};

use crate::kernel::Pages;

/// Number of samples for which an active page stays active.
const WINDOW: usize = 4;

/// Result of one sample for one region with present pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) huge: bool,
    pub(crate) touched: Pages,
}

#[derive(Debug, Clone, Copy)]
struct State {
    huge: bool,
    recent: [Pages; WINDOW],
    rate: f32,
    touched_at: Duration,
    is_read: bool,
}

#[derive(Debug, Clone, Default)]
struct SampledProcess {
    samples: u64,
    watched: Duration,
    last: Duration,
    interval: Duration,
    regions: BTreeMap<Region, State>,
}

/// State of all processes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sampler {
    processes: BTreeMap<ProcessId, SampledProcess>,
}

impl Sampler {
    pub(crate) fn absorb(
        &mut self,
        process: ProcessId,
        now: Duration,
        bits: &BTreeMap<Region, Sample>,
    ) {
        let watched = self.processes.entry(process).or_default();
        watched.samples += 1;
        watched.interval = now.saturating_sub(watched.last);
        watched.watched += now.saturating_sub(watched.last);
        watched.last = watched.last.max(now);
        watched
            .regions
            .retain(|region, _| bits.contains_key(region));
        for (region, sample) in bits {
            let fresh = State {
                huge: sample.huge,
                recent: [Pages::default(); WINDOW],
                rate: f32::NAN,
                touched_at: now,
                is_read: false,
            };
            let state = watched.regions.entry(*region).or_insert(fresh);
            if state.huge != sample.huge {
                *state = fresh;
            }
            state.absorb(sample, now);
        }
    }

    /// Records that a reader has read a huge page, and so accessed it.
    pub(crate) fn read(&mut self, process: ProcessId, region: Region) {
        let watched = self.processes.get_mut(&process);
        let state = watched.and_then(|watched| watched.regions.get_mut(&region));
        if let Some(state) = state.filter(|state| state.huge) {
            state.is_read = true;
        }
    }

    pub(crate) fn heat(&self, process: ProcessId) -> Option<ProcessHeat> {
        let watched = self.processes.get(&process)?;
        let regions = watched.regions.iter().map(|(region, state)| RegionHeat {
            region: *region,
            active: (!state.huge).then(|| PageCount(state.active().count())),
            is_range: false,
            rate: state.rate,
            per_second: state.rate / watched.interval.as_secs_f32().max(1e-3),
            idle: watched.last - state.touched_at,
        });
        Some(ProcessHeat {
            samples: watched.samples,
            watched: watched.watched,
            regions: regions.collect(),
        })
    }
}

impl State {
    fn absorb(&mut self, sample: &Sample, now: Duration) {
        let by_reading = std::mem::take(&mut self.is_read);
        let by_program = sample.touched.count() > 0;
        self.recent.rotate_right(1);
        self.recent[0] = sample.touched;
        let touched = if self.huge {
            f32::from(u8::from(by_program || by_reading))
        } else {
            f32::from(u16::try_from(sample.touched.count()).unwrap())
        };
        self.rate = if self.rate.is_nan() {
            touched
        } else {
            self.rate + (touched - self.rate) / 4.0
        };
        if by_program || by_reading {
            self.touched_at = now;
        }
    }

    fn active(&self) -> Pages {
        let none = Pages::default();
        self.recent.iter().fold(none, |all, pages| all.with(*pages))
    }
}
