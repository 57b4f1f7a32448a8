//! RESP2, the protocol of Redis: `GET` and `SET`.
//!
//! ```text
//!   *2\r\n $3\r\nGET\r\n $LEN\r\nKEY\r\n                    $LEN\r\nDATA\r\n   or   $-1\r\n
//!   *3\r\n $3\r\nSET\r\n $LEN\r\nKEY\r\n $LEN\r\nDATA\r\n   +OK\r\n
//!   anything                                                -ERR why\r\n
//! ```

use super::{DecodeResult, ProtocolError, Reply, block, length, line};

pub(super) fn get(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
    bulk(key.len(), |out| out.extend_from_slice(key), out);
}

pub(super) fn set(
    key: &[u8],
    len: usize,
    write_value: impl FnOnce(&mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
    bulk(key.len(), |out| out.extend_from_slice(key), out);
    bulk(len, write_value, out);
}

fn bulk(len: usize, write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(format!("${len}\r\n").as_bytes());
    write(out);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn decode(bytes: &[u8]) -> DecodeResult<'_> {
    let wrong = |what| ProtocolError::new("RESP", what, bytes);
    let Some((first, used)) = line(bytes).map_err(wrong)? else {
        return Ok(None);
    };
    let reply = match first {
        b"+OK" => Reply::Stored,
        b"$-1" => Reply::Missing,
        [b'-', why @ ..] => Reply::Error(String::from_utf8_lossy(why)),
        [b'$', digits @ ..] => {
            let len = length(digits).map_err(wrong)?;
            let Some(data) = block(&bytes[used..], len).map_err(wrong)? else {
                return Ok(None);
            };
            let value = Reply::Value { key: None, data };
            return Ok(Some((value, used + len + 2)));
        }
        _ => return Err(wrong("an unknown reply")),
    };
    Ok(Some((reply, used)))
}

#[cfg(test)]
mod tests {
    use super::super::Protocol;
    use super::super::tests::check;
    use super::*;

    #[test]
    fn requests_are_as_specified() {
        let mut out = Vec::new();
        get(b"a", &mut out);
        set(b"bc", 3, |out| out.extend_from_slice(b"x\r\n"), &mut out);
        assert_eq!(
            out,
            b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$3\r\nSET\r\n$2\r\nbc\r\n$3\r\nx\r\n\r\n"
        );
    }

    #[test]
    fn replies_are_understood() {
        let protocol = Protocol::Redis;
        let value = |data| Reply::Value { key: None, data };
        check(protocol, b"$5\r\na\r\nbc\r\n", &value(b"a\r\nbc"));
        check(protocol, b"$0\r\n\r\n", &value(b""));
        check(protocol, b"$-1\r\n", &Reply::Missing);
        check(protocol, b"+OK\r\n", &Reply::Stored);
        let why = "OOM command not allowed when used memory > 'maxmemory'.";
        check(
            protocol,
            format!("-{why}\r\n").as_bytes(),
            &Reply::Error(why.into()),
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [
            &b"END\r\n"[..],
            b"\r\n",
            b"$\r\n",
            b"$-2\r\n",
            b"$+1\r\n",
            b"$99999999999999999999\r\n",
            b"$2\r\nabc",
            b":1\r\n",
        ] {
            assert!(decode(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
