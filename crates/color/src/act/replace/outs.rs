//! Pages that are out, and how what the program does meanwhile changes where they belong.

use superhue_model::{BASE_PAGE_SIZE, ByteCount, VirtAddr, VirtRange};
use superhue_sys::userfaultfd::{Event, Userfault};

use rustix::io::Errno;

/// A page of the program in the staging area.
#[derive(Debug, Clone, Copy)]
struct Out {
    /// Where it belongs. `None`: it is back, or the program has given it up.
    home: Option<VirtAddr>,
    /// Where its bytes are.
    slot: VirtAddr,
}

/// The pages that are out.
#[derive(Debug, Default, Clone)]
pub(super) struct Outs(Vec<Out>);

impl Outs {
    pub(super) fn push(&mut self, home: VirtAddr, slot: VirtAddr) {
        self.0.push(Out {
            home: Some(home),
            slot,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn home(&self, index: usize) -> Option<VirtAddr> {
        self.0.get(index)?.home
    }

    pub(super) fn slot(&self, index: usize) -> Option<VirtAddr> {
        self.0.get(index).map(|out| out.slot)
    }

    /// The page is back, or nobody wants it any more.
    pub(super) fn settle(&mut self, index: usize) {
        if let Some(out) = self.0.get_mut(index) {
            out.home = None;
        }
    }

    /// Whether somebody who waits for this page need but wait on.
    pub(super) fn holds(&self, page: VirtAddr) -> bool {
        self.0.iter().any(|out| out.home == Some(page))
    }

    /// Does to the pages that are out what was done to the memory they belong to.
    pub(super) fn follow(&mut self, event: &Event) {
        for out in &mut self.0 {
            let Some(home) = out.home else { continue };
            match event {
                Event::Remap { range, to } if is_in(home, range) => {
                    out.home = Some(VirtAddr(to.0 + (home.0 - range.start.0)));
                }
                Event::Remove(range) | Event::Unmap(range) if is_in(home, range) => {
                    out.home = None;
                }
                _ => {}
            }
        }
    }
}

/// Gives the pages that are out to a child made meanwhile, and to children of its own that it makes before it has
/// them. Returns how many it could not be given.
///
/// The child finds a hole where a page is out, and waits there until its userfaultfd is closed, which is last.
pub(super) fn give_to_child(child: Userfault, outs: &Outs) -> u64 {
    let mut lost = 0;
    let mut children = vec![(child, outs.clone())];
    while let Some((child, mut outs)) = children.pop() {
        let mut index = 0;
        while index < outs.len() {
            let (Some(home), Some(slot)) = (outs.home(index), outs.slot(index)) else {
                index += 1;
                continue;
            };
            // SAFETY: the bytes at `home` are those in `slot`, for the child as for its parent when it was made: nobody
            // writes the staging area.
            let copied = unsafe { child.copy_range(home, slot, ByteCount(BASE_PAGE_SIZE)) };
            match copied.error {
                None => index += 1,
                // It forks, or maps; what it was told of must be read first.
                Some(Errno::AGAIN | Errno::INTR) => {
                    children.extend(follow_child(&child, &mut outs));
                }
                Some(Errno::NOMEM) => pause(),
                // It is there already; it was unmapped, or never inherited; the child is gone.
                Some(Errno::EXIST | Errno::NOENT | Errno::INVAL | Errno::SRCH) => index += 1,
                Some(_) => {
                    lost += 1;
                    index += 1;
                }
            }
        }
    }
    lost
}

/// What the child did: grandchildren that have just been made, each with the pages they miss.
fn follow_child(child: &Userfault, outs: &mut Outs) -> Vec<(Userfault, Outs)> {
    let mut children = Vec::new();
    let mut any = false;
    while let Ok(Some(event)) = child.next_event() {
        any = true;
        outs.follow(&event);
        if let Event::Fork { child } = event {
            children.push((child, outs.clone()));
        }
    }
    if !any {
        pause();
    }
    children
}

/// Lets others go on, who must before we can.
pub(super) fn pause() {
    let moment = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 20_000,
    };
    let _ = rustix::thread::nanosleep(&moment);
}

fn is_in(page: VirtAddr, range: &VirtRange) -> bool {
    range.start <= page && page < range.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> VirtRange {
        VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(end),
        }
    }

    #[test]
    fn pages_follow_their_memory_and_go_with_it() {
        let mut outs = Outs::default();
        for page in [0x1000, 0x2000, 0x3000] {
            outs.push(VirtAddr(page), VirtAddr(page + 0x10_0000));
        }
        outs.follow(&Event::Remap {
            range: range(0x2000, 0x3000),
            to: VirtAddr(0x8000),
        });
        assert!(outs.holds(VirtAddr(0x8000)) && !outs.holds(VirtAddr(0x2000)));
        outs.follow(&Event::Remove(range(0x1000, 0x2000)));
        assert_eq!(outs.home(0), None);
        outs.follow(&Event::Unmap(range(0x7000, 0x9000)));
        assert_eq!(outs.home(1), None);
        assert_eq!(outs.home(2), Some(VirtAddr(0x3000)));
        assert_eq!(outs.slot(2), Some(VirtAddr(0x10_3000)));
        outs.settle(2);
        assert!(!outs.holds(VirtAddr(0x3000)));
    }
}
