//! `/proc/PID/page_color`: the resident pages of a process by color, on kernels with the patch series.
//!
//! ```text
//!   geometry masks:0x1000,0x2000
//!   colors 4
//!   set 0-1                   of its first thread; `none` if it takes any
//!   strict 1
//!   inside 40                 of the set, or all without one
//!   outside 2
//!   mapped_2048kB 1           mappings larger than a page, by size
//!   color base large          folios of one page, and pages of larger ones
//!   0 20 0
//! ```
//!
//! The file does not count swapped pages, nor the shared zero page. It shows no addresses. Without `CAP_SYS_ADMIN` there is no table, since it
//! would reveal bits of physical addresses, and `inside` and `outside` stand there only for a set that the task or its group was given.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, Color, ColorIndex, ColorSet, PageCount};

use super::absent::refine;
use crate::system::page_color::WITHOUT;
use crate::system::page_color::lines::{self, Lines};
use crate::system::{ParseError, number, switch};
use crate::{ReadError, Roots};

/// Resident pages of one color.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ResidentColor {
    /// Pages that are folios of their own.
    pub base: PageCount,
    /// Pages of larger folios.
    pub large: PageCount,
}

/// One reading of `/proc/PID/page_color`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessColors {
    /// Definition of a color; `None` if the kernel knows no cache with colors.
    pub index: Option<ColorIndex>,
    /// Colors that the first thread takes; `None` means any.
    pub set: Option<ColorSet>,
    /// True if allocations fail rather than leave the set.
    pub strict: bool,
    /// Number of colors.
    pub count: usize,
    /// Resident pages of the set, or all without one; `None` where the kernel does not show them to the reader.
    pub inside: Option<PageCount>,
    /// Resident pages of other colors; likewise.
    pub outside: Option<PageCount>,
    /// Mappings larger than a page: size and number.
    pub mapped: Vec<(ByteCount, u64)>,
    /// Pages of each color; empty where the kernel does not show them to the reader.
    pub colors: Vec<ResidentColor>,
}

impl ProcessColors {
    /// Reads the file of process `pid`.
    ///
    /// # Errors
    /// [`ReadError::Missing`] on a kernel without the patch series, [`ReadError::Denied`] for processes of other users;
    /// when the process is gone, has no memory, or the file is malformed.
    pub fn read(roots: &Roots, pid: u32) -> Result<Self, ReadError> {
        let path = roots.of_process(pid, "page_color");
        let text = fs::read(&path).map_err(|error| {
            let error = ReadError::of_process(pid, &path, error);
            refine(roots, pid, &path, WITHOUT, error)
        })?;
        Self::understand(path, &text)
    }

    /// Reads the file of this process.
    ///
    /// # Errors
    /// [`ReadError::Missing`] on a kernel without the patch series; when it is malformed.
    pub fn own(roots: &Roots) -> Result<Self, ReadError> {
        Self::at(roots.proc.join("self/page_color"))
    }

    /// Reads the file of the calling thread, whose set may be its own.
    ///
    /// # Errors
    /// As [`Self::own`].
    pub fn of_this_thread(roots: &Roots) -> Result<Self, ReadError> {
        Self::at(roots.proc.join("thread-self/page_color"))
    }

    fn at(path: PathBuf) -> Result<Self, ReadError> {
        let text = fs::read(&path);
        let text = text.map_err(|error| ReadError::of_system(&path, error, WITHOUT))?;
        Self::understand(path, &text)
    }

    fn understand(path: PathBuf, text: &[u8]) -> Result<Self, ReadError> {
        Self::parse(&String::from_utf8_lossy(text)).map_err(|error| ReadError::Malformed {
            path,
            what: error.to_string(),
        })
    }

    /// Parses the file's text.
    ///
    /// # Errors
    /// If the text does not have the format above.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut lines = Lines::of(text);
        let (index, count) = lines::colors(&mut lines)?;
        let set = match lines.named("set")? {
            "none" => None,
            list => Some(lines::set(list, count)?),
        };
        let strict = switch(lines.named("strict")?)?;
        let (mut inside, mut outside) = (None, None);
        if let Some(pages) = lines.named_if("inside") {
            inside = Some(PageCount(number(pages)?));
            outside = Some(PageCount(number(lines.named("outside")?)?));
        }
        let mut read = Self {
            index,
            set,
            strict,
            count,
            inside,
            outside,
            mapped: Vec::new(),
            colors: Vec::new(),
        };
        while let Some(line) = lines.next() {
            if line.trim() == "color base large" {
                let counts = |color| row(&mut lines, color);
                read.colors = (0..count).map(counts).collect::<Result<_, _>>()?;
                break;
            }
            read.mapped.push(mapping(line)?);
        }
        Ok(read)
    }

    /// Returns the resident pages of all colors; `None` where the kernel does not show them to the reader.
    #[must_use]
    pub fn resident(&self) -> Option<PageCount> {
        let (inside, outside) = (self.inside?, self.outside?);
        Some(PageCount(inside.0.saturating_add(outside.0)))
    }

    /// Returns the pages of the colors in `set`; `None` where the kernel does not show them to the reader.
    #[must_use]
    pub fn pages_of(&self, set: &ColorSet) -> Option<PageCount> {
        if self.colors.is_empty() {
            return self.inside.filter(|_| self.set.as_ref() == Some(set));
        }
        let counts = (0_u16..).zip(&self.colors);
        let inside = counts.filter(|(color, _)| set.contains(Color(*color)));
        Some(PageCount(inside.fold(0, |sum, (_, count)| {
            sum.saturating_add(count.base.0)
                .saturating_add(count.large.0)
        })))
    }

    /// Returns the pages of larger folios, which have several colors: of those that are mapped whole where the kernel does not show more.
    #[must_use]
    pub fn large(&self) -> PageCount {
        let mapped = self.mapped.iter();
        let mapped = mapped.map(|(size, count)| (size.0 / BASE_PAGE_SIZE).saturating_mul(*count));
        let pages = self.colors.iter().map(|color| color.large.0);
        PageCount(match self.colors.is_empty() {
            true => mapped.fold(0, u64::saturating_add),
            false => pages.fold(0, u64::saturating_add),
        })
    }
}

/// Parses the counts of one color.
fn row(lines: &mut Lines<'_>, color: usize) -> Result<ResidentColor, ParseError> {
    let rest = lines.named(&color.to_string())?;
    let counts: Vec<u64> = rest.split(' ').map(number).collect::<Result<_, _>>()?;
    let [base, large] = counts[..] else {
        return Err(ParseError::no(rest, "row of two counts"));
    };
    Ok(ResidentColor {
        base: PageCount(base),
        large: PageCount(large),
    })
}

/// Parses `mapped_2048kB 3`.
fn mapping(line: &str) -> Result<(ByteCount, u64), ParseError> {
    let no = || ParseError::no(line, "count of mappings");
    let rest = line.trim().strip_prefix("mapped_").ok_or_else(no)?;
    let (size, count) = rest.split_once("kB ").ok_or_else(no)?;
    let kib = number(size)?.checked_mul(1024).ok_or_else(no)?;
    Ok((ByteCount(kib), number(count)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "geometry masks:0x1000,0x2000\ncolors 4\nset 0-1\nstrict 1\ninside 40\noutside 2\n\
        mapped_64kB 2\nmapped_2048kB 1\ncolor base large\n0 20 1\n1 20 0\n2 1 0\n3 1 0\n";

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        let read = ProcessColors::parse(TEXT).unwrap();
        assert_eq!(read.set.as_ref().unwrap().to_string(), "0-1");
        assert!(read.strict);
        assert_eq!(
            (read.inside, read.outside),
            (Some(PageCount(40)), Some(PageCount(2)))
        );
        assert_eq!(
            (read.resident(), read.large()),
            (Some(PageCount(42)), PageCount(1))
        );
        let lowest = ColorSet::from_words(&[1], 4).unwrap();
        assert_eq!(read.pages_of(&lowest), Some(PageCount(21)));
        assert_eq!(read.mapped[1], (ByteCount(2 << 20), 1));
        assert_eq!(read.colors[0].base, PageCount(20));
        let none = ProcessColors::parse(&TEXT.replace("set 0-1", "set none")).unwrap();
        assert_eq!(none.set, None);
    }

    /// Without `CAP_SYS_ADMIN` the kernel shows no table, and sums only of a set that was given.
    #[test]
    fn what_the_kernel_hides_is_unknown() {
        let (sums, _) = TEXT.split_once("color base").unwrap();
        let read = ProcessColors::parse(sums).unwrap();
        assert_eq!((read.count, read.colors.len()), (4, 0));
        assert_eq!(read.large(), PageCount(2 * 16 + 512));
        let set = read.set.clone().unwrap();
        assert_eq!(read.pages_of(&set), Some(PageCount(40)));
        let other = ColorSet::from_words(&[1], 4).unwrap();
        assert_eq!(read.pages_of(&other), None);
        let none = ProcessColors::parse(&sums.replace("inside 40\noutside 2\n", "")).unwrap();
        assert_eq!((none.inside, none.resident()), (None, None));
        assert_eq!(none.pages_of(&set), None);
    }

    #[test]
    fn what_is_cut_or_garbled_is_refused() {
        for (index, _) in TEXT.match_indices('\n') {
            let cut = &TEXT[..index];
            let last = cut.lines().last().unwrap();
            let is_whole = ["strict", "outside", "mapped", "3 1 0"];
            assert_eq!(
                ProcessColors::parse(cut).is_ok(),
                is_whole.iter().any(|name| last.starts_with(name)),
                "{cut:?}"
            );
        }
        for (from, to) in [
            ("colors 4", "colors 8"),
            ("set 0-1", "set 0-4"),
            ("set 0-1", "set all"),
            ("strict 1", "strict yes"),
            ("mapped_64kB 2", "mapped_64 2"),
            ("mapped_64kB 2", "mapped_99999999999999999kB 2"),
            ("1 20 0", "1 20"),
            ("2 1 0", "3 1 0"),
        ] {
            let garbled = TEXT.replace(from, to);
            assert_ne!(garbled, TEXT);
            assert!(ProcessColors::parse(&garbled).is_err(), "{garbled}");
        }
    }

    #[test]
    fn a_kernel_without_the_file_is_told_from_a_process_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let error = ProcessColors::read(&roots, 7).unwrap_err();
        assert!(error.is_vanished(), "{error}");
        let place = roots.of_process(7, "");
        fs::create_dir_all(&place).unwrap();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        fs::write(place.join("stat"), stat).unwrap();
        let error = ProcessColors::read(&roots, 7).unwrap_err();
        assert!(matches!(error, ReadError::Missing { .. }), "{error}");
        fs::write(place.join("page_color"), TEXT).unwrap();
        assert_eq!(
            ProcessColors::read(&roots, 7).unwrap().inside,
            Some(PageCount(40))
        );
        fs::write(place.join("page_color"), [0xff, b'\n']).unwrap();
        let error = ProcessColors::read(&roots, 7).unwrap_err();
        assert!(matches!(error, ReadError::Malformed { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*", cut in 0..TEXT.len(), insert in "[ -~\n]{0,8}") {
            let _ = ProcessColors::parse(&text);
            let mut mangled = TEXT.to_owned();
            mangled.insert_str(cut, &insert);
            let _ = ProcessColors::parse(&mangled);
        }

        #[test]
        fn what_is_printed_is_read(bits in 0..7_u32, counts in proptest::collection::vec((0..1000_u64, 0..1000_u64), 64)) {
            let colors = 1_usize << bits;
            let masks: Vec<String> = (0..bits).map(|bit| format!("{:#x}", 0x1000_u64 << bit)).collect();
            let geometry = if bits == 0 { "4".to_owned() } else { format!("masks:{}", masks.join(",")) };
            let rows: String = counts.iter().take(colors).enumerate()
                .map(|(color, (base, large))| format!("{color} {base} {large}\n")).collect();
            let text = format!("geometry {geometry}\ncolors {colors}\nset 0\nstrict 0\ninside 1\noutside 0\ncolor base large\n{rows}");
            let read = ProcessColors::parse(&text).unwrap();
            prop_assert_eq!(read.colors.len(), colors);
            for (found, (base, large)) in read.colors.iter().zip(counts) {
                prop_assert_eq!(*found, ResidentColor { base: PageCount(base), large: PageCount(large) });
            }
        }
    }
}
