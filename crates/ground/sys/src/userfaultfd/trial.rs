//! The same operations on scratch memory, where they can do no harm: for trials of a machine's abilities.

use std::mem::{MaybeUninit, size_of};

use rustix::io::Errno;
use superhue_model::{ByteCount, VirtAddr};

use super::abi::{Message, UFFD_EVENT_PAGEFAULT};
use super::{Mode, Userfault};
use crate::scratch::Scratch;

impl Userfault {
    /// Watches the scratch for missing pages (`UFFDIO_REGISTER`): from now on, a touch of a hole waits until
    /// a thread fills it.
    ///
    /// # Errors
    /// `EBUSY` when another userfaultfd has it.
    pub fn register_missing(&self, scratch: &Scratch) -> Result<(), Errno> {
        self.register(scratch.range(), Mode::Missing)
    }

    /// Returns the page of the next waiting fault; `None` if there is none.
    ///
    /// # Errors
    /// `EPROTO` for an event other than a page fault; those of `read(2)`.
    pub fn next_fault(&self) -> Result<Option<VirtAddr>, Errno> {
        let mut bytes = [0_u8; size_of::<Message>()];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let mut message = MaybeUninit::<Message>::uninit();
        // SAFETY: same size, and any bytes are a valid `Message`.
        let message = unsafe {
            message.as_mut_ptr().cast::<[u8; 32]>().write(bytes);
            message.assume_init()
        };
        match (message.event, message.words) {
            (UFFD_EVENT_PAGEFAULT, [_, address, _]) => Ok(Some(VirtAddr(address & !0xfff))),
            _ => Err(Errno::PROTO),
        }
    }

    /// Fills `hole`, which must be one, with the bytes of `source` (`UFFDIO_COPY`). Wakes the waiting threads.
    ///
    /// # Errors
    /// `EINVAL` when their lengths differ; `EEXIST` where there was no hole; `ENOENT` when the hole
    /// is not registered.
    pub fn copy(&self, hole: &Scratch, source: &Scratch) -> Result<(), Errno> {
        let length = same_length(hole, source)?;
        // SAFETY: both ranges are whole scratches, whose bytes are reached by volatile access only.
        let done = unsafe { self.copy_range(hole.range().start, source.range().start, length) };
        done.into_result()
    }

    /// Moves the page frames of `source` into `hole`, which must be one, and leaves holes (`UFFDIO_MOVE`,
    /// Linux 6.8). Wakes the waiting threads.
    ///
    /// # Errors
    /// As for [`copy`](Self::copy), and `EBUSY` when a page of the source is shared or pinned,
    /// `ENOTTY`/`EINVAL` if the kernel lacks the call.
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
