//! The palette that all processes of a machine share.
//!
//! Finding colors takes a second and 32 MiB; and if every process did it, color 7 of one would be color 20 of the other.
//! So the eviction sets live in a file in memory: every process that maps it has the same frames, hence the same colors
//! under the same numbers. Every process that opens it tests it. If it no longer holds, a new one replaces it in one step
//! (the kernel may have moved pages, or the machine may have migrated to another host).
//!
//! All places lie in folders that only root, or the user, can write to. Superhue still refuses, with the reason, a file that
//! belongs to neither root nor the user, and a lock that other users can open; and it waits for a lock no longer than a
//! search may take. It then tries the next place. A user without a place finds the colors again for each process.
//!
//! ```text
//!   /run/superhue/palette                 of root, for all users
//!   /dev/superhue/palette                 likewise, where /run is not in memory (some containers)
//!   $XDG_RUNTIME_DIR/superhue/palette     of a user; /run/user/UID where the variable is not set
//!
//!   | header, 64 KiB |  hole | set page | hole | set page | set page | hole ...     2 of 32 MiB remain
//! ```

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{geteuid, getuid};
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

use super::bounded::CpuLimitedProbe;
use super::file::{self, Draft};
use super::header::{FIRST_PAGE, HEADER_SIZE, Header, HeaderError};
use super::mapping::Mapping;
use super::pinned::CpuPin;
use super::{DiscoverError, Palette, Probe, Search, SelfTest};
use crate::Page;

/// Reason why there is no palette.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PaletteError {
    /// The file does not exist yet.
    #[error("there is no palette at {}", .0.display())]
    Missing(PathBuf),
    /// The file may come from a user that we do not trust.
    #[error("{} is not used: {reason}", .path.display())]
    Untrusted {
        /// The file.
        path: PathBuf,
        /// Reason not to trust it.
        reason: String,
    },
    /// Another process of this user makes one, and does not finish.
    #[error("{0}")]
    Locked(String),
    /// The file is no palette.
    #[error("{} is not used: {reason}", .path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The fault in its header.
        reason: HeaderError,
    },
    /// The palette's sets do not evict what they should.
    #[error(
        "the palette no longer holds: {} of {} pages are not evicted by those of their color, {} of {} are by others",
        .0.own_kept, .0.own, .0.foreign_evicted, .0.foreign
    )]
    Stale(SelfTest),
    /// No colors were found.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// A system call failed.
    #[error("cannot {what} {}: {errno}", .path.display())]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The path it was applied to.
        path: PathBuf,
        /// The error.
        errno: Errno,
    },
}

/// Places where palettes are looked for and made, and the parameters of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaletteConfig {
    /// Files that are tried in turn; the first that holds is used.
    pub places: Vec<PathBuf>,
    /// Memory in which colors are looked for; most is given back afterwards. 256 pages of each color are plenty, 64 a few.
    pub pool: ByteCount,
    /// Known properties of the cache.
    pub search: Search,
    /// CPU time that a search may take; also the time to wait for the search of another process.
    pub patience: Duration,
}

impl PaletteConfig {
    /// 32 MiB.
    pub const POOL: ByteCount = ByteCount(32 << 20);

    /// 20 s: a search that succeeds takes about one, on a disturbed machine a few.
    pub const SEARCH_TIME_LIMIT: Duration = Duration::from_secs(20);

    /// The places of this user under `root` (`/` but for tests), given its `$XDG_RUNTIME_DIR`.
    #[must_use]
    pub fn new(root: &Path, runtime_dir: Option<&Path>) -> Self {
        let mut places = vec![
            root.join("run/superhue/palette"),
            root.join("dev/superhue/palette"),
        ];
        let user = geteuid();
        if !user.is_root() {
            // No other user can put anything there, so it is tried even if the variable is not set.
            let session = root.join("run/user").join(user.as_raw().to_string());
            // In a setuid program the variable is the caller's, who is not trusted.
            let is_own = getuid() == user;
            let own = runtime_dir.filter(|folder| folder.is_absolute() && is_own);
            places.push(own.unwrap_or(&session).join("superhue/palette"));
        }
        Self {
            places,
            pool: Self::POOL,
            search: Search::default(),
            patience: Self::SEARCH_TIME_LIMIT,
        }
    }

    /// Bytes of a file in which colors are looked for.
    const fn length(&self) -> u64 {
        let pool = self.pool.0.next_multiple_of(BASE_PAGE_SIZE);
        pool.saturating_add(HEADER_SIZE as u64)
    }
}

/// Current step, for a caller that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// An existing palette is tested.
    Testing,
    /// Colors are looked for.
    Searching,
}

/// A palette in a file that other processes use too.
#[derive(Debug)]
pub struct SharedPalette {
    palette: Palette,
    path: PathBuf,
    numbering: u64,
    alone_because: Option<String>,
}

impl SharedPalette {
    /// The first palette of `config` that exists and holds, else a new one in the first place that can be written, else
    /// one for this process alone.
    ///
    /// # Errors
    /// See [`PaletteError`]: that of the last place tried.
    pub fn open_or_find(
        probe: &mut impl Probe,
        config: &PaletteConfig,
        mut progress: impl FnMut(Progress),
    ) -> Result<Self, PaletteError> {
        progress(Progress::Testing);
        let mut last = match Self::open(probe, config) {
            Ok(palette) => return Ok(palette),
            Err(error) => error,
        };
        for place in &config.places {
            let lock = match file::lock(place, config.patience) {
                Ok(lock) => lock,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            // Another process may have made one while we waited.
            match Self::open_at(probe, place) {
                Ok(palette) => return Ok(palette),
                Err(error @ PaletteError::Untrusted { .. }) => {
                    last = error;
                    continue;
                }
                Err(_) => {}
            }
            progress(Progress::Searching);
            let draft = Draft::new(place, lock, config.length());
            match draft.and_then(|draft| Self::make(probe, config, draft)) {
                Ok(_) => return Self::open_at(probe, place),
                // Another place has the same colors.
                Err(error @ PaletteError::Discover(_)) => return Err(error),
                Err(error) => last = error,
            }
        }
        progress(Progress::Searching);
        let draft = Draft::unnamed(config.length())?;
        let file = Self::make(probe, config, draft)?;
        let mut alone = Self::from_file(probe, file, Path::new("memory of this process"))?;
        alone.alone_because = Some(last.to_string());
        Ok(alone)
    }

    /// Returns a number that processes have in common if, and only if, the numbers of their colors mean the same.
    #[must_use]
    pub const fn numbering(&self) -> u64 {
        self.numbering
    }

    /// Reason why no other process has these colors under the same numbers; `None` if others have.
    #[must_use]
    pub fn alone_because(&self) -> Option<&str> {
        self.alone_because.as_deref()
    }

    /// The first palette of `config` that exists and holds.
    ///
    /// # Errors
    /// See [`PaletteError`]; that of the last place, unless that is merely missing.
    pub fn open(probe: &mut impl Probe, config: &PaletteConfig) -> Result<Self, PaletteError> {
        let mut last = PaletteError::Missing(config.places.first().cloned().unwrap_or_default());
        for place in &config.places {
            match Self::open_at(probe, place) {
                Ok(palette) => return Ok(palette),
                Err(PaletteError::Missing(_)) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Opens the existing palette without testing whether its colors still hold: that takes no time, and shows how many
    /// colors there were.
    #[must_use]
    pub fn peek(config: &PaletteConfig) -> Option<Self> {
        config.places.iter().find_map(|place| {
            let (file, _) = file::open(place).ok()?;
            Self::from_file_untested(file, place).ok()
        })
    }

    fn open_at(probe: &mut impl Probe, place: &Path) -> Result<Self, PaletteError> {
        let (file, _) = file::open(place)?;
        Self::from_file(probe, file, place)
    }

    /// The palette of an open file, which `path` names in errors; tested.
    ///
    /// # Errors
    /// See [`PaletteError`].
    fn from_file(probe: &mut impl Probe, file: OwnedFd, path: &Path) -> Result<Self, PaletteError> {
        let mut shared = Self::from_file_untested(file, path)?;
        let _pinned = CpuPin::here();
        shared.palette.calibrate(probe);
        let test = shared.palette.self_test(probe, 2);
        if test.passed() {
            return Ok(shared);
        }
        // A single failure may be an accident.
        shared.palette.calibrate(probe);
        let test = shared.palette.self_test(probe, 4);
        if test.passed() {
            Ok(shared)
        } else {
            Err(PaletteError::Stale(test))
        }
    }

    /// The same without timing anything.
    ///
    /// # Errors
    /// See [`PaletteError`].
    fn from_file_untested(file: OwnedFd, path: &Path) -> Result<Self, PaletteError> {
        let length = file::length_of(&file, path)?;
        let system = |what| {
            move |errno| PaletteError::System {
                what,
                path: path.to_owned(),
                errno,
            }
        };
        let bytes = read_start(&file).map_err(system("read"))?;
        let bad = |reason| PaletteError::Header {
            path: path.to_owned(),
            reason,
        };
        let pages = u32::try_from(length / BASE_PAGE_SIZE).unwrap_or(u32::MAX);
        let header = Header::decode(&bytes, pages).map_err(bad)?;
        let length = usize::try_from(length).map_err(|_| bad(HeaderError::Short))?;
        let mapping = Mapping::new(&file, length).map_err(system("map"))?;
        mapping.lock();
        let sets = (header.sets.iter())
            .map(|set| set.iter().filter_map(|page| mapping.page(*page)).collect())
            .collect();
        let (strength, numbering) = (header.strength as usize, header.numbering());
        let mapping = Arc::new(mapping);
        let palette = Palette::new(sets, header.ways, strength, header.contrast);
        Ok(Self {
            palette: palette.kept_by(mapping),
            path: path.to_owned(),
            numbering,
            alone_because: None,
        })
    }

    fn make(
        probe: &mut impl Probe,
        config: &PaletteConfig,
        draft: Draft,
    ) -> Result<OwnedFd, PaletteError> {
        let length = config.length();
        let system = |errno| PaletteError::System {
            what: "map",
            path: draft.path().to_owned(),
            errno,
        };
        let bytes = usize::try_from(length).map_err(|_| system(Errno::NOMEM))?;
        let mapping = Mapping::new(draft.file(), bytes).map_err(system)?;
        mapping.lock();
        let pages = u32::try_from(length / BASE_PAGE_SIZE).map_err(|_| system(Errno::NOMEM))?;
        let pool: Vec<Page> = (FIRST_PAGE..pages)
            .filter_map(|page| mapping.page(page))
            .collect();
        let palette = {
            let _pinned = CpuPin::here();
            let mut bounded = CpuLimitedProbe::new(probe, config.patience);
            let found = Palette::discover(&mut bounded, &pool, &config.search);
            if bounded.is_late() {
                // The search result does not count: its trials were cut short.
                return Err(DiscoverError::TooLong(config.patience).into());
            }
            found?
        };
        let number = |page: &Page| mapping.number(*page);
        let header = Header {
            ways: palette.ways(),
            strength: u32::try_from(palette.strength()).unwrap_or(1),
            contrast: palette.contrast(),
            sets: (palette.sets().iter())
                .map(|set| set.iter().filter_map(number).collect())
                .collect(),
        };
        let used: Vec<u32> = header.sets.iter().flatten().copied().collect();
        let bytes = header.encode().ok_or_else(|| DiscoverError::Incomplete {
            found: palette.colors(),
            pages: pool.len(),
            reason: "so many sets have no room in the file".to_owned(),
        })?;
        draft.punch(FIRST_PAGE, &used, pages)?;
        draft.write(&bytes)?;
        draft.finish()
    }

    /// Removes the palettes of `config` that this user may remove; returns the paths of those that existed.
    ///
    /// # Errors
    /// [`PaletteError::System`] when one is there and cannot be removed.
    pub fn forget(config: &PaletteConfig) -> Result<Vec<PathBuf>, PaletteError> {
        let mut removed = Vec::new();
        for place in &config.places {
            if file::remove(place)? {
                removed.push(place.clone());
            }
        }
        Ok(removed)
    }

    /// The colors.
    #[must_use]
    pub const fn palette(&self) -> &Palette {
        &self.palette
    }

    /// Returns the path of its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tests up to `sample` pages of every set again: drift shows as a failed test.
    pub fn retest(&self, probe: &mut impl Probe, sample: usize) -> SelfTest {
        let _pinned = CpuPin::here();
        self.palette.self_test(probe, sample)
    }
}

/// The first bytes of a file, as many as a header may take.
fn read_start(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; HEADER_SIZE];
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(read);
    Ok(bytes)
}
