//! The protocol between client and service.
//!
//! A `SOCK_SEQPACKET` Unix socket: the kernel keeps messages apart, so there is nothing to frame. All
//! numbers are little-endian. Every message begins with a header and has the one length that belongs
//! to its kind; anything else is malformed and ends the connection.
//!
//! ```text
//!   0        4         6        8
//!   | "HPS1" | version |  kind  |  body ...
//!
//!   client                                       service
//!     | ---- TRACK  pid signo threshold min_heat --->|  reads SO_PEERCRED; notes the client's image
//!     | <--- CHALLENGE  nonce -----------------------|
//!     | ---- CONFIRM    nonce ---------------------->|  sent by the same process (SCM_CREDENTIALS),
//!     | <--- TRACKED  + descriptor of the list ------|  and its image is still the one noted
//!     |                                              |
//!     | <--- NOTICE  serial active ------------------|  or a signal with the number
//!     |      (reads the list from the descriptor)    |
//!     | ---- FETCHED serial ------------------------>|  before this, no other notice is sent
//!     |                                              |
//!     | <--- REFUSED or ENDED  errno, text ----------|  then the service closes
//! ```
//!
//! *Why the challenge.* `SO_PEERCRED` names the process that connected, not the program that it
//! runs now. A process could send the request and then execute a setuid program, and every process
//! that shares its socket would learn that program's addresses. The nonce is made after the service
//! has noted the process's image. So the answer proves that the noted image wants the tracking.
//!
//! *Why a file and not messages.* A list may have a million pages, and the reader may be a signal
//! handler that must not wait for the service. The file (see [`crate::list`]) always holds the newest
//! list, is read with `pread(2)`, and bounds what a client that never reads can cost.

use rustix::io::Errno;

/// Version of the protocol. A service refuses other versions, in words that every version
/// understands.
pub const VERSION: u16 = 1;

/// Longest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = HEADER + 8 + TEXT;

const MAGIC: [u8; 4] = *b"HPS1";
const HEADER: usize = 8;
/// Bytes for the text of a refusal.
const TEXT: usize = 368;

/// Message from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Watch a process.
    Track(Track),
    /// The answer to a challenge.
    Confirm {
        /// The number of the challenge.
        nonce: u64,
    },
    /// The list was read.
    Fetched {
        /// Serial number of the list.
        serial: u64,
    },
}

/// The process to watch, and the conditions of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Track {
    /// The process, by its number in the service's PID namespace; 0: the client itself.
    pub pid: u32,
    /// The signal to notify by, 1 to 64; 0: by messages.
    pub signo: u32,
    /// Least number of active pages for a notice.
    pub threshold: u64,
    /// Least heat of an active page, 1 to 1000 per mille.
    pub min_heat: u32,
}

/// Message from the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The client must return this number.
    Challenge {
        /// A random number for this connection.
        nonce: u64,
    },
    /// The process is tracked; the descriptor of the list comes with it.
    Tracked,
    /// There is a new list.
    Notice {
        /// Serial number of the list.
        serial: u64,
        /// Active pages in it; a huge page counts 512.
        active: u64,
    },
    /// The service does not track the process.
    Refused(Reason),
    /// The service no longer tracks the process.
    Ended(Reason),
}

/// Reason for a refusal, or for the end of the tracking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// Error number that classifies the reason.
    pub errno: Errno,
    /// Text for people, cut to what a message holds.
    pub text: String,
}

/// Reason why a message is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message does not begin with the magic of this protocol.
    #[error("not a message of this protocol")]
    Magic,
    /// The message is of another version.
    #[error("version {0} of the protocol; this is version {VERSION}")]
    Version(u16),
    /// The message's kind is unknown, or its length is not that of its kind.
    #[error("a message of unknown kind or wrong length")]
    Shape,
    /// A field holds an invalid value.
    #[error("{0}")]
    Field(&'static str),
}

/// A message ready to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Packet {
    bytes: [u8; MAX_MESSAGE_BYTES],
    length: usize,
}

impl Packet {
    fn new(kind: u16) -> Self {
        let mut packet = Self {
            bytes: [0; MAX_MESSAGE_BYTES],
            length: 0,
        };
        packet.put(&MAGIC);
        packet.put(&VERSION.to_le_bytes());
        packet.put(&kind.to_le_bytes());
        packet
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if let Some(room) = self.bytes.get_mut(self.length..end) {
            room.copy_from_slice(bytes);
            self.length = end;
        }
    }

    fn with(mut self, bytes: &[u8]) -> Self {
        self.put(bytes);
        self
    }

    /// Returns its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

mod kind {
    pub(super) const TRACK: u16 = 1;
    pub(super) const CONFIRM: u16 = 2;
    pub(super) const FETCHED: u16 = 3;
    pub(super) const CHALLENGE: u16 = 0x101;
    pub(super) const TRACKED: u16 = 0x102;
    pub(super) const NOTICE: u16 = 0x103;
    pub(super) const REFUSED: u16 = 0x104;
    pub(super) const ENDED: u16 = 0x105;
}

/// Reads fields from the front.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(MessageError::Shape)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, MessageError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, MessageError> {
        self.take().map(u64::from_le_bytes)
    }

    const fn end(&self) -> Result<(), MessageError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(MessageError::Shape)
        }
    }
}

/// Reads the header; returns the kind of the message, and its body.
fn open(bytes: &[u8]) -> Result<(u16, Body<'_>), MessageError> {
    let mut body = Body(bytes);
    if body.take().map_err(|_| MessageError::Magic)? != MAGIC {
        return Err(MessageError::Magic);
    }
    let version = body.u16()?;
    if version != VERSION {
        return Err(MessageError::Version(version));
    }
    let kind = body.u16()?;
    Ok((kind, body))
}

impl Request {
    /// Reads a message. Allocates nothing.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let (kind, mut body) = open(bytes)?;
        let request = match kind {
            kind::TRACK => {
                let track = Track {
                    pid: body.u32()?,
                    signo: body.u32()?,
                    threshold: body.u64()?,
                    min_heat: body.u32()?,
                };
                if body.u32()? != 0 {
                    return Err(MessageError::Field("a reserved field is not zero"));
                }
                track.check()?;
                Self::Track(track)
            }
            kind::CONFIRM => Self::Confirm { nonce: body.u64()? },
            kind::FETCHED => Self::Fetched {
                serial: body.u64()?,
            },
            _ => return Err(MessageError::Shape),
        };
        body.end()?;
        Ok(request)
    }

    /// Builds the message. Async-signal-safe.
    #[must_use]
    pub fn packet(&self) -> Packet {
        match self {
            Self::Track(track) => Packet::new(kind::TRACK)
                .with(&track.pid.to_le_bytes())
                .with(&track.signo.to_le_bytes())
                .with(&track.threshold.to_le_bytes())
                .with(&track.min_heat.to_le_bytes())
                .with(&0_u32.to_le_bytes()),
            Self::Confirm { nonce } => Packet::new(kind::CONFIRM).with(&nonce.to_le_bytes()),
            Self::Fetched { serial } => Packet::new(kind::FETCHED).with(&serial.to_le_bytes()),
        }
    }
}

impl Track {
    /// Checks the fields.
    ///
    /// # Errors
    /// [`MessageError::Field`].
    pub const fn check(&self) -> Result<(), MessageError> {
        if self.signo > 64 || self.signo == 9 || self.signo == 19 {
            return Err(MessageError::Field(
                "the signal must be 1 to 64 and neither SIGKILL nor SIGSTOP",
            ));
        }
        if self.min_heat == 0 || self.min_heat > 1000 {
            return Err(MessageError::Field(
                "the least heat of an active page must be 1 to 1000 per mille",
            ));
        }
        if self.threshold == 0 {
            return Err(MessageError::Field(
                "the threshold must be at least one page",
            ));
        }
        Ok(())
    }
}

impl Answer {
    /// Reads a message.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let (kind, mut body) = open(bytes)?;
        let answer = match kind {
            kind::CHALLENGE => Self::Challenge { nonce: body.u64()? },
            kind::TRACKED => Self::Tracked,
            kind::NOTICE => Self::Notice {
                serial: body.u64()?,
                active: body.u64()?,
            },
            kind::REFUSED => Self::Refused(Reason::parse(&mut body)?),
            kind::ENDED => Self::Ended(Reason::parse(&mut body)?),
            _ => return Err(MessageError::Shape),
        };
        body.end()?;
        Ok(answer)
    }

    /// Builds the message.
    #[must_use]
    pub fn packet(&self) -> Packet {
        match self {
            Self::Challenge { nonce } => Packet::new(kind::CHALLENGE).with(&nonce.to_le_bytes()),
            Self::Tracked => Packet::new(kind::TRACKED),
            Self::Notice { serial, active } => Packet::new(kind::NOTICE)
                .with(&serial.to_le_bytes())
                .with(&active.to_le_bytes()),
            Self::Refused(reason) => reason.put(Packet::new(kind::REFUSED)),
            Self::Ended(reason) => reason.put(Packet::new(kind::ENDED)),
        }
    }
}

impl Reason {
    /// Makes a reason; cuts the text at a character to what a message holds.
    #[must_use]
    pub fn new(errno: Errno, mut text: String) -> Self {
        let mut end = text.len().min(TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Self { errno, text }
    }

    fn parse(body: &mut Body<'_>) -> Result<Self, MessageError> {
        let number = i32::try_from(body.u32()?).unwrap_or(0);
        if !(1..4096).contains(&number) {
            return Err(MessageError::Field("no error number"));
        }
        let length = usize::try_from(body.u32()?).map_err(|_| MessageError::Shape)?;
        let text: [u8; TEXT] = body.take()?;
        let text = text
            .get(..length)
            .and_then(|text| std::str::from_utf8(text).ok())
            .ok_or(MessageError::Field("a text that is none"))?;
        Ok(Self {
            errno: Errno::from_raw_os_error(number),
            text: text.to_owned(),
        })
    }

    fn put(&self, packet: Packet) -> Packet {
        let text = self.text.as_bytes();
        let length = text.len().min(TEXT);
        let mut room = [0; TEXT];
        if let (Some(room), Some(text)) = (room.get_mut(..length), text.get(..length)) {
            room.copy_from_slice(text);
        }
        let length = u32::try_from(length).unwrap_or(0);
        packet
            .with(&self.errno.raw_os_error().unsigned_abs().to_le_bytes())
            .with(&length.to_le_bytes())
            .with(&room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn track() -> impl Strategy<Value = Track> {
        (any::<u32>(), 20..=64_u32, 1..=u64::MAX, 1..=1000_u32).prop_map(
            |(pid, signo, threshold, min_heat)| Track {
                pid,
                signo,
                threshold,
                min_heat,
            },
        )
    }

    fn reason() -> impl Strategy<Value = Reason> {
        (1..4096, ".{0,500}").prop_map(|(n, text)| Reason::new(Errno::from_raw_os_error(n), text))
    }

    proptest! {
        #[test]
        fn what_is_said_is_understood(track in track(), nonce: u64, active: u64, reason in reason()) {
            for request in [
                Request::Track(track),
                Request::Confirm { nonce },
                Request::Fetched { serial: nonce },
            ] {
                prop_assert_eq!(Request::parse(request.packet().bytes()), Ok(request));
            }
            for answer in [
                Answer::Challenge { nonce },
                Answer::Tracked,
                Answer::Notice { serial: nonce, active },
                Answer::Refused(reason.clone()),
                Answer::Ended(reason.clone()),
            ] {
                prop_assert_eq!(Answer::parse(answer.packet().bytes()), Ok(answer.clone()));
                // A longer or shorter message is malformed.
                let packet = answer.packet();
                let bytes = packet.bytes();
                prop_assert!(Answer::parse(&bytes[..bytes.len() - 1]).is_err());
                prop_assert!(Answer::parse(&[bytes, &[0]].concat()).is_err());
            }
        }

        #[test]
        fn nonsense_never_panics(bytes: Vec<u8>, kind in prop_oneof![0..5_u16, 0x100..0x108_u16]) {
            let _ = Request::parse(&bytes);
            let _ = Answer::parse(&bytes);
            let framed = [&b"HPS1\x01\x00"[..], &kind.to_le_bytes(), &bytes].concat();
            let _ = Request::parse(&framed);
            let _ = Answer::parse(&framed);
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        let good = Track {
            pid: 0,
            signo: 0,
            threshold: 1,
            min_heat: 50,
        };
        let parse = |track| Request::parse(Request::Track(track).packet().bytes());
        assert!(parse(good).is_ok());
        for bad in [
            Track { signo: 9, ..good },
            Track { signo: 65, ..good },
            Track {
                min_heat: 0,
                ..good
            },
            Track {
                min_heat: 1001,
                ..good
            },
            Track {
                threshold: 0,
                ..good
            },
        ] {
            assert!(matches!(parse(bad), Err(MessageError::Field(_))), "{bad:?}");
        }
        assert_eq!(Request::parse(b""), Err(MessageError::Magic));
        assert_eq!(Request::parse(b"GET / HTTP/1.1"), Err(MessageError::Magic));
        assert_eq!(
            Request::parse(b"HPS1\x07\x00\x01\x00"),
            Err(MessageError::Version(7))
        );
    }
}
