//! Splits of huge pages: the choice, the reasons and the time.
//!
//! This module serves `hot` and `auto` ([`Active::split`](crate::Active::split)); `torn.rs` and `promoter/overdrawn.rs` split for other reasons. A split copies
//! no data, and it frees pages of zeroes (Linux 6.12). This module splits for one of two reasons:
//!
//! * **It is cold and mostly zeroes**: watched for 30 s (`cold_after`) and five samples in a row without an access, and half of it (`min_zero`) or
//!   more is zeroes.
//! * **It gives way**: the budget is used up, and a region elsewhere is at least twice as hot for its price. Then huge pages that hold part of the
//!   budget are split, coldest for their charge first, and only if together they free the pages that the region needs. A huge page in use (touched
//!   in more than a quarter of the samples, and not quiet for unusually long) counts as eight times as hot as before it was promoted: it may have
//!   warmed up since, which its one accessed bit does not show. The owner of the memory does not matter: an earlier process has no right to stay.
//!   Two that are equally hot never take from each other. A huge page that was made without evidence, of a region with few holes, gives way to none:
//!   its heat is not known, and it holds little.
//!
//! ```text
//!   budget    [ charge of A ..... | charge of B | ... ]    full
//!                 |                     |
//!     heat / page 9   9   1             6          <---    5 does not fit: takes from the 1,
//!                         ^ zeroes: 380                    never from the 6 or the 9
//! ```
//!
//! In both cases a huge page stays whole
//!
//! * for 10 s (a third of `cold_after`) after it became one ([`is_due`]);
//! * while an action on it is under way, and for a while after an attempt that failed (`Record::is_splittable`);
//! * if splits free nothing, as before Linux 6.12: 16 of them show it (`Promoter::splits_are_futile`);
//! * if it is shared memory, whose zeroes the kernel does not free, or if its process cannot be reached or may not be split
//!   (`OwnedMemory::may_split`).
//!
//! # A split from beginning to end
//!
//! ```text
//!   look       each look notes which huge pages may be split             memory.rs      OwnedMemory::look
//!   choose     cold ones, then those that give way; 32 at once           here           Splitter::decide
//!   ask        are they zeroes? counted by reading, 64 a second          here           Splitter::ask
//!   plan       Action::Split goes out with the collapses                 promoter.rs    Promoter::launch_split
//!   act        one page of it is advised MADV_COLD from outside; by      act/kernel.rs  KernelActuator::act
//!              debugfs where that is refused
//!   settle     the next look shows the pages freed; if it is still       record.rs      Record::settle_split
//!              whole, it stays whole
//!   rest       not promoted again for 30 s, doubling up to an hour, and  warmth.rs      AccessHistory::was_split
//!              only with more active pages each time
//! ```

use std::time::Duration;

use superhue_model::{Action, ProcessId, Region};

use crate::candidate::{Candidate, PromotionValue, Rule};
use crate::clock::Tick;
use crate::promoter::Promoter;
use crate::record::Record;
use crate::warmth::AccessHistory;

/// Returns true if the accesses to a huge page of this `age`, to which `charged` pages of the budget are owed, allow splitting it: as a cold one,
/// or as one that gives way. It is cold after `cold_after` without an access.
pub(crate) fn is_due(
    warmth: &AccessHistory,
    age: Duration,
    charged: u16,
    cold_after: Duration,
) -> bool {
    let may_give_way = charged > 0 && warmth.is_known();
    age >= cold_after / 3 && (warmth.is_cold(cold_after) || may_give_way)
}

/// Number of splits that may be under way at once. A split takes the page-table lock of the target for tens of microseconds.
const MAX_PENDING_SPLITS: usize = 32;

/// Number of questions sent at once, and the time between: 128 MiB read per second at most.
const QUESTIONS: usize = 64;
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(1);

/// Chooses splits.
#[derive(Debug)]
pub(crate) struct Splitter {
    cold_after: Duration,
    min_zero: u16,
    questions: Vec<(ProcessId, Region)>,
    may_ask_at: Tick,
}

/// Place of a record: index of the owner, and of the record in it.
type Place = (usize, usize);

/// A huge page that would give way to a hotter region.
#[derive(Debug, Clone, Copy)]
struct Victim {
    worth: PromotionValue,
    place: Place,
    /// Pages of the budget that splitting it should free.
    release: u16,
}

/// Results of one pass over all regions.
#[derive(Debug, Default)]
struct Choices {
    /// Cold huge pages, mostly zeroes: quiet time in nanoseconds, place, and pages that splitting them frees.
    cold: Vec<(u64, Place, u16)>,
    victims: Vec<Victim>,
    /// Cold huge pages whose zeroes have to be counted first: quiet time in nanoseconds, place.
    cold_unknown: Vec<(u64, Place)>,
    victims_unknown: Vec<(PromotionValue, Place)>,
    /// Number of splits under way, and the pages that they should free.
    under_way: usize,
    coming: u64,
}

impl Splitter {
    /// Makes a splitter. Huge pages are cold after `cold_after`, and mostly zeroes from `min_zero` pages of them on.
    pub(crate) const fn new(cold_after: Duration, min_zero: u16) -> Self {
        Self {
            cold_after,
            min_zero,
            questions: Vec::new(),
            may_ask_at: Tick::START,
        }
    }

    /// Returns the huge pages whose zeroes the last decision wants counted.
    pub(crate) fn questions(&self) -> &[(ProcessId, Region)] {
        &self.questions
    }

    /// Plans splits, after promotions have been planned.
    pub(crate) fn decide(
        &mut self,
        promoter: &mut Promoter<impl Rule<Note = AccessHistory>>,
    ) -> Vec<Action> {
        if promoter.splits_are_futile() {
            self.questions.clear();
            return Vec::new();
        }
        let wanted = wanted(promoter);
        let mut found = self.find(promoter, &wanted);
        let left = MAX_PENDING_SPLITS.saturating_sub(found.under_way);

        let is_cut = found.cold.len() > left;
        keep_first(&mut found.cold, left, |&(quiet, place, _)| {
            (std::cmp::Reverse(quiet), place)
        });
        let mut chosen: Vec<Place> = found.cold.iter().map(|&(_, place, _)| place).collect();
        let released: u64 = found.cold.iter().map(|cold| u64::from(cold.2)).sum();
        found
            .victims
            .retain(|victim| !chosen.contains(&victim.place));
        found
            .victims
            .sort_unstable_by_key(|victim| (victim.worth, victim.place));
        // What the charge exceeds the budget by has to come back first: until then no victim makes room for another region.
        let excess = promoter.excess().unwrap_or(0);
        let free = promoter
            .room()
            .saturating_add(found.coming + released)
            .saturating_sub(excess);
        let wanted = if excess > 0 && free == 0 {
            Vec::new()
        } else {
            wanted
        };
        let left = left - chosen.len();
        chosen.extend(give_way(&wanted, &found.victims, free, left));

        self.ask(promoter, found);
        if is_cut {
            promoter.look_after(BETWEEN_QUESTIONS);
        }
        chosen
            .into_iter()
            .filter_map(|(owner, record)| promoter.launch_split(owner, record))
            .collect()
    }

    /// Finds the choices in one pass over all records.
    fn find(
        &self,
        promoter: &Promoter<impl Rule<Note = AccessHistory>>,
        wanted: &[Candidate],
    ) -> Choices {
        let now = promoter.now();
        let mut found = Choices::default();
        for (owner, memory) in promoter.owners().iter().enumerate() {
            let may_split = memory.may_split();
            for (index, record) in memory.splits() {
                if record.is_splitting() {
                    found.under_way += 1;
                    found.coming += u64::from(release(record, now).unwrap_or(0));
                } else if may_split && !promoter.is_torn(memory.owner, record.region) {
                    self.sort_in(record, (owner, index), now, wanted, &mut found);
                }
            }
        }
        found
    }

    fn sort_in(
        &self,
        record: &Record<AccessHistory>,
        place: Place,
        now: Tick,
        wanted: &[Candidate],
        found: &mut Choices,
    ) {
        let warmth = &record.note;
        if warmth.is_cold(self.cold_after) {
            match warmth.zero_since_quiet() {
                Some(zero) if zero >= self.min_zero => {
                    let released = release(record, now).unwrap_or(0);
                    found.cold.push((warmth.quiet(), place, released));
                    return;
                }
                Some(_) => {}
                None if warmth.may_ask(now) => {
                    found.cold_unknown.push((warmth.quiet(), place));
                    return;
                }
                None => {}
            }
        }
        if record.charged() == 0 || !warmth.is_known() {
            return;
        }
        let known = release(record, now);
        let release = known.unwrap_or(record.charged());
        let worth = warmth.worth_kept(release);
        if release == 0 || !wanted.iter().any(|wanted| wanted.worth.is_twice(worth)) {
            return;
        }
        if known.is_some() {
            found.victims.push(Victim {
                worth,
                place,
                release,
            });
        } else if warmth.may_ask(now) {
            found.victims_unknown.push((worth, place));
        }
    }

    /// Asks the questions whose answers matter most.
    fn ask(
        &mut self,
        promoter: &mut Promoter<impl Rule<Note = AccessHistory>>,
        mut found: Choices,
    ) {
        self.questions.clear();
        if found.cold_unknown.is_empty() && found.victims_unknown.is_empty() {
            return;
        }
        let now = promoter.now();
        if now < self.may_ask_at {
            promoter.look_after(self.may_ask_at.since(now));
            return;
        }
        self.may_ask_at = now.after(BETWEEN_QUESTIONS);
        // On an idle machine nearly all huge pages may be cold, and only few questions are sent.
        keep_first(&mut found.cold_unknown, QUESTIONS, |&(quiet, place)| {
            (std::cmp::Reverse(quiet), place)
        });
        keep_first(&mut found.victims_unknown, QUESTIONS, |&unknown| unknown);
        let cold = found.cold_unknown.into_iter().map(|(_, place)| place);
        let victims = found.victims_unknown.into_iter().map(|(_, place)| place);
        // A region that waits for memory matters more than a huge page that merely wastes it.
        for (owner, record) in victims.chain(cold).take(QUESTIONS) {
            let Some(memory) = promoter.owners_mut().get_mut(owner) else {
                continue;
            };
            let Some(id) = memory.owner.process() else {
                continue;
            };
            if let Some(record) = memory.records_mut().get_mut(record) {
                record.note.ask(now);
                self.questions.push((id, record.region));
            }
        }
    }
}

/// Keeps the first `count` in the order of their keys, which all differ.
fn keep_first<T, K: Ord>(list: &mut Vec<T>, count: usize, key: impl Fn(&T) -> K) {
    if count < list.len() {
        list.select_nth_unstable_by_key(count, &key);
        list.truncate(count);
    }
    list.sort_unstable_by_key(key);
}

/// Returns the regions for which others should give way, best first: those that fit the budget at all.
fn wanted(promoter: &Promoter<impl Rule<Note = AccessHistory>>) -> Vec<Candidate> {
    let limit = promoter.limit().unwrap_or(u64::MAX);
    let fits = |candidate: &&Candidate| u64::from(candidate.growth) <= limit;
    promoter.priced_out().iter().filter(fits).copied().collect()
}

/// Returns the pages that splitting a huge page should take off its charge: those of them that are still zeroes. `None` if they were not counted
/// lately.
fn release(record: &Record<AccessHistory>, now: Tick) -> Option<u16> {
    let zero = record.note.zero_lately(now)?;
    Some(zero.min(record.charged()))
}

/// Returns the first `left` of the `victims` (coldest first) that make room for the `wanted`, with `free` pages to begin with. A victim gives way
/// only if there is enough room then.
fn give_way(wanted: &[Candidate], victims: &[Victim], mut free: u64, left: usize) -> Vec<Place> {
    let mut chosen: Vec<Place> = Vec::new();
    for candidate in wanted {
        let cost = u64::from(candidate.growth);
        let mut within = free;
        let mut count = 0;
        for victim in &victims[chosen.len().min(victims.len())..] {
            let is_enough = within >= cost || chosen.len() + count >= left;
            if is_enough || !candidate.worth.is_twice(victim.worth) {
                break;
            }
            within += u64::from(victim.release);
            count += 1;
        }
        if within < cost {
            break;
        }
        free = within - cost;
        let first = chosen.len();
        let more = victims[first..first + count].iter();
        chosen.extend(more.map(|victim| victim.place));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(worth: u64, growth: u16) -> Candidate {
        Candidate {
            owner: 0,
            record: 0,
            since: Tick::START,
            growth,
            is_proven: true,
            level: 0,
            worth: PromotionValue(worth),
            lift: 0,
            served: Tick::START,
        }
    }

    fn victims(victims: &[(u64, u16)]) -> Vec<Victim> {
        let victim = |(index, &(worth, release)): (usize, &(u64, u16))| Victim {
            worth: PromotionValue(worth),
            place: (0, index),
            release,
        };
        victims.iter().enumerate().map(victim).collect()
    }

    #[test]
    fn only_as_many_give_way_as_are_needed_and_never_in_vain() {
        let cold = victims(&[(1, 100), (2, 100), (3, 100), (60, 100)]);
        let chosen = |wanted: &[Candidate], free, left| {
            let chosen = give_way(wanted, &cold, free, left);
            chosen
                .into_iter()
                .map(|(_, index)| index)
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[wanted(100, 150)], 0, 9), [0, 1]);
        assert_eq!(chosen(&[wanted(100, 150)], 50, 9), [0]);
        assert_eq!(chosen(&[wanted(100, 150)], 150, 9), [0; 0]);
        // The fourth is too hot to help.
        assert_eq!(chosen(&[wanted(100, 301)], 0, 9), [0; 0]);
        assert_eq!(chosen(&[wanted(120, 301)], 0, 9), [0, 1, 2, 3]);
        assert_eq!(chosen(&[wanted(120, 301)], 0, 3), [0; 0]);
        // The pages that the first leaves over serve the second.
        assert_eq!(chosen(&[wanted(100, 150), wanted(90, 50)], 0, 9), [0, 1]);
        assert_eq!(chosen(&[wanted(100, 150), wanted(90, 51)], 0, 9), [0, 1, 2]);
        assert_eq!(chosen(&[wanted(1, 100)], 0, 9), [0; 0]);
    }
}
