//! Bounded reads of a file that a user has named: they neither block nor fill the memory.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Reads the contents of a regular file of at most `largest` bytes.
///
/// Refuses anything else that has a path (a pipe, a device, a folder): it may have no end.
///
/// # Errors
/// The reason of the refusal, without the path.
pub fn read_regular(path: &Path, largest: u64) -> io::Result<Vec<u8>> {
    // Without the flag, opening a pipe waits for a writer.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        let text = "it is no regular file: save it in one first";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    read_bounded(file, largest)
}

/// Reads the rest of an open file, if it is at most `largest` bytes.
pub(crate) fn read_bounded(file: File, largest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(largest.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > largest {
        let text = format!("it is larger than the {largest} bytes that are read at most");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_regular_files_are_read_and_only_so_far() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read_regular(&path, 5).unwrap(), b"12345");
        let error = read_regular(&path, 4).unwrap_err();
        assert!(error.to_string().contains("larger than the 4 bytes"));
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for other in [pipe.as_path(), folder.path(), Path::new("/dev/zero")] {
            let error = read_regular(other, 5).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{other:?}: {error}");
        }
        // The kernel reports size 0 for these files, and yet they have contents.
        assert!(
            !read_regular(Path::new("/proc/self/status"), 1 << 16)
                .unwrap()
                .is_empty()
        );
    }
}
