//! Checks that page colors can be measured.

use superhue_color::oracles::{HardwareProbe, contrast};
use superhue_model::ByteCount;

use super::Probe;
use super::finding::{Finding, Trial};
use super::surroundings::ProbeEnvironment;

/// Enough memory to push everything out of any second-level cache.
const POOL: ByteCount = ByteCount(16 << 20);

pub(super) const MEASURED: Probe = Probe {
    id: "colors-measured",
    name: "Page colors by timing",
    how: "timed loads from pages just read, and again after 16 MiB of others were read",
    used_for: "color oracle `measured`; `superhue colors` tests it in full",
    run: measured,
};

fn measured(_: &ProbeEnvironment) -> Trial {
    let mut probe = HardwareProbe::new().map_err(|error| Finding::no(error.to_string()))?;
    let found = contrast(&mut probe, POOL).map_err(Finding::no_scratch)?;
    Ok(match found {
        Ok(found) => Finding::yes(format!(
            "loads within the cache and beyond it are told apart: {} and {} ticks",
            found.kept, found.evicted
        )),
        Err(error) => {
            Finding::partial(error.to_string()).remedy("try again while the machine is less busy")
        }
    })
}
