//! Makes a zram of our own, and switches swap to it on ([`crate::zram`] has the steps, and undoes them).

use std::io;

use superhue_model::ByteCount;

use super::{MOST_MEMORY, SIZE, SwapError};
use crate::journal::{JournalLock, OwnedJournal};
use crate::zram::{SwapMachine, ZramDevice, first_page, node};

/// Makes a device, and switches swap to it on with this priority. The journal records each step first.
///
/// Other superhues wait meanwhile: we hold `turn`.
pub(super) fn make(
    machine: &dyn SwapMachine,
    turn: &JournalLock<'_>,
    priority: Option<u16>,
) -> Result<(u32, OwnedJournal), SwapError> {
    let mut made = ZramDevice::intent(machine, SIZE)?;
    let mut pending = turn.write(vec![made.clone().into()])?;
    match steps(machine, turn, priority, &mut made, &mut pending) {
        Ok(number) => Ok((number, pending)),
        Err(error) => {
            let report = pending.undo();
            Err(error.leaving(report.left))
        }
    }
}

fn steps(
    machine: &dyn SwapMachine,
    turn: &JournalLock<'_>,
    priority: Option<u16>,
    made: &mut ZramDevice,
    pending: &mut OwnedJournal,
) -> Result<u32, SwapError> {
    let number = machine.add().map_err(|error| {
        SwapError::step("make a zram with", "/sys/class/zram-control/hot_add", error)
    })?;
    let path = node(number);
    let failed = |what| {
        let path = path.clone();
        move |error: io::Error| SwapError::step(what, &path, error)
    };
    let zram = machine.zram(number).map_err(failed("look at"))?;
    let Some(disk_sequence) = zram.and_then(|zram| zram.disk_sequence) else {
        // We could not recognise it later.
        machine.remove(number).map_err(failed("remove"))?;
        return Err(SwapError::NoDiskSequence);
    };
    made.identify(number, disk_sequence);
    turn.rewrite(pending, vec![made.clone().into()])
        .map_err(failed("journal"))?;
    let size = ByteCount(made.size);
    machine
        .set(number, "disksize", size)
        .map_err(failed("set the size of"))?;
    machine
        .set(number, "mem_limit", MOST_MEMORY)
        .map_err(failed("limit the memory of"))?;
    let page = first_page(size, made.uuid)
        .ok_or_else(|| failed("write a header to")(io::ErrorKind::InvalidInput.into()))?;
    machine
        .write_first_page(number, &page)
        .map_err(failed("write a header to"))?;
    machine
        .swap_on(number, priority)
        .map_err(failed("switch on swap to"))?;
    Ok(number)
}
