//! Timing by the processor's own clock, on the CPU the calling thread is on.
//!
//! ```text
//!   load     target lines                       they are in the cache
//!   push     line by line, evictors there and back           or no longer
//!   time     per target: clock, 8 loads each waiting for the one before, clock
//! ```
//!
//! The clock of a VM may move in steps of 10 ns, which is as long as a load from the next level: one load cannot be
//! timed, eight in a chain can. The chain needs no pointers in the page: the loaded value is masked to zero and added
//! to the next address, so pages are never written.

use std::hint::black_box;

use superhue_model::Random;

use super::clock::{self, Moment};
use super::probe::{LINE_SIZE, LINES_OF_PAGE};
use super::{Lines, Probe, ProbeError, TypicalTrialTime};
use crate::Page;

/// Timing by the processor's own clock, on the CPU the calling thread is on.
///
/// The thread should stay on one CPU, as every CPU may have a cache of its own: see
/// [`MeasuredOracle`](super::MeasuredOracle). Makes no system call.
#[derive(Debug)]
pub struct HardwareProbe {
    usual: TypicalTrialTime,
    random: Random,
}

impl HardwareProbe {
    /// Tries the clock.
    ///
    /// # Errors
    /// See [`ProbeError`].
    pub fn new() -> Result<Self, ProbeError> {
        clock::check()?;
        Ok(Self {
            usual: TypicalTrialTime::default(),
            random: Random::new(clock::now().ticks),
        })
    }

    /// Returns true if `accesses` between two moments took about as long as undisturbed ones, on one CPU.
    fn went_well(&mut self, from: Moment, to: Moment, accesses: usize) -> bool {
        let took = to.ticks.saturating_sub(from.ticks);
        self.usual.is(took, accesses) && from.cpu == to.cpu
    }
}

impl Probe for HardwareProbe {
    fn trial(
        &mut self,
        lines: &Lines,
        targets: &[Page],
        evictors: &[Page],
        times: &mut [u32],
    ) -> bool {
        let spare = lines.spare();
        let begin = clock::now();
        for &target in targets {
            for offset in lines.offsets {
                touch(target, offset);
            }
        }
        for offset in lines.offsets {
            for &evictor in evictors {
                touch(evictor, offset);
            }
            for &evictor in evictors.iter().rev() {
                touch(evictor, offset);
            }
        }
        for (&target, time) in targets.iter().zip(times) {
            // The translation must not be timed with the lines.
            touch(target, spare);
            let ticks = time_chain(target, lines);
            *time = u32::try_from(ticks).unwrap_or(u32::MAX);
        }
        let end = clock::now();
        let accesses = (targets.len() * 3 + evictors.len() * 2) * Lines::COUNT;
        self.went_well(begin, end, accesses)
    }

    fn chase(&mut self, pages: &[Page], loads: u64) -> Option<f64> {
        let per_pass = (pages.len() as u64).checked_mul(u64::from(LINES_OF_PAGE))?;
        let passes = loads.div_ceil(per_pass.max(1)).max(1);
        let mut order = pages.to_vec();
        self.random.shuffle(&mut order);
        let mut lines: Vec<u16> = (0..LINES_OF_PAGE).map(|line| line * LINE_SIZE).collect();
        self.random.shuffle(&mut lines);
        let mut zero = chase_once(&order, &lines, 0);
        zero = chase_once(&order, &lines, zero);
        let begin = clock::now();
        for _ in 0..passes {
            zero = chase_once(&order, &lines, zero);
        }
        let end = clock::now();
        black_box(zero);
        if per_pass == 0 || begin.cpu != end.cpu || end.ticks <= begin.ticks {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "both far below 2^52")]
        let each = (end.ticks - begin.ticks) as f64 / (passes * per_pass) as f64;
        Some(each)
    }
}

/// Every line of every page once, each load waiting for the one before.
fn chase_once(pages: &[Page], lines: &[u16], mut zero: usize) -> usize {
    for &line in lines {
        for &page in pages {
            zero = follow(page, line, zero);
        }
    }
    zero
}

/// Ticks that the lines of a page take, one after the other.
fn time_chain(page: Page, lines: &Lines) -> u64 {
    let begin = clock::now();
    let mut zero = 0;
    for offset in lines.offsets {
        zero = follow(page, offset, zero);
    }
    black_box(zero);
    clock::now().ticks.saturating_sub(begin.ticks)
}

/// Loads a byte of a page without waiting for it.
#[inline]
fn touch(page: Page, offset: u16) {
    debug_assert!(offset < LINES_OF_PAGE * LINE_SIZE);
    let byte = (page.address() + usize::from(offset)) as *const u8;
    // SAFETY: the maker of the page promised that it stays readable, and offsets stay inside a page. Volatile: the
    // compiler keeps the load, and makes no assumption about other writers.
    let _ = unsafe { byte.read_volatile() };
}

/// Loads a byte of a page once `zero` (always 0) is known, and returns 0 once the byte is there.
#[cfg(target_arch = "x86_64")]
#[inline]
fn follow(page: Page, offset: u16, zero: usize) -> usize {
    // Not `zero == 0` as well: the compiler would continue with a constant, and no load would wait for another.
    debug_assert!(offset < LINES_OF_PAGE * LINE_SIZE);
    let byte = page.address() + usize::from(offset);
    let mut value = zero;
    // SAFETY: as in `touch`; processors do not treat `and` with 0 as independent of the register.
    unsafe {
        core::arch::asm!(
            "movzx {value:e}, byte ptr [{byte} + {value}]",
            "and {value:e}, 0",
            value = inout(reg) value,
            byte = in(reg) byte,
            options(nostack, readonly),
        );
    }
    value
}

/// Loads a byte of a page once `zero` (always 0) is known, and returns 0 once the byte is there.
#[cfg(target_arch = "aarch64")]
#[inline]
fn follow(page: Page, offset: u16, zero: usize) -> usize {
    // Not `zero == 0` as well: the compiler would continue with a constant, and no load would wait for another.
    debug_assert!(offset < LINES_OF_PAGE * LINE_SIZE);
    let byte = page.address() + usize::from(offset);
    let mut value = zero;
    // SAFETY: as in `touch`; the architecture keeps the dependency through `eor` of a register with itself.
    unsafe {
        core::arch::asm!(
            "ldrb {value:w}, [{byte}, {value}]",
            "eor {value}, {value}, {value}",
            value = inout(reg) value,
            byte = in(reg) byte,
            options(nostack, readonly),
        );
    }
    value
}
