//! A key-value server in this process that speaks both protocols and misbehaves on request.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use superhue_workloads::load::protocol::Protocol;

/// Misbehaviour of the server; none by default.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServerFaults {
    /// Send replies in pieces of at most this many bytes (0: whole).
    pub(crate) fragment: usize,
    /// Answer with an error each time this many requests have come (0: never).
    pub(crate) error_every: u64,
    /// Forget an item each time this many have been stored (0: never).
    pub(crate) forget_every: u64,
    /// Change a byte of the value each time this many reads have come (0: never).
    pub(crate) corrupt_every: u64,
    /// Hang up after this many requests (0: never).
    pub(crate) hang_up_after: u64,
    /// Answer with bytes that are no reply.
    pub(crate) babble: bool,
    /// Answer everything twice.
    pub(crate) repeat: bool,
}

/// Counts of the server.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) sets: AtomicU64,
}

type Store = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

enum Request {
    Get(Vec<Vec<u8>>),
    /// Key, value, and true if success is to be confirmed.
    Set(Vec<u8>, Vec<u8>, bool),
}

/// Starts a server on a port of the kernel's choice; it serves until the test process ends.
pub(crate) fn start(protocol: Protocol, manners: ServerFaults) -> (SocketAddr, Arc<Counts>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let counts = Arc::new(Counts::default());
    let store = Store::default();
    let shared = Arc::clone(&counts);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (counts, store) = (Arc::clone(&shared), Arc::clone(&store));
            thread::spawn(move || serve(stream.unwrap(), protocol, manners, &counts, &store));
        }
    });
    (address, counts)
}

fn serve(
    mut stream: TcpStream,
    protocol: Protocol,
    manners: ServerFaults,
    counts: &Counts,
    store: &Store,
) {
    stream.set_nodelay(true).unwrap();
    let (mut inbox, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        while let Some((request, used)) = parse(protocol, &inbox) {
            inbox.drain(..used);
            let nth = counts.requests.fetch_add(1, Relaxed) + 1;
            if manners.hang_up_after > 0 && nth > manners.hang_up_after {
                return;
            }
            let mut reply = if manners.babble {
                b"HTTP/1.1 400 Bad Request\r\n".to_vec()
            } else if every(manners.error_every, nth) {
                error(protocol)
            } else {
                answer(request, protocol, manners, counts, store)
            };
            if manners.repeat {
                reply = reply.repeat(2);
            }
            let size = if manners.fragment == 0 {
                reply.len().max(1)
            } else {
                manners.fragment
            };
            for piece in reply.chunks(size) {
                // The client may have given up; that is no error of the server.
                if stream.write_all(piece).is_err() {
                    return;
                }
            }
        }
        match stream.read(&mut chunk) {
            Ok(read) if read > 0 => inbox.extend_from_slice(&chunk[..read]),
            _ => return,
        }
    }
}

fn every(interval: u64, nth: u64) -> bool {
    interval > 0 && nth.is_multiple_of(interval)
}

fn answer(
    request: Request,
    protocol: Protocol,
    manners: ServerFaults,
    counts: &Counts,
    store: &Store,
) -> Vec<u8> {
    match request {
        Request::Set(key, value, confirm) => {
            let nth = counts.sets.fetch_add(1, Relaxed) + 1;
            if !every(manners.forget_every, nth) {
                store.lock().unwrap().insert(key, value);
            }
            match protocol {
                _ if !confirm => Vec::new(),
                Protocol::Memcached => b"STORED\r\n".to_vec(),
                Protocol::Redis => b"+OK\r\n".to_vec(),
            }
        }
        Request::Get(keys) => {
            let mut reply = Vec::new();
            for key in keys {
                let nth = counts.gets.fetch_add(1, Relaxed) + 1;
                let mut value = store.lock().unwrap().get(&key).cloned();
                if let Some(value) = &mut value
                    && every(manners.corrupt_every, nth)
                {
                    let middle = value.len() / 2;
                    value[middle] ^= 0x20;
                }
                reply.append(&mut found(protocol, &key, value));
            }
            if protocol == Protocol::Memcached {
                reply.extend_from_slice(b"END\r\n");
            }
            reply
        }
    }
}

fn found(protocol: Protocol, key: &[u8], value: Option<Vec<u8>>) -> Vec<u8> {
    match (protocol, value) {
        (Protocol::Memcached, Some(value)) => {
            let head = format!("VALUE {} 0 {}\r\n", key.escape_ascii(), value.len());
            [head.as_bytes(), &value, b"\r\n"].concat()
        }
        (Protocol::Memcached, None) => Vec::new(),
        (Protocol::Redis, Some(value)) => {
            let head = format!("${}\r\n", value.len());
            [head.as_bytes(), &value, b"\r\n"].concat()
        }
        (Protocol::Redis, None) => b"$-1\r\n".to_vec(),
    }
}

fn error(protocol: Protocol) -> Vec<u8> {
    match protocol {
        Protocol::Memcached => b"SERVER_ERROR out of memory storing object\r\n".to_vec(),
        Protocol::Redis => b"-OOM command not allowed\r\n".to_vec(),
    }
}

/// Reads the first request of `bytes` and its length; `None` until it is complete. Panics on malformed bytes: the
/// client must not send any.
fn parse(protocol: Protocol, bytes: &[u8]) -> Option<(Request, usize)> {
    let mut at = 0;
    let line = |at: &mut usize| {
        let end = bytes[*at..].windows(2).position(|pair| pair == b"\r\n")?;
        let text = std::str::from_utf8(&bytes[*at..*at + end]).unwrap();
        *at += end + 2;
        Some(text)
    };
    let data = |at: &mut usize, len: usize| {
        let data = bytes.get(*at..*at + len + 2)?;
        assert_eq!(&data[len..], b"\r\n");
        *at += len + 2;
        Some(data[..len].to_vec())
    };
    let request = match protocol {
        Protocol::Memcached => {
            let words: Vec<_> = line(&mut at)?.split(' ').collect();
            match words[..] {
                ["get", ref keys @ ..] => {
                    Request::Get(keys.iter().map(|key| key.as_bytes().to_vec()).collect())
                }
                ["set", key, "0", "0", len, ref quiet @ ..] => {
                    let confirm = match quiet {
                        [] => true,
                        ["noreply"] => false,
                        _ => panic!("{words:?}"),
                    };
                    Request::Set(key.into(), data(&mut at, len.parse().unwrap())?, confirm)
                }
                _ => panic!("{words:?}"),
            }
        }
        Protocol::Redis => {
            let count: usize = line(&mut at)?.strip_prefix('*').unwrap().parse().unwrap();
            let mut parts = Vec::new();
            for _ in 0..count {
                let len = line(&mut at)?.strip_prefix('$').unwrap().parse().unwrap();
                parts.push(data(&mut at, len)?);
            }
            match (&parts[..], parts[0].as_slice()) {
                ([_, key], b"GET") => Request::Get(vec![key.clone()]),
                ([_, key, value], b"SET") => Request::Set(key.clone(), value.clone(), true),
                _ => panic!("{parts:?}"),
            }
        }
    };
    Some((request, at))
}
