//! System calls that read from and write to the very pages, and I/O that goes to them directly.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;

use super::{Random, Shared, line};
use crate::support::{Memory, PAGE};

/// Whole lines of 64 bytes: into a pipe and out of it, by `readv` into three pages, to a file and back.
pub fn through_pipes_and_files(shared: &Shared, memory: &Memory, worker: usize) {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to `ends`; the name is a string.
    let file = unsafe {
        shared.expect(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) == 0);
        libc::memfd_create(c"checker".as_ptr(), libc::MFD_CLOEXEC)
    };
    let [read, write] = ends;
    let mut random = Random::new(worker);
    let mut expected = vec![[0_u64; 8]; memory.pages];
    let at = |page: usize| (memory.page(page) + line(worker) * 8) as *mut libc::c_void;
    while shared.goes_on() {
        let page = random.below(memory.pages - 2);
        let mut lines = [[0_u64; 8]; 3];
        lines
            .iter_mut()
            .flatten()
            .for_each(|word| *word = random.next());
        // Out of the page: what was there.
        let mut found = [0_u64; 8];
        // SAFETY: lines of 64 bytes inside the memory, and locals of that size.
        unsafe {
            shared.expect(libc::write(write, at(page), 64) == 64);
            shared.expect(libc::read(read, found.as_mut_ptr().cast(), 64) == 64);
        }
        compare(shared, &found, &expected[page]);
        // Into three pages at once.
        let into = [page, page + 1, page + 2].map(|page| libc::iovec {
            iov_base: at(page),
            iov_len: 64,
        });
        // SAFETY: as above.
        unsafe {
            shared.expect(libc::write(write, lines.as_ptr().cast(), 192) == 192);
            shared.expect(libc::readv(read, into.as_ptr(), 3) == 192);
        }
        expected[page..page + 3].copy_from_slice(&lines);
        // To a file and into another page.
        let other = random.below(memory.pages);
        // SAFETY: as above.
        unsafe {
            shared.expect(libc::pwrite(file, at(page), 64, 0) == 64);
            shared.expect(libc::pread(file, at(other), 64, 0) == 64);
        }
        expected[other] = expected[page];
        shared.tally.calls.fetch_add(6, Relaxed);
    }
    for (page, expected) in expected.iter().enumerate() {
        let mut found = [0; 8];
        for (word, found) in found.iter_mut().enumerate() {
            *found = memory.word(page, line(worker) + word).load(Relaxed);
        }
        compare(shared, &found, expected);
    }
    // SAFETY: descriptors of our own.
    unsafe {
        libc::close(read);
        libc::close(write);
        libc::close(file);
    }
}

/// Whole pages written to and read from a file past the page cache: the device reaches them by their frames.
pub fn direct(shared: &Shared, memory: &Memory) {
    let path = std::env::temp_dir().join(format!("checker-direct-{}", std::process::id()));
    let opened = std::fs::File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .and_then(|file| {
            file.set_len((memory.pages * PAGE) as u64)?;
            // SAFETY: sets a flag of our own descriptor.
            let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) };
            if set == 0 {
                Ok(file)
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    let _ = std::fs::remove_file(&path);
    let Ok(file) = opened else { return };
    let mut random = Random::new(77);
    let mut in_file = vec![0_u64; memory.pages];
    let at = |page: usize| memory.page(page) as *mut libc::c_void;
    while shared.goes_on() {
        let (page, block) = (random.below(memory.pages), random.below(memory.pages));
        let seed = random.next();
        for word in 0..PAGE / 8 {
            memory
                .word(page, word)
                .store(seed.wrapping_add(word as u64), Relaxed);
        }
        let offset = i64::try_from(block * PAGE).unwrap_or(0);
        // SAFETY: whole pages of the memory.
        let written = unsafe { libc::pwrite(file.as_raw_fd(), at(page), PAGE, offset) };
        shared.expect(written == 4096);
        in_file[block] = seed;
        let (page, block) = (random.below(memory.pages), random.below(memory.pages));
        let offset = i64::try_from(block * PAGE).unwrap_or(0);
        // SAFETY: as above.
        let read = unsafe { libc::pread(file.as_raw_fd(), at(page), PAGE, offset) };
        shared.expect(read == 4096);
        for word in 0..PAGE / 8 {
            let expected = match in_file[block] {
                0 => 0,
                seed => seed.wrapping_add(word as u64),
            };
            shared.expect_word(memory.word(page, word).load(Relaxed), expected);
        }
        shared.tally.direct.fetch_add(2, Relaxed);
    }
}

fn compare(shared: &Shared, found: &[u64; 8], expected: &[u64; 8]) {
    for (found, expected) in found.iter().zip(expected) {
        shared.expect_word(*found, *expected);
    }
}
