//! The service and the client library together, with made-up heat.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use superhue_client::protocol::{Answer, MAX_MESSAGE_BYTES, Packet, Request, Track};
use superhue_client::{ClientError, Page, Tracking};
use superhue_sys::seqpacket::{receive, send};
use superhue_testing::{ChildGuard, is_root, rerun, skip};
use superhue_track::Limits;

use crate::support::{Service, TEST_TIMEOUT, base, patient, until};

fn raw(service: &Service) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
    let address = SocketAddrUnix::new(&service.path).unwrap();
    connect(&socket, &address).unwrap();
    socket
}

/// Returns the next answer, or `None` at the end.
fn answer(socket: &OwnedFd) -> Option<Answer> {
    let mut buffer = [0; MAX_MESSAGE_BYTES];
    let mut bytes = None;
    until("the service answers", || {
        match receive(socket, &mut buffer) {
            Ok(received) => {
                bytes = Some(received.bytes);
                true
            }
            Err(Errno::AGAIN) => false,
            Err(_) => {
                bytes = Some(0);
                true
            }
        }
    });
    let bytes = bytes.filter(|&bytes| bytes > 0)?;
    Some(Answer::parse(&buffer[..bytes]).unwrap())
}

fn track(pid: u32) -> Packet {
    let track = Track {
        pid,
        signo: 0,
        threshold: 1,
        min_heat: 50,
    };
    Request::Track(track).packet()
}

fn errno_of(error: &ClientError) -> Errno {
    error.errno()
}

#[test]
fn a_process_learns_its_active_pages_hottest_first() {
    let service = Service::start();
    let mut pages = base(100, 5, 300);
    pages[3].heat = 900;
    pages.push(Page {
        heat: 10,
        ..base(200, 1, 10)[0]
    });
    service.set(pages.clone());
    let tracking = Tracking::enable(&service.options()).unwrap();
    let notice = tracking.wait(Some(TEST_TIMEOUT)).unwrap().unwrap();
    assert_eq!(notice.active, 5, "a page below min_heat was counted");
    let all = tracking.fetch_all().unwrap();
    assert_eq!(all.len(), 5);
    assert_eq!(all[0], pages[3]);
    assert!(all[1..].is_sorted_by_key(|page| page.address));
    // A buffer too small: it gets what fits, and the number of entries.
    let mut two = [Page::default(); 2];
    let fetched = tracking.fetch(&mut two).unwrap();
    assert_eq!((fetched.count, fetched.available), (2, 5));
    assert_eq!(two[..], all[..2]);
    // The same pages again are no news.
    let steps = service.script.lock().unwrap().steps;
    until("some samples passed", || {
        service.script.lock().unwrap().steps > steps + 20
    });
    assert_eq!(tracking.wait(Some(Duration::ZERO)).unwrap(), None);
    service.set(base(5000, 50, 500));
    assert_eq!(
        tracking.wait(Some(TEST_TIMEOUT)).unwrap().unwrap().active,
        50
    );
    assert_eq!(service.watched(), 1);
    drop(tracking);
    until("nobody is watched", || service.watched() == 0);
    let served = service.stop();
    assert_eq!((served.tracked, served.published), (1, 2));
}

#[test]
fn who_does_not_fetch_misses_lists_and_gets_the_newest() {
    let service = Service::start();
    service.set(base(0, 10, 100));
    let tracking = Tracking::enable(&service.options()).unwrap();
    assert!(tracking.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
    for round in 1..=5 {
        service.set(base(round * 1000, 10, 100));
        until("the list is replaced", || {
            tracking.statistics().unwrap().published == round + 1
        });
    }
    let told = tracking.statistics().unwrap();
    assert_eq!((told.published, told.superseded), (6, 5));
    // One notice was enough.
    assert_eq!(tracking.wait(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(tracking.fetch_all().unwrap(), base(5000, 10, 100));
    // From now on there are notices again.
    service.set(base(9000, 10, 100));
    assert!(tracking.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
}

#[test]
fn the_threshold_and_the_limit_hold() {
    let limits = Limits {
        max_pages: 8,
        ..patient()
    };
    let service = Service::with(limits);
    service.set(base(0, 10, 100));
    let options = superhue_client::TrackingOptions {
        threshold: 20,
        ..service.options()
    };
    let tracking = Tracking::enable(&options).unwrap();
    let steps = service.script.lock().unwrap().steps;
    until("some samples passed", || {
        service.script.lock().unwrap().steps > steps + 20
    });
    // A list below the threshold is there to be fetched, and brings no notice.
    let statistics = tracking.statistics().unwrap();
    assert_eq!((statistics.published, statistics.active), (1, 10));
    let soon = Some(Duration::from_millis(1));
    assert_eq!(tracking.wait(soon).unwrap(), None);
    service.set(base(0, 20, 100));
    assert_eq!(
        tracking.wait(Some(TEST_TIMEOUT)).unwrap().unwrap().active,
        20
    );
    assert_eq!(tracking.fetch_all().unwrap().len(), 8);
    assert_eq!(tracking.statistics().unwrap().cut, 12);
}

#[test]
fn a_set_that_falls_below_the_threshold_and_comes_back_brings_one_notice() {
    let service = Service::start();
    service.set(base(0, 30, 100));
    let options = superhue_client::TrackingOptions {
        threshold: 20,
        ..service.options()
    };
    let tracking = Tracking::enable(&options).unwrap();
    assert!(tracking.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
    let mut published = 1;
    let mut set = |first, pages| {
        service.set(base(first, pages, 100));
        published += 1;
        until("the list is replaced", || {
            tracking.statistics().unwrap().published == published
        });
    };
    for round in 1..=3 {
        set(round * 1000, 10);
        set(round * 1000, 30);
    }
    let soon = Some(Duration::from_millis(1));
    assert_eq!(tracking.wait(soon).unwrap(), None, "it has not fetched");
    assert_eq!(tracking.fetch_all().unwrap().len(), 30);
    set(9000, 10);
    assert_eq!(tracking.wait(soon).unwrap(), None, "too few");
    set(9000, 30);
    assert!(tracking.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
}

#[test]
fn garbage_ends_the_connection_that_sent_it_and_no_other() {
    let service = Service::start();
    service.set(base(0, 10, 100));
    let tracking = Tracking::enable(&service.options()).unwrap();
    let good = track(0);
    let fetched = Request::Fetched { serial: 1 }.packet();
    let confirm = Request::Confirm { nonce: 0 }.packet();
    let messages: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &good.bytes()[..good.bytes().len() - 1],
        &[0xff; 60_000],
        fetched.bytes(),
        confirm.bytes(),
        b"HPS1\x09\x00\x01\x00",
    ];
    for message in messages {
        let socket = raw(&service);
        send(&socket, message, None).unwrap();
        let Some(Answer::Refused(reason)) = answer(&socket) else {
            panic!("not refused: {message:?}");
        };
        assert_eq!(reason.errno, Errno::PROTO);
        assert_eq!(answer(&socket), None);
    }
    assert!(tracking.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
    tracking.fetch_all().unwrap();
}

#[test]
fn a_thousand_that_vanish_cost_nothing() {
    let service = Service::start();
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let tracking = Tracking::enable(&service.options()).unwrap();
    let before = descriptors();
    for round in 0..1000_u32 {
        let socket = raw(&service);
        match round % 4 {
            0 => {}
            1 => send(&socket, b"HPS1", None).unwrap(),
            2 => send(&socket, track(0).bytes(), None).unwrap(),
            // Vanishes after the challenge was read.
            _ => {
                send(&socket, track(0).bytes(), None).unwrap();
                let said = answer(&socket);
                let expected = matches!(said, Some(Answer::Challenge { .. } | Answer::Refused(_)));
                assert!(expected, "{said:?}");
            }
        }
    }
    service.set(base(0, 10, 100));
    assert!(tracking.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
    // Client and service are one process here: both sides' descriptors are counted. Other tests run
    // beside this one, hence the slack.
    until("descriptors are closed", || descriptors() < before + 100);
    drop(tracking);
    until("nobody is watched", || service.watched() == 0);
    assert_eq!(service.stop().connections, 1001);
}

#[test]
fn clients_are_limited_and_the_silent_are_let_go() {
    let limits = Limits {
        clients: 3,
        greeting: Duration::from_millis(100),
        ..Limits::default()
    };
    let service = Service::with(limits);
    // On a busy machine a client may get no CPU within the time of a greeting, and counts as silent.
    let enabled = || {
        let begun = Instant::now();
        loop {
            match Tracking::enable(&service.options()) {
                Err(error)
                    if errno_of(&error) == Errno::TIMEDOUT && begun.elapsed() < TEST_TIMEOUT => {}
                other => break other,
            }
        }
    };
    let tracking = enabled().unwrap();
    let silent: Vec<OwnedFd> = (0..2).map(|_| raw(&service)).collect();
    // On a slow machine the service may have ended the silent clients already.
    if let Err(error) = enabled() {
        assert_eq!(errno_of(&error), Errno::USERS, "{error}");
    }
    for socket in &silent {
        let Some(Answer::Refused(reason)) = answer(socket) else {
            panic!("a silent client was not let go");
        };
        assert_eq!(reason.errno, Errno::TIMEDOUT);
    }
    enabled().unwrap();
    // A tracked client may be silent.
    service.set(base(0, 10, 100));
    assert!(tracking.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
}

/// Starts a service with this limit on memory; half of it is for what the service keeps.
fn with_memory(memory: u64) -> Service {
    Service::with(Limits {
        memory,
        ..patient()
    })
}

fn reason_it_ended(tracking: &Tracking) -> (Errno, String) {
    let error = loop {
        match tracking.wait(Some(TEST_TIMEOUT)) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it was not let go"),
            Err(error) => break error,
        }
    };
    (errno_of(&error), error.to_string())
}

#[test]
fn memory_is_bounded_over_all_clients_and_the_largest_is_told() {
    let service = with_memory(2 << 20);
    service.set(base(0, 10, 100));
    let small = Tracking::enable(&service.options()).unwrap();
    assert!(small.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
    let me = std::process::id();
    service.script.lock().unwrap().held.insert(me, 2 << 20);
    let (errno, text) = reason_it_ended(&small);
    assert_eq!(errno, Errno::NOMEM, "{text}");
    assert!(text.contains("--max-memory"), "{text}");
    until("nobody is watched", || service.watched() == 0);

    // With room again, a client that enables tracking again is served.
    service.script.lock().unwrap().held.clear();
    let again = Tracking::enable(&service.options()).unwrap();
    assert!(again.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
}

#[test]
fn a_list_too_large_to_be_made_is_refused() {
    let service = with_memory(1 << 20);
    let tracking = Tracking::enable(&service.options()).unwrap();
    service.set(base(0, (1 << 20) / 2 / 48 + 1, 100));
    let (errno, text) = reason_it_ended(&tracking);
    assert_eq!(errno, Errno::NOMEM, "{text}");
    assert!(text.contains("active pages"), "{text}");
}

#[test]
fn another_process_cannot_answer_the_challenge() {
    let service = Service::start();
    let socket = raw(&service);
    send(&socket, track(0).bytes(), None).unwrap();
    let Some(Answer::Challenge { nonce }) = answer(&socket) else {
        panic!("no challenge");
    };
    // A child answers it, with the right number, on the inherited socket.
    let packet = Request::Confirm { nonce }.packet();
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::from(socket.try_clone().unwrap()))
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, packet.bytes()).unwrap();
    drop(input);
    child.wait().unwrap();
    let Some(Answer::Refused(reason)) = answer(&socket) else {
        panic!("a child answered for its parent");
    };
    assert_eq!(reason.errno, Errno::PERM, "{}", reason.text);
    assert_eq!(service.watched(), 0);
}

/// The client of the next test, in a process of its own: sends the request, then executes a program that
/// copies its input to the socket.
#[test]
fn client_that_executes() {
    let Some(path) = std::env::var_os("SUPERHUE_TEST_TRACK_SOCKET") else {
        return;
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    send(&socket, track(0).bytes(), None).unwrap();
    let Some(Answer::Challenge { nonce }) = answer(&socket) else {
        panic!("no challenge");
    };
    send(&socket, Request::Confirm { nonce }.packet().bytes(), None).unwrap();
    assert_eq!(answer(&socket), Some(Answer::Tracked));
    let error = Command::new("cat").stdout(Stdio::from(socket)).exec();
    panic!("{error}");
}

#[test]
fn who_has_executed_another_program_is_let_go_when_it_speaks() {
    let service = Service::start();
    service.script.lock().unwrap().still = true;
    let mut client = rerun(module_path!(), "client_that_executes");
    client
        .env("SUPERHUE_TEST_TRACK_SOCKET", &service.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut client = ChildGuard(client.spawn().unwrap());
    let name = format!("/proc/{}/comm", client.pid());
    until("the client has executed another program", || {
        fs::read_to_string(&name).is_ok_and(|name| name == "cat\n")
    });
    assert_eq!(service.watched(), 1);
    let fetched = Request::Fetched { serial: 0 }.packet();
    let input = client.0.stdin.as_mut().unwrap();
    std::io::Write::write_all(input, fetched.bytes()).unwrap();
    until("the service lets it go", || service.watched() == 0);
    assert!(client.0.try_wait().unwrap().is_none(), "it ended by itself");
}

#[test]
fn a_wrong_number_is_refused() {
    let service = Service::start();
    let socket = raw(&service);
    send(&socket, track(0).bytes(), None).unwrap();
    let Some(Answer::Challenge { nonce }) = answer(&socket) else {
        panic!("no challenge");
    };
    let wrong = Request::Confirm {
        nonce: nonce.wrapping_add(1),
    };
    send(&socket, wrong.packet().bytes(), None).unwrap();
    assert!(matches!(answer(&socket), Some(Answer::Refused(_))));
}

#[test]
fn users_may_ask_for_themselves_only_and_root_for_any() {
    if !is_root() {
        return skip("root", "another user's process needs one");
    }
    let service = Service::start();
    service.set(base(0, 10, 100));
    // As user `nobody`, in a thread of its own (credentials belong to threads): for process 1.
    let pid = std::process::id();
    let options = service.options();
    let asked = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let of = |pid| superhue_client::TrackingOptions {
            pid,
            ..options.clone()
        };
        let other = Tracking::enable(&of(Some(1)));
        let own = Tracking::enable(&of(Some(pid)));
        (other.map(drop), own.map(drop))
    })
    .join()
    .unwrap();
    let refused = asked.0.unwrap_err();
    assert_eq!(errno_of(&refused), Errno::PERM, "{refused}");
    assert!(refused.to_string().contains("root may"), "{refused}");
    asked.1.unwrap();
    let mut child = ChildGuard::sleeper();
    // Its image is final only after its loader has run.
    until("the child sleeps", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.pid())).unwrap();
        stat.contains("(sleep) S ")
    });
    let of_child = superhue_client::TrackingOptions {
        pid: Some(child.pid()),
        ..service.options()
    };
    let tracking = Tracking::enable(&of_child).unwrap();
    assert!(!tracking.is_of_caller());
    assert!(tracking.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
    tracking.fetch_all().unwrap();
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let error = tracking.wait(Some(TEST_TIMEOUT)).unwrap_err();
    assert_eq!(errno_of(&error), Errno::SRCH, "{error}");
    let kernel = superhue_client::TrackingOptions {
        pid: Some(2),
        ..service.options()
    };
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        let error = Tracking::enable(&kernel).unwrap_err();
        assert!(error.to_string().contains("kernel thread"), "{error}");
    }
    let absent = superhue_client::TrackingOptions {
        pid: Some(child.pid()),
        ..service.options()
    };
    assert_eq!(
        errno_of(&Tracking::enable(&absent).unwrap_err()),
        Errno::SRCH
    );
}

#[test]
fn what_the_tracker_says_reaches_the_client() {
    let service = Service::start();
    let tracking = Tracking::enable(&service.options()).unwrap();
    service.lose(
        std::process::id(),
        Errno::OPNOTSUPP,
        "no tracker here: do this",
    );
    let error = tracking.wait(Some(TEST_TIMEOUT)).unwrap_err();
    assert_eq!(errno_of(&error), Errno::OPNOTSUPP);
    assert_eq!(error.to_string(), "no tracker here: do this");
    // A second call returns the same error.
    assert_eq!(tracking.wait(Some(TEST_TIMEOUT)).unwrap_err(), error);
    let fetched = tracking.fetch(&mut []).unwrap_err();
    assert_eq!(fetched, ClientError::ServiceGone);
}

#[test]
fn a_stopped_service_is_reported_and_its_successor_serves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("track.sock");
    let service = Service::at(&path, patient());
    let options = service.options();
    let tracking = Tracking::enable(&options).unwrap();
    service.stop();
    assert!(!path.exists());
    let error = tracking.wait(Some(TEST_TIMEOUT)).unwrap_err();
    assert_eq!(errno_of(&error), Errno::PIPE, "{error}");
    assert_eq!(errno_of(&tracking.fetch(&mut []).unwrap_err()), Errno::PIPE);
    let error = Tracking::enable(&options).unwrap_err();
    assert_eq!(errno_of(&error), Errno::NOENT);
    assert!(error.to_string().contains("superhue track"), "{error}");
    let heir = Service::at(&path, patient());
    heir.set(base(0, 10, 100));
    let tracking = Tracking::enable(&options).unwrap();
    assert!(tracking.wait(Some(TEST_TIMEOUT)).unwrap().is_some());
}

#[test]
fn disabling_wakes_those_who_wait() {
    let service = Service::start();
    let tracking = Tracking::enable(&service.options()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| tracking.wait(None));
        tracking.disable();
        assert_eq!(waiting.join().unwrap(), Err(ClientError::Disabled));
    });
    until("nobody is watched", || service.watched() == 0);
}
