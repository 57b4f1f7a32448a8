//! The visiting process: asked by messages, it stops programs, does the work inside, and lets go.
//!
//! It is a process of its own, in a session of its own, so that a superhue that is killed leaves nothing half done: when
//! the messages end, the visit under way is finished first. Its waiting for threads is also kept apart from superhue's
//! waiting for the command it started.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, setsid};
use superhue_color::oracles::{
    HardwareProbe, Held, MeasuredOracle, PaletteConfig, SharedPalette, Usual,
};
use superhue_model::{BASE_PAGE_SIZE, Obstacle, PageCount, ProcessId, Region, VirtAddr};
use superhue_sys::advise::Operation;
use superhue_sys::pagemap::shared_pages;
use superhue_sys::ptrace;
use superhue_sys::scheduling::Scheduling;

use crate::calls::SYS_MUNMAP;
use crate::desk::{CODE, Keep, Order, PAPER, PAPER_WORDS, REMAINS};
use crate::exchange::{self, Placing, Watcher, affordable};
use crate::inside::{Gate, Inside};
use crate::look::Looker;
use crate::message::{Ask, Tell, Visit, receive, send};
use crate::probe::{InsideProbe, hand_over, map_palette};
use crate::stock::Stock;
use crate::stop::{Again, Stopped, Timeout, let_go_of_the_late};
use crate::waits::Waits;
use crate::work::{Advised, Done, Want};
use crate::{Limits, Visited, Work, vmas};

/// What taking the code back and letting all threads go takes, about.
const GOING: Duration = Duration::from_micros(250);

/// Visits in a row in which nothing could be told, after which the palette is tested anew.
const IN_VAIN: u32 = 4;

/// With nothing to do for so long, the memory is given back that is held for visits.
const IDLE: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// What there is always time for, once everything is prepared.
const LEAST: Duration = Duration::from_micros(500);

/// A wait for a call that is begun again with its whole timeout is kept from being visited for no longer than this.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Pages of a pool at least, and at most where nothing else bounds it.
const SMALLEST_POOL: usize = 64;
const LARGEST_POOL: usize = 4096;

/// Regions of which one visit makes superpages at most: each takes 0.3 ms, and 20 us to look at before.
const COLLAPSES: usize = 16;

/// Serves the other end of `messages` until it is gone.
///
/// # Errors
/// When messages cannot be read or written; nobody is stopped then.
pub fn serve(messages: UnixStream) -> io::Result<()> {
    // Keys of the terminal are for superhue; and who kills a session means superhue, too. A leader of a group stays.
    let _ = setsid();
    // Should memory run out, it is the one that must not be killed, for the sake of whom it visits. Takes CAP_SYS_RESOURCE.
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
    let mut messages = messages;
    let mut visitor = Visitor::default();
    loop {
        if is_idle(&messages) {
            visitor.rest();
        }
        let Some(ask) = receive(&mut messages)? else {
            break;
        };
        match ask {
            Ask::Visit {
                process,
                work,
                limits,
            } => {
                let visit = visitor.visit(process, &work, limits);
                send(&mut messages, &Tell::Visited(visit))?;
                if !let_go_of_the_late() {
                    // By our end they are.
                    break;
                }
            }
            Ask::Palette { places } => {
                send(&mut messages, &Tell::Palette(visitor.open_palette(places)))?;
            }
        }
    }
    Ok(())
}

/// Whether nothing is asked for a while.
fn is_idle(messages: &UnixStream) -> bool {
    let mut messages = [PollFd::new(messages, PollFlags::IN)];
    poll(&mut messages, Some(&IDLE)) == Ok(0)
}

/// What is kept from visit to visit.
#[derive(Default)]
struct Visitor {
    looker: Looker,
    gates: HashMap<ProcessId, Gate>,
    colors: Option<Colors>,
    waits: Waits,
}

/// What colors are told by.
struct Colors {
    /// For pages of our own.
    oracle: MeasuredOracle<HardwareProbe>,
    /// For pages of programs: the same colors, faster to map; made when something is to be measured there first, if it can be.
    /// And what keeps its pages where they are.
    compact: OnceCell<Option<(SharedPalette, Held)>>,
    /// Something is measured inside in this visit.
    measures: bool,
    usual: Usual,
    stock: Stock,
    /// `/dev/userfaultfd`, where we may open it.
    userfault: Option<OwnedFd>,
    /// Where the palette was found.
    places: Vec<PathBuf>,
    /// Visits in a row in which nothing could be told.
    in_vain: u32,
}

/// One visit under way.
struct Stay<'a> {
    stopped: &'a mut Stopped,
    inside: Inside,
    /// Pages that are not to be moved; see [`Stopped::rseq_pages`].
    rseqs: Vec<u64>,
    until: Instant,
    limits: Limits,
}

impl Visitor {
    fn open_palette(&mut self, places: Vec<PathBuf>) -> Result<usize, String> {
        let mut probe = HardwareProbe::new().map_err(|error| error.to_string())?;
        let mut config = PaletteConfig::new(Path::new("/"), None);
        config.places.clone_from(&places);
        let palette =
            SharedPalette::open(&mut probe, &config).map_err(|error| error.to_string())?;
        let colors = palette.palette().colors();
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd");
        let stock = Stock::new(colors).map_err(|errno| format!("no memory for pages: {errno}"))?;
        self.colors = Some(Colors {
            oracle: MeasuredOracle::new(palette, probe),
            compact: OnceCell::new(),
            measures: true,
            usual: Usual::default(),
            stock,
            userfault: device.ok().map(OwnedFd::from),
            places,
            in_vain: 0,
        });
        Ok(colors)
    }

    fn rest(&mut self) {
        if let Some(colors) = &mut self.colors {
            colors.stock.give_back();
        }
    }

    fn visit(&mut self, process: ProcessId, work: &Work, limits: Limits) -> Visit {
        let refused = |obstacle| Visit {
            result: Err(obstacle),
            pause: Duration::ZERO,
            rest: Duration::ZERO,
        };
        let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else {
            return refused(Obstacle::Gone);
        };
        // First, so that the number cannot change hands between the look and the stop.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else {
            return refused(Obstacle::Gone);
        };
        if let Err(obstacle) = self.looker.look(process) {
            return refused(obstacle);
        }
        if work.is_about_colors() && self.colors.is_none() {
            return refused(Obstacle::Kernel);
        }
        if let Some(rest) = self.waits.rest(process) {
            return Visit {
                rest,
                ..refused(Obstacle::Paced)
            };
        }
        let Some(gate) = self.gate(process) else {
            // Who is about to end has lost its memory already.
            return refused(if vmas::has_none(process.pid) {
                Obstacle::Gone
            } else {
                Obstacle::NoRoom
            });
        };
        if let Some(colors) = &self.colors
            && colors.in_vain >= IN_VAIN
        {
            // What times meant when the palette was opened is no longer true, or never was on a busy machine.
            let places = colors.places.clone();
            if let Err(error) = self.open_palette(places) {
                tracing::debug!(error, "no palette any more");
            }
        }
        if let Some(colors) = &mut self.colors {
            colors.prepare(work, limits.hold);
        }
        // Who is stopped waits for us. Without the right to, we are as everybody.
        let usual = Scheduling::of(0);
        let _ = Scheduling::first().set(0);
        let (result, let_go) = match Stopped::all(process.pid) {
            Err((obstacle, let_go)) => (Err(obstacle), let_go),
            Ok(mut stopped) => {
                let threads = u32::try_from(stopped.threads().len()).unwrap_or(u32::MAX);
                let done = self.work(&mut stopped, &pidfd, process, gate, work, limits);
                let stop_again = stopped.take_stop(process.pid);
                let let_go = stopped.release();
                if stop_again {
                    let _ = kill_process(pid, Signal::STOP);
                }
                let visited = done.map(|done| Visited {
                    done,
                    pause: let_go.pause,
                    threads,
                    begun_again: u32::try_from(let_go.begun_again.len()).unwrap_or(u32::MAX),
                });
                (visited, let_go)
            }
        };
        let _ = usual.and_then(|usual| usual.set(0));
        self.waits.note(process, &let_go.begun_again);
        Visit {
            result,
            pause: let_go.pause,
            rest: longest(&let_go.begun_again).min(LONGEST_REST),
        }
    }

    fn gate(&mut self, process: ProcessId) -> Option<Gate> {
        // Another image has another one.
        if let Some(gate) = self
            .gates
            .get(&process)
            .filter(|gate| gate.is_in(process.pid))
        {
            return Some(*gate);
        }
        let gate = Gate::find(process.pid)?;
        if self.gates.len() >= 256 {
            self.gates.clear();
        }
        self.gates.insert(process, gate);
        Some(gate)
    }

    fn work(
        &mut self,
        stopped: &mut Stopped,
        pidfd: &OwnedFd,
        process: ProcessId,
        gate: Gate,
        work: &Work,
        limits: Limits,
    ) -> Result<Done, Obstacle> {
        let pid = process.pid;
        let colors = self.colors.as_ref();
        let full = colors.is_some_and(|colors| colors.device_for(pid).is_some());
        if matches!(work, Work::Place { .. }) && stopped.kernel_works && !full {
            return Err(Obstacle::KernelWorks);
        }
        let until = stopped.began() + limits.max_pause.saturating_sub(GOING);
        let rseqs = match work {
            Work::Place { .. } => stopped.rseq_pages(),
            _ => Vec::new(),
        };
        let inside = Inside::enter(stopped, pid, gate)?;
        let mut stay = Stay {
            stopped,
            inside,
            rseqs,
            until,
            limits,
        };
        let done = match work {
            Work::Collapse(regions) => stay.advise(Operation::Collapse, regions),
            Work::Split(regions) => stay.advise(Operation::Split, regions),
            Work::Tidy => stay.tidy(),
            Work::Colors(_) | Work::Place { .. } => match &mut self.colors {
                Some(colors) => stay.colors(colors, pidfd, work),
                None => Err(Errno::NOSYS),
            },
        };
        let Stay {
            stopped, inside, ..
        } = stay;
        // The code went home by itself: that is Busy, and a page of it is left.
        if !inside.leave(stopped) {
            return Err(Obstacle::Busy);
        }
        done.map_err(|errno| match errno {
            Errno::SRCH => Obstacle::Gone,
            Errno::TIMEDOUT | Errno::FAULT => Obstacle::Busy,
            Errno::NOSYS | Errno::INVAL => Obstacle::Kernel,
            Errno::PERM | Errno::ACCESS => Obstacle::NotPermitted,
            _ => Obstacle::NoRoom,
        })
    }
}

impl Stay<'_> {
    fn advise(&mut self, operation: Operation, regions: &[Region]) -> Result<Done, Errno> {
        let most = match operation {
            // Each is looked at before, and in one visit there is time for a few.
            Operation::Collapse => COLLAPSES,
            Operation::Split => PAPER_WORDS / 3,
        };
        let regions = regions.get(..regions.len().min(most)).unwrap_or_default();
        // Only now: while it ran it could fork.
        let shared = match operation {
            Operation::Collapse => self.shared(regions)?,
            Operation::Split => vec![false; regions.len()],
        };
        let ours = regions.iter().zip(&shared).filter(|(_, shared)| !**shared);
        let paper: Vec<u64> = ours
            .flat_map(|(region, _)| {
                let advice = operation.advice();
                let start = region.start().0 + advice.offset as u64;
                [
                    start,
                    advice.length as u64,
                    u64::from(advice.advice.cast_unsigned()),
                ]
            })
            .collect();
        let left = self.until.saturating_duration_since(Instant::now());
        let asked = paper.len() / 3;
        let order = [asked as u64, clock_after(left)];
        let answer = self
            .inside
            .order(self.stopped, Order::Advise, &order, &paper)?;
        let done = usize::try_from(answer.result()?).unwrap_or(0).min(asked);
        let mut words = vec![0; 3 * done];
        self.inside.read(PAPER, &mut words)?;
        let mut answers = words.as_chunks::<3>().0.iter().map(|[errno, ..]| {
            match i32::try_from(*errno).unwrap_or(libc::EIO) {
                0 => Advised::Done,
                errno => Advised::Refused(superhue_model::Errno(errno)),
            }
        });
        let each = shared.iter().map_while(|shared| match shared {
            true => Some(Advised::Shared),
            false => answers.next(),
        });
        Ok(Done::Advised(each.collect()))
    }

    /// Which of the regions have pages that other processes map as well, copy-on-write.
    fn shared(&self, regions: &[Region]) -> Result<Vec<bool>, Errno> {
        let path = format!("/proc/{}/pagemap", self.inside.pid);
        let pagemap = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let each = regions
            .iter()
            .map(|region| Ok(shared_pages(&pagemap, *region)?.0 > 0));
        each.collect()
    }

    /// Unmaps what code left that had to go home by itself. [`Errno::TIMEDOUT`] while it is still on its way.
    fn tidy(&mut self) -> Result<Done, Errno> {
        // Only with a desk is our mapping in parts: before, it may be one with what was left beside it.
        self.inside.order(self.stopped, Order::Clear, &[], &[])?;
        let mut removed = 0;
        for start in remains(self.inside.pid) {
            if self.inside.is_at(start) {
                continue;
            }
            // Even before it has a desk: it waits for its turn on a busy machine.
            if self.is_in_use(start) {
                return Err(Errno::TIMEDOUT);
            }
            let arguments = [start, REMAINS, 0, 0, 0, 0];
            self.inside
                .system_call(self.stopped, SYS_MUNMAP, arguments, Keep::Nothing)?;
            removed += 1;
        }
        Ok(Done::Tidied(removed))
    }

    /// Whether a thread is in the code at `start`: that of a visitor that was killed, until its patience is over.
    fn is_in_use(&self, start: u64) -> bool {
        let is_there = |address| (start..start + REMAINS).contains(&address);
        let others = self.stopped.threads().iter().map(|thread| thread.tid);
        let mut others = others.filter(|tid| *tid != self.inside.tid);
        is_there(self.inside.came_from())
            || others.any(|tid| ptrace::registers(tid).is_ok_and(|at| is_there(at.rip)))
    }

    fn colors(&mut self, colors: &mut Colors, pidfd: &OwnedFd, work: &Work) -> Result<Done, Errno> {
        let places = matches!(work, Work::Place { .. });
        let compact = colors.compact.get().and_then(Option::as_ref);
        let compact = compact.map(|(compact, _)| compact);
        let palette = compact.or(colors.oracle.shared()).ok_or(Errno::NOENT)?;
        let mut files = Vec::new();
        if colors.measures {
            files.push(palette.file());
        }
        if places {
            files.push(colors.stock.file().as_fd());
            files.extend(colors.device_for(self.inside.pid));
        }
        let handed = hand_over(&mut self.inside, self.stopped, pidfd.as_fd(), &files)?;
        let mut handed = handed.into_iter();
        let palette = if colors.measures {
            let descriptor = handed.next().ok_or(Errno::BADF)?;
            let mapped = map_palette(&mut self.inside, self.stopped, palette, descriptor)?;
            Some(mapped)
        } else {
            None
        };
        let stock_file = if places { handed.next() } else { None };
        let mut watcher = None;
        if places {
            let device = handed.next();
            watcher = Some(Watcher::new(&mut self.inside, self.stopped, device)?);
        }
        // On a busy machine getting this far may have taken all the time: without any, visits would come to nothing for ever.
        let until = self.until.max(Instant::now() + LEAST);
        let mut probe = InsideProbe {
            inside: &mut self.inside,
            stopped: self.stopped,
            usual: &mut colors.usual,
            until,
            // Fewer, after there was no time for as many.
            chunk: exchange::CHUNK >> colors.in_vain.min(2),
            least: self.limits.max_pause * 3 / 4,
            failure: None,
        };
        let done = match (work, &mut watcher, &palette) {
            (Work::Place { pages, want }, Some(watcher), palette) => {
                let mut placing = Placing {
                    probe: &mut probe,
                    palette: palette.as_ref(),
                    watcher,
                    rseqs: &self.rseqs,
                    stock: &mut colors.stock,
                    stock_file: stock_file.ok_or(Errno::BADF)?,
                    pool: pool_size(pages.len(), self.limits, until, palette.is_none()),
                    until,
                };
                Done::Placed(placing.place(pages, want)?)
            }
            (Work::Colors(pages), _, Some(palette)) => {
                Done::Colors(exchange::colors(&mut probe, palette, pages, until))
            }
            _ => Done::Colors(Vec::new()),
        };
        let is_told = match &done {
            Done::Colors(told) => told.iter().any(Option::is_some),
            Done::Placed(placed) => {
                let untold = |it: &crate::Placed| *it == crate::Placed::Left(crate::Left::NoPage);
                !placed.iter().all(untold)
            }
            _ => true,
        };
        colors.in_vain = if is_told { 0 } else { colors.in_vain + 1 };
        if let Some(errno) = probe.failure {
            return Err(errno);
        }
        if let Some(watcher) = watcher {
            watcher.close(&mut self.inside, self.stopped);
        }
        Ok(done)
    }
}

/// Where code that went home by itself has left its pages in a process.
fn remains(pid: u32) -> Vec<u64> {
    /// Read at a time.
    const PART: u64 = 256 * BASE_PAGE_SIZE;
    let mut starts = Vec::new();
    for mapping in vmas::executable_anonymous(pid, REMAINS) {
        // It may be one mapping with others: those of another visit, or code of the program's.
        for part in (mapping.start..mapping.end).step_by(PART as usize) {
            let length = PART.min(mapping.end - part);
            let mut found = vec![0; usize::try_from(length).unwrap_or(0)];
            if ptrace::read_memory(pid, part, &mut found).is_err() {
                continue;
            }
            let pages = (part..).step_by(BASE_PAGE_SIZE as usize);
            let pages = pages.zip(found.chunks(BASE_PAGE_SIZE as usize));
            starts.extend(
                pages
                    .filter(|(_, page)| page.starts_with(CODE))
                    .map(|(at, _)| at),
            );
        }
    }
    starts
}

/// Whether a visit that did not end well has left something in a process, which [`Work::Tidy`] removes. Of a process that may
/// not be looked at nothing can be said.
#[must_use]
pub fn is_untidy(pid: u32) -> bool {
    !remains(pid).is_empty()
}

/// The longest of known timeouts.
fn longest(begun_again: &[Again]) -> Duration {
    let known = begun_again.iter().filter_map(|again| match again.timeout {
        Timeout::After(timeout) => Some(timeout),
        Timeout::Never | Timeout::Unknown => None,
    });
    known.max().unwrap_or(Duration::ZERO)
}

/// How many fresh pages a program may be given: twice as many as can be exchanged, since some will be of other colors.
fn pool_size(pages: usize, limits: Limits, until: Instant, believed: bool) -> usize {
    let left = until.saturating_duration_since(Instant::now());
    let wanted = 2 * pages.min(affordable(left, believed).max(1));
    let most = usize::try_from(limits.room.0).unwrap_or(usize::MAX);
    wanted.max(SMALLEST_POOL).min(most.min(LARGEST_POOL))
}

impl Colors {
    /// `/dev/userfaultfd`, for a process that might open it itself. Any program of its user can take a descriptor from
    /// another (`pidfd_getfd(2)`), in the middle of a visit too: nobody gets what he could not have anyway.
    fn device_for(&self, pid: u32) -> Option<BorrowedFd<'_>> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let is_root = users.split_whitespace().all(|user| user == "0");
        self.userfault.as_ref().filter(|_| is_root).map(AsFd::as_fd)
    }

    /// Finds pages of the colors that `work` wants, and what it measures by, before anybody is stopped for it.
    fn prepare(&mut self, work: &Work, hold: PageCount) {
        if let Work::Place { pages, want } = work {
            self.provide(pages, want, hold);
        }
        self.measures = match work {
            Work::Place { .. } => !self.stock.is_believed(),
            _ => work.is_about_colors(),
        };
        if self.measures {
            self.compact.get_or_init(|| {
                let compact = self.oracle.compact()?;
                let held = compact.hold();
                Some((compact, held))
            });
        }
    }

    fn provide(&mut self, pages: &[VirtAddr], want: &Want, hold: PageCount) {
        /// For one visit.
        const ENOUGH: usize = 256;
        let mut wanted = vec![0; self.oracle.palette().colors()];
        match want {
            Want::Each(colors) => {
                for color in colors.iter().take(ENOUGH) {
                    if let Some(wanted) = wanted.get_mut(usize::from(color.0)) {
                        *wanted += 1;
                    }
                }
            }
            Want::Within(set) => {
                let each = pages.len().min(ENOUGH).div_ceil(set.len().max(1));
                for color in set.iter() {
                    if let Some(wanted) = wanted.get_mut(usize::from(color.0)) {
                        *wanted = each;
                    }
                }
            }
        }
        self.stock.provide(&mut self.oracle, &wanted, hold);
    }
}

/// `CLOCK_MONOTONIC`, in nanoseconds, when `time` will have passed.
fn clock_after(time: Duration) -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let now = Duration::new(
        now.tv_sec.cast_unsigned(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    );
    u64::try_from((now + time).as_nanos()).unwrap_or(u64::MAX)
}

impl Work {
    /// Whether it takes a palette.
    pub(crate) const fn is_about_colors(&self) -> bool {
        matches!(self, Self::Colors(_) | Self::Place { .. })
    }
}
