//! Control groups: their processes, and their limits on swapping.
//!
//! `Documentation/admin-guide/cgroup-v2.rst`, `cgroups(7)`. A cgroup is a directory of a mounted
//! `cgroup2` (or, version 1, `cgroup`) file system. `cgroup.procs` lists its processes; each cgroup below has
//! a list of its own. Where a system mounts both versions (hybrid), the
//! same service has a directory in several trees; one of them is enough.

mod swap;

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use superhue_model::words;
use superhue_sys::cgroup::memberships;

use crate::{Roots, mounts};

pub use swap::{ShortGroup, short_of_room, swap_room, zswap_room};

/// Reason why a cgroup cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The machine has no cgroup file system, or hides it from the caller.
    #[error("no cgroup file system is mounted here (see /proc/self/mountinfo)")]
    NotMounted,
    /// The path is empty, or contains `.` or `..`.
    #[error(
        "`{}` is not the path of a cgroup: give it as below the mount, such as \
         system.slice/foo.service, or in full, such as /sys/fs/cgroup/system.slice/foo.service, \
         without . and ..", path.display()
    )]
    NotAPath {
        /// Path as given.
        path: PathBuf,
    },
    /// There is no such directory.
    #[error("there is no cgroup `{}` below {looked_in}; systemd-cgls shows which there are", path.display())]
    Unknown {
        /// Path as given.
        path: PathBuf,
        /// Mount points.
        looked_in: String,
    },
    /// No unit of systemd has that name.
    #[error(
        "no control group belongs to a unit `{name}`: is it running (systemctl status {name})? --cgroup takes any control group"
    )]
    NoUnit {
        /// The whole name.
        name: String,
    },
    /// The directory exists, but is not a cgroup.
    #[error("{} is not a cgroup: it does not lie in a cgroup file system, which is mounted at {mounts}", path.display())]
    Foreign {
        /// Path as given.
        path: PathBuf,
        /// Mount points.
        mounts: String,
    },
    /// The cgroup was removed.
    #[error("the cgroup {} is gone", path.display())]
    Gone {
        /// Former directory.
        path: PathBuf,
    },
    /// The cgroup is threaded: a cgroup above it lists its processes.
    #[error(
        "the cgroup {} is threaded, which lists no processes: give the nearest one above it that \
         is not", path.display()
    )]
    Threaded {
        /// Directory.
        path: PathBuf,
    },
    /// Any other failure to read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// A cgroup and all cgroups below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    folder: PathBuf,
    /// Device and inode: a cgroup made again under the same name has another identity.
    identity: (u64, u64),
}

/// The processes of a cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CgroupMembers {
    /// Process ids.
    pub pids: BTreeSet<u32>,
    /// Number of processes of other PID namespaces, which have no number here (`cgroup.procs` shows 0).
    pub unreachable: u64,
}

impl Cgroup {
    /// Finds a cgroup by its path below a cgroup mount, or its full path.
    ///
    /// Of several mounts the unified one (version 2) counts first, then systemd's own tree of
    /// version 1, then the controllers'.
    ///
    /// # Errors
    /// All of [`CgroupError`] but [`CgroupError::Gone`].
    pub fn find(roots: &Roots, path: &Path) -> Result<Self, CgroupError> {
        let is_plain = path
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::RootDir));
        // `components` skips single dots inside a path.
        let has_dots = path
            .as_os_str()
            .as_bytes()
            .split(|&b| b == b'/')
            .any(|part| part == b"." || part == b"..");
        if !is_plain || has_dots || path.as_os_str().is_empty() {
            return Err(CgroupError::NotAPath { path: path.into() });
        }
        let mounts = mounts(roots)?;
        if mounts.is_empty() {
            return Err(CgroupError::NotMounted);
        }
        let names = || {
            let names = mounts.iter().map(|mount| mount.display().to_string());
            names.collect::<Vec<_>>().join(", ")
        };
        let folder = if path.is_absolute() {
            let full = roots.below(path);
            // The mounts of version 1 are often symbolic links.
            let folder = fs::canonicalize(&full).map_err(|_| CgroupError::Unknown {
                path: path.into(),
                looked_in: names(),
            })?;
            let is_inside = |mount: &PathBuf| {
                fs::canonicalize(roots.below(mount)).is_ok_and(|mount| folder.starts_with(mount))
            };
            if !mounts.iter().any(is_inside) {
                return Err(CgroupError::Foreign {
                    path: path.into(),
                    mounts: names(),
                });
            }
            folder
        } else {
            mounts
                .iter()
                .map(|mount| roots.below(mount).join(path))
                .find(|folder| folder.is_dir())
                .ok_or_else(|| CgroupError::Unknown {
                    path: path.into(),
                    looked_in: names(),
                })?
        };
        if !folder.join("cgroup.procs").is_file() {
            return Err(CgroupError::Foreign {
                path: path.into(),
                mounts: names(),
            });
        }
        Self::at(folder)
    }

    /// Finds the cgroup of a unit of the system's systemd: the directory of that name nearest to the mount, searched in slices only.
    /// A name without the suffix of a unit is that of a service.
    ///
    /// A directory below a service or scope belongs to the delegate, which may choose any name, and is no unit
    /// (`https://systemd.io/CGROUP_DELEGATION`).
    ///
    /// # Errors
    /// [`CgroupError::NoUnit`] if no unit has the name; [`CgroupError::NotMounted`], [`CgroupError::Gone`],
    /// [`CgroupError::Threaded`], [`CgroupError::Io`].
    pub fn of_unit(roots: &Roots, name: &str) -> Result<Self, CgroupError> {
        let name = if UNITS.iter().any(|suffix| name.ends_with(suffix)) {
            name.to_owned()
        } else {
            format!("{name}.service")
        };
        let mounts = mounts(roots)?;
        if mounts.is_empty() {
            return Err(CgroupError::NotMounted);
        }
        let found = mounts
            .iter()
            .find_map(|mount| unit_below(roots.below(mount), &name));
        Self::at(found.ok_or(CgroupError::NoUnit { name })?)
    }

    /// Returns the cgroup at `folder`, which lies in a mount.
    fn at(folder: PathBuf) -> Result<Self, CgroupError> {
        let identity = identity(&folder).ok_or_else(|| CgroupError::Gone {
            path: folder.clone(),
        })?;
        let found = Self { folder, identity };
        found.members()?;
        Ok(found)
    }

    /// Returns the directory of the cgroup.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the processes now in the cgroup and in all cgroups below it. An empty cgroup is no error.
    ///
    /// # Errors
    /// [`CgroupError::Gone`] once it was removed, even if another cgroup has the name now;
    /// [`CgroupError::Threaded`], [`CgroupError::Io`].
    pub fn members(&self) -> Result<CgroupMembers, CgroupError> {
        let gone = || CgroupError::Gone {
            path: self.folder.clone(),
        };
        if identity(&self.folder) != Some(self.identity) {
            return Err(gone());
        }
        let mut members = CgroupMembers::default();
        let mut to_visit = vec![self.folder.clone()];
        while let Some(folder) = to_visit.pop() {
            match members.add_those_of(&folder) {
                Ok(()) => {}
                // Skip a threaded cgroup below: a cgroup above it lists its processes.
                Err(_) if folder != self.folder => continue,
                Err(error) => {
                    return Err(match Errno::from_io_error(&error) {
                        Some(Errno::NOENT | Errno::NODEV) => gone(),
                        Some(Errno::OPNOTSUPP) => CgroupError::Threaded { path: folder },
                        _ => CgroupError::Io {
                            path: folder.join(PROCESSES),
                            source: error,
                        },
                    });
                }
            }
            // A cgroup removed during the walk has no members any more.
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            to_visit.extend(
                entries
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                    .map(|entry| entry.path()),
            );
        }
        Ok(members)
    }
}

/// Suffixes of the units that have a cgroup.
const UNITS: [&str; 3] = [".slice", ".service", ".scope"];

/// Maximum number of directories searched for a unit.
const MOST_FOLDERS: usize = 10_000;

/// Finds the directory `name` in `mount` or in a slice below it, breadth first.
fn unit_below(mount: PathBuf, name: &str) -> Option<PathBuf> {
    let mut slices = VecDeque::from([mount]);
    for _ in 0..MOST_FOLDERS {
        let slice = slices.pop_front()?;
        let entries = fs::read_dir(&slice).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name() == name {
                return Some(entry.path());
            }
            if entry.file_name().as_bytes().ends_with(b".slice") {
                slices.push_back(entry.path());
            }
        }
    }
    None
}

/// Name of the file in which a cgroup lists its processes.
const PROCESSES: &str = "cgroup.procs";

impl CgroupMembers {
    /// Reads the members in the text of a `cgroup.procs`.
    #[must_use]
    pub fn of_text(text: &[u8]) -> Self {
        let mut members = Self::default();
        members.add(text);
        members
    }

    fn add_those_of(&mut self, folder: &Path) -> io::Result<()> {
        self.add(&fs::read(folder.join(PROCESSES))?);
        Ok(())
    }

    /// Adds the lines of a `cgroup.procs`; skips lines that are not a number.
    fn add(&mut self, text: &[u8]) {
        for line in text.split(|&b| b == b'\n') {
            match str::from_utf8(line).ok().and_then(|pid| pid.parse().ok()) {
                Some(0) => self.unreachable += 1,
                Some(pid) => {
                    self.pids.insert(pid);
                }
                None => {}
            }
        }
    }
}

fn identity(folder: &Path) -> Option<(u64, u64)> {
    let about = fs::metadata(folder).ok()?;
    Some((about.dev(), about.ino()))
}

/// Returns the path of process `pid`'s cgroup below its mount: of version 2; else of systemd's tree of version 1; else the
/// first that is not the root. `None` if `/proc/PID/cgroup` lists no cgroup. The path is a word of [`words::of_bytes`].
///
/// # Errors
/// Errors of reading that file: `NotFound` or `ESRCH` if there is no such process.
pub fn path_of_process(roots: &Roots, pid: u32) -> io::Result<Option<String>> {
    Ok(path_of(&fs::read(roots.of_process(pid, "cgroup"))?))
}

/// Reads the path in the text of a `/proc/PID/cgroup`.
fn path_of(text: &[u8]) -> Option<String> {
    let text = words::of_bytes(text);
    let lines: Vec<_> = memberships(&text).collect();
    let of = |wanted: &str| lines.iter().find(|(controllers, _)| *controllers == wanted);
    let first = || lines.iter().find(|(_, path)| *path != "/");
    let found = of("").or_else(|| of("name=systemd")).or_else(first);
    Some(found.or(lines.first())?.1.to_owned())
}

/// Returns the mount point of the unified tree (version 2); `None` if it is not mounted, or hidden.
#[must_use]
pub fn unified_mount(roots: &Roots) -> Option<PathBuf> {
    let text = fs::read(roots.proc.join("self/mountinfo")).ok()?;
    let mut mounts = mounts::parse(&text);
    let unified = mounts.find(|mount| mount.kind == b"cgroup2")?;
    Some(roots.below(&unified.place()))
}

/// Returns the mount points of cgroup file systems, the most useful first.
fn mounts(roots: &Roots) -> Result<Vec<PathBuf>, CgroupError> {
    let path = roots.proc.join("self/mountinfo");
    let text = fs::read(&path).map_err(|source| CgroupError::Io { path, source })?;
    Ok(parse_mounts(&text))
}

/// Reads the mount points of cgroup file systems from a table of mounts.
fn parse_mounts(text: &[u8]) -> Vec<PathBuf> {
    let mut found: Vec<(u8, PathBuf)> = mounts::parse(text)
        .filter_map(|mount| {
            let rank = match mount.kind {
                b"cgroup2" => 0,
                b"cgroup"
                    if (mount.options.split(|&b| b == b',')).any(|o| o == b"name=systemd") =>
                {
                    1
                }
                b"cgroup" => 2,
                _ => return None,
            };
            Some((rank, mount.place()))
        })
        .collect();
    // Stable: mounts of equal rank stay in the order of the table.
    found.sort_by_key(|&(rank, _)| rank);
    found.into_iter().map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID: &[u8] = b"\
22 28 0:20 / /sys rw,nosuid - sysfs sysfs rw\n\
30 22 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n\
33 30 0:29 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
32 30 0:28 / /sys/fs/cgroup/systemd rw shared:8 master:1 - cgroup cgroup rw,xattr,name=systemd\n\
31 30 0:27 / /sys/fs/cgroup/unified rw shared:7 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_unified_tree_comes_first() {
        let found = parse_mounts(HYBRID);
        let names: Vec<_> = found.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "/sys/fs/cgroup/unified",
                "/sys/fs/cgroup/systemd",
                "/sys/fs/cgroup/memory"
            ]
        );
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text: Vec<u8>) {
            let _ = parse_mounts(&text);
            CgroupMembers::default().add(&text);
        }
    }

    /// Makes a recorded tree with two mounts.
    fn tree() -> (tempfile::TempDir, Roots) {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let write = |path: &str, text: &[u8]| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/mountinfo", HYBRID);
        let unified = "sys/fs/cgroup/unified";
        write(&format!("{unified}/cgroup.procs"), b"1\n");
        write(&format!("{unified}/a.slice/cgroup.procs"), b"");
        write(
            &format!("{unified}/a.slice/b.service/cgroup.procs"),
            b"12\n0\n0\n",
        );
        write(
            &format!("{unified}/a.slice/b.service/x/cgroup.procs"),
            b"7\n12\n",
        );
        write("sys/fs/cgroup/memory/only-here/cgroup.procs", b"3\n3\n2\n");
        write("sys/fs/cgroup/memory/a.slice/cgroup.procs", b"999\n");
        write("sys/fs/cgroup/unified/no-cgroup/file", b"");
        write("sys/kernel/elsewhere/cgroup.procs", b"5\n");
        (folder, roots)
    }

    fn members(roots: &Roots, path: &str) -> Result<(Vec<u32>, u64), CgroupError> {
        let members = Cgroup::find(roots, Path::new(path))?.members()?;
        Ok((members.pids.into_iter().collect(), members.unreachable))
    }

    #[test]
    fn a_whole_subtree_belongs_to_a_cgroup() {
        let (_folder, roots) = tree();
        let at = |path| members(&roots, path).unwrap();
        assert_eq!(at("a.slice"), (vec![7, 12], 2));
        assert_eq!(at("a.slice/b.service/"), (vec![7, 12], 2));
        assert_eq!(
            at("/sys/fs/cgroup/unified/a.slice/b.service/x"),
            (vec![7, 12], 0)
        );
        // Version 1 lists processes unsorted and twice.
        assert_eq!(at("only-here"), (vec![2, 3], 0));
        assert_eq!(at("/sys/fs/cgroup/memory/a.slice"), (vec![999], 0));
    }

    #[test]
    fn the_unified_tree_is_found_where_there_is_one() {
        let (folder, roots) = tree();
        let expected = folder.path().join("sys/fs/cgroup/unified");
        assert_eq!(unified_mount(&roots), Some(expected));
        let first = b"33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        fs::write(folder.path().join("proc/self/mountinfo"), first).unwrap();
        assert_eq!(unified_mount(&roots), None);
    }

    #[test]
    fn where_a_process_is_told_by_every_version() {
        let of = |text: &str| path_of(text.as_bytes());
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("0::/a/b:c\n"), some("/a/b:c"));
        let hybrid = "9:memory:/m\n1:name=systemd:/s.service\n0::/u\n";
        assert_eq!(of(hybrid), some("/u"));
        let first = "9:memory:/m\n1:name=systemd:/s.service\n";
        assert_eq!(of(first), some("/s.service"));
        assert_eq!(of("9:cpu:/\n4:memory:/m\n"), some("/m"));
        assert_eq!(of("4:memory:/\n"), some("/"));
        assert_eq!(of(""), None);
        assert_eq!(of("nonsense\n"), None);
    }

    #[test]
    fn units_are_found_below_slices_and_nowhere_else() {
        let (folder, roots) = tree();
        let make = |path: &str| {
            let path = folder.path().join("sys/fs/cgroup").join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(PROCESSES), "").unwrap();
        };
        for group in [
            "unified/system.slice",
            "unified/system.slice/a.service",
            "unified/system.slice/a.service/i.service",
            "unified/system.slice/x.slice/c.service",
            "unified/user.slice/d.scope",
            "unified/user.slice/d.e.service",
            "unified/init.scope",
            "unified/e.service/f.slice/g.service",
            "systemd/own.slice/h.service",
        ] {
            make(group);
        }
        let mount = folder.path().join("sys/fs/cgroup");
        let found = |name: &str| {
            let group = Cgroup::of_unit(&roots, name).ok()?;
            Some(group.folder().strip_prefix(&mount).unwrap().to_owned())
        };
        for (name, place) in [
            ("a", "unified/system.slice/a.service"),
            ("a.service", "unified/system.slice/a.service"),
            ("c.service", "unified/system.slice/x.slice/c.service"),
            ("d.scope", "unified/user.slice/d.scope"),
            ("d.e", "unified/user.slice/d.e.service"),
            ("init.scope", "unified/init.scope"),
            ("system.slice", "unified/system.slice"),
            ("h", "systemd/own.slice/h.service"),
        ] {
            assert_eq!(found(name).as_deref(), Some(Path::new(place)), "{name}");
        }
        for made_inside in ["i", "g", "f.slice"] {
            assert_eq!(found(made_inside), None, "{made_inside}");
        }
        for wrong in ["", "..", "a/b", "k", "system.slice/a.service", "no-cgroup"] {
            let error = Cgroup::of_unit(&roots, wrong).unwrap_err();
            assert!(matches!(error, CgroupError::NoUnit { .. }), "{wrong}");
        }
        fs::write(folder.path().join("proc/self/mountinfo"), "").unwrap();
        let error = Cgroup::of_unit(&roots, "a").unwrap_err();
        assert!(matches!(error, CgroupError::NotMounted));
    }

    #[test]
    fn what_is_no_cgroup_is_told_so() {
        let (folder, roots) = tree();
        let refused = |path| members(&roots, path).unwrap_err();
        for path in [
            "",
            ".",
            "..",
            "a.slice/../a.slice",
            "/sys/fs/cgroup/unified/..",
            "a/./b",
        ] {
            assert!(
                matches!(refused(path), CgroupError::NotAPath { .. }),
                "{path}"
            );
        }
        for path in ["no-such", "/sys/fs/cgroup/unified/no-such"] {
            assert!(
                matches!(refused(path), CgroupError::Unknown { .. }),
                "{path}"
            );
        }
        for path in ["/sys/kernel/elsewhere", "no-cgroup", "/sys/fs/cgroup"] {
            assert!(
                matches!(refused(path), CgroupError::Foreign { .. }),
                "{path}"
            );
        }
        fs::write(folder.path().join("proc/self/mountinfo"), "").unwrap();
        assert!(matches!(refused("a.slice"), CgroupError::NotMounted));
    }

    #[test]
    fn a_cgroup_made_again_is_another_one() {
        let (folder, roots) = tree();
        let cgroup = Cgroup::find(&roots, Path::new("only-here")).unwrap();
        let place = folder.path().join("sys/fs/cgroup/memory/only-here");
        fs::rename(&place, place.with_file_name("kept-so-that-its-inode-is")).unwrap();
        assert!(matches!(cgroup.members(), Err(CgroupError::Gone { .. })));
        fs::create_dir(&place).unwrap();
        fs::write(place.join("cgroup.procs"), "4\n").unwrap();
        assert!(matches!(cgroup.members(), Err(CgroupError::Gone { .. })));
        assert_eq!(members(&roots, "only-here").unwrap().0, [4]);
    }
}
