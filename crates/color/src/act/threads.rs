//! Pages that must not be out when a thread ends.
//!
//! A thread that ends has the kernel clear a word (`CLONE_CHILD_CLEARTID`), which is what `pthread_join(3)` waits for. That
//! write does not wait for a page that is out (`handle_userfault` refuses threads that exit): it is lost, and whoever
//! joins the thread waits for ever. glibc has the word in the same line as the head of the list of robust locks, of which the
//! kernel tells; so the pages of these heads stay where they are.

use std::mem::MaybeUninit;

use rustix::fs::{Mode, OFlags, RawDir};
use superhue_model::{BASE_PAGE_SIZE, VirtAddr};
use superhue_sys::robust_list::robust_list;

/// The pages, in ascending order.
#[derive(Debug, Default)]
pub(super) struct ThreadPages(Vec<VirtAddr>);

impl ThreadPages {
    /// Looks at all threads of the process; false if they cannot be found out.
    pub(super) fn look(&mut self) -> bool {
        self.0.clear();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(tasks) = rustix::fs::open(c"/proc/self/task", flags, Mode::empty()) else {
            return false;
        };
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(tasks, &mut space);
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else { return false };
            let tid = std::str::from_utf8(entry.file_name().to_bytes());
            if let Some(tid) = tid.ok().and_then(|tid| tid.parse().ok())
                && let Some(head) = robust_list(tid)
            {
                self.0.push(VirtAddr(head.0 & !(BASE_PAGE_SIZE - 1)));
            }
        }
        self.0.sort_unstable();
        true
    }

    pub(super) fn contains(&self, page: VirtAddr) -> bool {
        self.0.binary_search(&page).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_this_thread_is_known() {
        let mut pages = ThreadPages::default();
        assert!(pages.look());
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let head = robust_list(u32::try_from(tid).unwrap()).unwrap();
        assert!(pages.contains(VirtAddr(head.0 & !0xfff)));
        assert!(!pages.contains(VirtAddr(head.0 | 1)));
    }
}
