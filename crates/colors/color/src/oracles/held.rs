//! Pages kept in their frames.

use std::fs;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::pipe::{
    IoSliceRaw, PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, vmsplice,
};
use superhue_model::BASE_PAGE_SIZE;

use crate::Page;

const PAGE: usize = BASE_PAGE_SIZE as usize;

/// Pages that a pipe of an ordinary user may hold by default.
const MAX_PIPE_PAGES: usize = 256;
/// Limit of a pipe of an ordinary user, in bytes (`pipe(7)`).
const PIPE_LIMIT: &str = "/proc/sys/fs/pipe-max-size";

/// Limit of the pages in all pipes of an ordinary user; 0 for none (`pipe(7)`). A user at the limit gets pipes of two pages.
const USER_LIMIT: &str = "/proc/sys/fs/pipe-user-pages-soft";
const USUAL_USER_LIMIT: usize = 16_384;

/// Part of that limit that must stay free for the user's other pipes: one in this many.
const SPARE_PART: usize = 4;

/// Most pipes that test this.
const MAX_SPARE_PIPES: usize = 64;

/// A pipe: the end to read from, and the end to write to.
type Pipe = (OwnedFd, OwnedFd);

/// Keeps pages in their frames.
///
/// Compaction moves frames, locked in memory or not, and a page in another frame has another color. A page in a pipe
/// has one reference more than the kernel expects, so the kernel does not move it (`folio_migrate_mapping` in
/// `mm/migrate.c`). The pages stay readable; nothing reads from the pipes (`vmsplice(2)`).
#[derive(Debug, Default)]
pub struct PagePins {
    _pipes: Vec<Pipe>,
}

impl PagePins {
    /// Holds as many of `pages` as pipes are available for, within the user's limit; only the regular tests of the
    /// palette cover the rest. Leaves a quarter of that limit to the user's other pipes.
    #[must_use]
    pub fn hold(pages: &[Page]) -> Self {
        Self {
            _pipes: pipes_with(pages),
        }
    }
}

/// Puts as many of `pages` into new pipes as the user's limit allows.
fn pipes_with(pages: &[Page]) -> Vec<Pipe> {
    let mut pipes = Vec::new();
    let limit = |path| fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let spare_pages = limit(USER_LIMIT).unwrap_or(USUAL_USER_LIMIT) / SPARE_PART;
    let most = limit(PIPE_LIMIT).map_or(MAX_PIPE_PAGES, |bytes| MAX_PIPE_PAGES.min(bytes / PAGE));
    if most == 0 {
        return pipes;
    }
    // The kernel does not show how many pages the user's pipes may still have. So the spare ones are taken first, and
    // given back at the end.
    let mut spare = Vec::new();
    for _ in 0..(spare_pages / most).min(MAX_SPARE_PIPES) {
        match pipe_of(most) {
            Ok(pipe) => spare.push(pipe),
            // A limit on descriptors: nothing is known of the pages.
            Err(Errno::MFILE | Errno::NFILE) => break,
            Err(_) => return pipes,
        }
    }
    for part in pages.chunks(most) {
        let Ok(pipe) = pipe_of(part.len()) else {
            break;
        };
        let held = part.iter().take_while(|page| put(&pipe.1, **page)).count();
        if held > 0 {
            pipes.push(pipe);
        }
        if held < part.len() {
            break;
        }
    }
    pipes
}

/// Makes a pipe for this many pages.
///
/// # Errors
/// `EMFILE` and `ENFILE` for descriptors, `EPERM` and others beyond a limit on pages.
fn pipe_of(pages: usize) -> Result<Pipe, Errno> {
    let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    fcntl_setpipe_size(&pipe.1, pages * PAGE)?;
    if fcntl_getpipe_size(&pipe.1)? < pages * PAGE {
        return Err(Errno::PERM);
    }
    Ok(pipe)
}

/// Puts one page into a pipe; returns true if that worked.
fn put(pipe: &OwnedFd, page: Page) -> bool {
    let start = page.address() as *const u8;
    // SAFETY: a readable page of a palette: no thread writes it.
    let bytes = unsafe { std::slice::from_raw_parts(start, PAGE) };
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

    #[test]
    fn pipes_have_the_size_of_the_pages_in_them() {
        let mut scratch = Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).unwrap();
        scratch.fill(1);
        let start = usize::try_from(scratch.range().start.0).unwrap();
        let pages = |count: usize| -> Vec<Page> {
            // SAFETY: mapped and readable until the end of the test.
            let page = |at: usize| unsafe { Page::at(start + at * PAGE) }.unwrap();
            (0..count).map(page).collect()
        };
        for (count, sizes) in [(0, vec![]), (1, vec![1]), (260, vec![256, 4])] {
            let pipes = pipes_with(&pages(count));
            if pipes.is_empty() && count > 0 {
                return superhue_testing::skip("pipes", "the user has too many pages in pipes");
            }
            let size = |pipe: &Pipe| fcntl_getpipe_size(&pipe.1).unwrap() / PAGE;
            let real: Vec<usize> = pipes.iter().map(size).collect();
            assert_eq!(real, sizes, "{count} pages");
        }
    }

    /// A collapse copies pages to other frames, unless a page has an extra reference.
    #[test]
    fn held_pages_stay_in_their_frames() {
        let mut scratch = Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).unwrap();
        scratch.fill(1);
        let start = usize::try_from(scratch.range().start.0).unwrap();
        // SAFETY: mapped and readable until the end of the test.
        let page = unsafe { Page::at(start + 7 * PAGE) }.unwrap();
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
