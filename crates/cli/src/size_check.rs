//! Checks of amounts that only make sense against this machine's memory.

use superhue::model::{ByteCount, Share};
use superhue::procfs::Roots;
use superhue::procfs::system::MemInfo;

use crate::output::{Failure, USAGE, note};

/// Refuses a budget larger than the machine, and prints a note on the meaning of a budget of 0.
pub fn check_budget(budget: Option<Share>) -> Result<(), Failure> {
    let Some(budget) = budget else { return Ok(()) };
    if let Share::Bytes(bytes) = budget {
        check_size("--budget", bytes)?;
    }
    if matches!(budget, Share::Bytes(bytes) if bytes.0 == 0) || budget == Share::BasisPoints(0) {
        note("--budget 0: only regions that are wholly resident become huge");
    }
    Ok(())
}

/// Refuses a size larger than the machine.
pub fn check_size(flag: &str, size: ByteCount) -> Result<(), Failure> {
    let total = MemInfo::read(&Roots::default())
        .ok()
        .and_then(|memory| memory.total);
    match total {
        Some(total) if size > total => Err(Failure::new(
            USAGE,
            format!("{flag} {size} is more than this machine's memory ({total})"),
        )),
        _ => Ok(()),
    }
}
