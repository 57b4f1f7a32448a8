//! Notes about the accesses to one region.
//!
//! A region is watched in one of two forms, and samples in one form say nothing about the other: for base pages the number of active ones is known,
//! for a huge page only whether it was touched at all.
//!
//! ```text
//!              base pages                 huge page                    base pages
//!   samples |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |  |
//!           active: 200, heat: 150 pages  share: 1 . . . 0.5 . . . 0   (samples start over)
//!                  `--- remembered ---------> heat * share               rest: not to be
//!                                             `- quiet -----> cold       promoted for a while
//! ```
//!
//! When sampling stops (because nothing changes any more), all notes stand still: known facts stay known, and no huge page grows cold for lack of
//! watching.

use std::time::Duration;

use superhue_model::{PageCount, RegionHeat};

use crate::FULL;
use crate::backoff::{REST, Wait};
use crate::candidate::{PromotionValue, RegionLook};
use crate::clock::{Tick, nanos};

/// Samples without an access before a huge page may count as cold.
const COLD_SAMPLES: u16 = 5;

/// Samples of a process that show whether accesses crowd on a few pages: two of uniform accesses often look alike by chance.
const CROWD_SAMPLES: u64 = 3;

/// Time before the zeroes of the same region are counted again, and for which a count is valid.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// The same time if no answer came: an access right after the reading may have voided it.
const ASK_UNANSWERED: Duration = Duration::from_secs(60);

/// Time after a question in which the reading that answers it may show as an access.
const READING: Duration = Duration::from_secs(30);

/// Steps of a share.
const FINE: u16 = 1024;

/// Steps of a page per second, and the most pages per second: all in a millisecond.
const STEPS: u16 = 16;
const MOST_HEAT: f32 = 512_000.0;

/// Weight of a new sample in the share of samples, as a divisor; and the number of samples after which no older one counts.
const SLOW: u16 = 16;
const LONG: u16 = 256;

/// Factor by which a huge page in use counts as hotter than known, when others want its place.
const IN_USE: u64 = 8;

/// Mapping of a region when last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Form {
    #[default]
    Unseen,
    /// By entries of its own for each page, or not known.
    Pages,
    /// By one entry.
    Whole,
}

/// Accesses to one region.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AccessHistory {
    form: Form,
    /// True if the form is newer than the last sample.
    is_stale: bool,
    /// True if it is known by range only.
    is_ranged: bool,
    /// True if its active pages are hot, however few; `None` while that is not known.
    is_crowded: Option<bool>,
    /// True if the next access may be the reading for zeroes.
    is_excused: bool,
    /// True if there was no access since zeroes were counted.
    is_zero_fresh: bool,
    /// Samples in this form, saturating.
    samples: u16,
    /// Active pages; 0 for a huge page.
    active: u16,
    /// Share of samples that touched the huge page, of [`FINE`], up to its last touch: a slow average.
    share: u16,
    zero: Option<u16>,
    /// Samples in a row that did not touch the huge page.
    quiet_samples: u16,
    /// Pages touched per second when last seen as base pages, times [`STEPS`].
    heat: u32,
    /// Nanoseconds watched in a row without an access to the huge page.
    quiet: u64,
    /// Time of the last count of `zero`.
    zero_at: Tick,
    /// Time of the last question for zeroes; the beginning, if never.
    asked: Tick,
    /// Back-off after our splits.
    rest: Wait,
}

// See `record.rs`: this is on top of what every policy remembers.
const _: () = assert!(size_of::<AccessHistory>() <= 72);

impl AccessHistory {
    /// Takes in a look. A huge page is cold after `cold_after`.
    pub(crate) fn absorb(&mut self, look: &RegionLook<'_>, cold_after: Duration) {
        self.rest.forget(look.now, &REST);
        self.is_crowded = None;
        let form = if look.huge == Some(true) {
            Form::Whole
        } else {
            Form::Pages
        };
        if self.form != form {
            self.is_stale = self.form != Form::Unseen;
            self.form = form;
            self.start_anew();
            if self.is_stale {
                // It is not known whether the latest samples are from before or after the change.
                return;
            }
        }
        let Some(heat) = look.heat else {
            self.is_stale = false;
            self.start_anew();
            return;
        };
        // One entry and active pages at once: the sample was taken before it became huge.
        let is_older = form == Form::Whole && heat.active.is_some();
        if is_older || (self.is_stale && look.samples == 0) {
            return;
        }
        let was_whole = heat.active.is_none() && !heat.is_range;
        let may_be_whole = look.huge != Some(false) && look.resident == FULL;
        if form == Form::Pages && was_whole && !may_be_whole {
            // It was a huge page when it was sampled, between two looks perhaps.
            self.is_stale = true;
            self.start_anew();
            return;
        }
        let new = u16::try_from(look.samples).unwrap_or(u16::MAX);
        let is_first = self.samples == 0 && !self.is_stale;
        self.samples = if is_first {
            1
        } else {
            self.samples.saturating_add(new)
        };
        self.is_stale = false;
        match form {
            Form::Whole => self.absorb_whole(heat, look, new, cold_after),
            Form::Pages | Form::Unseen => self.absorb_pages(heat, look),
        }
    }

    /// Forgets the accesses in this form.
    fn start_anew(&mut self) {
        *self = Self {
            form: self.form,
            is_stale: self.is_stale,
            heat: self.heat,
            asked: self.asked,
            zero_at: self.zero_at,
            rest: self.rest,
            ..Self::default()
        };
    }

    fn absorb_pages(&mut self, heat: &RegionHeat, look: &RegionLook<'_>) {
        self.is_ranged = heat.is_range;
        if let Some(active) = heat.active {
            let active = u16::try_from(active.0).unwrap_or(FULL);
            self.active = active.min(look.resident);
            self.heat = steps(heat.per_second, MOST_HEAT, f32::from(STEPS));
            // Its active pages are touched in every other sample at least.
            let is_crowded = heat.rate * 2.0 >= f32::from(self.active);
            self.is_crowded = (look.total >= CROWD_SAMPLES).then_some(is_crowded);
        } else if look.huge.is_none() && look.resident == FULL {
            // As far as is known it is a huge page, and the count of samples starts over.
            self.active = 0;
            self.samples = 0;
        } else {
            // The rate of a range is the chance that a page of it is touched, so that share of its pages counts as active.
            let resident = f32::from(look.resident);
            let active = steps(heat.rate, 1.0, resident);
            self.active = u16::try_from(active).unwrap_or(FULL);
            self.heat = steps(heat.per_second * resident, MOST_HEAT, f32::from(STEPS));
        }
    }

    fn absorb_whole(
        &mut self,
        heat: &RegionHeat,
        look: &RegionLook<'_>,
        new: u16,
        cold_after: Duration,
    ) {
        self.active = 0;
        if self.samples <= 1 {
            // It counts as in use until samples show otherwise.
            self.share = FINE;
        }
        if new > 0 {
            // The last access is surely older than the last look only if it is at least `elapsed` ago. An access shortly before the look counts as
            // one after it: that only delays.
            if heat.idle > Duration::ZERO && heat.idle >= look.elapsed {
                self.quiet_samples = self.quiet_samples.saturating_add(new);
                self.quiet = self.quiet.saturating_add(nanos(look.watched));
            } else {
                self.touched(look.now, new, heat.rate, cold_after);
            }
        }
    }

    /// Takes in an access to the huge page, by the program or by the process that counted its zeroes for us.
    fn touched(&mut self, now: Tick, new: u16, rate: f32, cold_after: Duration) {
        if self.is_excused && now.since(self.asked) <= READING {
            // It has to be quiet again, but not from the beginning.
            self.quiet = self.quiet.min(nanos(cold_after) / 4 * 3);
            self.quiet_samples = self.quiet_samples.min(COLD_SAMPLES - 2);
        } else {
            // It is not known which of several new samples found the access.
            let ones = u16::try_from(steps(rate, 1.0, f32::from(new))).unwrap_or(new);
            let ones = ones.max(1);
            let zeroes = self.quiet_samples.saturating_add(new.saturating_sub(ones));
            (0..zeroes.min(LONG)).for_each(|_| self.share -= self.share / SLOW);
            (0..ones.min(LONG)).for_each(|_| self.share += (FINE - self.share) / SLOW);
            self.quiet = 0;
            self.quiet_samples = 0;
            self.is_zero_fresh = false;
        }
        self.is_excused = false;
    }

    /// Records that the splitter has requested a count of its zeroes.
    pub(crate) const fn ask(&mut self, now: Tick) {
        self.asked = now;
        self.is_excused = true;
    }

    /// Takes in the number of its pages of zeroes, if the splitter requested it.
    pub(crate) fn learn_zeroes(&mut self, now: Tick, zero: PageCount) {
        if self.form == Form::Whole && self.is_excused {
            self.zero = Some(u16::try_from(zero.0).unwrap_or(FULL).min(FULL));
            self.zero_at = now;
            self.is_zero_fresh = self.quiet_samples > 0;
        }
    }

    /// Records that it was split for us: it is not promoted again soon, nor as easily.
    pub(crate) fn was_split(&mut self, now: Tick) {
        self.rest.fail(now, &REST);
    }

    /// Returns the splits held against it, and the time until which it may not be promoted.
    pub(crate) const fn rest(&self) -> &Wait {
        &self.rest
    }

    /// Returns the number of active pages, as far as known.
    pub(crate) const fn active(&self) -> u16 {
        self.active
    }

    /// Returns the pages touched per second, as far as known.
    pub(crate) fn per_second(&self) -> u16 {
        u16::try_from(self.heat / u32::from(STEPS)).unwrap_or(u16::MAX)
    }

    /// Returns the number of samples that have shown it in its present form.
    pub(crate) const fn samples(&self) -> u16 {
        self.samples
    }

    /// Returns true if no sample was taken since it took its present form.
    pub(crate) const fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Returns true if it is known by range only.
    pub(crate) const fn is_ranged(&self) -> bool {
        self.is_ranged
    }

    /// Returns true if its active pages are hot, however few; `None` while too few samples show that.
    pub(crate) const fn is_crowded(&self) -> Option<bool> {
        self.is_crowded
    }

    /// Returns the heat per page of `growth`; regions that cost nothing come before all others, by heat.
    pub(crate) fn worth(&self, growth: u16) -> PromotionValue {
        per_page(self.heat, growth)
    }

    /// Returns the same for a huge page that would free `pages`: its worth before it became one, less its cooling since. If it is in use, eight
    /// times that, because its present heat is not known, and its program would feel the loss. One that became huge without a sample, and is not
    /// shown to be out of use, is worth more than any other.
    pub(crate) fn worth_kept(&self, pages: u16) -> PromotionValue {
        let quiet = self.is_unusually_quiet();
        let share = match quiet {
            true => FINE / self.quiet_samples.saturating_add(1),
            false => self.share,
        };
        if self.heat == 0 && (!self.is_known() || share > FINE / 4) {
            return PromotionValue(u64::MAX);
        }
        let heat = u64::from(self.heat) * u64::from(share) / u64::from(FINE);
        let kept = if quiet || share <= FINE / 4 {
            heat
        } else {
            heat * IN_USE
        };
        per_page(u32::try_from(kept).unwrap_or(u32::MAX), pages)
    }

    /// Returns true if that many samples in a row without an access are no accident, by the share of samples that found one before: it would happen
    /// once in 65,536 times.
    fn is_unusually_quiet(&self) -> bool {
        let missed = 1.0 - f32::from(self.share) / f32::from(FINE);
        let enough = -16.0 / missed.max(1e-3).log2();
        self.quiet_samples >= COLD_SAMPLES && f32::from(self.quiet_samples) >= enough
    }

    /// Returns true if there were enough samples to judge its use.
    pub(crate) const fn is_known(&self) -> bool {
        self.samples >= COLD_SAMPLES
    }

    /// Returns the nanoseconds for which the huge page has been watched without an access.
    pub(crate) const fn quiet(&self) -> u64 {
        self.quiet
    }

    /// Returns true if the huge page has been watched for long enough without an access.
    pub(crate) fn is_cold(&self, cold_after: Duration) -> bool {
        self.quiet_samples >= COLD_SAMPLES && self.quiet >= nanos(cold_after)
    }

    /// Returns the pages of zeroes, if the huge page was not accessed since they were counted.
    pub(crate) const fn zero_since_quiet(&self) -> Option<u16> {
        if self.is_zero_fresh { self.zero } else { None }
    }

    /// Returns the pages of zeroes, if they were counted in the last minutes.
    pub(crate) fn zero_lately(&self, now: Tick) -> Option<u16> {
        self.zero.filter(|_| now.since(self.zero_at) <= ASK_AGAIN)
    }

    /// Returns true if the splitter may request a count of its zeroes.
    pub(crate) fn may_ask(&self, now: Tick) -> bool {
        let wait = if self.zero_at >= self.asked {
            ASK_AGAIN
        } else {
            ASK_UNANSWERED
        };
        self.asked == Tick::START || now.since(self.asked) >= wait
    }

    /// Returns true if it holds facts that could not be learned again.
    pub(crate) fn is_worth_keeping(&self, now: Tick) -> bool {
        self.is_stale
            || self.rest.is_troubled()
            || (self.form == Form::Whole && (self.quiet_samples > 0 || !self.may_ask(now)))
    }
}

fn per_page(heat: u32, pages: u16) -> PromotionValue {
    let heat = u64::from(heat);
    match u64::from(pages) {
        // Heat is below 2^26 even if in use, so no region that costs a page comes near.
        0 => PromotionValue((heat + 1) << 36),
        pages => PromotionValue(heat * u64::from(FINE) / pages),
    }
}

/// Returns a rate up to `most`, in `steps` to one; nonsense counts as none.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "0 to 2^23 after clamping; NaN becomes 0"
)]
fn steps(rate: f32, most: f32, steps: f32) -> u32 {
    (rate.clamp(0.0, most) * steps) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::{Region, VirtAddr};

    const COLD: Duration = Duration::from_secs(30);

    fn heat(active: Option<u64>, rate: f32, idle: u64) -> RegionHeat {
        RegionHeat {
            region: Region::containing(VirtAddr(0)),
            active: active.map(PageCount),
            is_range: false,
            rate,
            per_second: rate * 20.0,
            idle: Duration::from_secs(idle),
        }
    }

    /// Takes in a look, ten seconds after the last one, with one new sample that watched for nine.
    fn look(warmth: &mut AccessHistory, second: u64, huge: bool, heat: &RegionHeat) {
        let look = RegionLook {
            heat: Some(heat),
            total: second / 10,
            samples: 1,
            watched: Duration::from_secs(9),
            elapsed: Duration::from_secs(10),
            resident: FULL,
            huge: Some(huge),
            now: Tick::START.after(Duration::from_secs(second)),
        };
        warmth.absorb(&look, COLD);
    }

    #[test]
    fn cold_is_what_was_watched_for_long_enough_without_an_access() {
        let mut warmth = AccessHistory::default();
        look(&mut warmth, 10, true, &heat(None, 1.0, 0));
        for n in 1..=4 {
            look(&mut warmth, 10 + 10 * n, true, &heat(None, 0.5, 10 * n));
            assert!(!warmth.is_cold(COLD), "{n}");
        }
        look(&mut warmth, 60, true, &heat(None, 0.1, 50));
        assert!(warmth.is_cold(COLD));
        assert_eq!(warmth.quiet(), 45_000_000_000);
        // An access somewhere between the looks, not in the last sample.
        look(&mut warmth, 70, true, &heat(None, 0.1, 3));
        assert!(!warmth.is_cold(COLD));
        assert_eq!(warmth.quiet(), 0);
    }

    #[test]
    fn two_samples_show_no_crowd() {
        let mut warmth = AccessHistory::default();
        // 26 pages of 40 active ones in each sample, and 13 of 40: the same pages again and again, or other ones each time.
        for (rate, is_crowded) in [(26.0, true), (13.0, false)] {
            for sample in 1..=4 {
                look(&mut warmth, 10 * sample, false, &heat(Some(40), rate, 0));
                let known = (sample >= 3).then_some(is_crowded);
                assert_eq!(warmth.is_crowded(), known, "{rate}, sample {sample}");
            }
            warmth = AccessHistory::default();
        }
    }

    #[test]
    fn the_reading_for_zeroes_delays_but_does_not_warm() {
        let mut warmth = AccessHistory::default();
        for n in 1..=6 {
            look(&mut warmth, 10 * n, true, &heat(None, 0.0, 10 * n));
        }
        assert!(warmth.is_cold(COLD) && warmth.may_ask(Tick::START));
        warmth.ask(Tick::START.after(Duration::from_secs(60)));
        warmth.learn_zeroes(Tick::START.after(Duration::from_secs(60)), PageCount(400));
        assert_eq!(warmth.zero_since_quiet(), Some(400));
        look(&mut warmth, 70, true, &heat(None, 0.2, 1));
        assert!(!warmth.is_cold(COLD));
        for n in 1..=2 {
            look(&mut warmth, 70 + 10 * n, true, &heat(None, 0.1, 10 * n));
        }
        assert!(warmth.is_cold(COLD));
        assert_eq!(warmth.zero_since_quiet(), Some(400));
        // The next access is the program's.
        look(&mut warmth, 100, true, &heat(None, 0.1, 0));
        assert_eq!((warmth.zero_since_quiet(), warmth.quiet()), (None, 0));
    }

    #[test]
    fn what_one_form_showed_is_not_taken_for_the_other() {
        let mut warmth = AccessHistory::default();
        look(&mut warmth, 10, true, &heat(None, 1.0, 0));
        // Split; the last sample is from before.
        look(&mut warmth, 20, false, &heat(None, 1.0, 0));
        assert!(warmth.is_stale());
        assert_eq!((warmth.samples(), warmth.active()), (0, 0));
        look(&mut warmth, 30, false, &heat(Some(7), 7.0, 0));
        assert_eq!((warmth.samples(), warmth.active()), (1, 7));
        // Promoted; its worth remembers the state of its pages.
        let before = warmth.worth(100);
        look(&mut warmth, 40, true, &heat(Some(7), 7.0, 0));
        look(&mut warmth, 50, true, &heat(Some(7), 7.0, 0));
        assert!(warmth.is_stale());
        look(&mut warmth, 60, true, &heat(None, 1.0, 0));
        // In use, it counts for more than before its promotion.
        assert!(warmth.worth_kept(100).is_twice(before));
        // Rare touches do not keep it if it used to be touched all the time.
        for n in 1..=5 {
            assert!(!before.is_twice(warmth.worth_kept(100)), "{n}");
            look(&mut warmth, 60 + 10 * n, true, &heat(None, 0.5, 10 * n));
        }
        assert!(before.is_twice(warmth.worth_kept(100)));
    }

    #[test]
    fn a_huge_page_between_two_looks_is_not_taken_for_a_range() {
        let mut warmth = AccessHistory::default();
        look(&mut warmth, 10, false, &heat(Some(128), 128.0, 0));
        look(&mut warmth, 20, false, &heat(None, 1.0, 0));
        assert!(warmth.is_stale());
        assert_eq!((warmth.samples(), warmth.active()), (0, 0));
        look(&mut warmth, 30, false, &heat(Some(7), 7.0, 0));
        assert!(!warmth.is_stale() && !warmth.is_ranged());
        assert_eq!((warmth.samples(), warmth.active()), (1, 7));
    }

    #[test]
    fn nonsense_is_no_heat() {
        for rate in [f32::NAN, -1.0, f32::NEG_INFINITY] {
            assert_eq!(steps(rate, 512.0, 16.0), 0, "{rate}");
        }
        assert_eq!(steps(f32::INFINITY, 512.0, 16.0), 512 * 16);
    }

    #[test]
    fn what_costs_nothing_is_worth_more_than_anything_that_does() {
        assert!(per_page(0, 0) > per_page(8 * 512_000 * 16, 1));
        assert!(per_page(2000, 0) > per_page(1000, 0));
        assert!(per_page(1000, 10) > per_page(1000, 11));
    }
}
