use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use superhue_serve::Access;

use super::*;

const NOW: Duration = Duration::from_secs(100);

fn server() -> (tempfile::TempDir, PathBuf, Server) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ctl.sock");
    let access = Access {
        packets: false,
        mode: 0o660,
        group: None,
    };
    let server = Server::new(Listener::with(&path, access).unwrap()).unwrap();
    (folder, path, server)
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).unwrap();
    stream.set_write_timeout(patience).unwrap();
    stream
}

/// Party that gives one answer to everything, and holds nothing.
struct Says(String);

impl Answers for Says {
    fn answer(&mut self, _: Requester, _: Request) -> Answer {
        let text = self.0.clone();
        Answer::Done { text }
    }

    fn ended(&mut self, client: u64) {
        panic!("{client} had no lease");
    }
}

/// Steps until nothing happens any more.
fn settle(server: &mut Server, at: Duration) {
    for _ in 0..200 {
        server.step(at, &mut Says("done".to_owned()));
    }
}

fn read(stream: &mut UnixStream) -> String {
    let mut text = String::new();
    // A reset after the answer is an end, too.
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    text.push_str(&String::from_utf8(bytes).unwrap());
    text
}

#[test]
fn each_gets_one_answer_and_then_the_end() {
    let (_folder, path, mut server) = server();
    let mut stream = connect(&path);
    // In two parts, with more after the end of the line.
    stream.write_all(b"{\"version\":1,").unwrap();
    settle(&mut server, NOW);
    assert_eq!(server.0.count(), 1);
    stream
        .write_all(b"\"request\":\"status\"}\n{\"version\":1")
        .unwrap();
    settle(&mut server, NOW);
    let told = "{\"version\":1,\"answer\":\"done\",\"text\":\"done\"}\n";
    assert_eq!(read(&mut stream), told);
    // Without an end of the line.
    let mut stream = connect(&path);
    stream
        .write_all(b"{\"version\":1,\"request\":\"status\"}")
        .unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    settle(&mut server, NOW);
    assert_eq!(read(&mut stream), told);
    assert_eq!(
        (server.0.count(), server.0.requests, server.0.refused),
        (0, 2, 0)
    );
}

#[test]
fn nonsense_and_floods_are_refused() {
    let (_folder, path, mut server) = server();
    let mut stream = connect(&path);
    stream.write_all(&b"x".repeat(LONGEST_REQUEST * 4)).unwrap();
    settle(&mut server, NOW);
    assert!(read(&mut stream).contains("\"answer\":\"refused\""));
    let mut stream = connect(&path);
    stream.write_all(b"\n").unwrap();
    settle(&mut server, NOW);
    assert!(read(&mut stream).contains("this is no request"));
    drop(connect(&path));
    is_empty(&mut server);
}

/// Waits until the server has no client. The child of another test may have a client's socket open until it executes its program.
fn is_empty(server: &mut Server) {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    settle(server, NOW);
    while server.0.count() > 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
        settle(server, NOW);
    }
}

#[test]
fn the_slow_are_let_go_and_hold_nobody_up() {
    let (_folder, path, mut server) = server();
    let silent: Vec<UnixStream> = (0..LIMITS.of_one_user.unwrap())
        .map(|_| connect(&path))
        .collect();
    settle(&mut server, NOW);
    let mut quick = connect(&path);
    quick
        .write_all(b"{\"version\":1,\"request\":\"status\"}\n")
        .unwrap();
    settle(&mut server, NOW);
    let is_root = superhue_testing::is_root();
    let told = read(&mut quick);
    assert!(
        told.contains(if is_root {
            "\"done\""
        } else {
            "too many connections"
        }),
        "{told}"
    );
    assert_eq!(server.0.count(), LIMITS.of_one_user.unwrap());
    assert_eq!(server.due(), Some(NOW + LIMITS.patience));
    settle(&mut server, NOW + LIMITS.patience);
    assert_eq!((server.0.count(), server.due()), (0, None));
    drop(silent);
    // More connections than fit, even of root.
    let many: Vec<UnixStream> = (0..LIMITS.of_all + 10).map(|_| connect(&path)).collect();
    settle(&mut server, NOW);
    assert!(server.0.count() <= LIMITS.of_all);
    drop(many);
    is_empty(&mut server);
}

#[test]
fn who_does_not_fetch_his_answer_costs_one_answer() {
    let (_folder, path, mut server) = server();
    let mut stream = connect(&path);
    stream
        .write_all(b"{\"version\":1,\"request\":\"status\"}\n")
        .unwrap();
    let mut answer = Says("x".repeat(8 << 20));
    for _ in 0..10 {
        server.step(NOW, &mut answer);
    }
    assert_eq!(server.0.count(), 1, "more than the socket holds");
    // The client fetches it after all, bit by bit.
    let reader = std::thread::spawn(move || read(&mut stream).len());
    while server.0.count() > 0 {
        server.step(NOW, &mut answer);
    }
    assert!(reader.join().unwrap() > 8 << 20);
    assert_eq!(server.0.requests, 1);
}
