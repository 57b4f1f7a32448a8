//! A move on scratch memory, where it can do no harm: for trials of a machine's abilities.

use rustix::io::Errno;
use superhue_model::ByteCount;

use super::Userfault;
use crate::scratch::Scratch;

impl Userfault {
    /// Moves the page frames of `source` into `hole`, which must be one, and leaves holes (`UFFDIO_MOVE`,
    /// Linux 6.8).
    ///
    /// # Errors
    /// `EINVAL` when their lengths differ, or if the kernel lacks the call (`ENOTTY`, too); `EEXIST` where there was no hole;
    /// `ENOENT` when the hole is not registered; `EBUSY` when a page of the source is shared or pinned.
    pub fn move_pages(&self, hole: &Scratch, source: &mut Scratch) -> Result<(), Errno> {
        let length = same_length(hole, source)?;
        // SAFETY: both ranges are whole scratches, whose bytes are reached by volatile access only.
        let done = unsafe { self.move_range(hole.range().start, source.range().start, length) };
        done.into_result()
    }
}

fn same_length(hole: &Scratch, source: &Scratch) -> Result<ByteCount, Errno> {
    if hole.len() == source.len() {
        Ok(ByteCount(hole.len() as u64))
    } else {
        Err(Errno::INVAL)
    }
}
