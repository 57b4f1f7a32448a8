//! Memory to place, and an oracle that needs no timing.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;

use superhue_color::Page;
use superhue_color::choice::Walk;
use superhue_color::oracles::{Oracle, OracleError, OracleKind};
use superhue_color::place::{Placer, Pool, PoolConfig};
use superhue_model::{ByteCount, Color, ColorRequest, VirtAddr, VirtRange};

pub(crate) const PAGE: usize = 4096;

/// A private anonymous mapping in base pages.
pub(crate) struct Memory {
    pub(crate) start: usize,
    pub(crate) pages: usize,
}

impl Memory {
    /// Maps it between two inaccessible pages: the mapping never merges with another test's, or the counts of mappings
    /// would depend on the other tests.
    pub(crate) fn new(pages: usize) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let guard = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (pages + 2) * PAGE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(guard, libc::MAP_FAILED);
        let start = guard as usize + PAGE;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the middle of the mapping just made.
        let done = unsafe { libc::mprotect(start as *mut _, pages * PAGE, writable) };
        assert_eq!(done, 0);
        let memory = Self { start, pages };
        memory.advise(libc::MADV_NOHUGEPAGE);
        memory
    }

    pub(crate) fn advise(&self, advice: i32) {
        // SAFETY: the mapping is this value's own, and no test relies on contents that the advice drops.
        let done = unsafe { libc::madvise(self.start as *mut _, self.pages * PAGE, advice) };
        assert_eq!(done, 0);
    }

    pub(crate) fn range(&self) -> VirtRange {
        self.part(0, self.pages)
    }

    /// Pages `from..to`.
    pub(crate) fn part(&self, from: usize, to: usize) -> VirtRange {
        VirtRange {
            start: VirtAddr((self.start + from * PAGE) as u64),
            end: VirtAddr((self.start + to * PAGE) as u64),
        }
    }

    pub(crate) fn page(&self, page: usize) -> usize {
        assert!(page < self.pages);
        self.start + page * PAGE
    }

    /// A word of a page. Atomic, as pages are moved without the compiler's knowledge.
    pub(crate) fn word(&self, page: usize, word: usize) -> &AtomicU64 {
        assert!(word < PAGE / 8);
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned.
        unsafe { &*((self.page(page) + word * 8) as *const AtomicU64) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing refers to it any more.
        unsafe { libc::munmap((self.start - PAGE) as *mut _, (self.pages + 2) * PAGE) };
    }
}

/// Returns a page's frame number modulo the colors as its color, or that of its address if frame numbers are hidden.
pub(crate) struct FakeOracle {
    pub(crate) colors: usize,
    pagemap: File,
}

impl FakeOracle {
    pub(crate) fn new(colors: usize) -> Self {
        Self {
            colors,
            pagemap: File::open("/proc/self/pagemap").unwrap(),
        }
    }

    /// Returns the frame of a page; `None` if there is no page, or frame numbers are hidden.
    pub(crate) fn frame(&self, page: usize) -> Option<u64> {
        let mut word = [0; 8];
        self.pagemap
            .read_exact_at(&mut word, (page / PAGE * 8) as u64)
            .unwrap();
        let frame = u64::from_ne_bytes(word) & ((1 << 55) - 1);
        (frame != 0).then_some(frame)
    }

    pub(crate) fn color(&self, page: usize) -> Color {
        let number = self.frame(page).unwrap_or((page / PAGE) as u64);
        Color(u16::try_from(number % self.colors as u64).unwrap())
    }
}

impl Oracle for FakeOracle {
    fn kind(&self) -> OracleKind {
        OracleKind::Pfn
    }

    fn colors(&self) -> usize {
        self.colors
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        for (page, color) in pages.iter().zip(colors) {
            *color = Some(self.color(page.address()));
        }
        Ok(())
    }
}

pub(crate) fn walk(text: &str, colors: usize) -> Walk {
    let request: ColorRequest = text.parse().unwrap();
    Walk::new(&request.of(colors).unwrap().unwrap(), 0)
}

pub(crate) fn pool(chunk: usize, limit: usize, colors: usize) -> Pool {
    let config = PoolConfig {
        chunk: ByteCount((chunk * PAGE) as u64),
        limit: ByteCount((limit * PAGE) as u64),
        locked: false,
    };
    Pool::new(config, colors)
}

/// Makes a placer; `None`, with a visible skip, where pages cannot be moved.
pub(crate) fn placer(pool: Pool) -> Option<Placer> {
    Placer::new(pool)
        .inspect_err(|errno| superhue_testing::skip("uffd-move", &errno.to_string()))
        .ok()
}

/// The bounds of the mappings of this process that touch `range`.
pub(crate) fn mappings(range: VirtRange) -> BTreeSet<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let bounds = maps.lines().filter_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some((
            u64::from_str_radix(start, 16).ok()?,
            u64::from_str_radix(end, 16).ok()?,
        ))
    });
    bounds
        .filter(|(start, end)| *start < range.end.0 && range.start.0 < *end)
        .collect()
}

/// Runs the tests whose names begin with `module::` again, as `nobody`.
pub(crate) fn as_nobody(module: &str) {
    use std::os::unix::process::CommandExt;
    let program = std::env::current_exe().unwrap();
    // Other users may not read the build folder.
    let name = format!(
        "{}-by-nobody",
        program.file_name().unwrap().to_string_lossy()
    );
    let copy = std::env::temp_dir().join(name);
    superhue_testing::copy_program(&program, &copy);
    let mut tests = Command::new(&copy);
    tests
        .arg(format!("{module}::"))
        .uid(superhue_testing::NOBODY)
        .gid(superhue_testing::NOBODY)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let started = {
        // Becoming another user takes a fork. When this returns, the child executes its own program.
        let _alone = superhue_testing::alone();
        tests.spawn()
    };
    let output = started.and_then(Child::wait_with_output);
    std::fs::remove_file(&copy).unwrap();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_passed = output.status.success() && !said.contains(" 0 passed;");
    assert!(is_passed, "{said}{errors}");
}
