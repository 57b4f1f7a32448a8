//! The processor's own clock, and a test of its quality.

use super::ProbeError;

/// A moment: ticks of the clock, and the CPU it was read on (0 where the architecture does not report the CPU for free).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) ticks: u64,
    pub(super) cpu: u32,
}

/// Reads the clock after all earlier loads have arrived and before any later one begins.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn now() -> Moment {
    let (low, high, cpu): (u32, u32, u32);
    // SAFETY: reads registers only. If the kernel forbids it, `check` has already failed. Not `nomem`: the compiler
    // must move no access across.
    unsafe {
        core::arch::asm!(
            "lfence",
            "rdtscp",
            "lfence",
            out("eax") low, out("edx") high, out("ecx") cpu,
            options(nostack, preserves_flags),
        );
    }
    let ticks = u64::from(high) << 32 | u64::from(low);
    Moment { ticks, cpu }
}

/// Reads the clock after all earlier loads have arrived and before any later one begins.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(super) fn now() -> Moment {
    let ticks: u64;
    // SAFETY: reads a register that Linux makes readable. Not `nomem`: the compiler must move no access across.
    unsafe {
        core::arch::asm!(
            "dsb ishld",
            "isb",
            "mrs {ticks}, cntvct_el0",
            "isb",
            ticks = out(reg) ticks,
            options(nostack, preserves_flags),
        );
    }
    Moment { ticks, cpu: 0 }
}

/// Returns true if this process may read the clock: `prctl(PR_SET_TSC)` can make every reading a SIGSEGV.
#[cfg(target_arch = "x86_64")]
fn is_readable() -> bool {
    use rustix::process::{TimeStampCounterReadability, time_stamp_counter_readability};
    // A kernel without this `prctl` does not forbid the reading either.
    time_stamp_counter_readability() != Ok(TimeStampCounterReadability::RaiseSIGSEGV)
}

#[cfg(target_arch = "aarch64")]
fn is_readable() -> bool {
    true
}

/// Returns true if the processor reports the instruction (RDTSCP): without it, reading is a SIGILL.
#[cfg(target_arch = "x86_64")]
fn exists() -> bool {
    let features = raw_cpuid::CpuId::new().get_extended_processor_and_feature_identifiers();
    features.is_some_and(|features| features.has_rdtscp())
}

#[cfg(target_arch = "aarch64")]
fn exists() -> bool {
    true
}

/// Tries the clock of this machine.
///
/// # Errors
/// [`ProbeError::Clock`] with the reason.
pub(super) fn check() -> Result<(), ProbeError> {
    if !exists() {
        let reason = "it has no RDTSCP, or the hypervisor hides that";
        return Err(ProbeError::Clock(reason.to_owned()));
    }
    if !is_readable() {
        let reason = "this process may not read it (prctl PR_SET_TSC): start it without that";
        return Err(ProbeError::Clock(reason.to_owned()));
    }
    require_useful(|| now().ticks)
}

/// Readings that are compared.
const READINGS: usize = 2_000;

/// Work between two readings: about as many dependent steps as a line from memory takes cycles.
const STEPS: u64 = 256;

/// Judges a clock by its readings around work that is as long as the latency to detect.
///
/// # Errors
/// [`ProbeError::Clock`] for a clock that stands still, goes back, or whose grain is longer than the work.
fn require_useful(mut read: impl FnMut() -> u64) -> Result<(), ProbeError> {
    let refuse = |reason: &str| Err(ProbeError::Clock(reason.to_owned()));
    let mut last = read();
    let (mut still, mut back) = (0, 0);
    let mut advanced = false;
    for _ in 0..READINGS {
        work();
        let ticks = read();
        back += usize::from(ticks < last);
        still += usize::from(ticks == last);
        advanced |= ticks > last;
        last = ticks;
    }
    if !advanced {
        refuse("it stands still")
    } else if back > 0 {
        refuse("it goes back")
    } else if still > READINGS / 2 {
        refuse("it is too coarse: most of the time it shows the same after some 100 cycles of work")
    } else {
        Ok(())
    }
}

/// Some hundred cycles of work that the compiler cannot remove.
fn work() {
    let mut word = STEPS;
    for step in 0..STEPS {
        word = core::hint::black_box(word ^ step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(read: impl FnMut() -> u64) -> String {
        require_useful(read).unwrap_err().to_string()
    }

    #[test]
    fn a_clock_that_cannot_time_is_refused_with_the_reason() {
        assert!(refusal(|| 7).contains("stands still"));
        let mut frozen_soon = 0_u64;
        assert!(
            refusal(|| {
                frozen_soon += 1;
                frozen_soon.min(5)
            })
            .contains("too coarse")
        );
        let mut coarse = 0_u64;
        assert!(
            refusal(|| {
                coarse += 1;
                coarse / 16
            })
            .contains("too coarse")
        );
        let mut jumping = 0_u64;
        assert!(
            refusal(|| {
                jumping += 1;
                jumping * 100 % 9_999
            })
            .contains("goes back")
        );
    }

    #[test]
    fn a_clock_with_a_grain_is_good_enough() {
        let mut ticks = 0_u64;
        let read = || {
            ticks += 20;
            ticks / 26 * 26
        };
        assert_eq!(require_useful(read), Ok(()));
    }
}
