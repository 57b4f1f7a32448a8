//! The files below `/sys/kernel/mm/damon/admin/kdamonds`.
//!
//! ```text
//!   nr_kdamonds                                                     how many there are
//!   0/state, 0/pid                                                  on, off, orders; its thread
//!   0/contexts/0/operations, avail_operations                       vaddr
//!               /monitoring_attrs/intervals/{sample,aggr,update}_us
//!               /monitoring_attrs/nr_regions/{min,max}
//!               /targets/0/pid_target
//!               /schemes/0/action                                   stat: watch, do nothing
//!                         /tried_regions/N/{start,end,nr_accesses}  what was found
//! ```
//!
//! The kernel has one lock for all of this, and never waits for it: a caller gets `EBUSY` while another caller, or the monitoring thread, holds the
//! lock, and must try again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use superhue_model::{VirtAddr, VirtRange};
use superhue_procfs::system::number;
use superhue_procfs::system::{hint, numbered};

/// Microseconds between two checks of one page of a range.
pub(super) const SAMPLE_US: u64 = 5_000;
/// Microseconds over which checks are counted.
pub(super) const AGGREGATE_US: u64 = 100_000;
/// Microseconds between two looks at the mappings. About a second; the odd figure identifies our own kdamonds.
const UPDATE_US: u64 = 1_021_320;
/// Least and largest number of ranges into which DAMON divides the memory: its own defaults, which bound its cost.
const RANGES: (u64, u64) = (10, 1_000);

/// Time for which other users may hold the kernel's lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two attempts. The kernel itself checks ten times a second whether an order was carried out.
const PAUSE: Duration = Duration::from_millis(2);

/// A range as DAMON found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DamonRange {
    pub(super) range: VirtRange,
    /// Samples of the last aggregation that found the range accessed.
    pub(super) accesses: u64,
}

/// All kdamonds.
#[derive(Debug, Clone)]
pub(super) struct Kdamonds(PathBuf);

impl Kdamonds {
    pub(super) fn in_sysfs(sys: &Path) -> Self {
        Self(sys.join("kernel/mm/damon/admin/kdamonds"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn count(&self) -> io::Result<u64> {
        read_number(&self.0.join("nr_kdamonds"))
    }

    /// Makes `count` new kdamonds in place of all old ones; the kernel refuses that while one runs.
    pub(super) fn set_count(&self, count: u64) -> io::Result<()> {
        write(&self.0.join("nr_kdamonds"), count)
    }

    pub(super) fn nth(&self, index: u64) -> Kdamond {
        Kdamond(self.0.join(index.to_string()))
    }

    /// Turns all off, and removes them.
    pub(super) fn clear(&self, count: u64) -> io::Result<()> {
        for index in 0..count {
            self.nth(index).turn_off()?;
        }
        self.set_count(0)
    }
}

/// One kdamond: a thread of the kernel, while it is on.
#[derive(Debug, Clone)]
pub(super) struct Kdamond(PathBuf);

impl Kdamond {
    fn context(&self) -> PathBuf {
        self.0.join("contexts/0")
    }

    /// Returns the operations that the kernel can monitor. Makes a context, because only a context lists them.
    pub(super) fn operations(&self) -> io::Result<String> {
        write(&self.0.join("contexts/nr_contexts"), 1)?;
        read(&self.context().join("avail_operations"))
    }

    /// Sets it up to watch one process; see the [module](self).
    pub(super) fn set_up(&self, pid: u32) -> io::Result<()> {
        let context = self.context();
        write(&self.0.join("contexts/nr_contexts"), 1)?;
        write(&context.join("operations"), "vaddr")?;
        for (name, value) in self.signature() {
            write(&context.join(name), value)?;
        }
        write(&context.join("targets/nr_targets"), 1)?;
        write(&context.join("targets/0/pid_target"), pid)?;
        write(&context.join("schemes/nr_schemes"), 1)?;
        let scheme = context.join("schemes/0");
        write(&scheme.join("action"), "stat")?;
        let pattern = scheme.join("access_pattern");
        for (name, most) in [
            ("sz", u64::MAX),
            ("nr_accesses", u32::MAX.into()),
            ("age", u32::MAX.into()),
        ] {
            write(&pattern.join(name).join("min"), 0)?;
            write(&pattern.join(name).join("max"), most)?;
        }
        Ok(())
    }

    /// Settings that identify our kdamonds: no other user is likely to have all of them.
    fn signature(&self) -> [(&'static str, u64); 5] {
        [
            ("monitoring_attrs/intervals/sample_us", SAMPLE_US),
            ("monitoring_attrs/intervals/aggr_us", AGGREGATE_US),
            ("monitoring_attrs/intervals/update_us", UPDATE_US),
            ("monitoring_attrs/nr_regions/min", RANGES.0),
            ("monitoring_attrs/nr_regions/max", RANGES.1),
        ]
    }

    /// Returns true if it looks like one that [`Self::set_up`] made.
    pub(super) fn has_our_settings(&self) -> bool {
        let context = self.context();
        let is = |name: &str, value: &str| {
            read(&context.join(name)).is_ok_and(|text| text.trim() == value)
        };
        is("operations", "vaddr")
            && is("schemes/0/action", "stat")
            && is("targets/nr_targets", "1")
            && self
                .signature()
                .iter()
                .all(|(name, value)| is(name, &value.to_string()))
    }

    pub(super) fn turn_on(&self) -> io::Result<()> {
        write(&self.0.join("state"), "on")
    }

    /// Turns it off if it is on.
    pub(super) fn turn_off(&self) -> io::Result<()> {
        if !self.is_on()? {
            return Ok(());
        }
        match write(&self.0.join("state"), "off") {
            // It ended by itself, because its process ended.
            Err(_) if !self.is_on()? => Ok(()),
            done => done,
        }
    }

    pub(super) fn is_on(&self) -> io::Result<bool> {
        Ok(read(&self.0.join("state"))?.trim() != "off")
    }

    /// Returns the number of its thread, while it is on.
    pub(super) fn thread(&self) -> Option<u32> {
        read(&self.0.join("pid")).ok()?.trim().parse().ok()
    }

    /// Waits for the end of an aggregation (0.1 to 0.3 s), and returns the ranges found, ascending.
    pub(super) fn update(&self) -> io::Result<Vec<DamonRange>> {
        write(&self.0.join("state"), "update_schemes_tried_regions")?;
        let folder = self.context().join("schemes/0/tried_regions");
        let mut found = Vec::new();
        for (_, region) in numbered(&folder, "", "")? {
            let number = |name| read_number(&region.join(name));
            let (start, end) = (number("start")?, number("end")?);
            let range = VirtRange::new(VirtAddr(start), VirtAddr(end))
                .ok_or_else(|| invalid(&region, "the range is reversed"))?;
            found.push(DamonRange {
                range,
                accesses: number("nr_accesses")?,
            });
        }
        found.sort_unstable_by_key(|found| found.range.start);
        let disjoint = found
            .windows(2)
            .all(|pair| pair[0].range.end <= pair[1].range.start);
        if disjoint {
            Ok(found)
        } else {
            Err(invalid(&folder, "ranges overlap"))
        }
    }

    /// Returns the process that it should watch.
    pub(super) fn target(&self) -> Option<u32> {
        let text = hint(&self.context().join("targets/0/pid_target"))?;
        text.parse().ok()
    }
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{}: {what}", path.display()),
    )
}

fn read_number(path: &Path) -> io::Result<u64> {
    let text = read(path)?;
    number(&text).map_err(|error| invalid(path, &error.to_string()))
}

fn read(path: &Path) -> io::Result<String> {
    patiently(|| fs::read_to_string(path))
}

fn write(path: &Path, value: impl ToString) -> io::Result<()> {
    let text = value.to_string();
    // Never creates a file: below sysfs that is impossible, and elsewhere it would hide a mistake.
    patiently(|| {
        use io::Write;
        fs::OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(path)?
            .write_all(text.as_bytes())
    })
    .map_err(|error| io::Error::new(error.kind(), WriteError::new(path, &text, error)))
}

/// A value the kernel did not take.
#[derive(Debug, thiserror::Error)]
#[error("writing {value} to {}: {error}", path.display())]
pub(super) struct WriteError {
    path: PathBuf,
    value: String,
    error: io::Error,
}

impl WriteError {
    fn new(path: &Path, value: &str, error: io::Error) -> Self {
        Self {
            path: path.to_owned(),
            value: value.to_owned(),
            error,
        }
    }
}

/// Repeats an action that the kernel refuses because its lock is taken.
fn patiently<T>(mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match act() {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ResourceBusy | io::ErrorKind::Interrupted
                ) && Instant::now() < deadline =>
            {
                sleep(PAUSE);
            }
            done => return done,
        }
    }
}
