//! Giving pages of a stopped program frames of other colors.
//!
//! ```text
//!   pool       fresh pages of the program's own, dealt from the stock; their colors are measured in some visits
//!   staging    a page goes there, is copied to its fresh page, and that goes where it was
//! ```
//!
//! Pool and staging live for one visit. Mappings are watched by a userfaultfd for as long, whole ones, so that none is
//! split: should the visitor die while a page is out, whoever touches the hole waits until the code has put it back.

use std::time::Instant;

use rustix::io::Errno;
use rustix::ioctl::Opcode;
use superhue_color::Page;
use superhue_color::oracles::{Palette, Probe};
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
use crate::stock::{Card, Stock};
use crate::stop::Stopped;
use crate::vmas;
use crate::work::{Left, Placed, Want};

/// Pages classified, or exchanged, between two looks at the clock.
pub(crate) const CHUNK: usize = 64;

/// Fresh pages dealt at a time at least.
const LEAST: usize = 16;

/// Microseconds that dealing, measuring and exchanging a page takes, about; and without measuring.
const USUAL_EXCHANGE: u64 = 20;
const BELIEVED_EXCHANGE: u64 = 8;

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
        if inside.owns(page) {
            return Err(Left::Absent);
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

/// What pages are given other frames with.
pub(crate) struct Placing<'a, 'p> {
    pub(crate) probe: &'a mut InsideProbe<'p>,
    /// Fresh pages are measured by it; without, they are believed to have the frames that were dealt.
    pub(crate) palette: Option<&'a Palette>,
    pub(crate) watcher: &'a mut Watcher,
    /// Pages that the kernel touches by itself when the thread goes on that moves them.
    pub(crate) rseqs: &'a [u64],
    pub(crate) stock: &'a mut Stock,
    /// The stock's file, as a descriptor of the program's.
    pub(crate) stock_file: u64,
    /// Pages that may be used up.
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

impl Placing<'_, '_> {
    /// Places as many pages as there is time for. What becomes of each; those that nothing was found for, or no time, are
    /// left for want of a page.
    ///
    /// # Errors
    /// That of a call that failed inside.
    pub(crate) fn place(&mut self, pages: &[VirtAddr], want: &Want) -> Result<Vec<Placed>, Errno> {
        let asked = match want {
            Want::Each(wanted) => pages.len().min(wanted.len()),
            Want::Within(_) => pages.len(),
        };
        let mut placed: Vec<Option<Placed>> = vec![None; asked];
        // Which pages still want a frame.
        let mut hungry: Vec<usize> = Vec::new();
        for (at, page) in pages.iter().take(asked).enumerate() {
            // There is no use in more than are asked for at a time.
            if hungry.len() >= self.pool {
                break;
            }
            match self.watch(page.0) {
                Ok(()) => hungry.push(at),
                Err(left) => placed[at] = Some(Placed::Left(left)),
            }
        }
        if !hungry.is_empty() {
            self.feed(pages, want, &mut hungry, &mut placed)?;
        }
        let left = Placed::Left(Left::NoPage);
        Ok(placed.into_iter().map(|it| it.unwrap_or(left)).collect())
    }

    fn watch(&mut self, page: u64) -> Result<(), Left> {
        if self.rseqs.contains(&(page & !(BASE_PAGE_SIZE - 1))) {
            return Err(Left::Rseq);
        }
        let probe = &mut *self.probe;
        self.watcher.watch(probe.inside, probe.stopped, page)
    }

    /// Gives hungry pages frames until there are no more, no time, or nothing to give.
    fn feed(
        &mut self,
        pages: &[VirtAddr],
        want: &Want,
        hungry: &mut Vec<usize>,
        placed: &mut [Option<Placed>],
    ) -> Result<(), Errno> {
        let InsideProbe {
            inside, stopped, ..
        } = &mut *self.probe;
        let pool = Pages::map(inside, stopped, self.pool)?;
        let staging = Pages::map(inside, stopped, hungry.len().min(self.pool))?;
        let length = staging.count as u64 * BASE_PAGE_SIZE;
        self.watcher
            .register(inside, stopped, staging.start, length)?;
        let (mut used, mut staged) = (0, 0);
        while used < pool.count && !hungry.is_empty() {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() && used > 0 {
                break;
            }
            // What there is no time for would be dealt in vain.
            let count = affordable(left, self.palette.is_none()).clamp(LEAST, CHUNK);
            let count = count.min(pool.count - used);
            let cards = self.cards(want, hungry, count);
            if cards.is_empty() {
                break;
            }
            let fresh = pool.pages(used, cards.len());
            used += cards.len();
            let found = self.deal(&cards, &fresh)?;
            let mut pairs = Vec::new();
            for (fresh, color) in fresh.iter().zip(found) {
                let Some(color) = color else { continue };
                let fits = |at: &usize| match want {
                    Want::Each(wanted) => wanted.get(*at) == Some(&color),
                    Want::Within(set) => set.contains(color),
                };
                let Some(place) = hungry.iter().position(fits) else {
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
            pairs.truncate(staging.count.saturating_sub(staged));
            self.exchange(&pairs, staging.page(staged), placed)?;
            staged += pairs.len();
            if self.probe.failure.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// What to deal for the next fresh pages: one for each hungry page, and not more than `count`. Where fresh pages are
    /// measured, any frame may do; where not, only what the stock has.
    fn cards(&mut self, want: &Want, hungry: &[usize], count: usize) -> Vec<Option<Card>> {
        let mut cards = Vec::with_capacity(count);
        for &at in hungry {
            if cards.len() >= count {
                break;
            }
            let color = match want {
                Want::Each(wanted) => wanted.get(at).copied(),
                Want::Within(set) => set.iter().max_by_key(|color| self.stock.count(*color)),
            };
            let card = color.and_then(|color| self.stock.take(color));
            if card.is_some() || self.palette.is_some() {
                cards.push(card);
            }
        }
        if self.palette.is_some() {
            // Some will be of other colors.
            cards.resize(cards.len().max(LEAST.min(count)), None);
        }
        cards
    }

    /// Touches fresh pages, each after a page of the stock was given back; the colors they have.
    fn deal(
        &mut self,
        cards: &[Option<Card>],
        fresh: &[VirtAddr],
    ) -> Result<Vec<Option<Color>>, Errno> {
        const NONE: u64 = u64::MAX;
        let first = fresh.first().map_or(0, |page| page.0);
        let order = [cards.len() as u64, self.stock_file, first];
        let offsets = cards
            .iter()
            .map(|card| card.map_or(NONE, |card| card.offset));
        let offsets: Vec<u64> = offsets.collect();
        let probe = &mut *self.probe;
        let dealt = (probe.inside).order(probe.stopped, Order::Deal, &order, &offsets)?;
        dealt.result()?;
        let Some(palette) = self.palette else {
            return Ok(cards.iter().map(|card| Some((*card)?.color)).collect());
        };
        let found = colors(probe, palette, fresh, self.until);
        for (card, color) in cards.iter().zip(&found) {
            if let (Some(card), Some(color)) = (card, color) {
                self.stock.compare(*card, *color);
            }
        }
        Ok(found)
    }

    /// Exchanges some pages, by way of as many staging pages.
    fn exchange(
        &mut self,
        pairs: &[Pair],
        staging: u64,
        placed: &mut [Option<Placed>],
    ) -> Result<(), Errno> {
        let words = pairs.iter().flat_map(|pair| [pair.page, pair.fresh]);
        let paper: Vec<u64> = words.collect();
        // Each is done, however late: what was found for it would be lost.
        let never = i64::MAX.cast_unsigned();
        let order = [pairs.len() as u64, self.watcher.descriptor, staging, never];
        let probe = &mut *self.probe;
        let done = (probe.inside)
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

/// How many pages can be exchanged in `left`, to be asked for; if their frames need not be measured, more.
pub(crate) fn affordable(left: std::time::Duration, believed: bool) -> usize {
    let each = if believed {
        BELIEVED_EXCHANGE
    } else {
        USUAL_EXCHANGE
    };
    usize::try_from(left.as_micros() / u128::from(each)).unwrap_or(0)
}
