//! Takes some pages out and in again, each into the frame that was dealt for it.
//!
//! ```text
//!   other CPUs   deal some frames: a thread that faults there while a page is out gets one
//!   home         for each page:  out ── still mapped? it stays ── deal ── in
//! ```
//!
//! All of this happens at the front of the CPU's queue (`FifoScheduling`), for a few pages at a time. So a program whose
//! only thread runs there never meets a page that is out, and waits for less than a millisecond.

use std::collections::HashSet;

use superhue_model::{Color, Pfn, VirtAddr};
use superhue_sys::advise::drain_new_pages;

use crate::cpus::{FifoScheduling, ProgramCpus};
use crate::price::Price;
use crate::stock::Stock;
use crate::target::{MovablePage, Target};

/// Pages in one batch: 16 take some 0.2 ms.
pub(crate) const BATCH: usize = 16;

/// Frames dealt on another CPU beyond the number that was taken there last time.
const SPARE: usize = 2;

/// A page to take out, and the color of the frame it is to get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    /// Index of the page among the requested pages.
    pub(crate) at: usize,
    pub(crate) page: VirtAddr,
    pub(crate) color: Color,
    pub(crate) movable: MovablePage,
}

/// Frames dealt for one process on CPUs other than home, and how many of them its pages got.
#[derive(Debug, Default)]
pub(crate) struct OtherCpuFrames {
    dealt: HashSet<Pfn>,
    taken: usize,
}

impl OtherCpuFrames {
    /// Records the frame that a page has now.
    pub(crate) fn note(&mut self, frame: Pfn) {
        self.taken += usize::from(self.dealt.remove(&frame));
    }

    /// Returns the number of frames to deal for a batch.
    fn begin(&mut self) -> usize {
        let taken = std::mem::take(&mut self.taken);
        // Any process may have taken the frames that were dealt before.
        self.dealt.clear();
        (taken + SPARE).min(BATCH)
    }
}

/// Runs a batch of jobs.
pub(crate) fn run(
    (stock, price): (&mut Stock, &mut Price),
    target: &Target,
    cpus: &ProgramCpus,
    elsewhere: &mut OtherCpuFrames,
    jobs: &[Job],
) {
    let served = FifoScheduling::on(cpus.home);
    let count = elsewhere.begin();
    for &other in &cpus.others {
        if served.go(other).is_err() {
            continue;
        }
        // Pages that the program's threads faulted in there cannot be taken out before they are on the kernel's LRU lists.
        drain_new_pages();
        for job in jobs.iter().take(count) {
            elsewhere
                .dealt
                .extend(stock.deal(job.color).map(|dealt| dealt.frame));
        }
    }
    if let Some(home) = cpus.home.filter(|_| !cpus.others.is_empty()) {
        let _ = served.go(home);
    }
    drain_new_pages();
    for job in jobs {
        price.attempts += 1;
        if target.page_out(job.page).is_err() || !is_out(target, job) {
            continue;
        }
        price.outs += 1;
        // After `out`, which frees the page's old frame on this CPU.
        if stock.deal(job.color).is_some() {
            price.dealt += 1;
        }
        target.page_in(job.page);
        price.ins += 1;
    }
}

/// Returns true if a page is out now. A page of shared memory counts as out if it is not mapped.
pub(crate) fn is_out(target: &Target, job: &Job) -> bool {
    let Ok(words) = target.words(&[job.page]) else {
        return false;
    };
    words
        .first()
        .is_some_and(|word| word.is_swapped() || (!job.movable.private && !word.is_present()))
}
