use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::*;

const NOW: Duration = Duration::from_secs(100);

/// Returns a port that was free a moment ago.
fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Makes an endpoint at a port of its own.
fn endpoint() -> (SocketAddr, Endpoint) {
    loop {
        let port = free();
        let mut endpoint = Endpoint::default();
        endpoint.follow(Some(MetricsAddress::Port(port)), NOW);
        if endpoint.account().error.is_none() {
            return (port, endpoint);
        }
    }
}

fn connect(port: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(port).unwrap();
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).unwrap();
    stream.set_write_timeout(patience).unwrap();
    stream
}

/// Steps until nothing happens any more; never rests, since time stands still.
fn settle(endpoint: &mut Endpoint, at: Duration, page: &str) {
    for _ in 0..100 {
        endpoint.rests_until = Duration::ZERO;
        endpoint.step(at, &mut |format| format!("{format:?} {page}\n").into());
    }
}

/// Returns the text that a client receives while the endpoint is served.
fn heard(endpoint: &mut Endpoint, mut stream: TcpStream, page: &str) -> String {
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8(bytes).unwrap()
    });
    while !reader.is_finished() {
        settle(endpoint, NOW, page);
        std::thread::yield_now();
    }
    reader.join().unwrap()
}

fn ask(endpoint: &mut Endpoint, port: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(port);
    stream.write_all(request).unwrap();
    heard(endpoint, stream, "page")
}

#[test]
fn a_request_gets_a_page_and_the_end() {
    let (port, mut endpoint) = endpoint();
    let told = ask(
        &mut endpoint,
        port,
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
    assert!(told.contains("Content-Type: text/plain; version=0.0.4"));
    assert!(told.contains("Content-Length: 11\r\n") && told.contains("Connection: close\r\n"));
    assert!(told.ends_with("\r\n\r\nPlain page\n"), "{told}");
    let openmetrics = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    let told = ask(&mut endpoint, port, openmetrics);
    assert!(told.ends_with("OpenMetrics page\n"), "{told}");
    let told = ask(&mut endpoint, port, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(told.contains("Content-Length: 11\r\n") && told.ends_with("\r\n\r\n"));
    for (request, status) in [
        (
            &b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody"[..],
            "405",
        ),
        (b"GET /other HTTP/1.1\r\n\r\n", "404"),
        (b"GET / HTTP/1.1\r\n\r\n", "200"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", "400"),
    ] {
        let told = ask(&mut endpoint, port, request);
        assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{told}");
    }
    let account = endpoint.account();
    assert_eq!((account.requests, account.requests_refused), (7, 3));
}

/// A client that the kernel drops tries again a second later, then three, then seven.
#[test]
fn many_may_come_at_once_and_none_is_dropped() {
    let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let allowed: usize = allowed.trim().parse().unwrap();
    let (port, mut endpoint) = endpoint();
    let patience = Duration::from_secs(60);
    // Nothing is accepted meanwhile, so a connection beyond the queue would wait until its timeout.
    let waiting: Vec<TcpStream> = (0..allowed.min(400))
        .map(|_| TcpStream::connect_timeout(&port, patience).unwrap())
        .collect();
    drop(waiting);
    let told = ask(&mut endpoint, port, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
}

#[test]
fn pipelined_requests_get_the_first_answer_only() {
    let (port, mut endpoint) = endpoint();
    let many = b"GET /metrics HTTP/1.1\r\n\r\n".repeat(50);
    let told = ask(&mut endpoint, port, &many);
    assert_eq!(told.matches("HTTP/1.1 200").count(), 1, "{told}");
    assert_eq!(endpoint.account().requests, 1);
}

#[test]
fn a_request_that_is_too_long_is_told_so_and_not_read_for_ever() {
    let (port, mut endpoint) = endpoint();
    // Longer than a head may be; shorter than what is read and discarded.
    let long = format!(
        "GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    let told = ask(&mut endpoint, port, long.as_bytes());
    assert!(told.starts_with("HTTP/1.1 431 "), "{told}");
    // 10 MB: the connection ends before the client has sent all.
    let mut stream = connect(port);
    let flood = std::thread::spawn(move || {
        let mut sent = stream.write(b"GET /metrics HTTP/1.1\r\nA: ").unwrap();
        while sent < 10_000_000 {
            match stream.write(&[b'x'; 65_536]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
        stream.read_to_end(&mut Vec::new()).is_ok()
    });
    while !flood.is_finished() {
        settle(&mut endpoint, NOW, "page");
        std::thread::yield_now();
    }
    flood.join().unwrap();
    // The child of another test may have a client's socket open until it executes its program.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    settle(&mut endpoint, NOW, "page");
    while endpoint.clients.as_ref().unwrap().count() > 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
        settle(&mut endpoint, NOW, "page");
    }
    assert_eq!(endpoint.account().requests_refused, 2);
}

#[test]
fn a_thousand_silent_clients_keep_nobody_out() {
    let (port, mut endpoint) = endpoint();
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.extend((0..100).map(|_| connect(port)));
        settle(&mut endpoint, NOW, "page");
        assert!(endpoint.clients.as_ref().unwrap().count() <= LIMITS.of_all);
        let told = ask(&mut endpoint, port, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(told.ends_with("Plain page\n"), "{told}");
    }
    settle(&mut endpoint, NOW + LIMITS.patience, "page");
    assert_eq!(endpoint.clients.as_ref().unwrap().count(), 0);
    assert_eq!(endpoint.account().requests, 10);
    drop(silent);
}

#[test]
fn who_asks_byte_by_byte_has_so_long_and_no_longer() {
    let (port, mut endpoint) = endpoint();
    let mut slow = connect(port);
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    for byte in request {
        slow.write_all(&[*byte]).unwrap();
        settle(&mut endpoint, NOW, "page");
    }
    assert!(heard(&mut endpoint, slow, "page").ends_with("Plain page\n"));
    let mut slower = connect(port);
    slower.write_all(b"GET /met").unwrap();
    settle(&mut endpoint, NOW, "page");
    assert_eq!(endpoint.due(), Some(NOW + LIMITS.patience));
    settle(&mut endpoint, NOW + LIMITS.patience, "page");
    assert_eq!(slower.read(&mut [0; 1]).unwrap(), 0, "it was let go");
    assert_eq!(endpoint.due(), None);
}

#[test]
fn who_does_not_fetch_his_page_holds_no_copy_of_it() {
    let (port, mut endpoint) = endpoint();
    let page: Arc<str> = "x".repeat(32 << 20).into();
    let idle: Vec<TcpStream> = (0..5)
        .map(|_| {
            let mut stream = connect(port);
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    while Arc::strong_count(&page) < 6 {
        endpoint.rests_until = Duration::ZERO;
        endpoint.step(NOW, &mut |_| page.clone());
    }
    endpoint.step(NOW + LIMITS.patience, &mut |_| page.clone());
    assert_eq!(Arc::strong_count(&page), 1);
    drop(idle);
}

#[test]
fn a_taken_port_is_tried_again_and_another_address_followed() {
    let squatter = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = squatter.local_addr().unwrap();
    let mut endpoint = Endpoint::default();
    endpoint.follow(Some(MetricsAddress::Port(port)), NOW);
    let error = endpoint.account().error.unwrap();
    assert!(error.contains("another program listens there"), "{error}");
    assert_eq!(endpoint.due(), Some(NOW + AFTER_FAILURE));
    assert!(endpoint.descriptor(NOW).is_none());
    drop(squatter);
    let mut later = NOW;
    // Another program may take the port meanwhile, for a moment.
    while endpoint.account().error.is_some() {
        later += AFTER_FAILURE;
        settle(&mut endpoint, later, "page");
    }
    let told = ask(&mut endpoint, port, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(told.contains("200 OK"), "{told}");
    // To a path, and to nowhere.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    endpoint.follow(Some(MetricsAddress::Socket(path.clone())), NOW);
    assert!(over_a_path(&mut endpoint, &path).ends_with("Plain page\n"));
    assert_eq!(endpoint.account().requests, 2, "counts go on");
    endpoint.follow(None, NOW);
    assert!(!path.exists() && endpoint.due().is_none());
}

fn over_a_path(endpoint: &mut Endpoint, path: &Path) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    settle(endpoint, NOW, "page");
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    told
}

#[test]
fn a_path_that_is_somebody_elses_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    std::fs::write(&path, "precious").unwrap();
    let mut endpoint = Endpoint::default();
    endpoint.follow(Some(MetricsAddress::Socket(path.clone())), NOW);
    let error = endpoint.account().error.unwrap();
    assert!(error.contains("is no socket"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    settle(&mut endpoint, NOW + AFTER_FAILURE, "page");
    assert!(over_a_path(&mut endpoint, &path).contains("200 OK"));
}

#[test]
fn work_is_followed_by_a_rest() {
    let (port, mut endpoint) = endpoint();
    let mut stream = connect(port);
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut asked = false;
    while !asked {
        // A step that finds no connection yet, and is held up, is followed by a rest, too.
        endpoint.rests_until = Duration::ZERO;
        endpoint.step(NOW, &mut |_| {
            asked = true;
            std::thread::sleep(Duration::from_millis(2));
            "page".into()
        });
    }
    let rest = endpoint.rests_until;
    assert!(rest >= NOW + Duration::from_millis(18), "{rest:?}");
    assert_eq!(endpoint.due(), Some(rest));
    assert!(endpoint.descriptor(NOW).is_none() && endpoint.descriptor(rest).is_some());
    endpoint.step(rest, &mut |_| "page".into());
}
