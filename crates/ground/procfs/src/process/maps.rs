//! `/proc/PID/maps`: the layout of a process's memory, and its backing.
//!
//! Format: `proc_pid_maps(5)`, `show_map_vma` in `fs/proc/task_mmu.c`:
//!
//! ```text
//!   start        end          perm offset   device inode       name
//!   7f3a5c000000-7f3a5c021000 rw-p 00000000 00:00  0           [anon:arena]
//! ```
//!
//! The loop reads this file at every tick, so a line costs a walk over its bytes and no
//! allocation. Adjacent VMAs stay separate: a huge page never spans two of them.
//!
//! The file is no snapshot. The kernel promises that addresses never go backwards. But when it
//! resumes in a VMA that has meanwhile grown downwards or been merged, that VMA's line overlaps
//! the previous line. The reader cuts such a line at the end of the previous one, so that a list of VMAs is
//! always ascending and disjoint.
//!
//! The text does not show which shared mappings are memory alone (see `shmem.rs`). The parsers take all of them for files; the readers
//! find out.

use superhue_model::{ObjectId, ObjectPart, VirtAddr, VirtRange, Vma, VmaKind};

use crate::{ReadError, Roots};

use super::absent::{across_exec, without_memory};
use super::file::for_each_line;
use super::shmem::FileDevices;
use super::text::{self, ParseError};

/// VMA with its name and permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedVma {
    /// The VMA.
    pub vma: Vma,
    /// `r`, `w`, `x` and `p` (private) or `s` (shared); `-` means not permitted.
    pub permissions: [u8; 4],
    /// Path, `[heap]`, `[anon:NAME]` and so on, safe to print; `None` for unnamed anonymous memory.
    pub name: Option<String>,
    /// Mapped part of a file or of shared memory; all zero for memory without an object.
    pub part: ObjectPart,
}

impl NamedVma {
    /// Returns a short name for tables: the last part of a path, the kernel's own name, or `anonymous`.
    #[must_use]
    pub fn label(&self) -> &str {
        let Some(name) = self.name.as_deref() else {
            return "anonymous";
        };
        if !name.starts_with('/') {
            return name;
        }
        name.rsplit_once('/')
            .map_or(name, |(_, last)| last)
            .trim_end_matches(" (deleted)")
    }
}

/// Reads the VMAs of process `pid`, ascending and disjoint. Needs ptrace read access (`ptrace(2)`).
///
/// # Errors
/// [`ReadError::Vanished`] for a process that is gone or a zombie, [`ReadError::KernelThread`],
/// [`ReadError::Denied`], [`ReadError::Malformed`].
pub fn maps(roots: &Roots, pid: u32) -> Result<Vec<Vma>, ReadError> {
    across_exec(roots, pid, || {
        read(roots, pid, |line| line.vma(), |vma| vma)
    })
}

/// Like [`maps`], for the VMAs that `keep` accepts. Names of other VMAs take no memory.
///
/// # Errors
/// As for [`maps`].
pub fn maps_where(
    roots: &Roots,
    pid: u32,
    keep: impl Fn(&NamedVma) -> bool,
) -> Result<Vec<Vma>, ReadError> {
    across_exec(roots, pid, || {
        let mut kept = Vec::new();
        for_each(roots, pid, |line, devices| {
            let mut one = line.named();
            devices.refine(&mut one.vma, line.part());
            if keep(&one) {
                kept.push(one.vma);
            }
        })?;
        Ok(kept)
    })
}

/// Like [`maps`], with names. Allocates one string for every name.
///
/// # Errors
/// As for [`maps`].
pub fn named_maps(roots: &Roots, pid: u32) -> Result<Vec<NamedVma>, ReadError> {
    across_exec(roots, pid, || {
        read(roots, pid, |line| line.named(), |named| &mut named.vma)
    })
}

/// Parses the text of `/proc/PID/maps`.
///
/// # Errors
/// Names the line that is not as documented or goes backwards.
pub fn parse_maps(text: &[u8]) -> Result<Vec<Vma>, ParseError> {
    parse(text, |line| line.vma())
}

/// Like [`parse_maps`], with names.
///
/// # Errors
/// As for [`parse_maps`].
pub fn parse_named_maps(text: &[u8]) -> Result<Vec<NamedVma>, ParseError> {
    parse(text, |line| line.named())
}

fn parse<T>(text: &[u8], make: impl Fn(&MapsLine<'_>) -> T) -> Result<Vec<T>, ParseError> {
    let mut order = Order::default();
    text::lines(text)
        .map(|(number, line)| {
            MapsLine::parse(line)
                .and_then(|line| order.check(line))
                .map(|line| make(&line))
                .map_err(|what| ParseError::new(number, what))
        })
        .collect()
}

fn read<T>(
    roots: &Roots,
    pid: u32,
    make: impl Fn(&MapsLine<'_>) -> T,
    vma_of: impl Fn(&mut T) -> &mut Vma,
) -> Result<Vec<T>, ReadError> {
    let mut found = Vec::new();
    for_each(roots, pid, |line, devices| {
        let mut one = make(line);
        devices.refine(vma_of(&mut one), line.part());
        found.push(one);
    })?;
    Ok(found)
}

/// Calls `each` with every line of a process's `maps`, and the devices that its objects may be on.
fn for_each(
    roots: &Roots,
    pid: u32,
    mut each: impl FnMut(&MapsLine<'_>, &mut FileDevices<'_>),
) -> Result<(), ReadError> {
    let path = roots.of_process(pid, "maps");
    let mut order = Order::default();
    let mut devices = FileDevices::of(roots, pid);
    let mut is_empty = true;
    for_each_line(pid, &path, |number, line| {
        let line = MapsLine::parse(line)
            .and_then(|line| order.check(line))
            .map_err(|what| ParseError::new(number, what))?;
        is_empty = false;
        each(&line, &mut devices);
        Ok(())
    })?;
    // A user process has at least a stack. The file of a process without memory exists, but is empty.
    if is_empty {
        return Err(without_memory(roots, pid));
    }
    Ok(())
}

/// Keeps lines ascending and disjoint.
#[derive(Default)]
pub(super) struct Order {
    end: VirtAddr,
}

impl Order {
    /// Returns the line, cut at the end of the previous one.
    pub(super) fn check<'a>(&mut self, line: MapsLine<'a>) -> Result<MapsLine<'a>, &'static str> {
        let start = line.range.start.max(self.end);
        let range = VirtRange::new(start, line.range.end)
            .filter(|range| !range.is_empty())
            .ok_or("the addresses go backwards")?;
        self.end = range.end;
        let cut = start.0 - line.range.start.0;
        let offset = if line.inode == 0 {
            line.offset
        } else {
            line.offset.saturating_add(cut)
        };
        Ok(MapsLine {
            range,
            offset,
            ..line
        })
    }
}

/// One line of `maps`, and the first line of an entry of `smaps`.
#[derive(Debug, Clone, Copy)]
pub(super) struct MapsLine<'a> {
    range: VirtRange,
    permissions: [u8; 4],
    writable: bool,
    shared: bool,
    offset: u64,
    device: (u32, u32),
    inode: u64,
    name: &'a [u8],
}

/// Bytes of a name that are kept. A process may map 65,530 files in folders as deep as it likes.
const LONGEST_NAME: usize = 1024;

impl<'a> MapsLine<'a> {
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, &'static str> {
        let mut rest = line;
        let range = text::next_field(&mut rest).ok_or("the addresses are missing")?;
        let dash = range
            .iter()
            .position(|&byte| byte == b'-')
            .ok_or("the addresses are not a range")?;
        let start = text::hex(&range[..dash]).ok_or("the start is not an address")?;
        let end = text::hex(&range[dash + 1..]).ok_or("the end is not an address")?;
        let range = VirtRange::new(VirtAddr(start), VirtAddr(end))
            .filter(|range| !range.is_empty())
            .ok_or("the range is empty or reversed")?;

        let (permissions, writable, shared) = match text::next_field(&mut rest) {
            Some(
                &[
                    read,
                    write @ (b'w' | b'-'),
                    execute,
                    sharing @ (b'p' | b's'),
                ],
            ) => (
                [read, write, execute, sharing],
                write == b'w',
                sharing == b's',
            ),
            _ => return Err("the permissions are not four letters"),
        };
        let offset = text::next_field(&mut rest)
            .and_then(text::hex)
            .ok_or("the offset is not a number")?;
        let device = text::next_field(&mut rest)
            .and_then(device)
            .ok_or("the device is not two numbers")?;
        let inode = text::next_field(&mut rest)
            .and_then(text::decimal)
            .ok_or("the inode is not a number")?;
        Ok(Self {
            range,
            permissions,
            writable,
            shared,
            offset,
            device,
            inode,
            name: rest.trim_ascii_start(),
        })
    }

    fn vma(&self) -> Vma {
        Vma {
            range: self.range,
            kind: self.kind(),
            writable: self.writable,
        }
    }

    /// Returns the mapped part of the object, if there is one.
    const fn part(&self) -> ObjectPart {
        ObjectPart {
            object: ObjectId {
                device: self.device,
                inode: self.inode,
            },
            offset: self.offset,
        }
    }

    pub(super) fn named(&self) -> NamedVma {
        NamedVma {
            vma: self.vma(),
            permissions: self.permissions,
            name: (!self.name.is_empty()).then(|| text::shown_within(self.name, LONGEST_NAME)),
            part: self.part(),
        }
    }

    /// Returns the backing of the VMA, as far as its name shows it.
    ///
    /// A file on a hugetlbfs mounted elsewhere than `/dev/hugepages` looks like any other
    /// file. Neither is anonymous, which is all that placement needs to know.
    fn kind(&self) -> VmaKind {
        if is_device(self.name) || self.name.starts_with(b"/anon_hugepage") {
            return VmaKind::Special;
        }
        if self.shared {
            return VmaKind::Shared;
        }
        match self.name {
            b"" if self.inode != 0 => VmaKind::PrivateFile,
            // The kernel unhooks private mappings of this device from it: they are anonymous in
            // all but name (`mmap_zero` in `drivers/char/mem.c`).
            b"" | b"/dev/zero" => VmaKind::Anonymous,
            b"[heap]" => VmaKind::Heap,
            b"[stack]" => VmaKind::Stack,
            name if name.starts_with(b"[anon:") => VmaKind::Anonymous,
            // [vdso], [vvar], [vvar_vclock], [vsyscall], [uprobes], [sigpage], and future ones.
            name if name.starts_with(b"[") => VmaKind::Special,
            _ => VmaKind::PrivateFile,
        }
    }
}

/// Parses `major:minor`, in hexadecimal.
fn device(text: &[u8]) -> Option<(u32, u32)> {
    let colon = text.iter().position(|&byte| byte == b':')?;
    let number = |digits| u32::try_from(text::hex(digits)?).ok();
    Some((number(&text[..colon])?, number(&text[colon + 1..])?))
}

/// Returns true for the name of a device. `/dev/shm` holds ordinary files, and `/dev/zero` is
/// shared memory (or anonymous, see above).
fn is_device(name: &[u8]) -> bool {
    name.strip_prefix(b"/dev/").is_some_and(|node| {
        !node.starts_with(b"shm/") && !matches!(node, b"zero" | b"zero (deleted)")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind_of(permissions: &str, inode: u64, name: &str) -> VmaKind {
        let line = format!("1000-2000 {permissions} 00000000 00:00 {inode}    {name}");
        MapsLine::parse(line.as_bytes()).unwrap().kind()
    }

    #[test]
    fn kinds_follow_from_sharing_inode_and_name() {
        use VmaKind::*;
        for (permissions, inode, name, kind) in [
            ("rw-p", 0, "", Anonymous),
            ("---p", 0, "", Anonymous),
            ("rw-p", 0, "[anon:glibc: malloc arena]", Anonymous),
            ("rw-p", 1030, "/dev/zero", Anonymous),
            ("rw-p", 0, "[heap]", Heap),
            ("rw-p", 0, "[stack]", Stack),
            ("r--p", 0, "[vvar]", Special),
            ("r--p", 0, "[vvar_vclock]", Special),
            ("r-xp", 0, "[vdso]", Special),
            ("--xp", 0, "[vsyscall]", Special),
            ("rw-p", 0, "[something new]", Special),
            ("rw-p", 12, "/anon_hugepage (deleted)", Special),
            ("rw-s", 12, "/dev/hugepages/pool", Special),
            ("rw-s", 12, "/dev/dri/card0", Special),
            ("rw-p", 12, "/dev/kvm", Special),
            ("rw-s", 12, "/dev/shm/queue", Shared),
            ("rw-p", 12, "/dev/shm/queue", PrivateFile),
            ("rw-s", 12, "/dev/zero (deleted)", Shared),
            ("rw-s", 32769, "/SYSV00000000 (deleted)", Shared),
            ("rw-s", 12, "/memfd:ring (deleted)", Shared),
            ("rw-p", 12, "/memfd:code (deleted)", PrivateFile),
            ("rw-s", 0, "[anon_shmem:pool]", Shared),
            ("r-xp", 99, "/usr/lib/libc.so.6", PrivateFile),
            ("rw-s", 12, "anon_inode:[io_uring]", Shared),
        ] {
            assert_eq!(
                kind_of(permissions, inode, name),
                kind,
                "{permissions} {inode} {name}"
            );
        }
    }

    #[test]
    fn names_keep_their_spaces_and_lose_their_control_characters() {
        let text = b"1000-2000 r--p 00000000 fe:00 7      /tmp/a  b\\012\x1b[2J (deleted)\n\
                     2000-3000 rw-p 00000000 00:00 0 \n";
        let maps = parse_named_maps(text).unwrap();
        assert_eq!(
            maps[0].name.as_deref(),
            Some("/tmp/a  b\\012\\u{1b}[2J (deleted)")
        );
        assert_eq!(maps[0].label(), "a  b\\012\\u{1b}[2J");
        assert_eq!(
            (maps[1].name.as_deref(), maps[1].label()),
            (None, "anonymous")
        );
    }

    #[test]
    fn what_a_vma_maps_is_read() {
        let maps = parse_named_maps(b"1000-2000 rw-s 16f000 fe:1a 77 /dev/shm/q\n").unwrap();
        let object = ObjectId {
            device: (0xfe, 0x1a),
            inode: 77,
        };
        let offset = 0x16_f000;
        assert_eq!(maps[0].part, ObjectPart { object, offset });
    }

    #[test]
    fn a_vma_that_grew_during_the_read_is_cut() {
        let maps = parse_maps(
            b"1000-2000 rw-p 0 00:00 0\n1000-4000 rw-p 0 00:00 0\n5000-6000 rw-p 0 00:00 0\n",
        )
        .unwrap();
        let ranges: Vec<_> = maps.iter().map(|vma| vma.range.to_string()).collect();
        assert_eq!(ranges, ["1000-2000", "2000-4000", "5000-6000"]);

        let maps = parse_named_maps(
            b"1000-2000 rw-p 5000 fe:00 7 /a\n1000-4000 rw-p 5000 fe:00 7 /a\n5000-6000 rw-p 0 00:00 0\n",
        )
        .unwrap();
        let offsets: Vec<_> = maps.iter().map(|vma| vma.part.offset).collect();
        assert_eq!(
            offsets,
            [0x5000, 0x6000, 0],
            "the part of the file is cut too"
        );

        let error = parse_maps(b"3000-4000 rw-p 0 00:00 0\n1000-2000 rw-p 0 00:00 0\n");
        assert_eq!(error, Err(ParseError::new(2, "the addresses go backwards")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, what) in [
            ("1000", "the addresses are not a range"),
            ("x-2000 rw-p 0 00:00 0", "the start is not an address"),
            (
                "1000-20000000000000000 rw-p 0 00:00 0",
                "the end is not an address",
            ),
            ("2000-1000 rw-p 0 00:00 0", "the range is empty or reversed"),
            ("1000-1000 rw-p 0 00:00 0", "the range is empty or reversed"),
            (
                "1000-2000 rw-x 0 00:00 0",
                "the permissions are not four letters",
            ),
            (
                "1000-2000 rw-pp 0 00:00 0",
                "the permissions are not four letters",
            ),
            ("1000-2000 rw-p x 00:00 0", "the offset is not a number"),
            ("1000-2000 rw-p 0 00 0", "the device is not two numbers"),
            (
                "1000-2000 rw-p 0 100000000:0 0",
                "the device is not two numbers",
            ),
            ("1000-2000 rw-p 0 00:00", "the inode is not a number"),
            ("1000-2000 rw-p 0 00:00 -1", "the inode is not a number"),
        ] {
            assert_eq!(
                parse_maps(line.as_bytes()),
                Err(ParseError::new(1, what)),
                "{line}"
            );
        }
    }

    /// Formats a line as `show_map_vma` does.
    fn print(start: u64, end: u64, permissions: &str, inode: u64, name: &str) -> String {
        let head = format!("{start:08x}-{end:08x} {permissions} 00000000 00:00 {inode} ");
        if name.is_empty() {
            format!("{head}\n")
        } else {
            format!("{head:<73}{name}\n")
        }
    }

    proptest! {
        #[test]
        fn printed_maps_are_read_back(
            areas in proptest::collection::vec(
                (1..1_u64 << 20, 1..1_u64 << 20, any::<bool>(), any::<bool>(), 0..3_u64, "(/[ -~]{0,40}[!-~])?"),
                0..40,
            )
        ) {
            let mut text = String::new();
            let mut expected = Vec::new();
            let mut at = 0;
            for (gap, pages, writable, shared, inode, name) in areas {
                let start = at + gap * 4096;
                at = start + pages * 4096;
                let write = if writable { 'w' } else { '-' };
                let sharing = if shared { 's' } else { 'p' };
                text += &print(start, at, &format!("r{write}-{sharing}"), inode, &name);
                expected.push((start, at, writable, (!name.is_empty()).then_some(name)));
            }
            let found: Vec<_> = parse_named_maps(text.as_bytes())
                .unwrap()
                .into_iter()
                .map(|map| (map.vma.range.start.0, map.vma.range.end.0, map.vma.writable, map.name))
                .collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(parse_maps(text.as_bytes()).unwrap().len(), expected.len());
        }

        #[test]
        fn nonsense_never_panics_and_lists_stay_in_order(text in "([0-9a-f]{1,17}-[0-9a-f]{1,17} [rw-]{3}[ps] 0 0:0 [0-9]+ .*\n){0,8}") {
            if let Ok(maps) = parse_maps(text.as_bytes()) {
                prop_assert!(maps.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
            }
        }
    }
}
