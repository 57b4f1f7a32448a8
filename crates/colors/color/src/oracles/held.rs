//! Pages kept in their frames.

use std::os::fd::OwnedFd;

use rustix::pipe::{
    IoSliceRaw, PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, vmsplice,
};
use superhue_model::BASE_PAGE_SIZE;

use crate::Page;

/// Bytes that a pipe of an ordinary user may hold (`/proc/sys/fs/pipe-max-size`).
const MAX_PIPE_BYTES: usize = 1 << 20;

/// Keeps pages in their frames.
///
/// Compaction moves frames, locked in memory or not, and a page in another frame has another color. A page in a pipe
/// has one reference more than the kernel expects, so the kernel does not move it (`folio_migrate_mapping` in
/// `mm/migrate.c`). The pages stay readable; nothing reads from the pipes (`vmsplice(2)`).
#[derive(Debug, Default)]
pub struct PagePins {
    _pipes: Vec<(OwnedFd, OwnedFd)>,
}

impl PagePins {
    /// Holds as many of `pages` as pipes are available for, within the user's limit; only the regular tests of the
    /// palette cover the rest.
    #[must_use]
    pub fn hold(pages: &[Page]) -> Self {
        let mut pipes = Vec::new();
        let mut rest = pages;
        while !rest.is_empty() {
            let Ok((reader, writer)) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) else {
                break;
            };
            // A smaller pipe holds fewer pages.
            let _ = fcntl_setpipe_size(&writer, MAX_PIPE_BYTES);
            let slots = fcntl_getpipe_size(&writer).unwrap_or(0) / BASE_PAGE_SIZE as usize;
            let (now, later) = rest.split_at(slots.min(rest.len()));
            let held = now.iter().take_while(|page| put(&writer, **page)).count();
            if held == 0 {
                break;
            }
            pipes.push((reader, writer));
            if held < now.len() {
                break;
            }
            rest = later;
        }
        Self { _pipes: pipes }
    }
}

/// Puts one page into a pipe; returns true if that worked.
fn put(pipe: &OwnedFd, page: Page) -> bool {
    let start = page.address() as *const u8;
    // SAFETY: a readable page of a palette: no thread writes it.
    let bytes = unsafe { std::slice::from_raw_parts(start, BASE_PAGE_SIZE as usize) };
    // SAFETY: the pipe refers to the page's frame, and is never read.
    let done = unsafe {
        vmsplice(
            pipe,
            &[IoSliceRaw::from_slice(bytes)],
            SpliceFlags::NONBLOCK,
        )
    };
    done.is_ok_and(|bytes| bytes as u64 == BASE_PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use superhue_model::HUGE_PAGE_SIZE;
    use superhue_sys::collapse::own_collapse;
    use superhue_sys::scratch::Scratch;

    use super::*;

    /// A collapse copies pages to other frames, unless a page has an extra reference.
    #[test]
    fn held_pages_stay_in_their_frames() {
        let mut scratch = Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).unwrap();
        scratch.fill(1);
        let start = usize::try_from(scratch.range().start.0).unwrap();
        // SAFETY: mapped and readable until the end of the test.
        let page = unsafe { Page::at(start + 7 * BASE_PAGE_SIZE as usize) }.unwrap();
        let held = PagePins::hold(&[page]);
        let while_held = own_collapse(scratch.region());
        drop(held);
        if let Err(errno) = own_collapse(scratch.region()) {
            superhue_testing::skip("collapse", &errno.to_string());
            return;
        }
        assert!(while_held.is_err());
    }
}
