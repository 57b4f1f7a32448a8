//! The two protocols, as bytes: a client appends requests to a buffer, and cuts replies off the front of another.

mod memcached;
mod resp;

use std::borrow::Cow;

/// Longest first line of a reply; the lines of both servers are far shorter.
const LONGEST_LINE: usize = 2048;

/// Longest value that the client accepts from a server.
const LONGEST_VALUE: usize = 64 << 20;

/// Protocol of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// The text protocol of memcached (`doc/protocol.txt` of its source).
    Memcached,
    /// RESP2, the protocol of Redis (<https://redis.io/docs/latest/develop/reference/protocol-spec/>).
    Redis,
}

/// One reply, or one part of the reply to a request for several keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The key's value.
    Value {
        /// The key, where the protocol repeats it.
        key: Option<&'a [u8]>,
        /// The value.
        data: &'a [u8],
    },
    /// There is no such key (Redis).
    Missing,
    /// There are no more values of the requested keys (memcached).
    End,
    /// The value was stored.
    Stored,
    /// The server refused, in its own words.
    Error(Cow<'a, str>),
}

/// Error: the bytes are no reply of the protocol, so the beginning of the next reply is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server does not speak {protocol}: {what} in `{excerpt}`")]
pub struct ProtocolError {
    protocol: &'static str,
    what: &'static str,
    excerpt: String,
}

/// A reply and the number of its bytes; `None` while more bytes are needed.
pub type DecodeResult<'a> = Result<Option<(Reply<'a>, usize)>, ProtocolError>;

impl Protocol {
    /// Appends requests for the values of `keys`, of which there is at least one.
    ///
    /// For memcached this is one request: it flushes its replies after every line, so clients request many values in
    /// one line. Redis flushes when it has no more requests to read.
    pub fn get<K: AsRef<[u8]>>(self, keys: impl IntoIterator<Item = K>, out: &mut Vec<u8>) {
        match self {
            Self::Memcached => memcached::get(keys, out),
            Self::Redis => keys
                .into_iter()
                .for_each(|key| resp::get(key.as_ref(), out)),
        }
    }

    /// Appends a request to store, under `key`, the `len` bytes that `write_value` appends.
    ///
    /// Without `confirm`, memcached replies only if it refuses; Redis always replies.
    pub fn set(
        self,
        key: &[u8],
        len: usize,
        write_value: impl FnOnce(&mut Vec<u8>),
        confirm: bool,
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Memcached => memcached::set(key, len, write_value, confirm, out),
            Self::Redis => resp::set(key, len, write_value, out),
        }
    }

    /// Cuts the first reply off `bytes`.
    ///
    /// # Errors
    /// If `bytes` do not begin with a reply, whatever bytes may follow.
    pub fn decode(self, bytes: &[u8]) -> DecodeResult<'_> {
        match self {
            Self::Memcached => memcached::decode(bytes),
            Self::Redis => resp::decode(bytes),
        }
    }
}

impl ProtocolError {
    fn new(protocol: &'static str, what: &'static str, bytes: &[u8]) -> Self {
        let excerpt = bytes.get(..60).unwrap_or(bytes);
        Self {
            protocol,
            what,
            excerpt: excerpt.escape_ascii().to_string(),
        }
    }
}

/// The first line of `bytes`, without its end, and the number of its bytes with its end. `Ok(None)` if it has no end
/// yet; `Err` if it is too long for a line.
fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, &'static str> {
    let head = bytes.get(..LONGEST_LINE).unwrap_or(bytes);
    match head.windows(2).position(|pair| pair == b"\r\n") {
        Some(end) => Ok(Some((&bytes[..end], end + 2))),
        None if head.len() < LONGEST_LINE => Ok(None),
        None => Err("a line without end"),
    }
}

/// Reads a decimal length of at most [`LONGEST_VALUE`].
fn length(digits: &[u8]) -> Result<usize, &'static str> {
    let wrong = "a length that is none";
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(wrong);
    }
    std::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|length| *length <= LONGEST_VALUE)
        .ok_or(wrong)
}

/// The first `len` bytes of `bytes`, if a line end follows them. `Ok(None)` while not all of it is there.
fn block(bytes: &[u8], len: usize) -> Result<Option<&[u8]>, &'static str> {
    let Some((data, rest)) = bytes.split_at_checked(len) else {
        return Ok(None);
    };
    match rest {
        [] | [b'\r'] => Ok(None),
        [b'\r', b'\n', ..] => Ok(Some(data)),
        _ => Err("a value longer or shorter than it says"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every proper prefix of a reply is incomplete, and decoding leaves the bytes behind a reply alone.
    pub(super) fn check(protocol: Protocol, bytes: &[u8], reply: &Reply<'_>) {
        for cut in 0..bytes.len() {
            assert_eq!(protocol.decode(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let followed = [bytes, bytes].concat();
        for input in [bytes, &followed] {
            let (got, used) = protocol.decode(input).unwrap().unwrap();
            assert_eq!(&got, reply);
            assert_eq!(used, bytes.len());
        }
    }

    #[test]
    fn endless_lines_are_no_replies() {
        let bytes = vec![b'x'; LONGEST_LINE];
        for protocol in [Protocol::Memcached, Protocol::Redis] {
            assert!(protocol.decode(&bytes).is_err());
        }
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes: Vec<u8>) {
            for protocol in [Protocol::Memcached, Protocol::Redis] {
                if let Ok(Some((_, used))) = protocol.decode(&bytes) {
                    prop_assert!(used > 0 && used <= bytes.len());
                }
            }
        }

        #[test]
        fn near_replies_never_panic(
            head in prop::sample::select(vec!["VALUE k 0 ", "VALUE ", "$", "END", "-", "+OK", ":"]),
            tail in "[0-9a-f \\r\\n-]{0,12}", rest: Vec<u8>,
        ) {
            let bytes = [head.as_bytes(), tail.as_bytes(), &rest].concat();
            for protocol in [Protocol::Memcached, Protocol::Redis] {
                if let Ok(Some((_, used))) = protocol.decode(&bytes) {
                    prop_assert!(used > 0 && used <= bytes.len());
                }
            }
        }
    }
}
