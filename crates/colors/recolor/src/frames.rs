//! Colors of page frames that have been measured.
//!
//! A frame keeps its color as long as the host does not move it, whichever process uses it. So one measurement, in
//! memory of our own, gives the color of a program's page later by its frame number alone. A host may move frames, so a
//! measurement is valid for ten minutes, and all of them are dropped when a check finds some wrong.

use std::collections::HashMap;
use std::time::Duration;

use superhue_model::{Color, Pfn};

/// Time for which a measurement is valid.
const LIFETIME: Duration = Duration::from_secs(600);

/// Most frames that are remembered: 1 GiB of them, in 8 MiB.
const CAPACITY: usize = 1 << 18;

/// The colors of frames, by frame number.
#[derive(Debug, Default)]
pub struct FrameColors {
    known: HashMap<Pfn, Measurement>,
}

#[derive(Debug, Clone, Copy)]
struct Measurement {
    color: Color,
    at: Duration,
}

impl FrameColors {
    /// Enters a measurement made at `now`, a time since some fixed moment.
    pub fn learn(&mut self, frame: Pfn, color: Color, now: Duration) {
        if self.known.len() >= CAPACITY && !self.known.contains_key(&frame) {
            self.forget_old(now);
        }
        let at = now;
        self.known.insert(frame, Measurement { color, at });
    }

    /// The color of a frame; `None` if it was never measured, or too long ago.
    #[must_use]
    pub fn color(&self, frame: Pfn, now: Duration) -> Option<Color> {
        let known = self.known.get(&frame)?;
        (now.saturating_sub(known.at) < LIFETIME).then_some(known.color)
    }

    /// Forgets one frame: it was measured again without a result.
    pub fn forget(&mut self, frame: Pfn) {
        self.known.remove(&frame);
    }

    /// Forgets all: the host has moved frames.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    /// Returns the number of frames remembered, old ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns true if no frame is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Makes room: forgets the expired frames, or else the older half.
    fn forget_old(&mut self, now: Duration) {
        let is_young = |limit| move |it: &Measurement| now.saturating_sub(it.at) < limit;
        self.known.retain(|_, it| is_young(LIFETIME)(it));
        if self.known.len() < CAPACITY {
            return;
        }
        let mut times: Vec<Duration> = self.known.values().map(|it| it.at).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        self.known.retain(|_, it| it.at > median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_believed_for_a_while() {
        let mut frames = FrameColors::default();
        let second = Duration::from_secs(1);
        frames.learn(Pfn(7), Color(3), second);
        assert_eq!(frames.color(Pfn(7), second), Some(Color(3)));
        assert_eq!(frames.color(Pfn(8), second), None);
        assert_eq!(frames.color(Pfn(7), LIFETIME), Some(Color(3)));
        assert_eq!(frames.color(Pfn(7), LIFETIME + second), None);
        frames.learn(Pfn(7), Color(4), LIFETIME + second);
        assert_eq!(frames.color(Pfn(7), LIFETIME + second), Some(Color(4)));
        frames.forget(Pfn(7));
        assert!(frames.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut frames = FrameColors::default();
        for number in 0..3 * CAPACITY as u64 {
            frames.learn(Pfn(number), Color(0), Duration::from_nanos(number));
            assert!(frames.len() <= CAPACITY);
        }
        let last = 3 * CAPACITY as u64 - 1;
        assert!(frames.color(Pfn(last), Duration::from_secs(1)).is_some());
        assert!(frames.color(Pfn(0), Duration::from_secs(1)).is_none());
        frames.clear();
        assert_eq!(frames.len(), 0);
    }
}
