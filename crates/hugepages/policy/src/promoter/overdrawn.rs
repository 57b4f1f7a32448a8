//! Splits of huge pages when the programs shrink, and the budget with them.
//!
//! The budget is a share of the memory that the programs use. A program that frees most of its memory leaves charges behind that the smaller budget
//! does not cover:
//!
//! ```text
//!   used     |=========================================|          budget 5 %  |==|
//!   later    |========|                                           budget 5 %  |
//!                                                                 charged     |==|   a split frees what is still zeroes
//! ```
//!
//! The charge has to exceed the budget for a second ([`GRACE`]), so that a program that frees memory and fills it again keeps its huge pages.
//! The coldest for their charge are split first, then those with the largest charge. A region that was split rests ([`REST`]).

use std::cmp::Reverse;
use std::time::Duration;

use superhue_model::Action;

use super::{FORGOTTEN, MAX_FUTILE_SPLITS, Promoter};
use crate::backoff::REST;
use crate::candidate::{PromotionValue, Rule};
use crate::clock::Tick;

/// Time for which the charge has to exceed the budget.
const GRACE: Duration = Duration::from_secs(1);

/// Number of splits that may be under way at once, each of tens of microseconds under the page-table lock of the program.
const MAX_PENDING_SPLITS: usize = 32;

/// Time since which the charge exceeds the budget, and the splits for it.
#[derive(Debug, Default)]
pub(crate) struct BudgetOverrun {
    since: Option<Tick>,
    /// Number of splits that a look has settled: those that were cancelled or refused say nothing about what splits return.
    settled: u64,
    /// Pages that these have returned.
    returned: u64,
    /// Time of the last of them.
    last: Tick,
}

impl BudgetOverrun {
    /// Counts splits that a look has settled, and the pages that they have returned. Splits of torn huge pages do not belong here: their pages come
    /// back on every kernel.
    pub(super) fn note_settled(&mut self, splits: u64, pages: u64, now: Tick) {
        if splits > 0 {
            self.settled = self.settled.saturating_add(splits);
            self.returned = self.returned.saturating_add(pages);
            self.last = now;
        } else if self.is_in_vain() && now.since(self.last) >= FORGOTTEN {
            // Pages that held data then may hold zeroes now.
            (self.settled, self.returned) = (0, 0);
        }
    }

    /// Returns true if splits have returned nothing so far.
    const fn is_in_vain(&self) -> bool {
        self.settled >= MAX_FUTILE_SPLITS && self.returned == 0
    }

    /// Plans splits that bring the charge down to the budget.
    pub(crate) fn decide<R: Rule>(&mut self, promoter: &mut Promoter<R>) -> Vec<Action> {
        let now = promoter.now();
        let Some(excess) = promoter.excess() else {
            self.since = None;
            return Vec::new();
        };
        let since = *self.since.get_or_insert(now);
        if now.since(since) < GRACE {
            promoter.look_after(GRACE.saturating_sub(now.since(since)));
            return Vec::new();
        }
        if self.is_in_vain() || promoter.splits_are_futile() {
            return Vec::new();
        }
        let chosen = choose(promoter, excess, now);
        let mut actions = Vec::with_capacity(chosen.len());
        for (owner, record) in chosen {
            actions.extend(promoter.launch_split(owner, record));
            let memory = promoter.owners_mut().get_mut(owner);
            if let Some(record) = memory.and_then(|memory| memory.records_mut().get_mut(record)) {
                record.trouble.fail(now, &REST);
            }
        }
        actions
    }
}

/// Chooses the records to split so that `excess` pages come back, counting the splits under way.
fn choose<R: Rule>(promoter: &Promoter<R>, excess: u64, now: Tick) -> Vec<(usize, usize)> {
    let mut under_way = 0;
    let mut coming = 0;
    let mut candidates: Vec<(PromotionValue, Reverse<u16>, usize, usize)> = Vec::new();
    for (owner, memory) in promoter.owners().iter().enumerate() {
        let may_split = memory.may_split();
        for (index, record) in memory.records().iter().enumerate() {
            let charged = record.charged();
            if charged == 0 {
                continue;
            }
            if record.is_splitting() {
                under_way += 1;
                coming += u64::from(charged);
            } else if promoter.is_torn(memory.owner, record.region) {
                // The plan has a split of it already.
                under_way += 1;
                coming += u64::from(charged);
            } else if may_split && record.is_splittable(now) {
                let worth = promoter.rule().worth_kept(charged, &record.note);
                candidates.push((worth, Reverse(charged), owner, index));
            }
        }
    }
    candidates.sort_unstable();
    let mut chosen = Vec::new();
    for (_, Reverse(charged), owner, index) in candidates {
        if coming >= excess || under_way + chosen.len() >= MAX_PENDING_SPLITS {
            break;
        }
        coming += u64::from(charged);
        chosen.push((owner, index));
    }
    chosen
}
