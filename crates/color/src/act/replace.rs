//! Exchanging the page frames of memory in use.
//!
//! ```text
//!   program    [a][b][c]         [ ][ ][ ]                    [a][b][c]
//!                 │   MOVE          ▲  holes: who touches them waits  ▲
//!                 ▼                 │                                 │ MOVE
//!   staging    [ ][ ][ ]         [a][b][c] ──copy──> pool pages [a][b][c] of the wanted colors
//! ```
//!
//! While a page is out, nobody sees it: threads and system calls that touch the hole wait (userfaultfd in missing mode), and
//! what else the program may do to the memory meanwhile is an event that is read before the page can come back
//! (`EAGAIN` until then): a fork is given the page, unmapped pages are dropped, those moved by `mremap` follow. Pages that I/O
//! has pinned do not move (`EBUSY`).
//!
//! The frame a page had goes back to the kernel and never into the pool: a pipe (`vmsplice`) or a socket (`MSG_ZEROCOPY`) may
//! still read from it, and has to find what was there.
//!
//! One danger is left. Some file systems read straight into memory (`O_DIRECT` on NFS, 9p, Ceph, FUSE before Linux 6.15) with
//! no more than a reference to the page, which cannot be told from outside: what they read after the exchange is lost. Who
//! exchanges pages of programs that do so must not.

mod candidates;
mod outs;
mod removing;
mod session;

use rustix::io::Errno;
use superhue_model::{Color, PageCount, VirtAddr, VirtRange};
use superhue_sys::frames::copy_page;

pub(super) use self::removing::Removing;
use self::session::{Back, Session, Watch};
use super::mapping::obstacle_at;
use super::mover::{Move, Ours};
use super::placer::{Staging, page_after};
use super::{Guard, Placed, Placer, PoolError, Refusal};
use crate::Page;
use crate::decide::Walk;
use crate::observe::Oracle;

/// Attempts to hold the program back, some 50 microseconds each.
const ENTRIES: usize = 1000;

/// Who touches the memory meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anybody but the calling thread. Takes a userfaultfd that is told of kernel faults: see
    /// [`Userfault::open_full`](superhue_sys::userfaultfd::Userfault::open_full).
    Shared,
    /// Nobody: it is the caller's own. Any user may.
    Exclusive,
}

/// Which pages may keep their frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// None: the color of a page does not need to be told, so that it is out for the shortest time.
    None,
    /// Those of a color of the set.
    Allowed,
    /// Those of the color that is wanted just there.
    Wanted,
}

/// How pages are exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replace {
    /// Who touches them meanwhile.
    pub access: Access,
    /// Which need no exchange.
    pub keep: Keep,
    /// Pages that are out together, 64 at most. Each is out for some microseconds, and as long again as telling the colors of all
    /// takes, unless none are kept.
    pub batch: usize,
}

/// Why no page was exchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// No userfaultfd of the kind needed.
    #[error("no userfaultfd for memory in use: {0}")]
    Userfault(Errno),
    /// Forks are neither seen nor excluded.
    #[error("forks cannot be seen without CAP_SYS_PTRACE, and nothing else excludes them")]
    ForksUnseen,
    /// The range cannot be registered.
    #[error("memory that userfaultfd cannot watch: {0}")]
    Register(Errno),
    /// No staging area, or no page map.
    #[error("no staging area: {0}")]
    Staging(Errno),
    /// No page to exchange with.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replaced {
    /// Pages of the range.
    pub pages: Placed,
    /// Holes that threads touched meanwhile, filled with pages of the walk.
    pub faults: PageCount,
    /// Pages that a forked child should have had and could not be given. Never seen.
    pub lost: u64,
}

impl Placer {
    /// Exchanges the frames of the resident base pages of `range` for frames of the colors of `walk`, while the program uses
    /// them. Afterwards the range is mapped as before.
    ///
    /// The range must not hold memory that the calling thread touches, or its allocator manages: it would wait for itself. If
    /// the access is shared, its allocator must not be one that `fork(3)` locks, as that of glibc is: a fork is let go only
    /// by reading its event, and this thread would wait for the lock. The agent has a heap of its own. No
    /// userfaultfd may watch it ([`super::FaultServer::unregister`] it before). Other threads that fault wait for at
    /// most a batch, but faults of ranges elsewhere are not served meanwhile: give large memory piece by piece.
    ///
    /// # Errors
    /// See [`ReplaceError`]; nothing has changed then.
    pub fn replace(
        &mut self,
        range: VirtRange,
        walk: &mut Walk,
        oracle: &mut dyn Oracle,
        guard: &mut dyn Guard,
        how: Replace,
    ) -> Result<Replaced, ReplaceError> {
        let mut replaced = Replaced::default();
        if range.is_empty() {
            return Ok(replaced);
        }
        self.pool().provide(walk, 1, oracle)?;
        self.prepare_staging().map_err(ReplaceError::Staging)?;
        let mut removing = std::mem::take(&mut self.removing);
        removing.look(self.mover.own());
        let mut session = match Session::open(range, how.access, guard.excludes_forks(), removing) {
            Ok(session) => session,
            Err(ReplaceError::Register(errno)) => {
                let why = Refusal::of_registering(errno);
                replaced.pages.refuse(why, range.len().whole_pages().0);
                return Ok(replaced);
            }
            Err(error) => return Err(error),
        };
        let mut work = Work {
            placer: self,
            session: &mut session,
            walk,
            oracle,
            guard,
            how,
            replaced: &mut replaced,
        };
        work.range(range);
        work.answer_faults();
        session.end();
        replaced.lost = session.lost;
        self.denied += session.mover().denied();
        session.removing.look(self.mover.own());
        self.removing = std::mem::take(&mut session.removing);
        Ok(replaced)
    }
}

/// Everything that takes part, for the time of one call.
struct Work<'a> {
    placer: &'a mut Placer,
    session: &'a mut Session,
    walk: &'a mut Walk,
    oracle: &'a mut dyn Oracle,
    guard: &'a mut dyn Guard,
    how: Replace,
    replaced: &'a mut Replaced,
}

impl Work<'_> {
    fn range(&mut self, range: VirtRange) {
        let mut rest = range;
        let mut runs = Vec::new();
        while !rest.is_empty() {
            runs.clear();
            let own = self.placer.mover.own();
            match candidates::find(own, rest, &mut runs, &mut self.replaced.pages) {
                Ok(stopped) => rest.start = stopped,
                Err(_) => return,
            }
            let mut obstacle = None;
            for run in &runs {
                match obstacle {
                    Some(why) => self.refuse(why, run.len().whole_pages().0),
                    None => obstacle = self.run(*run),
                }
            }
            if obstacle.is_some() {
                return;
            }
        }
    }

    /// Exchanges consecutive pages. Returns why none can be from now on, with those that are left counted.
    fn run(&mut self, mut run: VirtRange) -> Option<Refusal> {
        while !run.is_empty() {
            let pages = usize::try_from(run.len().whole_pages().0).unwrap_or(1);
            let batch = pages.min(self.how.batch.clamp(1, Staging::SLOTS));
            let targets = self.targets(batch);
            let obstacle = if targets.is_empty() {
                Some(Refusal::NoPage)
            } else if self.enter() {
                None
            } else {
                Some(Refusal::NotHeld)
            };
            if let Some(why) = obstacle {
                self.put_back(&targets);
                self.refuse(why, run.len().whole_pages().0);
                return obstacle;
            }
            let used = self.batch(run.start, &targets);
            self.guard.leave();
            self.placer.staging_is_free();
            self.session.read_events();
            self.answer_faults();
            run.start = page_after(run.start, used);
        }
        None
    }

    /// Holds the program back, seeing to who waits for us meanwhile.
    fn enter(&mut self) -> bool {
        for _ in 0..ENTRIES {
            if self.guard.enter() {
                return true;
            }
            self.session.read_events_or_wait();
            self.answer_faults();
        }
        false
    }

    /// Pages to exchange for, taken beforehand: nothing must be waited for while pages are out.
    fn targets(&mut self, most: usize) -> Vec<(Page, Color)> {
        let mut targets = Vec::with_capacity(most);
        let pool = self.placer.pool();
        // Only before the first is taken: a chunk that is filled up counts the places of pages that are taken as empty, and
        // would list them, and hand them out, once more.
        if pool.provide(self.walk, most, self.oracle).is_err() {
            return targets;
        }
        while targets.len() < most {
            match pool.take_next(self.walk) {
                Some(target) => targets.push(target),
                None => break,
            }
        }
        targets
    }

    fn put_back(&mut self, targets: &[(Page, Color)]) {
        for (page, color) in targets {
            self.placer.pool().put_back(*page, *color);
        }
    }

    /// Takes pages from `first` on out, as many as there are targets, and brings them back.
    fn batch(&mut self, first: VirtAddr, targets: &[(Page, Color)]) -> usize {
        if self.guard.threads_changed() && !self.placer.threads.look() {
            // Nobody knows which pages must not be out.
            self.refuse(Refusal::ThreadControl, targets.len() as u64);
            self.put_back(targets);
            return targets.len();
        }
        let considered = self.take_out(first, targets.len());
        let out = self.session.outs.len();
        let mut colors = vec![None; out];
        if self.how.keep != Keep::None {
            let slots: Vec<Page> = (0..out)
                .filter_map(|index| self.placer.staged(index))
                .collect();
            // An oracle that cannot tell leaves `None`: the page is exchanged then.
            let _ = self.oracle.classify(&slots, &mut colors);
        }
        for (index, color) in colors.into_iter().enumerate() {
            if let Some((target, wanted)) = targets.get(index) {
                self.bring_back(index, *target, *wanted, color);
            }
        }
        self.put_back(targets.get(out..).unwrap_or_default());
        self.session.outs.clear();
        considered
    }

    /// Takes at most `most` consecutive pages out, leaving those that cannot be; returns how many were considered, which may be
    /// none at the first attempt.
    fn take_out(&mut self, first: VirtAddr, most: usize) -> usize {
        let mut considered = 0;
        while considered < most {
            let home = page_after(first, considered);
            let mut free = (considered..most)
                .take_while(|page| self.obstacle(page_after(first, *page)).is_none())
                .count();
            if free == 0 {
                if let Some(why) = self.obstacle(home) {
                    self.refuse(why, 1);
                }
                considered += 1;
                continue;
            }
            let mut watched = self.session.watch_of(home, free);
            if watched == Watch::None && free > 1 {
                // Perhaps no more than the end of a mapping.
                free = 1;
                watched = self.session.watch_of(home, free);
            }
            match watched {
                Watch::Ours => {}
                Watch::None => {
                    self.refuse(Refusal::Changed, 1);
                    considered += 1;
                    continue;
                }
                // What has happened may concern the pages that come next.
                Watch::EventsRead => break,
            }
            let Some(slot) = self.placer.staged(self.session.outs.len()) else {
                break;
            };
            let what = Move {
                to: slot.start(),
                from: home,
                pages: free,
            };
            // SAFETY: the staging area is ours, and a hole. Who counts on the pages waits until they are back, or is told of.
            let moved = unsafe { self.placer.mover.run(what, Ours::To) };
            for page in 0..moved.pages {
                let slot = page_after(slot.start(), page);
                self.session.outs.push(page_after(home, page), slot);
            }
            considered += moved.pages;
            let Some(errno) = moved.error else { continue };
            if errno == Errno::AGAIN {
                // What has happened may concern the pages that come next.
                break;
            }
            let page = page_after(first, considered);
            let why = match errno {
                Errno::BUSY => Refusal::SharedOrPinned,
                Errno::NOENT => Refusal::Changed,
                Errno::INVAL => obstacle_at(page),
                _ => Refusal::Other,
            };
            self.refuse(why, 1);
            considered += 1;
        }
        considered
    }

    fn obstacle(&self, page: VirtAddr) -> Option<Refusal> {
        if self.placer.threads.contains(page) {
            Some(Refusal::ThreadControl)
        } else if self.session.removing.contains(page) {
            Some(Refusal::Changed)
        } else {
            None
        }
    }

    /// Brings a page back: in the frame of `target`, which has the color `wanted`, unless that of its own will do.
    fn bring_back(&mut self, index: usize, target: Page, wanted: Color, color: Option<Color>) {
        let stays = color.is_some_and(|color| match self.how.keep {
            Keep::None => false,
            Keep::Allowed => self.walk.allows(color),
            Keep::Wanted => color == wanted,
        });
        let Some(slot) = self.session.outs.slot(index) else {
            return;
        };
        let frame = if stays {
            self.placer.pool().put_back(target, wanted);
            slot
        } else {
            // SAFETY: a page of the staging area and one that was taken from the pool; nobody else knows either.
            unsafe { copy_page(target.start(), slot) };
            target.start()
        };
        let back = self.session.bring_back(index, frame);
        if back == Back::Moved && !stays {
            self.placer.pool().moved(target, 1);
        }
        if back != Back::Moved {
            if !stays {
                self.placer.pool().scrap(target);
            }
            self.refuse(Refusal::Changed, 1);
        } else if stays {
            self.replaced.pages.already += PageCount(1);
        } else {
            self.replaced.pages.placed += PageCount(1);
        }
    }

    /// Fills holes that threads wait at, with pages of the walk.
    fn answer_faults(&mut self) {
        while let Some(hole) = self.session.faults.pop() {
            let pool = self.placer.pool();
            let _ = pool.provide(self.walk, 1, self.oracle);
            let Some((page, color)) = pool.take_next(self.walk) else {
                self.session.zero(hole);
                continue;
            };
            let what = Move {
                to: hole,
                from: page.start(),
                pages: 1,
            };
            // SAFETY: a page of the pool is zero, as a hole is.
            let moved = unsafe { self.session.mover().run(what, Ours::From) };
            if moved.error.is_none() {
                self.placer.pool().moved(page, 1);
                self.replaced.faults += PageCount(1);
                continue;
            }
            self.placer.pool().put_back(page, color);
            if moved.error == Some(Errno::AGAIN) {
                self.session.faults.push(hole);
                self.session.read_events_or_wait();
            } else {
                self.session.zero(hole);
            }
        }
    }

    fn refuse(&mut self, why: Refusal, pages: u64) {
        self.replaced.pages.refuse(why, pages);
    }
}
