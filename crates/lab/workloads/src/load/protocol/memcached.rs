//! The text protocol of memcached: `get` and `set`.
//!
//! ```text
//!   get KEY KEY ...\r\n                   VALUE KEY FLAGS LENGTH\r\n DATA \r\n   for each key that it has
//!                                         END\r\n
//!   set KEY FLAGS EXPIRY LENGTH [noreply]\r\n DATA \r\n
//!                                         STORED\r\n, nothing with noreply
//!   anything                             ERROR\r\n, CLIENT_ERROR why\r\n, SERVER_ERROR why\r\n
//! ```

use super::{DecodeResult, ProtocolError, Reply, block, length, line};

pub(super) fn get<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"get");
    for key in keys {
        out.push(b' ');
        out.extend_from_slice(key.as_ref());
    }
    out.extend_from_slice(b"\r\n");
}

pub(super) fn set(
    key: &[u8],
    len: usize,
    write_value: impl FnOnce(&mut Vec<u8>),
    confirm: bool,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"set ");
    out.extend_from_slice(key);
    let quiet = if confirm { "" } else { " noreply" };
    out.extend_from_slice(format!(" 0 0 {len}{quiet}\r\n").as_bytes());
    write_value(out);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn decode(bytes: &[u8]) -> DecodeResult<'_> {
    let wrong = |what| ProtocolError::new("the memcached text protocol", what, bytes);
    let Some((first, used)) = line(bytes).map_err(wrong)? else {
        return Ok(None);
    };
    let reply = match first {
        b"END" => Reply::End,
        b"STORED" => Reply::Stored,
        b"ERROR" | b"NOT_STORED" | b"BUSY" => Reply::Error(String::from_utf8_lossy(first)),
        _ if first.starts_with(b"CLIENT_ERROR ") || first.starts_with(b"SERVER_ERROR ") => {
            Reply::Error(String::from_utf8_lossy(first))
        }
        _ => {
            let header = first.strip_prefix(b"VALUE ").ok_or("an unknown reply");
            let (key, len) = header.and_then(value_header).map_err(wrong)?;
            let Some(data) = block(&bytes[used..], len).map_err(wrong)? else {
                return Ok(None);
            };
            let value = Reply::Value {
                key: Some(key),
                data,
            };
            return Ok(Some((value, used + len + 2)));
        }
    };
    Ok(Some((reply, used)))
}

/// Key and length of `KEY FLAGS LENGTH`.
fn value_header(header: &[u8]) -> Result<(&[u8], usize), &'static str> {
    let mut words = header.split(|byte| *byte == b' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(key), Some(_flags), Some(digits), None) => Ok((key, length(digits)?)),
        _ => Err("a VALUE line that is none"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Protocol;
    use super::super::tests::check;
    use super::*;

    #[test]
    fn requests_are_as_specified() {
        let mut out = Vec::new();
        get(["a"], &mut out);
        get(["a", "bc"], &mut out);
        let value = |out: &mut Vec<u8>| out.extend_from_slice(b"x\r\n");
        set(b"b", 3, value, true, &mut out);
        set(b"c", 3, value, false, &mut out);
        let sets = b"set b 0 0 3\r\nx\r\n\r\nset c 0 0 3 noreply\r\nx\r\n\r\n";
        assert_eq!(out, [&b"get a\r\nget a bc\r\n"[..], sets].concat());
    }

    #[test]
    fn replies_are_understood() {
        let protocol = Protocol::Memcached;
        let value = |data| Reply::Value {
            key: Some(b"k"),
            data,
        };
        check(protocol, b"VALUE k 0 5\r\nE\r\nND\r\n", &value(b"E\r\nND"));
        check(protocol, b"VALUE k 0 0\r\n\r\n", &value(b""));
        check(protocol, b"END\r\n", &Reply::End);
        check(protocol, b"STORED\r\n", &Reply::Stored);
        for text in [
            "ERROR",
            "SERVER_ERROR out of memory storing object",
            "CLIENT_ERROR bad data chunk",
        ] {
            let bytes = format!("{text}\r\n");
            check(protocol, bytes.as_bytes(), &Reply::Error(text.into()));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [
            &b"+OK\r\n"[..],
            b"\r\n",
            b"VALUE k 0\r\n",
            b"VALUE k 0 -1\r\n",
            b"VALUE k 0 +1\r\n",
            b"VALUE k 0 99999999999999999999\r\n",
            b"VALUE k 0 1 2 3\r\n",
            b"VALUE k 0 2\r\nabc",
            b"VALUE k 0 2\r\nab\r_",
        ] {
            assert!(decode(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
