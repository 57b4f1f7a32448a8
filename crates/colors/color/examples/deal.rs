//! Gives the memory of a paused guest frames of known colors, one page after the other.
//!
//! ```text
//! deal --file FILE --colors N --ways N --cpu CPU --folder FOLDER
//! ```
//!
//! FILE lies in tmpfs and is the physical memory of a guest: its page I becomes frame I of the guest, so it gets a frame whose
//! color is I modulo N. The guest then computes real colors from its own frame numbers. Nothing may run in the guest
//! meanwhile.
//!
//! ```text
//!   stock     a second file, in FOLDER, on the same kind of file system; the palette of the CPU classifies its pages
//!   punch     the page out of FILE (its contents are kept here), then a page of the color out of the stock: its frame is now
//!             the first on the CPU's list of free pages
//!   write     the contents back: the kernel takes that frame
//!   look      is it the frame? if not, again with another one
//! ```
//!
//! Prints one JSON object. Exit status 3: the colors of this machine are not known well enough to deal by them, with the reason.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example")]

use std::error::Error;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstat, ftruncate, open};
use rustix::io::{pread, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};
use superhue_color::Page;
use superhue_color::oracles::{Frames, HardwareProbe, Pagemap, Palette, Search};
use superhue_model::{Color, Pfn};

const PAGE: usize = 4096;
/// Pages among which the colors are found.
const POOL: usize = 8192;
/// Spare pages of the stock for each color, and one in this number of those that are dealt: colors are not equally frequent.
const SPARE: (usize, usize) = (128, 8);
/// Least percentage of the stock whose color must be found.
const KNOWN: usize = 97;
/// Pages of the held-out test; their own color must evict this percentage of them, and another color at most the rest.
const SAMPLE: usize = 2_000;
const AGREED: usize = 98;
/// Attempts for a page.
const ATTEMPTS: usize = 5;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

struct DealOptions {
    file: PathBuf,
    colors: usize,
    ways: u32,
    cpu: usize,
    folder: PathBuf,
}

fn options() -> Result<DealOptions, Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut options = DealOptions {
        file: PathBuf::new(),
        colors: 0,
        ways: 0,
        cpu: 0,
        folder: PathBuf::new(),
    };
    while let Some(name) = words.next() {
        let value = words.next().ok_or("every option takes a value")?;
        match name.as_str() {
            "--file" => options.file = value.into(),
            "--colors" => options.colors = value.parse()?,
            "--ways" => options.ways = value.parse()?,
            "--cpu" => options.cpu = value.parse()?,
            "--folder" => options.folder = value.into(),
            _ => return Err(format!("there is no option {name}").into()),
        }
    }
    if options.colors < 2 || options.ways == 0 || !options.folder.is_dir() {
        return Err("usage: deal --file FILE --colors N --ways N --cpu CPU --folder FOLDER".into());
    }
    Ok(options)
}

/// A file in memory, mapped until the program ends.
struct Mapped {
    file: OwnedFd,
    pages: Vec<Page>,
}

impl Mapped {
    fn new(file: OwnedFd, count: usize) -> Result<Self, Box<dyn Error>> {
        let (anywhere, length) = (std::ptr::null_mut(), count * PAGE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            mmap(
                anywhere,
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let pages = (0..count).filter_map(|page| {
            // SAFETY: a page of the mapping, which is never unmapped; nothing shortens the file.
            unsafe { Page::at(start as usize + page * PAGE) }
        });
        let pages = pages.collect();
        Ok(Self { file, pages })
    }

    fn punch(&self, page: usize) -> rustix::io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, hole, (page * PAGE) as u64, PAGE as u64)
    }

    fn frame(&self, pagemap: &mut Pagemap, page: usize) -> Result<Option<Pfn>, Box<dyn Error>> {
        let page = self.pages[page];
        page.touch();
        let mut frame = [None];
        pagemap.frames(&[page], &mut frame)?;
        Ok(frame[0])
    }
}

/// Pages to deal, by color.
struct Stock {
    memory: Mapped,
    of: Vec<Vec<usize>>,
}

fn new_stock(folder: &Path, pages: usize) -> Result<Mapped, Box<dyn Error>> {
    let file = open(
        folder,
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )?;
    let length = (pages * PAGE) as u64;
    ftruncate(&file, length)?;
    fallocate(&file, FallocateFlags::empty(), 0, length)?;
    let stock = Mapped::new(file, pages)?;
    stock.pages.iter().for_each(|page| page.touch());
    Ok(stock)
}

/// Finds the colors of all pages of the stock; refuses if there are not as many as the cache has, or too few pages are known.
fn classify(memory: Mapped, options: &DealOptions) -> Result<(Stock, Value), Box<dyn Error>> {
    let mut probe = HardwareProbe::new()?;
    let search = Search {
        ways: Some(options.ways),
        colors: u32::try_from(options.colors).ok(),
    };
    let pool = &memory.pages[..POOL.min(memory.pages.len())];
    let palette = Palette::discover(&mut probe, pool, &search)
        .map_err(|error| Refusal(format!("timing finds no colors: {error}")))?;
    if palette.colors() != options.colors {
        let reason = format!(
            "timing finds {} colors, and the description of the cache says {}",
            palette.colors(),
            options.colors
        );
        return Err(Refusal(reason).into());
    }
    let mut colors = vec![None; memory.pages.len()];
    palette.classify(&mut probe, &memory.pages, &mut colors);
    // A page of a set is read together with its set, which is no test of it.
    for (color, set) in (0_u16..).zip(palette.sets()) {
        for page in set {
            if let Ok(at) = memory.pages.binary_search(page) {
                colors[at] = Some(Color(color));
            }
        }
    }
    let members: Vec<Page> = palette.sets().iter().flatten().copied().collect();
    let known = colors.iter().flatten().count();
    let sample = memory.pages.iter().zip(&colors);
    let sample = sample.filter_map(|(page, color)| Some((*page, (*color)?)));
    let sample = sample.filter(|(page, _)| !members.contains(page));
    let sample: Vec<_> = sample.step_by((known / SAMPLE).max(1)).collect();
    let agreed = palette.agreement(&mut probe, &sample);
    let found = json!({
        "colors": palette.colors(), "ways": palette.ways(), "stock_pages": colors.len(), "known_pages": known,
        "tested_pages": agreed.tested, "evicted_by_own": agreed.own, "evicted_by_another": agreed.foreign,
    });
    let is_agreed = agreed.own * 100 >= agreed.tested * AGREED
        && agreed.foreign * 100 <= agreed.tested * (100 - AGREED);
    if known * 100 < colors.len() * KNOWN || !is_agreed {
        let reason = format!("too few pages have a color that a second test confirms: {found}");
        return Err(Refusal(reason).into());
    }
    let mut of = vec![Vec::new(); options.colors];
    for (page, color) in colors.iter().enumerate() {
        if let Some(color) = color {
            of[usize::from(color.0)].push(page);
        }
    }
    Ok((Stock { memory, of }, found))
}

/// Gives a page of the guest a frame of its color; returns whether it has one in the end.
fn deal_page(
    guest: &Mapped,
    stock: &mut Stock,
    pagemap: &mut Pagemap,
    page: usize,
) -> Result<bool, Box<dyn Error>> {
    let mut contents = [0_u8; PAGE];
    let (at, color) = ((page * PAGE) as u64, page % stock.of.len());
    if pread(&guest.file, &mut contents, at)? != PAGE {
        return Err(format!("page {page} of the guest's memory cannot be read whole").into());
    }
    for _ in 0..ATTEMPTS {
        let Some(taken) = stock.of[color].pop() else {
            return Ok(false);
        };
        let wanted = stock.memory.frame(pagemap, taken)?;
        // The guest's own frame is freed first: the frame that is freed last is handed out first.
        guest.punch(page)?;
        stock.memory.punch(taken)?;
        if pwrite(&guest.file, &contents, at)? != PAGE {
            return Err(format!("page {page} of the guest's memory cannot be written back").into());
        }
        if wanted.is_some() && guest.frame(pagemap, page)? == wanted {
            return Ok(true);
        }
    }
    Ok(false)
}

fn deal() -> Result<Value, Box<dyn Error>> {
    let options = options()?;
    let mut only = CpuSet::new();
    only.set(options.cpu);
    sched_setaffinity(None, &only)?;
    let guest = open(&options.file, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let pages = usize::try_from(fstat(&guest)?.st_size)? / PAGE;
    let guest = Mapped::new(guest, pages)?;
    let begin = Instant::now();
    let spare = SPARE.0 * options.colors + pages / SPARE.1;
    let (mut stock, mut found) = classify(new_stock(&options.folder, pages + spare)?, &options)?;
    let classified = begin.elapsed();
    let mut pagemap = Pagemap::open()?;
    let mut right = 0;
    for page in 0..pages {
        right += usize::from(deal_page(&guest, &mut stock, &mut pagemap, page)?);
    }
    found["pages"] = pages.into();
    found["right_pages"] = right.into();
    found["classify_seconds"] = classified.as_secs_f64().into();
    found["deal_seconds"] = (begin.elapsed() - classified).as_secs_f64().into();
    Ok(found)
}

fn main() -> ExitCode {
    match deal() {
        Ok(found) => {
            println!("{found}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("deal: {error}");
            ExitCode::from(if error.is::<Refusal>() { 3 } else { 1 })
        }
    }
}
