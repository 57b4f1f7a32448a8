//! Giving pages of a stopped program frames of other colors.
//!
//! ```text
//!   pool       fresh pages of the program's own, dealt from the stock and measured; those of wanted colors are taken
//!   staging    a page goes there, is copied to its fresh page, and that goes where it was
//! ```
//!
//! Pool and staging live for one visit. Mappings are watched by a userfaultfd for as long, whole ones, so that none is
//! split: should the visitor die while a page is out, whoever touches the hole waits until the code has put it back.

use std::time::Instant;

use rustix::io::Errno;
use rustix::ioctl::Opcode;
use superhue_color::Page;
use superhue_color::observe::{Palette, Probe};
use superhue_model::{BASE_PAGE_SIZE, Color, VirtAddr};
use superhue_sys::procmap::Mapping;
use superhue_sys::userfaultfd::FEATURE_MOVE;
use superhue_sys::userfaultfd::abi::{
    MODE_MISSING, UFFD_API, UFFD_USER_MODE_ONLY, UFFDIO_API, UFFDIO_REGISTER, USERFAULTFD_IOC_NEW,
};

use crate::calls::{
    MADV_NOHUGEPAGE, MAP_PRIVATE_ANONYMOUS, O_CLOEXEC, PROT_READ, PROT_WRITE, SYS_IOCTL,
    SYS_MADVISE, SYS_MMAP, SYS_USERFAULTFD,
};
use crate::desk::{Keep, Order, PAPER};
use crate::inside::Inside;
use crate::probe::{InsideProbe, drop_descriptor};
use crate::stock::Stock;
use crate::stop::Stopped;
use crate::vmas;
use crate::work::{Left, Placed, Want};

/// Pages exchanged in one order: so many at most are on the paper.
const TOGETHER: usize = 64;

/// Pages classified between two looks at the clock.
pub(crate) const CHUNK: usize = 64;

/// Fresh pages dealt at a time at least.
const LEAST: usize = 16;

/// Microseconds that dealing, telling and exchanging a page takes, about.
const USUAL_EXCHANGE: u64 = 20;

/// Colors of pages, in chunks, until the time is up; those of a prefix.
pub(crate) fn colors(
    probe: &mut InsideProbe<'_>,
    palette: &Palette,
    pages: &[VirtAddr],
    until: Instant,
) -> Vec<Option<Color>> {
    let mut all = Vec::with_capacity(pages.len());
    // Something is done in each visit, on a busy machine too, where the thread may have to wait for its CPU.
    probe.until = until.max(Instant::now() + probe.least);
    for chunk in pages.chunks(probe.chunk) {
        if (!all.is_empty() && Instant::now() >= until) || probe.failure.is_some() {
            break;
        }
        let readable = match readable(probe, chunk) {
            Ok(readable) => readable,
            Err(errno) => {
                probe.failure = Some(errno);
                break;
            }
        };
        let here = chunk
            .iter()
            .zip(&readable)
            .filter(|(_, readable)| **readable);
        let here: Vec<Page> = here.filter_map(|(page, _)| there(*page)).collect();
        let mut colors = vec![None; here.len()];
        palette.classify(probe, &here, &mut colors);
        let is_over = probe.is_over();
        let mut colors = colors.into_iter();
        for readable in readable {
            let color = if readable {
                colors.next().flatten()
            } else {
                None
            };
            // What is not told may only have lacked the time.
            if is_over && readable && color.is_none() {
                return all;
            }
            all.push(color);
        }
        if is_over {
            break;
        }
        probe.until = until;
    }
    all
}

/// Which pages of the program's can be read without a fault: it may have given them back since they were seen.
fn readable(probe: &mut InsideProbe<'_>, pages: &[VirtAddr]) -> Result<Vec<bool>, Errno> {
    let mut paper: Vec<u64> = pages.iter().map(|page| page.0).collect();
    let count = [paper.len() as u64];
    let order = Order::Look;
    let looked = probe.inside.order(probe.stopped, order, &count, &paper)?;
    looked.result()?;
    probe.inside.read(PAPER, &mut paper)?;
    Ok(paper.into_iter().map(|readable| readable == 1).collect())
}

/// A page of the stopped program, for the probe that works there.
fn there(page: VirtAddr) -> Option<Page> {
    // SAFETY: read by the code inside alone, while the program stands still; whoever asks has seen that the page is there.
    unsafe { Page::at(usize::try_from(page.0).ok()?) }
}

/// A userfaultfd of the program's.
#[derive(Debug)]
pub(crate) struct Watcher {
    descriptor: u64,
    watched: Vec<Mapping>,
}

impl Watcher {
    /// Makes one: by the device, whose descriptor the program was handed, told of the kernel's faults as well; else as the
    /// program itself may.
    ///
    /// # Errors
    /// None can be had, or it cannot move pages (before Linux 6.8).
    pub(crate) fn new(
        inside: &mut Inside,
        stopped: &mut Stopped,
        device: Option<u64>,
    ) -> Result<Self, Errno> {
        let mut made = Err(Errno::PERM);
        if let Some(device) = device {
            let asked = [device, u64::from(USERFAULTFD_IOC_NEW), O_CLOEXEC, 0, 0, 0];
            made = inside.system_call(stopped, SYS_IOCTL, asked, Keep::Descriptor);
        }
        for flags in [O_CLOEXEC, O_CLOEXEC | u64::from(UFFD_USER_MODE_ONLY)] {
            if made.is_err() {
                let asked = [flags, 0, 0, 0, 0, 0];
                made = inside.system_call(stopped, SYS_USERFAULTFD, asked, Keep::Descriptor);
            }
        }
        let descriptor = made?;
        let api = [UFFD_API, FEATURE_MOVE, 0];
        ioctl(inside, stopped, descriptor, UFFDIO_API, &api)?;
        Ok(Self {
            descriptor,
            watched: Vec::new(),
        })
    }

    /// Watches the whole mapping at `page`.
    fn watch(&mut self, inside: &mut Inside, stopped: &mut Stopped, page: u64) -> Result<(), Left> {
        if self
            .watched
            .iter()
            .any(|mapped| (mapped.start..mapped.end).contains(&page))
        {
            return Ok(());
        }
        let mapped = vmas::at(inside.pid, page).ok_or(Left::Absent)?;
        if !mapped.is_writable_anonymous {
            return Err(Left::NotAnonymous);
        }
        let length = mapped.end - mapped.start;
        self.register(inside, stopped, mapped.start, length)
            .map_err(|_| Left::Refused)?;
        self.watched.push(mapped);
        Ok(())
    }

    fn register(
        &self,
        inside: &mut Inside,
        stopped: &mut Stopped,
        start: u64,
        length: u64,
    ) -> Result<(), Errno> {
        let register = [start, length, MODE_MISSING, 0];
        ioctl(inside, stopped, self.descriptor, UFFDIO_REGISTER, &register).map(drop)
    }

    pub(crate) fn close(self, inside: &mut Inside, stopped: &mut Stopped) {
        let _ = drop_descriptor(inside, stopped, self.descriptor);
    }
}

/// An `ioctl` about words that lie on the paper.
fn ioctl(
    inside: &mut Inside,
    stopped: &mut Stopped,
    descriptor: u64,
    request: Opcode,
    words: &[u64],
) -> Result<u64, Errno> {
    let call = [
        SYS_IOCTL,
        descriptor,
        u64::from(request),
        inside.paper(),
        0,
        0,
        0,
        Keep::Nothing as u64,
    ];
    inside.order(stopped, Order::Call, &call, words)?.result()
}

/// Private anonymous base pages of the program's, for the visit.
pub(crate) struct Pages {
    start: u64,
    count: usize,
}

impl Pages {
    pub(crate) fn map(
        inside: &mut Inside,
        stopped: &mut Stopped,
        count: usize,
    ) -> Result<Self, Errno> {
        let length = count as u64 * BASE_PAGE_SIZE;
        let arguments = [
            0,
            length,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE_ANONYMOUS,
            u64::MAX,
            0,
        ];
        let start = inside.system_call(stopped, SYS_MMAP, arguments, Keep::Mapping)?;
        let advice = [start, length, MADV_NOHUGEPAGE, 0, 0, 0];
        // A kernel without huge pages says no, and has none to give.
        let _ = inside.system_call(stopped, SYS_MADVISE, advice, Keep::Nothing);
        Ok(Self { start, count })
    }

    fn pages(&self, from: usize, count: usize) -> Vec<VirtAddr> {
        let pages = from..from + count;
        pages.map(|at| VirtAddr(self.page(at))).collect()
    }

    const fn page(&self, at: usize) -> u64 {
        self.start + at as u64 * BASE_PAGE_SIZE
    }
}

/// Pages that may be used up in a visit, and the time there is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means {
    pub(crate) pool: usize,
    pub(crate) until: Instant,
}

/// A page on its way: which one of those asked for, and the fresh page it gets.
struct Pair {
    at: usize,
    page: u64,
    fresh: u64,
    color: Color,
}

/// Places as many pages as there is time for.
pub(crate) fn place(
    probe: &mut InsideProbe<'_>,
    palette: &Palette,
    watcher: &mut Watcher,
    (pages, want): (&[VirtAddr], &Want),
    (stock, stock_file): (&mut Stock, u64),
    means: Means,
) -> Result<Vec<Placed>, Errno> {
    let mut placed: Vec<Option<Placed>> = vec![None; pages.len()];
    // Which pages still want a frame, and of which color.
    let mut hungry: Vec<usize> = Vec::new();
    let told = match want {
        Want::Each(wanted) => {
            hungry.extend(0..pages.len().min(wanted.len()));
            hungry.len()
        }
        Want::Within(set) => {
            // A third of the time for telling what is there: giving it other frames takes longer.
            let now = Instant::now();
            let third = now + means.until.saturating_duration_since(now) / 3;
            let colors = colors(probe, palette, pages, third);
            for (at, color) in colors.iter().enumerate() {
                match color {
                    Some(color) if set.contains(*color) => {
                        placed[at] = Some(Placed::Already(*color))
                    }
                    _ => hungry.push(at),
                }
            }
            colors.len()
        }
    };
    hungry.retain(|&at| {
        let watched = watcher.watch(probe.inside, probe.stopped, pages[at].0);
        placed[at] = watched.err().map(Placed::Left);
        placed[at].is_none()
    });
    let fits = |at: usize, color: Color| match want {
        Want::Each(wanted) => wanted.get(at) == Some(&color),
        Want::Within(set) => set.contains(color),
    };
    if !hungry.is_empty() && probe.failure.is_none() {
        let pool = Pages::map(probe.inside, probe.stopped, means.pool)?;
        let staging = Pages::map(probe.inside, probe.stopped, hungry.len().min(means.pool))?;
        let length = staging.count as u64 * BASE_PAGE_SIZE;
        watcher.register(probe.inside, probe.stopped, staging.start, length)?;
        let (mut used, mut staged) = (0, 0);
        while used < pool.count && !hungry.is_empty() && probe.failure.is_none() {
            let left = means.until.saturating_duration_since(Instant::now());
            if left.is_zero() && used > 0 {
                break;
            }
            // What there is no time for would be dealt in vain.
            let count = affordable(left).clamp(LEAST, CHUNK);
            let count = count.min(pool.count - used).min(hungry.len().max(LEAST));
            let offsets = order_cards(stock, want, &hungry, count);
            let fresh = pool.pages(used, count);
            used += count;
            deal(probe, stock_file, &offsets, fresh.first())?;
            let found = colors(probe, palette, &fresh, means.until);
            let mut pairs = Vec::new();
            for (fresh, color) in fresh.iter().zip(found) {
                let Some(color) = color else { continue };
                let Some(place) = hungry.iter().position(|&at| fits(at, color)) else {
                    continue;
                };
                let at = hungry.remove(place);
                pairs.push(Pair {
                    at,
                    page: pages[at].0,
                    fresh: fresh.0,
                    color,
                });
            }
            for pairs in pairs.chunks(TOGETHER) {
                let room = staging.count.saturating_sub(staged);
                let pairs = &pairs[..pairs.len().min(room)];
                exchange(probe, watcher, pairs, staging.page(staged), &mut placed)?;
                staged += pairs.len();
            }
        }
    }
    // What nothing was found for, or no time.
    let last = told.min(placed.len());
    let placed = placed.into_iter().take(last);
    Ok(placed
        .map(|placed| placed.unwrap_or(Placed::Left(Left::NoPage)))
        .collect())
}

/// Where in the stock's file pages are that the next fresh ones should get the frames of; all ones where it has none.
fn order_cards(stock: &mut Stock, want: &Want, hungry: &[usize], count: usize) -> Vec<u64> {
    const NONE: u64 = u64::MAX;
    match want {
        Want::Each(wanted) => (0..count)
            .map(|at| {
                let color = hungry.get(at).and_then(|at| wanted.get(*at));
                color.and_then(|color| stock.take(*color)).unwrap_or(NONE)
            })
            .collect(),
        Want::Within(set) => (0..count)
            .map(|_| {
                let most = set.iter().max_by_key(|color| stock.count(*color));
                most.and_then(|color| stock.take(color)).unwrap_or(NONE)
            })
            .collect(),
    }
}

/// Touches fresh pages, each after a page of the stock was given back.
fn deal(
    probe: &mut InsideProbe<'_>,
    stock_file: u64,
    offsets: &[u64],
    first: Option<&VirtAddr>,
) -> Result<(), Errno> {
    let first = first.map_or(0, |page| page.0);
    let order = [offsets.len() as u64, stock_file, first];
    let dealt = probe
        .inside
        .order(probe.stopped, Order::Deal, &order, offsets)?;
    dealt.result().map(drop)
}

/// Exchanges some pages.
fn exchange(
    probe: &mut InsideProbe<'_>,
    watcher: &Watcher,
    pairs: &[Pair],
    staging: u64,
    placed: &mut [Option<Placed>],
) -> Result<(), Errno> {
    let paper: Vec<u64> = pairs
        .iter()
        .flat_map(|pair| [pair.page, pair.fresh])
        .collect();
    // Each is done, however late: what was found for it would be lost.
    let never = i64::MAX.cast_unsigned();
    let order = [pairs.len() as u64, watcher.descriptor, staging, never];
    let done = probe
        .inside
        .order(probe.stopped, Order::Exchange, &order, &paper)?
        .result()?;
    let mut results = vec![0; paper.len()];
    probe.inside.read(PAPER, &mut results)?;
    let done = usize::try_from(done).unwrap_or(0);
    for (pair, result) in pairs.iter().zip(results.as_chunks::<2>().0).take(done) {
        placed[pair.at] = Some(match result[1] {
            0 => Placed::Exchanged(pair.color),
            errno => Placed::Left(reason(errno)),
        });
    }
    Ok(())
}

fn reason(errno: u64) -> Left {
    let errno = i32::try_from(errno).map(Errno::from_raw_os_error);
    match errno {
        Ok(Errno::BUSY | Errno::AGAIN) => Left::Busy,
        Ok(Errno::NOENT) => Left::Absent,
        Ok(Errno::INVAL) => Left::Locked,
        _ => Left::Refused,
    }
}

/// How many pages can be exchanged in `left`, to be asked for.
pub(crate) fn affordable(left: std::time::Duration) -> usize {
    usize::try_from(left.as_micros() / u128::from(USUAL_EXCHANGE)).unwrap_or(0)
}
