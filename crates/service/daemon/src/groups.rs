//! The tree of cgroups (version 2) and its changes, by events of the kernel.
//!
//! ```text
//!   each cgroup    inotify on its folder: cgroups made and removed in it
//!   those wanted   inotify on its cgroup.events: the first process came, the last one went
//! ```
//!
//! (`Documentation/admin-guide/cgroup-v2.rst`, "(Un)populated Notification".) A folder is watched before it is listed, so nothing made in
//! between is missed. If the kernel's queue overflows, or there are no watches left, the tree is walked again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use superhue_model::words;
use superhue_procfs::cgroup::CgroupMembers;
use superhue_sys::cgroup::folder_below;

/// Maximum number of cgroups that are tracked: a user who may make more of them must not fill our memory.
const MOST_GROUPS: usize = 65_536;

/// Maximum number of them below one cgroup that systemd gives to a user (`user-1000.slice`): one user must not take the places of all others.
const MOST_GROUPS_OF_ONE_USER: usize = MOST_GROUPS / 8;

/// Longest path of a cgroup that is tracked, in bytes. Services have shorter ones, and paths are kept in memory.
const LONGEST_PATH: usize = 1024;

/// Maximum number of cgroups whose processes are read to find one: 5,000 take 50 ms.
const MOST_ASKED: usize = 5_000;

/// Maximum number of events taken in one turn: a user who makes and removes cgroups without end must not stall the daemon.
const MAX_EVENTS_PER_TURN: usize = 512;

/// The tree of cgroups below a mount.
#[derive(Debug)]
pub struct Groups {
    mount: PathBuf,
    inotify: OwnedFd,
    watches: HashMap<i32, WatchedPath>,
    /// By path below the mount (`/`, `/a/b`).
    known: BTreeMap<String, InotifyWatches>,
    /// Numbers of them by the slice of a user.
    of_users: HashMap<String, usize>,
    /// True if changes may have been missed.
    is_incomplete: bool,
    /// Reason why the kernel does not report everything.
    limited: Option<String>,
    /// Cgroups that are left alone because their owner has too many, or too long paths.
    left_alone: Option<String>,
    /// Events that were taken so far.
    taken: u64,
    /// Most watches that it holds.
    most_watches: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum WatchedPath {
    Folder(String),
    Events(String),
}

#[derive(Debug, Default)]
struct InotifyWatches {
    folder: Option<i32>,
    events: Option<i32>,
}

/// Changes of the tree in one turn.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New cgroups, by path.
    pub appeared: BTreeSet<String>,
    /// Cgroups that are gone.
    pub vanished: BTreeSet<String>,
    /// Wanted cgroups that the first process entered, or the last one left.
    pub populated: BTreeSet<String>,
}

/// Returns the most watches to hold: a quarter of those of root, which other services need too. Users may make as many cgroups as they like.
fn most_watches() -> usize {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_user_watches").ok();
    let limit = limit.and_then(|text| text.trim().parse::<usize>().ok());
    limit.map_or(usize::MAX, |limit| limit / 4)
}

impl Groups {
    /// Opens the tree below the mount of version 2 at `mount`, and walks it once.
    ///
    /// # Errors
    /// Errors of `inotify_init1(2)`, and of listing the mount itself.
    pub fn open(mount: &Path) -> io::Result<(Self, Changes)> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        fs::read_dir(mount)?;
        let mut groups = Self {
            mount: mount.to_owned(),
            inotify,
            watches: HashMap::new(),
            known: BTreeMap::new(),
            of_users: HashMap::new(),
            is_incomplete: false,
            limited: None,
            left_alone: None,
            taken: 0,
            most_watches: most_watches(),
        };
        let mut changes = Changes::default();
        groups.take_in("/", &mut changes);
        Ok((groups, changes))
    }

    /// Returns the folder of a cgroup.
    #[must_use]
    pub fn folder(&self, path: &str) -> PathBuf {
        folder_below(&self.mount, path)
    }

    /// Finds the cgroup of a process in the lists of processes; reads only the first few thousand cgroups.
    #[must_use]
    pub fn find(&self, pid: u32) -> Option<&str> {
        let mut paths = self.known.keys().take(MOST_ASKED);
        let found = paths.find(|path| listed(&list(&self.folder(path))).contains(&pid));
        found.map(String::as_str)
    }

    /// Returns the number of cgroups.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns true if there is no cgroup; the root is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the reason why the kernel does not report everything, if it does not: then the tree is walked periodically.
    #[must_use]
    pub fn limited(&self) -> Option<&str> {
        self.limited.as_deref()
    }

    /// Returns the kind of cgroups that are left alone, if there are any. A walk would not find them.
    #[must_use]
    pub fn left_alone(&self) -> Option<&str> {
        self.left_alone.as_deref()
    }

    /// Returns true if the tree must be walked again for changes that may have been missed.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Returns the number of events taken so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Requests events for when a cgroup gets its first process or loses its last one. Returns false if there are none, as for the mount itself.
    pub fn want(&mut self, path: &str) -> bool {
        let file = self.folder(path).join("cgroup.events");
        match self.known.get(path) {
            Some(known) if known.events.is_none() => {}
            known => return known.is_some(),
        }
        match self.add_watch(file, WatchFlags::MODIFY) {
            Ok(watch) => {
                if let Some(known) = self.known.get_mut(path) {
                    known.events = Some(watch);
                }
                self.watches
                    .insert(watch, WatchedPath::Events(path.to_owned()));
                true
            }
            Err(errno) => {
                self.note_limit(errno);
                false
            }
        }
    }

    /// Requests no more such events.
    pub fn unwant(&mut self, path: &str) {
        let watch = self
            .known
            .get_mut(path)
            .and_then(|known| known.events.take());
        if let Some(watch) = watch {
            self.watches.remove(&watch);
            let _ = inotify::remove_watch(&self.inotify, watch);
        }
    }

    /// Takes the kernel's events, as many as one turn allows.
    pub fn read(&mut self) -> Changes {
        let mut changes = Changes::default();
        let mut told = Vec::new();
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; 16 << 10];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        // The kernel has forgotten events that are in the buffer, so all of them are taken.
        while told.len() < MAX_EVENTS_PER_TURN || !reader.is_buffer_empty() {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_bytes().to_vec());
                    told.push((event.wd(), event.events(), name));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.is_incomplete = true;
                    break;
                }
            }
        }
        self.taken += told.len() as u64;
        for (watch, events, name) in told {
            self.take_event(watch, events, name.as_deref(), &mut changes);
        }
        changes
    }

    fn take_event(
        &mut self,
        watch: i32,
        events: ReadFlags,
        name: Option<&[u8]>,
        changes: &mut Changes,
    ) {
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.is_incomplete = true;
            return;
        }
        let Some(watched) = self.watches.get(&watch).cloned() else {
            return;
        };
        match watched {
            WatchedPath::Events(path) => {
                if events.contains(ReadFlags::IGNORED) {
                    self.watches.remove(&watch);
                    if let Some(known) = self.known.get_mut(&path) {
                        known.events = None;
                    }
                } else {
                    changes.populated.insert(path);
                }
            }
            WatchedPath::Folder(path) if events.intersects(ReadFlags::IGNORED) => {
                self.watches.remove(&watch);
                // Unless another cgroup has its name by now.
                if self.known.get(&path).and_then(|known| known.folder) == Some(watch) {
                    self.let_go(&path, changes);
                }
            }
            WatchedPath::Folder(path) => {
                let Some(name) = name.filter(|_| events.contains(ReadFlags::ISDIR)) else {
                    return;
                };
                let path = below(&path, &words::of_bytes(name));
                if events.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                    self.let_go(&path, changes);
                } else {
                    self.take_in(&path, changes);
                }
            }
        }
    }

    /// Walks the whole tree: for missed changes, and where watches are short.
    pub fn walk(&mut self) -> Changes {
        self.left_alone = None;
        let mut changes = Changes::default();
        let gone: Vec<String> = (self.known.keys())
            .filter(|path| !self.folder(path).is_dir())
            .cloned()
            .collect();
        for path in gone {
            self.let_go(&path, &mut changes);
        }
        self.is_incomplete = false;
        if self.limited.take().is_some() {
            // What was short may be there again; if it is not, the next watch shows that.
            let unwatched = self
                .known
                .iter()
                .filter(|(_, known)| known.folder.is_none());
            let unwatched: Vec<String> = unwatched.map(|(path, _)| path.clone()).collect();
            for path in unwatched {
                // It is known, and so are its processes: only the watch is new.
                if let Some(watch) = self.watch_folder(&path)
                    && let Some(known) = self.known.get_mut(&path)
                {
                    known.folder = Some(watch);
                }
            }
        }
        let known: Vec<String> = self.known.keys().cloned().collect();
        for path in known {
            self.take_in_below(&path, &mut changes);
        }
        // Any of them may have been removed and made again under the same name.
        changes.populated.extend(self.known.keys().cloned());
        changes
    }

    /// Adds a cgroup and all below it.
    fn take_in(&mut self, path: &str, changes: &mut Changes) {
        let mut to_do = vec![path.to_owned()];
        while let Some(path) = to_do.pop() {
            if !self.known.contains_key(&path) && !self.has_room_for(&path) {
                continue;
            }
            if let Some(before) = self.known.get(&path)
                && before.folder.is_some()
            {
                // Removed and made again before its events were read: the watches are those of the one before.
                self.let_go(&path, changes);
            }
            let folder = self.folder(&path);
            let watch = self.watch_folder(&path);
            // Gone already: an event reports it, or has reported it.
            if watch.is_none() && !folder.is_dir() {
                continue;
            }
            if !self.known.contains_key(&path)
                && let Some(slice) = slice_of_user(&path)
            {
                *self.of_users.entry(slice.to_owned()).or_default() += 1;
            }
            self.known.entry(path.clone()).or_default().folder = watch;
            changes.vanished.remove(&path);
            changes.appeared.insert(path.clone());
            to_do.extend(folders_in(&folder).map(|name| below(&path, &name)));
        }
    }

    /// Adds a watch, of as many as there may be.
    fn add_watch(&self, path: PathBuf, flags: WatchFlags) -> Result<i32, Errno> {
        if self.watches.len() >= self.most_watches {
            return Err(Errno::NOSPC);
        }
        inotify::add_watch(&self.inotify, path, flags)
    }

    /// Adds a watch for the folder of a cgroup; `None` if it is gone, or if watches are short, which is noted.
    fn watch_folder(&mut self, path: &str) -> Option<i32> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR;
        match self.add_watch(self.folder(path), flags) {
            Ok(watch) => {
                let watched = WatchedPath::Folder(path.to_owned());
                self.watches.insert(watch, watched);
                Some(watch)
            }
            Err(errno) => {
                self.note_limit(errno);
                None
            }
        }
    }

    /// Returns true if a further cgroup may be tracked; notes the reason if not.
    fn has_room_for(&mut self, path: &str) -> bool {
        let slice = slice_of_user(path);
        let of_user = slice.map_or(0, |slice| self.of_users.get(slice).copied().unwrap_or(0));
        let (reason, text) = if path.len() > LONGEST_PATH {
            let which = format!("cgroups whose paths are longer than {LONGEST_PATH} bytes");
            (&mut self.left_alone, format!("{which} are left alone"))
        } else if of_user >= MOST_GROUPS_OF_ONE_USER {
            let slice = slice.unwrap_or_default();
            let which = format!("{slice} has more than {MOST_GROUPS_OF_ONE_USER} cgroups");
            (
                &mut self.left_alone,
                format!("{which}: the others are left alone"),
            )
        } else if self.known.len() >= MOST_GROUPS {
            let which = format!("there are more than {MOST_GROUPS} cgroups");
            (
                &mut self.limited,
                format!("{which}: the others are left alone"),
            )
        } else {
            return true;
        };
        reason.get_or_insert(text);
        false
    }

    /// Adds the cgroups below a known one that are not known yet.
    fn take_in_below(&mut self, path: &str, changes: &mut Changes) {
        let names: Vec<String> = folders_in(&self.folder(path)).collect();
        for name in names {
            let path = below(path, &name);
            if !self.known.contains_key(&path) {
                self.take_in(&path, changes);
            }
        }
    }

    /// Forgets a cgroup and all below it.
    fn let_go(&mut self, path: &str, changes: &mut Changes) {
        let prefix = format!("{}/", path.trim_end_matches('/'));
        let inside: Vec<String> = (self.known.range(prefix.clone()..))
            .map(|(path, _)| path)
            .take_while(|path| path.starts_with(&prefix))
            .cloned()
            .collect();
        for path in inside.into_iter().chain([path.to_owned()]) {
            let Some(known) = self.known.remove(&path) else {
                continue;
            };
            if let Some(slice) = slice_of_user(&path)
                && let Some(count) = self.of_users.get_mut(slice)
            {
                *count -= 1;
                // One that was left alone has room now.
                self.is_incomplete |=
                    self.left_alone.is_some() && *count + 1 >= MOST_GROUPS_OF_ONE_USER;
                if *count == 0 {
                    self.of_users.remove(slice);
                }
            }
            for watch in [known.folder, known.events].into_iter().flatten() {
                if self.watches.remove(&watch).is_some() {
                    let _ = inotify::remove_watch(&self.inotify, watch);
                }
            }
            changes.appeared.remove(&path);
            changes.populated.remove(&path);
            changes.vanished.insert(path);
        }
    }

    fn note_limit(&mut self, errno: Errno) {
        let remedy = match errno {
            Errno::NOSPC => {
                " (no watches are left: it takes a quarter of fs.inotify.max_user_watches, raise that)"
            }
            // The root has no cgroup.events, and neither has a removed cgroup.
            Errno::NOENT | Errno::NOTDIR | Errno::NODEV => return,
            _ => "",
        };
        let text = format!("inotify: {errno}{remedy}; the tree is walked over and over instead");
        self.limited.get_or_insert(text);
    }
}

impl AsFd for Groups {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Returns the path of the slice of a user that a cgroup lies in, if it lies in one.
fn slice_of_user(path: &str) -> Option<&str> {
    let mut end = 0;
    for part in path.split('/') {
        end += part.len();
        if part.starts_with("user-") && part.ends_with(".slice") {
            return path.get(..end);
        }
        end += 1;
    }
    None
}

/// Returns the path of the cgroup `name` in that at `path`.
fn below(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

/// Returns the names of the folders in one, as words.
fn folders_in(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| words::of_bytes(entry.file_name().as_bytes()).into_owned())
}

/// Returns true if a cgroup has processes, by its `cgroup.events`; `None` for the root, which has no such file.
#[must_use]
pub fn is_populated(folder: &Path) -> Option<bool> {
    let text = fs::read_to_string(folder.join("cgroup.events")).ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("populated "))?;
    Some(value.trim() != "0")
}

/// Reads the list of the processes of one cgroup, without those below it, as the kernel writes it; empty if it cannot be read.
#[must_use]
pub fn list(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("cgroup.procs")).unwrap_or_default()
}

/// Returns the processes in such a list, but not those of other PID namespaces, which have the number 0.
#[must_use]
pub fn listed(list: &[u8]) -> BTreeSet<u32> {
    CgroupMembers::of_text(list).pids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths<const N: usize>(paths: [&str; N]) -> BTreeSet<String> {
        paths.map(str::to_owned).into()
    }

    fn tree() -> (tempfile::TempDir, Groups) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(
            folder.path().join("a/cgroup.events"),
            "populated 0\nfrozen 0\n",
        )
        .unwrap();
        let (mut groups, changes) = Groups::open(folder.path()).unwrap();
        groups.most_watches = usize::MAX;
        assert_eq!(changes.appeared, paths(["/", "/a", "/a/b"]));
        (folder, groups)
    }

    #[test]
    fn what_is_made_and_removed_is_told() {
        let (folder, mut groups) = tree();
        assert_eq!(groups.read(), Changes::default());
        fs::create_dir_all(folder.path().join("a/c/d/e")).unwrap();
        fs::write(folder.path().join("a/file"), "").unwrap();
        let changes = groups.read();
        assert_eq!(changes.appeared, paths(["/a/c", "/a/c/d", "/a/c/d/e"]));
        // A cgroup made in a new one is reported as well.
        fs::create_dir(folder.path().join("a/c/d/f")).unwrap();
        assert_eq!(groups.read().appeared, paths(["/a/c/d/f"]));
        fs::remove_dir_all(folder.path().join("a/c")).unwrap();
        let gone = groups.read().vanished;
        assert_eq!(gone, paths(["/a/c", "/a/c/d", "/a/c/d/e", "/a/c/d/f"]));
        assert_eq!(groups.len(), 3);
        assert_eq!(groups.watches.len(), 3);
    }

    #[test]
    fn no_event_is_lost_however_many_there_are() {
        let (folder, mut groups) = tree();
        let inside = folder.path().join("a");
        let many = 3 * MAX_EVENTS_PER_TURN;
        for number in 0..many {
            fs::create_dir(inside.join(format!("a-name-of-20-bytes-{number}"))).unwrap();
        }
        while groups.read() != Changes::default() {}
        assert_eq!((groups.len(), groups.is_incomplete()), (3 + many, false));
        fs::remove_dir_all(&inside).unwrap();
        while groups.read() != Changes::default() {}
        assert_eq!(groups.len(), 1);
    }

    #[test]
    fn one_user_does_not_take_the_places_of_others() {
        let (folder, mut groups) = tree();
        let slice = folder.path().join("user-1000.slice");
        fs::create_dir(&slice).unwrap();
        for number in 0..=MOST_GROUPS_OF_ONE_USER {
            fs::create_dir(slice.join(number.to_string())).unwrap();
        }
        let long = folder.path().join("a").join("x".repeat(250));
        fs::create_dir_all(
            long.join("y".repeat(250))
                .join("z".repeat(250))
                .join("z".repeat(250))
                .join("z".repeat(250)),
        )
        .unwrap();
        groups.walk();
        // The tree as it was, the four shorter of the five long paths, and those of the user.
        assert_eq!(groups.len(), 3 + 4 + MOST_GROUPS_OF_ONE_USER);
        assert!(groups.left_alone().is_some() && groups.limited().is_none());
        assert_eq!(
            slice_of_user("/user.slice/user-7.slice/a/user-8.slice"),
            Some("/user.slice/user-7.slice")
        );
        assert_eq!(slice_of_user("/system.slice/a.service"), None);
        fs::create_dir(folder.path().join("a/service")).unwrap();
        let mut appeared = BTreeSet::new();
        loop {
            let changes = groups.read();
            if changes == Changes::default() {
                break;
            }
            appeared.extend(changes.appeared);
        }
        assert!(appeared.contains("/a/service"), "{}", appeared.len());
        fs::remove_dir_all(&slice).unwrap();
        groups.walk();
        assert!(groups.of_users.is_empty());
        fs::remove_dir_all(folder.path().join("a").join("x".repeat(250))).unwrap();
        groups.walk();
        assert_eq!(groups.left_alone(), None, "there are none any more");
    }

    #[test]
    fn a_name_that_is_no_text_is_one_like_others() {
        use std::ffi::OsStr;
        let (folder, mut groups) = tree();
        let name = OsStr::from_bytes(b"x\xff\x9b[31m");
        let made = folder.path().join("a").join(name);
        fs::create_dir_all(made.join("y")).unwrap();
        let path = format!("/a/{}", words::of_bytes(name.as_bytes()));
        let both = BTreeSet::from([path.clone(), format!("{path}/y")]);
        assert_eq!(groups.read().appeared, both);
        assert_eq!(groups.folder(&path), made);
        fs::remove_dir_all(&made).unwrap();
        assert_eq!(groups.read().vanished, both);
    }

    #[test]
    fn one_that_was_made_again_has_appeared_again() {
        let (folder, mut groups) = tree();
        let b = folder.path().join("a/b");
        for _ in 0..3 {
            fs::remove_dir(&b).unwrap();
            fs::create_dir(&b).unwrap();
        }
        let changes = groups.read();
        assert_eq!(changes.appeared, paths(["/a/b"]));
        assert_eq!(changes.vanished, paths([]));
        fs::create_dir(b.join("x")).unwrap();
        assert_eq!(groups.read().appeared, paths(["/a/b/x"]));
        fs::remove_dir(b.join("x")).unwrap();
        fs::remove_dir(&b).unwrap();
        assert_eq!(groups.read().vanished, paths(["/a/b", "/a/b/x"]));
        assert_eq!(groups.watches.len(), groups.known.len());
    }

    #[test]
    fn only_of_those_wanted_is_told_when_they_fill() {
        let (folder, mut groups) = tree();
        let events = folder.path().join("a/cgroup.events");
        let populate = || fs::write(&events, "populated 1\nfrozen 0\n").unwrap();
        populate();
        assert_eq!(groups.read(), Changes::default());
        assert!(groups.want("/a") && groups.want("/a"), "twice is once");
        assert!(!groups.want("/") && !groups.want("/a/b"), "no such file");
        assert!(!groups.want("/nowhere"));
        assert_eq!(groups.limited(), None);
        populate();
        assert_eq!(groups.read().populated, paths(["/a"]));
        assert_eq!(is_populated(&groups.folder("/a")), Some(true));
        assert_eq!(is_populated(&groups.folder("/")), None);
        groups.unwant("/a");
        populate();
        assert_eq!(groups.read(), Changes::default());
    }

    #[test]
    fn where_watches_are_short_a_walk_finds_what_is_new_and_keeps_what_is_known() {
        let (folder, mut groups) = tree();
        groups.most_watches = groups.watches.len();
        fs::create_dir(folder.path().join("a/c")).unwrap();
        assert_eq!(groups.read().appeared, paths(["/a/c"]));
        assert!(groups.limited().is_some());
        fs::create_dir(folder.path().join("a/c/d")).unwrap();
        let found = groups.walk();
        assert_eq!(found.appeared, paths(["/a/c/d"]), "/a/c was known");
        assert_eq!(found.vanished, paths([]));
        assert!(groups.limited().is_some() && groups.watches.len() == groups.most_watches);
        groups.most_watches = usize::MAX;
        assert_eq!(groups.walk().appeared, paths([]));
        assert_eq!(groups.watches.len(), groups.known.len());
        assert_eq!(groups.limited(), None);
    }

    #[test]
    fn a_walk_finds_what_was_missed() {
        let (folder, mut groups) = tree();
        fs::create_dir(folder.path().join("new")).unwrap();
        fs::remove_dir(folder.path().join("a/b")).unwrap();
        // As if the queue had overflowed.
        let mut lost = [0_u8; 4096];
        rustix::io::read(&groups.inotify, &mut lost).unwrap();
        let mut changes = Changes::default();
        groups.take_event(-1, ReadFlags::QUEUE_OVERFLOW, None, &mut changes);
        assert!(groups.is_incomplete());
        let changes = groups.walk();
        assert_eq!(changes.appeared, paths(["/new"]));
        assert_eq!(changes.vanished, paths(["/a/b"]));
        assert!(!groups.is_incomplete());
        assert_eq!(groups.walk().appeared, paths([]));
    }
}
