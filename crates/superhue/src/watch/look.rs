//! Looks: sizes of all processes, and the page tables of those that have changed.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use superhue_model::{PAGES_PER_REGION, ProcessId, ProcessView, VirtAddr, VmaKind};
use superhue_policy::LONGEST_FILLING;
use superhue_procfs::ReadError;
use superhue_procfs::process::{StatmPages, activity, memory_use, resident_now, view};
use superhue_sys::urgency::Urgent;

use super::growth::MemoryGrowth;
use super::huge_pages::HugePages;
use super::known::{FIRST_LOOK, ProcessState};
use super::{Watch, program_name};
use crate::Pages;
use crate::account::note_reason;
use crate::ceiling;
use crate::cpu::cpu_time;

/// Time that reading `smaps` takes, as a multiple of a scan of the same page tables: 0.17 s and 0.04 s for 8 GiB.
const READING_FLAGS: u32 = 4;

/// Shortest interval between full looks at a process whose size stands still; longer where they would take
/// more than half of the share for looks.
pub(super) const FULL_LOOK_AT_LEAST: Duration = Duration::from_secs(2);

/// Number of processes from which on a first look at another one waits until the share of looks pays for it. One without room for a huge page waits
/// for its turn.
const CROWD_PROCESSES: usize = 64;

/// Change of size that calls for a full look: this many pages, and at least one part in `NOTABLE_SHARE` of the resident pages.
const NOTABLE_PAGES: u64 = 128;
const NOTABLE_SHARE: u64 = 1000;

/// Result of a read of the sizes of a process.
#[derive(Debug, Clone, Copy)]
struct Glance {
    resident: StatmPages,
    growth: MemoryGrowth,
    /// True if it is left alone because it is being filled.
    is_spared: bool,
    /// True if it was not known before.
    is_new: bool,
    /// True if the size of a known process differs notably from the last one.
    changed: bool,
    /// True if its page tables are worth a look.
    is_due: bool,
}

impl Watch {
    /// Updates the snapshot; returns true if anything notable changed.
    pub(super) fn look(&mut self) -> bool {
        let begun = Instant::now();
        self.snapshot.at = self.begun.elapsed();
        // The looks pay for finding the members of a tree, too; other searches have a pace of their own.
        let finding = cpu_time();
        self.family.update(&self.roots, self.snapshot.at);
        let finding = match self.family.is_named() {
            true => cpu_time().saturating_sub(finding),
            false => Duration::ZERO,
        };
        let members: BTreeSet<ProcessId> = self.family.members().collect();
        let before = self.snapshot.processes.len();
        self.snapshot
            .processes
            .retain(|process| members.contains(&process.id));
        self.objects.maps_changed |= self.snapshot.processes.len() < before;
        self.known.retain(|id, _| members.contains(id));
        let mut changed = false;
        self.filling_ends = None;
        let glancing = cpu_time();
        let mut in_full = Duration::ZERO;
        let charged = self.charge.look(self.snapshot.at, &members);
        self.watched.peak_charged = self.watched.peak_charged.max(charged);
        let (mut due, mut newcomers) = (Vec::new(), 0);
        for id in members {
            let known = self.known.get(&id);
            if known.is_some_and(|known| !known.is_stale && !known.is_glanced_at(self.snapshot.at))
            {
                continue;
            }
            let looked = known.map_or(self.snapshot.at, |known| known.looked);
            let Some(glance) = self.glance_at(id, newcomers) else {
                continue;
            };
            newcomers += usize::from(glance.is_new);
            // Memory that is being filled is left alone, so it is no news until that ends.
            match glance.is_spared {
                true => {
                    let end = glance.growth.filled_until();
                    let first = self.filling_ends.map_or(end, |first| first.min(end));
                    self.filling_ends = Some(first);
                }
                false => changed |= glance.changed,
            }
            if glance.is_due {
                due.push((looked, Reverse(glance.resident.total), id, glance));
            }
        }
        // The longest wait comes first, and of new processes the largest.
        due.sort_unstable_by_key(|&(looked, size, id, _)| (looked, size, id));
        self.turns.retain(|id| self.known.contains_key(&id));
        let share = self.max_overhead * ceiling::LOOKS;
        for (_, _, id, glance) in due {
            let at = self.snapshot.at;
            let is_free = glance.is_new && self.known.len() < CROWD_PROCESSES;
            let has_turn = if self.saves() {
                false
            } else if !glance.changed && !glance.is_new && self.sleeps(id) {
                self.turns.leave(id);
                false
            } else {
                let cost = self.known.get(&id).map_or(FIRST_LOOK, |known| known.cost);
                is_free || self.turns.has(&self.allowance, share, at, id, cost)
            };
            if !has_turn {
                if glance.is_new {
                    let known = ProcessState::unseen(at, glance.resident);
                    self.known.insert(id, known);
                }
                continue;
            }
            changed |= glance.is_new;
            in_full += self.look_in_full(id, glance, is_free);
        }
        self.glance = finding + cpu_time().saturating_sub(glancing + in_full);
        self.in_full = in_full;
        if !self.saves() {
            self.look_at_objects();
        }
        self.note_what_fills();
        self.record();
        self.watched.looks += 1;
        self.watched.looking += begun.elapsed();
        changed
    }

    /// Reads the sizes of one process, and decides whether its page tables are worth a look; `None` if they could not be read, or the process is one of
    /// a crowd and small. `newcomers` are the new processes before it in this round.
    fn glance_at(&mut self, id: ProcessId, newcomers: usize) -> Option<Glance> {
        let resident = resident_now(&self.roots, id.pid).ok()?;
        if let Some(sampler) = &mut self.setup.sampler {
            let huge_pages = (self.known.get(&id)).map_or(0, |known| known.huge_pages.count());
            sampler.resident(id, resident.anonymous(), huge_pages);
        }
        let at = self.snapshot.at;
        let known = self.known.get(&id).map(|known| known.growth);
        let is_new = known.is_none();
        let mut growth = known.unwrap_or_else(|| MemoryGrowth::new(at, resident));
        growth.see(at, resident);
        if let Some(known) = self.known.get_mut(&id) {
            known.growth = growth;
            known.glanced = at;
        }
        if let Some(view) = self.snapshot.process_mut(id) {
            view.fills = growth.fills(at);
        }
        let changed = self.known.get(&id).is_none_or(|known| {
            let difference = known.resident.0.abs_diff(resident.total.0);
            difference >= NOTABLE_PAGES.max(known.resident.0 / NOTABLE_SHARE)
        });
        if changed && let Some(known) = self.known.get_mut(&id) {
            known.still_since = at;
        }
        let has_room = resident.total.0 >= PAGES_PER_REGION;
        if is_new && !has_room && self.known.len() + newcomers >= CROWD_PROCESSES {
            let known = ProcessState::unseen(at, resident);
            self.known.insert(id, known);
            return None;
        }
        // Also before the policy is chosen: a look would only find memory that is left alone.
        let pages =
            (self.undecided.as_ref()).map_or(self.setup.pages, |(config, _)| config.likely_pages());
        let is_spared = pages == Pages::Auto && growth.fills(at);
        let is_due = self.known.get(&id).is_none_or(|known| {
            let since = at.saturating_sub(known.looked);
            let affordable = ceiling::apart(known.cost, self.max_overhead * ceiling::LOOKS / 2.0);
            // A look at growing memory would be out of date at once, and it holds the program up.
            let least = if is_spared {
                LONGEST_FILLING
            } else {
                FULL_LOOK_AT_LEAST
            };
            let overdue = since >= least.max(affordable);
            let is_news = known.is_stale || (changed && !known.refused && !is_spared);
            is_news || overdue
        });
        Some(Glance {
            resident,
            growth,
            is_spared,
            is_new,
            changed: changed && !is_new,
            is_due,
        })
    }

    /// Looks at the page tables of one process; returns the CPU time of the look. A look that `is_free` takes nothing from the share of looks.
    fn look_in_full(&mut self, id: ProcessId, glance: Glance, is_free: bool) -> Duration {
        let Glance {
            resident,
            growth,
            changed,
            is_new,
            ..
        } = glance;
        let at = self.snapshot.at;
        // Read before the look: activity during the look counts as new.
        let ran = activity(&self.roots, id.pid).ok();
        let (begun, cpu_before) = (Instant::now(), cpu_time());
        // The reads below hold locks of the process.
        let huge_pages = (self.known.get(&id)).map_or(0, |known| known.huge_pages.count());
        let spared = huge_pages * (PAGES_PER_REGION - 1);
        let urgent = Urgent::raised_for(resident.total.0.saturating_sub(spared));
        let mut seen = view(&self.roots, &mut self.scanner, id);
        let stack = seen.as_ref().ok().and_then(stack_of);
        let counts_lazy = self.counts_lazy(id, begun.elapsed() * READING_FLAGS);
        if let Ok(view) = &mut seen {
            // Before the pages are counted: pages freed meanwhile show in the next look, or right before a collapse.
            if counts_lazy && let Err(error) = self.lazily_freed.take_out(view) {
                tracing::debug!(process = %id, %error, "lazily freed pages not counted");
            }
            let before = self.snapshot.process(id);
            self.torn.enter(at, before, view);
        }
        if let Ok(view) = &mut seen
            && is_mostly_private(view)
            && self.has_kin(id, stack)
        {
            let used = memory_use(&self.roots, id.pid);
            view.pss_anon = used.ok().and_then(|used| used.pss_anon);
        }
        if let Some(census) = &mut self.watched.census {
            census.look(&self.roots, id);
        }
        drop(urgent);
        let cost = begun.elapsed();
        let cpu = cpu_time().saturating_sub(cpu_before);
        // A look that costs more than expected, as every first look does, must not delay the looks at other processes.
        if !is_free {
            self.allowance.spend_without_debt(at, cost);
        }
        self.watched.full_looks += 1;
        tracing::debug!(process = %id, ?cost, readable = seen.is_ok(), "looked in full");
        let refused = seen.is_err();
        let huge_pages = match seen {
            Ok(mut view) => {
                self.forget_growth(&view);
                let huge_pages = HugePages::of(&view, self.grown.get(&id));
                view.fills = growth.fills(at);
                view.looked = Some(at);
                self.store(view);
                huge_pages
            }
            Err(error) => {
                self.note_unreadable(id, &error);
                match self.known.get(&id) {
                    // It has executed a set-user-ID program, for example: the view is of memory that it may not have any more.
                    Some(known) if known.refused && matches!(error, ReadError::Denied { .. }) => {
                        self.forget_view(id);
                        HugePages::NONE
                    }
                    known => known.map_or(HugePages::NONE, |known| known.huge_pages),
                }
            }
        };
        let name = match &self.live {
            Some(_) => program_name(&self.roots, id),
            None => String::new(),
        };
        self.known.insert(
            id,
            ProcessState {
                since: self.known.get(&id).map_or(at, |known| known.since),
                resident: resident.total,
                growth,
                looked: at,
                cost,
                activity: ran,
                glanced: at,
                still_since: match self.known.get(&id) {
                    Some(known) if !changed && !is_new && known.activity == ran => {
                        known.still_since
                    }
                    _ => at,
                },
                asleep_at: at,
                refused,
                lazy_counted: match self.known.get(&id) {
                    Some(known) if !counts_lazy => known.lazy_counted,
                    _ => at,
                },
                is_stale: false,
                huge_pages,
                collapses: self.collapses_of(id),
                name,
                stack,
            },
        );
        cpu
    }

    /// Returns true if a look counts lazily freed pages, which takes `cost` at most: if the sum of all work covers that, if a collapse met some, or
    /// after a time in proportion. Otherwise the check right before a collapse finds them.
    fn counts_lazy(&self, id: ProcessId, cost: Duration) -> bool {
        let at = self.snapshot.at;
        let apart = ceiling::apart(cost, self.max_overhead / 2.0);
        self.cost.covers(at, cost)
            || self.known.get(&id).is_some_and(|known| {
                known.is_stale || at.saturating_sub(known.lazy_counted) >= apart
            })
    }

    /// Returns true if a process that is due for a full look has slept since the last one. The interval between checks grows.
    fn sleeps(&mut self, id: ProcessId) -> bool {
        let at = self.snapshot.at;
        let Some(known) = self.known.get_mut(&id) else {
            return false;
        };
        let since = at.saturating_sub(known.looked);
        if known.is_stale || known.refused || since >= known.full_look_within() {
            return false;
        }
        if at.saturating_sub(known.asleep_at) < known.asleep_at.saturating_sub(known.looked) {
            return true;
        }
        let now = activity(&self.roots, id.pid).ok();
        let has_slept = now.is_some() && now == known.activity;
        if has_slept {
            known.asleep_at = at;
        } else {
            known.still_since = at;
        }
        has_slept
    }

    /// Returns true if a process may share pages with another one that is watched.
    fn has_kin(&self, id: ProcessId, stack: Option<VirtAddr>) -> bool {
        let is_kin =
            |(other, known): (&ProcessId, &ProcessState)| *other != id && known.stack == stack;
        stack.is_some() && self.known.iter().any(is_kin)
    }

    /// Puts a view into the snapshot and keeps the known heat of the process.
    fn store(&mut self, mut view: ProcessView) {
        let known = self.snapshot.process_mut(view.id);
        view.heat = known.and_then(|known| known.heat.take());
        self.snapshot.put(view);
        self.objects.maps_changed = true;
    }

    /// Removes the view of a process from the snapshot.
    fn forget_view(&mut self, id: ProcessId) {
        self.snapshot.processes.retain(|view| view.id != id);
        self.objects.maps_changed = true;
    }

    fn note_unreadable(&mut self, id: ProcessId, error: &ReadError) {
        if error.is_vanished() {
            return;
        }
        let name = program_name(&self.roots, id);
        // The reason without the process number, so that equal programs count once.
        let reason = match error {
            ReadError::Denied { remedy, .. } => format!("not permitted: {remedy}"),
            error => error.to_string(),
        };
        note_reason(&mut self.watched.unreadable, name, reason);
    }
}

/// Returns true if a process is worth the read of its share of pages from a fork: that read walks all its page tables, of which those of a
/// large shared mapping may be nearly all.
fn is_mostly_private(view: &ProcessView) -> bool {
    let (all, private) = (
        view.rss.unwrap_or_default(),
        view.rss_anon.unwrap_or_default(),
    );
    private.0 >= all.0 / 4
}

/// Returns the end of the stack of a process.
fn stack_of(view: &ProcessView) -> Option<VirtAddr> {
    let stack = view.vmas.iter().find(|vma| vma.kind == VmaKind::Stack);
    stack.map(|vma| vma.range.end)
}

#[cfg(test)]
mod tests {
    use superhue_procfs::process::identify;
    use superhue_testing::{Answer, ChildGuard, forbid};

    use super::*;
    use crate::attach::running_mechanism;
    use crate::family::Family;
    use crate::session::new_watch;

    #[test]
    fn a_process_that_has_become_unreadable_leaves_the_snapshot() {
        const NAME: &str = "a_process_that_has_become_unreadable_leaves_the_snapshot";
        // The filter of system calls cannot be taken back.
        if superhue_testing::passed_in_own_process(module_path!(), NAME) {
            return;
        }
        let child = ChildGuard::sleeper();
        let options = crate::PlacementOptions {
            pages: Some(Pages::Kernel),
            ..crate::PlacementOptions::default()
        };
        let config = crate::Config::from(&options).for_running();
        let id = identify(&config.roots, child.pid()).unwrap();
        let mechanism = running_mechanism(&config).unwrap();
        let mut watch = new_watch(&config, &mechanism, Family::new([id], false), None);
        watch.look();
        let glance = watch.glance_at(id, 0).unwrap();
        assert!(watch.snapshot.process(id).is_some());
        if let Err(error) = forbid(libc::SYS_openat, Answer::NotPermitted) {
            return superhue_testing::skip("seccomp", &error);
        }
        watch.look_in_full(id, glance, true);
        assert!(watch.snapshot.process(id).is_some(), "this may pass");
        watch.look_in_full(id, glance, true);
        assert!(watch.snapshot.process(id).is_none(), "this lasts");
        assert_eq!(watch.watched.unreadable.len(), 1);
    }
}
