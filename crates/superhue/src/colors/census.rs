//! Colors of a command's memory while the kernel places it.
//!
//! The kernel counts each process's pages by color. Where frame numbers are visible (`CAP_SYS_ADMIN`), the census also checks pages taken at random:
//! this verifies the kernel's counts, and shows why a page is outside.

use std::collections::BTreeMap;

use superhue_model::{ColorIndex, ColorSet, PageCount, Pfn, ProcessId, VirtAddr};
use superhue_procfs::Roots;
use superhue_procfs::process::{PageWord, ProcessColors, page_words, sample_words, stat};
use superhue_sys::scratch::Scratch;

use super::KernelPolicy;

/// Words of page tables read for one check: 512 KiB.
const SAMPLE: u64 = 1 << 16;

/// Reason why a page has another color.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ColorMismatch {
    /// Of a file that another process may have read before, or of shared memory.
    File,
    /// Shared with a parent or child.
    Shared,
    /// The kernel had no free page of these colors.
    NoneFree,
}

impl ColorMismatch {
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::File => "of files (others may have read them before) or of shared memory",
            Self::Shared => "shared with another process since a fork",
            Self::NoneFree => "no page of these colors was free, or it was there before",
        }
    }
}

/// Result of a check of the frames of some pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FrameCheck {
    pub(crate) pages: u64,
    pub(crate) inside: u64,
    pub(crate) outside: BTreeMap<ColorMismatch, u64>,
}

/// Counts of one process, by the look that saw most of it.
#[derive(Debug, Clone)]
pub(crate) struct ProcessCounts {
    pub(crate) name: String,
    pub(crate) colors: ProcessColors,
    /// Pages of the wanted set, by the kernel's count; `None` where it does not show them.
    pub(crate) inside: Option<PageCount>,
    pub(crate) checked: FrameCheck,
}

/// The looks at all processes of a command.
#[derive(Debug)]
pub(crate) struct Census {
    set: ColorSet,
    index: ColorIndex,
    /// The kernel's zero page, which all untouched memory is read from; it is not even counted as resident.
    zero: Option<Pfn>,
    looks: u64,
    pub(crate) processes: BTreeMap<ProcessId, ProcessCounts>,
}

impl Census {
    pub(crate) fn new(policy: &KernelPolicy, roots: &Roots) -> Self {
        Self {
            set: policy.set.clone(),
            index: policy.index.clone(),
            zero: zero_frame(roots),
            looks: 0,
            processes: BTreeMap::new(),
        }
    }

    /// Counts the pages of one process; an earlier look that saw more pages is kept.
    pub(crate) fn look(&mut self, roots: &Roots, id: ProcessId) {
        let Ok(colors) = ProcessColors::read(roots, id.pid) else {
            return;
        };
        let known = self.processes.get(&id).map(|known| known.colors.resident());
        if known.is_some_and(|known| known > colors.resident()) {
            return;
        }
        self.looks += 1;
        let seed = u64::from(id.pid) << 32 | self.looks;
        let words = sample_words(roots, id.pid, SAMPLE, seed).unwrap_or_default();
        let checked = check(&words, &self.index, &self.set, self.zero);
        let stat = stat(roots, id.pid);
        let counted = ProcessCounts {
            name: stat.map_or_else(|_| String::new(), |stat| stat.comm),
            inside: colors.pages_of(&self.set),
            colors,
            checked,
        };
        self.processes.insert(id, counted);
    }
}

fn check(words: &[PageWord], index: &ColorIndex, set: &ColorSet, zero: Option<Pfn>) -> FrameCheck {
    let mut checked = FrameCheck::default();
    for word in words {
        let Some(frame) = word.frame().filter(|frame| Some(*frame) != zero) else {
            continue;
        };
        checked.pages += 1;
        if set.contains(index.color_of(frame)) {
            checked.inside += 1;
            continue;
        }
        let why = if word.is_file() {
            ColorMismatch::File
        } else if !word.is_exclusive() {
            ColorMismatch::Shared
        } else {
            ColorMismatch::NoneFree
        };
        *checked.outside.entry(why).or_default() += 1;
    }
    checked
}

/// Returns the frame of memory that was read and never written; `None` where frame numbers are hidden.
fn zero_frame(roots: &Roots) -> Option<Pfn> {
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::untouched(superhue_model::BASE_PAGE_SIZE as usize).ok()?;
    let VirtAddr(start) = scratch.range().start;
    let _ = scratch.peek();
    let file = std::fs::File::open(roots.proc.join("self/pagemap")).ok()?;
    let mut word = [0; 8];
    file.read_exact_at(&mut word, start / superhue_model::BASE_PAGE_SIZE * 8)
        .ok()?;
    page_words(&word).next()?.frame()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(raw: &[u64]) -> Vec<PageWord> {
        let bytes: Vec<u8> = raw.iter().flat_map(|word| word.to_ne_bytes()).collect();
        page_words(&bytes).collect()
    }

    #[test]
    fn pages_outside_are_counted_by_reason() {
        const PRESENT: u64 = 1 << 63;
        const FILE: u64 = 1 << 61;
        const EXCLUSIVE: u64 = 1 << 56;
        let index = ColorIndex::plain(4).unwrap();
        let set = ColorSet::from_words(&[0b0011], 4).unwrap();
        let words = words(&[
            PRESENT | EXCLUSIVE | 4,
            PRESENT | EXCLUSIVE | 5,
            PRESENT | EXCLUSIVE | 6,
            PRESENT | FILE | 7,
            PRESENT | 10,
            // The zero page, a page whose frame is hidden, and a page that is not present.
            PRESENT | 99,
            PRESENT | EXCLUSIVE,
            6,
        ]);
        let checked = check(&words, &index, &set, Some(Pfn(99)));
        assert_eq!((checked.pages, checked.inside), (5, 2));
        let outside: Vec<_> = checked.outside.into_iter().collect();
        assert_eq!(
            outside,
            [
                (ColorMismatch::File, 1),
                (ColorMismatch::Shared, 1),
                (ColorMismatch::NoneFree, 1)
            ]
        );
    }

    #[test]
    fn the_look_that_saw_most_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let place = roots.of_process(7, "");
        std::fs::create_dir_all(&place).unwrap();
        let mut census = Census {
            set: ColorSet::from_words(&[1], 2).unwrap(),
            index: ColorIndex::plain(2).unwrap(),
            zero: None,
            looks: 0,
            processes: BTreeMap::new(),
        };
        let id = ProcessId {
            pid: 7,
            start_ticks: 1,
        };
        census.look(&roots, id);
        assert!(census.processes.is_empty(), "a process that is gone");
        let stat = format!("7 (held) S 1{}\n", " 1".repeat(48));
        std::fs::write(place.join("stat"), stat).unwrap();
        for (inside, outside) in [(5, 1), (9, 2), (3, 0)] {
            let text = format!(
                "geometry masks:0x1000\ncolors 2\nset 0\nstrict 0\ninside {inside}\noutside {outside}\n\
                 color base large\n0 {inside} 0\n1 0 {outside}\n"
            );
            std::fs::write(place.join("page_color"), text).unwrap();
            census.look(&roots, id);
        }
        let counted = &census.processes[&id];
        assert_eq!(
            (counted.name.as_str(), counted.inside),
            ("held", Some(PageCount(9)))
        );
        assert_eq!(counted.colors.outside, Some(PageCount(2)));
    }
}
