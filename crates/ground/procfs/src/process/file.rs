//! Readers of the files below `/proc/PID`.
//!
//! These files have no length, and `read(2)` of a long one (`maps`, `smaps`) returns about one page
//! of text at a time however large the buffer (`seq_read_iter` in `fs/seq_file.c`). So the reader
//! takes a long file line by line through one fixed buffer and never holds the whole: a process with 50,000 VMAs
//! has some 5 MB of `maps` and 35 MB of `smaps`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::ReadError;

use super::text::ParseError;

/// Bytes read ahead from a long file. A line is at most a path of 4096 bytes, each perhaps escaped
/// to four, after 73 columns of numbers.
const LINE_BUFFER: usize = 64 << 10;

/// Reads a short file of one record into `buffer`, usually on the stack.
///
/// The kernel returns such a record whole (`single_open` in `fs/seq_file.c`), so a read that leaves room and ends with a newline was the
/// last one.
pub(super) fn read_small<'b>(
    pid: u32,
    path: &Path,
    buffer: &'b mut [u8],
) -> Result<&'b [u8], ReadError> {
    let sort = |error| ReadError::of_process(pid, path, error);
    let mut file = File::open(path).map_err(sort)?;
    let mut filled = 0;
    loop {
        let free = &mut buffer[filled..];
        if free.is_empty() {
            return Err(ReadError::Malformed {
                path: path.to_owned(),
                what: format!("it is longer than {filled} bytes"),
            });
        }
        match retry(|| file.read(free)).map_err(sort)? {
            0 => return Ok(&buffer[..filled]),
            count => filled += count,
        }
        if filled < buffer.len() && buffer[filled - 1] == b'\n' {
            return Ok(&buffer[..filled]);
        }
    }
}

/// Calls `each` with every line that is not empty (numbered from 1, newline removed).
pub(super) fn for_each_line(
    pid: u32,
    path: &Path,
    mut each: impl FnMut(usize, &[u8]) -> Result<(), ParseError>,
) -> Result<(), ReadError> {
    let sort = |error| ReadError::of_process(pid, path, error);
    let file = File::open(path).map_err(sort)?;
    let mut lines = Lines::new(file, LINE_BUFFER);
    while let Some((number, line)) = lines.next_line().map_err(sort)? {
        each(number, line).map_err(|error| malformed(path, error))?;
    }
    Ok(())
}

/// Converts a parser's error about `path`.
pub(super) fn malformed(path: &Path, error: ParseError) -> ReadError {
    ReadError::Malformed {
        path: path.to_owned(),
        what: error.to_string(),
    }
}

/// Reader of lines, through one buffer that never grows.
struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    number: usize,
    ended: bool,
}

impl<R: Read> Lines<R> {
    fn new(source: R, capacity: usize) -> Self {
        Self {
            source,
            buffer: vec![0; capacity],
            start: 0,
            end: 0,
            number: 0,
            ended: false,
        }
    }

    /// Returns the next line that is not empty. A last line without newline counts.
    fn next_line(&mut self) -> io::Result<Option<(usize, &[u8])>> {
        loop {
            let unread = &self.buffer[self.start..self.end];
            let newline = unread.iter().position(|&byte| byte == b'\n');
            let length = match newline {
                Some(length) => length,
                None if !self.ended => {
                    self.fill()?;
                    continue;
                }
                None => unread.len(),
            };
            let line = self.start..self.start + length;
            self.start = line.end + usize::from(newline.is_some());
            self.number += 1;
            if !line.is_empty() {
                return Ok(Some((self.number, &self.buffer[line])));
            }
            if newline.is_none() {
                return Ok(None);
            }
        }
    }

    /// Moves the rest of a line to the front and reads on behind it.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.buffer.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("line {} is longer than {} bytes", self.number + 1, self.end),
            ));
        }
        let count = retry(|| self.source.read(&mut self.buffer[self.end..]))?;
        self.end += count;
        self.ended = count == 0;
        Ok(())
    }
}

/// Repeats a read that a signal interrupted.
fn retry(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;
    use std::fs;

    use proptest::prelude::*;

    /// Reader that returns a few bytes at a time, as `seq_file` does.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(buffer.len()).min(self.0.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    proptest! {
        #[test]
        fn lines_are_the_same_however_they_arrive(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'a'), any::<u8>()], 0..200),
            step in 1..40_usize,
        ) {
            let mut lines = Lines::new(Trickle(&text, step), 256);
            let mut expected = text::lines(&text);
            while let Some(found) = lines.next_line().unwrap() {
                prop_assert_eq!(Some(found), expected.next());
            }
            prop_assert_eq!(expected.next(), None);
        }
    }

    #[test]
    fn an_endless_line_is_an_error_and_not_an_endless_buffer() {
        let mut lines = Lines::new(io::repeat(b'x'), 64);
        assert_eq!(
            lines.next_line().unwrap_err().to_string(),
            "line 1 is longer than 64 bytes"
        );
    }

    #[test]
    fn a_short_file_that_is_too_long_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [b'1'; 16]).unwrap();
        assert_eq!(
            read_small(1, file.path(), &mut [0; 17]).unwrap(),
            [b'1'; 16]
        );
        let error = read_small(1, file.path(), &mut [0; 16]).unwrap_err();
        assert!(matches!(error, ReadError::Malformed { .. }), "{error}");
    }
}
