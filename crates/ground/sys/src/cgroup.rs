//! Memory that the control groups of a process still allow.
//!
//! Memory past the limit of a group is no error of a system call: the kernel makes the program wait, or ends it. So Superhue reads the limits
//! before it takes memory. For each group that is the lower of `memory.max` and `memory.high` less `memory.current` ("cgroup-v2.rst"), under
//! version 1 `memory.limit_in_bytes` less `memory.usage_in_bytes`, and the same with swap (`memory.memsw.`). The kernel gives cached files
//! back before a group reaches its limit, and they fill every group that reads enough: they count as free.
//!
//! This code ignores `memory.swap.max` and `memory.swap.high`. They limit swap, and the kernel swaps nothing because of a group
//! that stays below `memory.high` and `memory.max`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use superhue_model::{ByteCount, words};

mod namespace;

/// Files with limits, each with the file of the usage that counts against it.
const BOUNDS: [(&str, &str); 4] = [
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
];

/// Value above which a limit of version 1 means no limit: the kernel writes the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// Size above the longest of these files: `memory.stat` has 2 KiB.
const LONGEST_FILE: usize = 8192;

/// Returns the bytes that the control groups of a process still allow: the minimum over its group and the groups above it. `None`
/// without a limit, or if no limit can be read.
///
/// `process` is its number, or `self`; `proc` and `sys` are the mount points of these file systems. A group that is not visible leaves no room.
#[must_use]
pub fn headroom(proc: &Path, sys: &Path, process: &str) -> Option<ByteCount> {
    let Some(folders) = groups(proc, sys, process) else {
        return Some(ByteCount(0));
    };
    let groups = folders.iter().map(|folder| Group::open(folder));
    let left = groups.filter_map(|group| {
        let usage = group.usage().ok()??;
        Some(usage.left_with(group.cached()))
    });
    left.min()
}

/// Returns the groups in the text of a `/proc/PID/cgroup` (`cgroups(7)`): the controllers of each tree (empty for version 2),
/// and the path in it. Skips malformed lines.
pub fn memberships(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('\n').filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        Some((controllers, path))
    })
}

/// Returns the folders of the control groups to which memory of a process is charged: its own first, then those above it. Empty if there
/// is no such process. `None` if it has a group outside the mounted tree: limits of that group are unknown.
///
/// The kernel charges the group of the process's first thread, and `/proc/PID/cgroup` shows that group. The
/// arguments are those of [`headroom`].
#[must_use]
pub fn groups(proc: &Path, sys: &Path, process: &str) -> Option<Vec<PathBuf>> {
    let lines = fs::read(proc.join(process).join("cgroup")).unwrap_or_default();
    let lines = words::of_bytes(&lines);
    let root = sys.join("fs/cgroup");
    let mut all = Vec::new();
    for (controllers, path) in memberships(&lines) {
        let Some(mount) = memory_tree(&root, controllers) else {
            continue;
        };
        let group = if path.starts_with("/..") {
            namespace::folder_of(proc, &root, &mount, path)?
        } else {
            folder_below(&mount, path)
        };
        let folders = group.ancestors().map(Path::to_owned);
        all.extend(folders.take_while(|folder| folder.starts_with(&mount)));
    }
    Some(all)
}

/// Returns the mount point, below `root`, of the tree with these controllers; `None` if it does not charge memory.
fn memory_tree(root: &Path, controllers: &str) -> Option<PathBuf> {
    if controllers.is_empty() {
        return Some(root.to_owned());
    }
    let mut names = controllers.split(',');
    names
        .any(|name| name == "memory")
        .then(|| root.join("memory"))
}

/// Returns the folder of a group, by its path (a word of [`words::of_bytes`]) in the tree that is mounted at `mount`.
#[must_use]
pub fn folder_below(mount: &Path, path: &str) -> PathBuf {
    let path = words::bytes_of(path.trim_start_matches('/'));
    mount.join(OsString::from_vec(path))
}

/// Returns the memory charged to the group at `folder` and the groups below it (`memory.current`, `memory.usage_in_bytes`). `None` if
/// unreadable.
#[must_use]
pub fn charged(folder: &Path) -> Option<ByteCount> {
    number_of(folder, ["memory.current", "memory.usage_in_bytes"])
}

/// Returns the maximum charged so far to the group at `folder` and the groups below it (`memory.peak`, Linux 5.19;
/// `memory.max_usage_in_bytes`). `None` if unreadable.
#[must_use]
pub fn peak_charged(folder: &Path) -> Option<ByteCount> {
    number_of(folder, ["memory.peak", "memory.max_usage_in_bytes"])
}

/// Reads the number in the first of these files that exists.
fn number_of(folder: &Path, names: [&str; 2]) -> Option<ByteCount> {
    let mut texts = names
        .iter()
        .filter_map(|name| fs::read_to_string(folder.join(name)).ok());
    texts.next()?.trim().parse().ok().map(ByteCount)
}

/// A limit of a group, and the usage that counts against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The limit.
    pub limit: ByteCount,
    /// Usage. It can exceed the limit if the limit was lowered.
    pub used: ByteCount,
}

impl Usage {
    /// Returns the room below the limit if `cached` bytes of the usage can be reclaimed.
    #[must_use]
    pub const fn left_with(&self, cached: ByteCount) -> ByteCount {
        let used = self.used.0.saturating_sub(cached.0);
        ByteCount(self.limit.0.saturating_sub(used))
    }
}

/// Error: the group was removed. Its processes have moved to another group before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedCgroup;

/// A control group whose files stay open, so that repeated reads are cheap: 1 us a file, 3 us `memory.stat`.
///
/// A missing, unreadable or malformed value is unknown, and never a limit.
#[derive(Debug)]
pub struct Group {
    bounds: Vec<(File, File)>,
    stat: Option<File>,
    events: Option<File>,
    fail_count: Option<File>,
    oom_control: Option<File>,
    pressure: Option<File>,
}

impl Group {
    /// Opens the group at `folder`.
    #[must_use]
    pub fn open(folder: &Path) -> Self {
        let open = |name: &str| File::open(folder.join(name)).ok();
        let bounds = BOUNDS.into_iter();
        Self {
            bounds: bounds
                .filter_map(|(limit, used)| Some((open(limit)?, open(used)?)))
                .collect(),
            stat: open("memory.stat"),
            events: open("memory.events.local").or_else(|| open("memory.events")),
            fail_count: open("memory.failcnt"),
            oom_control: open("memory.oom_control"),
            pressure: open("memory.pressure"),
        }
    }

    /// Returns the limit of the group with the least room, with cached files counted as used; `None` without a limit.
    ///
    /// # Errors
    /// [`RemovedCgroup`] if it was removed.
    pub fn usage(&self) -> Result<Option<Usage>, RemovedCgroup> {
        let mut least: Option<Usage> = None;
        for (limit, used) in &self.bounds {
            // `max` is no number.
            let Some(limit) = number(limit)?.filter(|limit| *limit < NO_LIMIT) else {
                continue;
            };
            let Some(used) = number(used)? else {
                continue;
            };
            let usage = Usage {
                limit: ByteCount(limit),
                used: ByteCount(used),
            };
            let left = |usage: &Usage| usage.left_with(ByteCount(0));
            if least.is_none_or(|least| left(&usage) < left(&least)) {
                least = Some(usage);
            }
        }
        Ok(least)
    }

    /// Returns the cached files that are charged to the group and the groups below it, in bytes.
    #[must_use]
    pub fn cached(&self) -> ByteCount {
        let text = self.stat.as_ref().and_then(|file| text(file).ok());
        let text = text.unwrap_or_default();
        // Version 1 has separate lines for the sums.
        let both = |prefix: &str| {
            let inactive = entry(&text, &format!("{prefix}inactive_file "))?;
            Some(inactive.saturating_add(entry(&text, &format!("{prefix}active_file "))?))
        };
        ByteCount(both("total_").or_else(|| both("")).unwrap_or(0))
    }

    /// Returns the number of times that the group has reached a limit of its own (`high`, `max`, `oom` and `oom_kill` of `memory.events.local`;
    /// under version 1 `memory.failcnt` and the `oom_kill` of `memory.oom_control`). An unreadable count is 0. Kernels before 5.2 have only
    /// `memory.events`, which counts the groups below too.
    #[must_use]
    pub fn times_at_limit(&self) -> u64 {
        let events = self.events.as_ref().and_then(|file| text(file).ok());
        let names = ["high ", "max ", "oom ", "oom_kill "];
        let events = events
            .iter()
            .flat_map(|text| names.map(|name| entry(text, name)));
        let failures = self.fail_count.as_ref().and_then(|file| number(file).ok()?);
        let killed = self.oom_control.as_ref().and_then(|file| text(file).ok());
        let killed = killed.and_then(|text| entry(&text, "oom_kill "));
        let all = events.flatten().chain(failures).chain(killed);
        all.fold(0, u64::saturating_add)
    }

    /// Returns the percentage of the last ten seconds in which some of the group's programs waited for memory (`some avg10` of
    /// `memory.pressure`, "psi.rst"). `None` if the kernel does not report it.
    #[must_use]
    pub fn pressure(&self) -> Option<f64> {
        some_average(&text(self.pressure.as_ref()?).ok()?)
    }
}

/// Parses a file of pressure stall information: `some avg10`, in percent.
#[must_use]
pub fn some_average(text: &str) -> Option<f64> {
    let mut lines = text.lines();
    let some = lines.find_map(|line| line.strip_prefix("some "))?;
    let mut words = some.split_ascii_whitespace();
    let percent: f64 = words
        .find_map(|word| word.strip_prefix("avg10="))?
        .parse()
        .ok()?;
    (0.0..=100.0).contains(&percent).then_some(percent)
}

/// Returns the number after `name` at the beginning of a line.
fn entry(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

fn number(file: &File) -> Result<Option<u64>, RemovedCgroup> {
    Ok(text(file)?.trim().parse().ok())
}

/// Reads the whole file from its beginning; empty if it cannot be read.
fn text(file: &File) -> Result<String, RemovedCgroup> {
    let mut bytes = [0; LONGEST_FILE];
    match file.read_at(&mut bytes, 0) {
        Ok(length) => Ok(String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into()),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => Err(RemovedCgroup),
        Err(_) => Ok(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn the_tightest_group_decides() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, sys) = (folder.path().join("proc"), folder.path().join("sys"));
        let inner = sys.join("fs/cgroup/a/b");
        let outer = sys.join("fs/cgroup/a");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir_all(proc.join("7")).unwrap();
        let write = |path: &Path, text: &str| fs::write(path, text).unwrap();
        let look = || headroom(&proc, &sys, "7").map(|bytes| bytes.0);
        assert_eq!(look(), None, "no process");
        write(&proc.join("7/cgroup"), "1:cpu:/x\n0::/a/b\n");
        write(&inner.join("memory.max"), "max\n");
        write(&inner.join("memory.current"), "1000\n");
        assert_eq!(look(), None, "no limit");
        write(&outer.join("memory.max"), "5000\n");
        write(&outer.join("memory.current"), "4000\n");
        assert_eq!(look(), Some(1000));
        let cached = "anon 3700\ninactive_file 200\nactive_file 100\n";
        write(&outer.join("memory.stat"), cached);
        assert_eq!(look(), Some(1300));
        write(&outer.join("memory.high"), "4500\n");
        assert_eq!(look(), Some(800), "it would be slowed down");
        write(&inner.join("memory.max"), "1200\n");
        assert_eq!(look(), Some(200));
        write(&inner.join("memory.current"), "9000\n");
        assert_eq!(look(), Some(0));
        write(&proc.join("7/cgroup"), "nonsense");
        assert_eq!(look(), None);
        // Version 1 numbers its hierarchies, and its files have other names.
        let old = sys.join("fs/cgroup/memory/c");
        fs::create_dir_all(&old).unwrap();
        let lines = "9:name=systemd:/c\n4:cpu,memory:/c/gone\n0::/\n";
        write(&proc.join("7/cgroup"), lines);
        write(&old.join("memory.limit_in_bytes"), "5000\n");
        write(&old.join("memory.usage_in_bytes"), "1000\n");
        assert_eq!(look(), Some(4000));
        write(&old.join("memory.usage_in_bytes"), "5000\n");
        let cached =
            "inactive_file 0\nactive_file 0\ntotal_inactive_file 400\ntotal_active_file 100\n";
        write(&old.join("memory.stat"), cached);
        assert_eq!(look(), Some(500));
    }

    /// Makes a group with these files.
    fn group(files: &[(&str, &str)]) -> (tempfile::TempDir, Group) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let group = Group::open(folder.path());
        (folder, group)
    }

    #[test]
    fn the_name_of_a_group_need_not_be_text() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, sys) = (folder.path().join("proc"), folder.path().join("sys"));
        let group = sys.join("fs/cgroup").join(OsStr::from_bytes(b"a\xff"));
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(proc.join("7")).unwrap();
        fs::write(proc.join("7/cgroup"), b"0::/a\xff\n").unwrap();
        fs::write(group.join("memory.max"), "1000\n").unwrap();
        fs::write(group.join("memory.current"), "400\n").unwrap();
        assert_eq!(headroom(&proc, &sys, "7"), Some(ByteCount(600)));
    }

    #[test]
    fn a_group_is_read_anew_each_time() {
        let (folder, group) = group(&[("memory.max", "1000\n"), ("memory.current", "900\n")]);
        let usage = |limit, used| {
            Ok(Some(Usage {
                limit: ByteCount(limit),
                used: ByteCount(used),
            }))
        };
        assert_eq!(group.usage(), usage(1000, 900));
        fs::write(folder.path().join("memory.max"), "10\n").unwrap();
        assert_eq!(group.usage(), usage(10, 900), "lowered below what is used");
        let left = group.usage().unwrap().unwrap().left_with(ByteCount(0));
        assert_eq!(left, ByteCount(0));
        for text in ["", "max\n", "nonsense", "-1"] {
            fs::write(folder.path().join("memory.max"), text).unwrap();
            assert_eq!(group.usage(), Ok(None), "{text:?}");
        }
    }

    #[test]
    fn the_largest_number_is_no_limit() {
        let all = "9223372036854771712\n";
        let (folder, group) = group(&[
            ("memory.limit_in_bytes", all),
            ("memory.usage_in_bytes", "5\n"),
            ("memory.memsw.limit_in_bytes", all),
            ("memory.memsw.usage_in_bytes", "7\n"),
        ]);
        assert_eq!(group.usage(), Ok(None));
        fs::write(folder.path().join("memory.memsw.limit_in_bytes"), "10").unwrap();
        let left = group.usage().unwrap().unwrap().left_with(ByteCount(0));
        assert_eq!(left, ByteCount(3), "with swap");
    }

    #[test]
    fn what_came_to_a_limit_is_counted() {
        let events = "low 9\nhigh 1\nmax 20\noom 300\noom_kill 4000\noom_group_kill 9\n";
        let (_folder, new) = group(&[("memory.events", events)]);
        assert_eq!(new.times_at_limit(), 4321);
        let (_folder, own) = group(&[
            ("memory.events", events),
            ("memory.events.local", "max 2\n"),
        ]);
        assert_eq!(own.times_at_limit(), 2, "not those of the groups below");
        let (_folder, old) = group(&[
            ("memory.failcnt", "7\n"),
            (
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            ),
        ]);
        assert_eq!(old.times_at_limit(), 8);
        let (_folder, none) = group(&[("memory.events", ""), ("memory.failcnt", "")]);
        assert_eq!(none.times_at_limit(), 0);
    }

    #[test]
    fn pressure_is_that_of_the_last_ten_seconds() {
        let lines = "some avg10=12.34 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 total=5\n";
        let (_folder, pressed) = group(&[("memory.pressure", lines)]);
        assert_eq!(pressed.pressure(), Some(12.34));
        assert_eq!(group(&[]).1.pressure(), None, "switched off");
        for text in [
            "",
            "some",
            "some avg10=",
            "some avg10=NaN",
            "full avg10=1.00",
            "some avg10=101",
        ] {
            assert_eq!(some_average(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_group_that_was_removed_is_gone() {
        let cgroup = Path::new("/sys/fs/cgroup");
        let name = format!("superhue-sys-test-{}", std::process::id());
        let places = [cgroup.join(&name), cgroup.join("memory").join(&name)];
        let made = places.iter().find_map(|folder| {
            fs::create_dir(folder).ok()?;
            let group = Group::open(folder);
            let before = group.usage();
            fs::remove_dir(folder).unwrap();
            (!group.bounds.is_empty()).then_some((group, before))
        });
        let Some((group, before)) = made else {
            superhue_testing::skip(
                "cgroup-memory",
                "no group can be made whose memory is bounded",
            );
            return;
        };
        assert_eq!((before, group.usage()), (Ok(None), Err(RemovedCgroup)));
        assert_eq!((group.times_at_limit(), group.pressure()), (0, None));
    }
}
