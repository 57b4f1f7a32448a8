//! The allocator that a program will have, by its file.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf::{DT_NEEDED, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};
use rustix::io::Errno;
use serde::Serialize;

/// Set-user-ID and set-group-ID bits of a file's mode (inode(7)).
const SET_ID: u32 = 0o6000;

/// Scripts whose interpreter is a script: the kernel's bound (`fs/exec.c`, `exec_binprm`).
const MAX_INTERPRETERS: usize = 5;

/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`, `include/uapi/linux/binfmts.h`).
const MAX_FIRST_LINE: u64 = 256;

/// Largest section of constants that is searched, in bytes.
const MAX_CONSTANTS: u64 = 256 << 20;

/// Bytes of it that are read at a time, and bytes of the piece before that are searched again: more than the name of a variable has.
const PIECE: usize = 1 << 20;
const OVERLAP: usize = 128;

/// Version whose loader knows `glibc.malloc.hugetlb`.
const GLIBC: &[u8] = b"GLIBC_2.35";

/// End of the name of the variable that jemalloc reads; it has its prefix in front.
const MALLOC_CONF: &[u8] = b"MALLOC_CONF\0";

/// Memory allocator of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Allocator {
    /// glibc 2.35 or later.
    Glibc,
    /// jemalloc.
    Jemalloc {
        /// Prefix that it was built with, in capital letters: of its variables' names.
        prefix: String,
    },
    /// mimalloc.
    Mimalloc,
    /// gperftools' tcmalloc.
    Tcmalloc,
    /// The heap of a Java virtual machine.
    Jvm,
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Glibc => "glibc",
            Self::Jemalloc { .. } => "jemalloc",
            Self::Mimalloc => "mimalloc",
            Self::Tcmalloc => "tcmalloc",
            Self::Jvm => "the Java virtual machine",
        })
    }
}

/// Reason why a program's allocator is not known, or must get no request.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// There is no such program.
    #[error("there is no such program")]
    NotFound,
    /// The program's file could not be read.
    #[error("{path} cannot be read: {source}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The program runs with rights that its caller lacks: its environment is not the caller's to change.
    #[error("{path} has set-ID bits or capabilities", path = .0.display())]
    Privileged(PathBuf),
    /// The file is no program that the kernel's ELF loader executes.
    #[error("{path} is no ELF program: {why}", path = .path.display())]
    NotElf {
        /// The file.
        path: PathBuf,
        /// The reader's reason.
        why: String,
    },
    /// The program is linked statically, with an allocator that is not known here.
    #[error("{path} is linked statically", path = .0.display())]
    Static(PathBuf),
    /// The program's loader is of another C library, or of an older one.
    #[error("{path} has a C library other than glibc 2.35 or later", path = .0.display())]
    OtherLibrary(PathBuf),
}

/// Facts about an ELF file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Linkage {
    /// Program that loads it; `None` where it is linked statically.
    interpreter: Option<PathBuf>,
    /// Libraries that it needs, by soname.
    needed: Vec<Vec<u8>>,
    /// True if it defines the symbol version [`GLIBC`].
    defines_glibc: bool,
    /// Prefix of the jemalloc in it.
    jemalloc: Option<String>,
}

/// Returns the allocator that `program` will have with the libraries `preloaded` (the value of LD_PRELOAD).
///
/// # Errors
/// The reason why it is not known or must get no request.
pub(super) fn allocator_of(program: &Path, preloaded: &OsStr) -> Result<Allocator, ProgramError> {
    let mut program = program.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        let file = open(&program)?;
        match script_interpreter(&file).map_err(|source| unreadable(&program, source))? {
            Some(interpreter) => program = interpreter,
            None => return of_linkage(&program, &linkage(&program, file)?, preloaded),
        }
    }
    Err(not_elf(&program, "a script of a script of a script"))
}

fn of_linkage(
    program: &Path,
    linkage: &Linkage,
    preloaded: &OsStr,
) -> Result<Allocator, ProgramError> {
    // A library that is loaded earlier defines `malloc` for all.
    let separators = |byte: &u8| *byte == b':' || *byte == b' ';
    let preloaded = preloaded.as_bytes().split(separators);
    let names = preloaded.map(|path| path.rsplit(|byte| *byte == b'/').next().unwrap_or(path));
    let needed = linkage.needed.iter().map(Vec::as_slice);
    if linkage.interpreter.is_some()
        && let Some(found) = names.chain(needed).find_map(of_library)
    {
        return Ok(found);
    }
    if let Some(prefix) = &linkage.jemalloc {
        return Ok(Allocator::Jemalloc {
            prefix: prefix.clone(),
        });
    }
    let Some(loader) = &linkage.interpreter else {
        return Err(ProgramError::Static(program.to_owned()));
    };
    let file = File::open(loader).map_err(|source| unreadable(loader, source))?;
    match self::linkage(loader, file)?.defines_glibc {
        true => Ok(Allocator::Glibc),
        false => Err(ProgramError::OtherLibrary(program.to_owned())),
    }
}

/// Returns the allocator in a library, by its soname.
fn of_library(soname: &[u8]) -> Option<Allocator> {
    let known = [
        (
            &b"libjemalloc."[..],
            Allocator::Jemalloc {
                prefix: String::new(),
            },
        ),
        (b"libmimalloc.", Allocator::Mimalloc),
        (b"libmimalloc-", Allocator::Mimalloc),
        (b"libtcmalloc.", Allocator::Tcmalloc),
        (b"libtcmalloc_", Allocator::Tcmalloc),
        (b"libjli.", Allocator::Jvm),
    ];
    let found = known.into_iter().find(|(name, _)| soname.starts_with(name));
    found.map(|(_, allocator)| allocator)
}

/// Opens a program that its caller may run with the caller's rights alone.
fn open(path: &Path) -> Result<File, ProgramError> {
    let metadata = std::fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ProgramError::NotFound,
        _ => unreadable(path, source),
    })?;
    // Opening a FIFO would wait.
    if !metadata.is_file() {
        return Err(not_elf(path, "no regular file"));
    }
    if metadata.permissions().mode() & SET_ID != 0 || has_capabilities(path) {
        return Err(ProgramError::Privileged(path.to_owned()));
    }
    File::open(path).map_err(|source| unreadable(path, source))
}

/// Returns true if the file gives capabilities to processes that execute it (capabilities(7)), or if that is not known.
fn has_capabilities(path: &Path) -> bool {
    let found = rustix::fs::getxattr(path, "security.capability", &mut [0_u8; 0]);
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// Returns the interpreter that a script's first line names; `None` for other files (`fs/binfmt_script.c`).
fn script_interpreter(file: &File) -> io::Result<Option<PathBuf>> {
    let mut line = Vec::new();
    BufReader::new(file.take(MAX_FIRST_LINE)).read_until(b'\n', &mut line)?;
    let Some(rest) = line.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let mut words = rest
        .split(|byte| b" \t\n".contains(byte))
        .filter(|word| !word.is_empty());
    Ok(words
        .next()
        .map(|name| PathBuf::from(OsStr::from_bytes(name))))
}

/// Reads how a program is linked. Its constants are read piece by piece: they can be larger than the memory that the command may have.
fn linkage(path: &Path, file: File) -> Result<Linkage, ProgramError> {
    let data = ReadCache::new(&file);
    let read = match FileKind::parse(&data) {
        Ok(FileKind::Elf64) => read_linkage::<FileHeader64<Endianness>, _>(&data),
        Ok(FileKind::Elf32) => read_linkage::<FileHeader32<Endianness>, _>(&data),
        Ok(_) => return Err(not_elf(path, "another format")),
        Err(error) => Err(error),
    };
    let (mut found, constants) = read.map_err(|error| not_elf(path, &error.to_string()))?;
    if let Some((offset, size)) = constants.filter(|(_, size)| *size <= MAX_CONSTANTS) {
        let prefix = prefix_in(&file, offset, size);
        found.jemalloc = prefix.map_err(|source| unreadable(path, source))?;
    }
    Ok(found)
}

/// Place of a section in its file: offset and size in bytes.
type FileRange = (u64, u64);

/// Returns the linkage without what its constants show, and where these are.
fn read_linkage<'data, Elf: FileHeader, R: ReadRef<'data>>(
    data: R,
) -> object::Result<(Linkage, Option<FileRange>)> {
    let header = Elf::parse(data)?;
    let endian = header.endian()?;
    let mut found = Linkage::default();
    for segment in header.program_headers(endian, data)? {
        if let Some(path) = segment.interpreter(endian, data)? {
            found.interpreter = Some(PathBuf::from(OsStr::from_bytes(path)));
        }
    }
    let sections = header.sections(endian, data)?;
    let dynamic = sections.dynamic_table(endian, data)?;
    for entry in dynamic.iter().filter(|entry| entry.tag == DT_NEEDED) {
        found.needed.push(dynamic.string(entry)?.to_vec());
    }
    if let Some((versions, strings)) = sections.gnu_verdef(endian, data)? {
        let strings = sections.strings(endian, data, strings)?;
        for version in versions {
            let (_, mut names) = version?;
            let name = names
                .next()?
                .map(|name| name.name(endian, strings))
                .transpose()?;
            found.defines_glibc |= name == Some(GLIBC);
        }
    }
    let constants = sections.section_by_name(endian, b".rodata");
    let constants = constants.and_then(|(_, section)| section.file_range(endian));
    Ok((found, constants))
}

/// Returns what stands in front of `MALLOC_CONF` in the name of a variable in a part of a file.
fn prefix_in(file: &File, offset: u64, size: u64) -> io::Result<Option<String>> {
    let mut buffer = vec![0; OVERLAP + PIECE];
    let (mut kept, mut done) = (0, 0_u64);
    while done < size {
        let left = usize::try_from(size - done).unwrap_or(usize::MAX);
        let piece = &mut buffer[kept..kept + left.min(PIECE)];
        let read = file.read_at(piece, offset + done)?;
        if read == 0 {
            break;
        }
        let all = kept + read;
        let found = prefix_of_jemalloc(&buffer[..all], done == 0);
        if found.is_some() {
            return Ok(found);
        }
        let again = all.min(OVERLAP);
        buffer.copy_within(all - again..all, 0);
        (kept, done) = (again, done + read as u64);
    }
    Ok(None)
}

/// Returns what stands in front of `MALLOC_CONF` in the name of a variable among a program's constants; `is_first` if these are the first ones.
fn prefix_of_jemalloc(constants: &[u8], is_first: bool) -> Option<String> {
    let found = memchr::memmem::find_iter(constants, MALLOC_CONF);
    let names = found.map(|at| {
        let before = &constants[..at];
        let is_part = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'_';
        let length = before.iter().rev().take_while(|byte| is_part(byte)).count();
        &before[before.len() - length..]
    });
    // The name begins behind the end of another constant.
    let mut whole = names.filter(|prefix| {
        let begin = prefix.as_ptr() as usize - constants.as_ptr() as usize;
        match begin {
            0 => is_first,
            _ => constants[begin - 1] == 0,
        }
    });
    whole
        .next()
        .map(|prefix| String::from_utf8_lossy(prefix).into_owned())
}

pub(super) fn unreadable(path: &Path, source: io::Error) -> ProgramError {
    ProgramError::Unreadable {
        path: path.to_owned(),
        source,
    }
}

fn not_elf(path: &Path, why: &str) -> ProgramError {
    ProgramError::NotElf {
        path: path.to_owned(),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_jemalloc_is_the_name_in_front() {
        let prefix = |constants: &[u8]| prefix_of_jemalloc(constants, true);
        assert_eq!(prefix(b"abc\0MALLOC_CONF\0x"), Some(String::new()));
        assert_eq!(prefix(b"abc\0JE_MALLOC_CONF\0"), Some("JE_".to_owned()));
        assert_eq!(prefix(b"_RJEM_MALLOC_CONF\0"), Some("_RJEM_".to_owned()));
        // Part of a sentence, and a longer name.
        assert_eq!(prefix(b"the variable MALLOC_CONF\0"), None);
        assert_eq!(prefix(b"\0MALLOC_CONFIG\0"), None);
    }

    #[test]
    fn constants_are_searched_piece_by_piece() {
        let path = std::env::temp_dir().join(format!("superhue-pieces-{}", std::process::id()));
        let name = b"\0_RJEM_MALLOC_CONF\0";
        // The name lies at the seam of two pieces, before it and behind it, and at the end.
        for at in (PIECE - 40..PIECE + 8).chain([0, 3 * PIECE]) {
            let mut constants = vec![b'x'; 7];
            constants.resize(7 + at, b'A');
            constants.extend(name);
            std::fs::write(&path, &constants).unwrap();
            let file = File::open(&path).unwrap();
            let size = constants.len() as u64;
            let found = prefix_in(&file, 7, size - 7).unwrap();
            assert_eq!(found, Some("_RJEM_".to_owned()), "{at}");
            let short = prefix_in(&file, 7, size - 8).unwrap();
            assert_eq!(short, None, "{at}");
            // A file that has become shorter.
            assert_eq!(prefix_in(&file, 7, size + PIECE as u64).unwrap(), found);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn libraries_are_recognized_by_soname() {
        assert_eq!(of_library(b"libmimalloc.so.2"), Some(Allocator::Mimalloc));
        assert_eq!(
            of_library(b"libtcmalloc_minimal.so.4"),
            Some(Allocator::Tcmalloc)
        );
        assert_eq!(of_library(b"libjli.so"), Some(Allocator::Jvm));
        assert_eq!(of_library(b"libc.so.6"), None);
        assert_eq!(of_library(b"libjemallocator.so"), None);
    }

    /// A preloaded library comes before a needed one, and neither reaches a program without a loader.
    #[test]
    fn the_first_library_decides() {
        let jemalloc = Allocator::Jemalloc {
            prefix: String::new(),
        };
        let mut linkage = Linkage {
            interpreter: Some("/nowhere".into()),
            needed: vec![b"libjemalloc.so.2".to_vec()],
            ..Linkage::default()
        };
        let of = |linkage: &Linkage, preloaded: &str| {
            of_linkage(Path::new("/program"), linkage, OsStr::new(preloaded))
        };
        assert_eq!(of(&linkage, "").unwrap(), jemalloc);
        assert_eq!(
            of(&linkage, "/lib/x.so:/lib/libmimalloc.so.2").unwrap(),
            Allocator::Mimalloc
        );
        linkage.interpreter = None;
        assert!(matches!(
            of(&linkage, "libmimalloc.so.2"),
            Err(ProgramError::Static(_))
        ));
    }
}
