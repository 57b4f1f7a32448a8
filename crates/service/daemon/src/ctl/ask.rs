//! The client of the control socket: `superhue ctl`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::protocol::{Answer, LONGEST_ANSWER, Request, read_answer, written};

/// Longest wait for each step of an answer.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process listens.
    #[error("no daemon listens at {}: start it (systemctl start superhue), or name its --socket", .0.display())]
    NoDaemon(PathBuf),
    /// The caller may not ask.
    #[error("you may not ask the daemon at {}: that is for root and for members of the group `superhue`", .0.display())]
    Denied(PathBuf),
    /// The daemon did not answer in time.
    #[error("the daemon at {} has not answered in {} s: see `journalctl -u superhue`, restart it if it hangs", .0.display(), ANSWER_TIMEOUT.as_secs())]
    Late(PathBuf),
    /// The answer is not of this protocol, or of another version.
    #[error("{} gave an answer that is not understood ({why}): if the daemon is of another version, `systemctl restart superhue`", socket.display())]
    NotUnderstood {
        /// Path of the socket.
        socket: PathBuf,
        /// Difference from the protocol.
        why: String,
    },
    /// Another operation failed.
    #[error("{}: {source}", socket.display())]
    Io {
        /// Path of the socket.
        socket: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Asks the daemon that listens at `socket`.
///
/// # Errors
/// See [`AskError`]. A refusal is an answer, not an error.
pub fn ask(socket: &Path, request: Request) -> Result<Answer, AskError> {
    let answer = UnixStream::connect(socket).and_then(|stream| exchange(&stream, request));
    answer
        .map_err(|error| because(socket, error))
        .and_then(|line| understood(socket, &line))
}

/// Sends a request on a new connection, and waits for the answer.
pub(super) fn exchange(mut stream: &UnixStream, request: Request) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    match stream.write_all(written(request).as_bytes()) {
        // The daemon may have sent the reason before it closed the connection.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
        _ => {}
    }
    let mut line = Vec::new();
    let longest = LONGEST_ANSWER as u64 + 1;
    BufReader::new(stream.take(longest)).read_until(b'\n', &mut line)?;
    Ok(line)
}

/// Returns the answer in a line.
pub(super) fn understood(socket: &Path, line: &[u8]) -> Result<Answer, AskError> {
    read_answer(line).map_err(|why| AskError::NotUnderstood {
        socket: socket.to_owned(),
        why,
    })
}

/// Returns the reason why an operation on the socket failed.
pub(super) fn because(socket: &Path, source: io::Error) -> AskError {
    let socket = socket.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::NoDaemon(socket),
        io::ErrorKind::PermissionDenied => AskError::Denied(socket),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Late(socket),
        _ => AskError::Io { socket, source },
    }
}
