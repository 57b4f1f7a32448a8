//! Faults are answered with pages of the colors wanted.

mod support;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::event::Timespec;
use superhue_color::act::{FaultServer, Refusal, Served};
use superhue_model::PageCount;
use support::{FakeOracle, Memory, PAGE, mappings, pool, walk};

const COLORS: usize = 8;
const MOMENT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

fn server(strict: bool) -> Option<FaultServer> {
    FaultServer::new(strict)
        .inspect_err(|errno| superhue_testing::skip("uffd-full", &errno.to_string()))
        .ok()
}

/// Serves while `touch` runs in another thread.
fn serve(
    server: &mut FaultServer,
    limit: usize,
    set: &str,
    touch: impl FnOnce() + Send,
    mut each: impl FnMut(&mut FaultServer, &Served),
) -> Served {
    let mut pool = pool(limit.min(256), limit, COLORS);
    let mut oracle = FakeOracle::new(COLORS);
    let mut walk = walk(set, COLORS);
    let mut all = Served::default();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            touch();
            over.store(true, Relaxed);
        });
        while !over.load(Relaxed) {
            let served = server
                .serve(&mut pool, &mut walk, &mut oracle, Some(MOMENT))
                .unwrap();
            each(server, &served);
            all.pages.add(&served.pages);
            all.waiting.extend(served.waiting);
        }
    });
    all
}

#[test]
fn threads_and_system_calls_get_the_colors_in_turn() {
    let Some(mut server) = server(false) else {
        return;
    };
    let memory = Memory::new(64);
    let before = mappings(memory.range());
    server.register(memory.range()).unwrap();
    assert!(server.as_fd().try_clone_to_owned().is_ok());
    let touch = || {
        for page in 0..32 {
            assert_eq!(memory.word(page, 1).fetch_add(1, Relaxed), 0);
        }
        // The kernel's own faults.
        let file = std::fs::File::open("/dev/zero").unwrap();
        use std::os::fd::AsRawFd;
        // SAFETY: the second half of the test's own memory.
        let read = unsafe { libc::read(file.as_raw_fd(), memory.page(32) as *mut _, 32 * PAGE) };
        assert_eq!(read, 32 * 4096);
    };
    let served = serve(&mut server, 16384, "spread", touch, |_, _| {});
    assert_eq!(served.pages.placed, PageCount(64));
    assert!(served.pages.refused.is_empty(), "{served:?}");
    server.unregister(memory.range()).unwrap();
    assert_eq!(mappings(memory.range()), before);
    let oracle = FakeOracle::new(COLORS);
    if oracle.frame(memory.page(0)).is_some() {
        for page in 0..64 {
            let color = usize::from(oracle.color(memory.page(page)).0);
            assert_eq!(color, page % COLORS, "page {page}");
        }
    }
}

#[test]
fn without_a_page_the_kernels_zeroes_do() {
    let Some(mut server) = server(false) else {
        return;
    };
    let memory = Memory::new(16);
    server.register(memory.range()).unwrap();
    let touch = || {
        for page in 0..16 {
            assert_eq!(memory.word(page, 9).fetch_add(7, Relaxed), 0);
        }
    };
    let served = serve(&mut server, 0, "spread", touch, |_, _| {});
    assert_eq!(
        served.pages.refused.get(&Refusal::NoPage),
        Some(&PageCount(16))
    );
    assert_eq!(served.pages.placed, PageCount(0));
}

#[test]
fn strictly_the_caller_is_told_before_the_thread_goes_on() {
    let Some(mut server) = server(true) else {
        return;
    };
    let memory = Memory::new(4);
    server.register(memory.range()).unwrap();
    let touched = AtomicBool::new(false);
    let touch = || {
        memory.word(2, 0).store(1, Relaxed);
        touched.store(true, Relaxed);
    };
    let mut told = 0;
    serve(&mut server, 0, "0", touch, |server, served| {
        for page in &served.waiting {
            assert!(!touched.load(Relaxed));
            assert_eq!(*page, memory.part(2, 3).start);
            told += 1;
            server.answer_any(*page);
        }
    });
    assert_eq!(told, 1);
}

#[test]
fn dropping_lets_everybody_go() {
    let Some(mut server) = server(true) else {
        return;
    };
    let memory = Memory::new(4);
    server.register(memory.range()).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| memory.word(1, 0).load(Relaxed));
        // Whether it waits already does not matter: it never would be answered.
        std::thread::yield_now();
        drop(server);
        assert_eq!(waits.join().unwrap(), 0);
    });
}
