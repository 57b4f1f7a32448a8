//! The file that this process runs: `dl_iterate_phdr(3)`, `madvise(2)` with `MADV_DONTNEED`.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::unix::fs::FileExt;

use superhue_model::{BASE_PAGE_SIZE, VirtAddr, VirtRange};

use crate::pagemap::{WORD_FILE, WORD_PRESENT, WORD_SWAPPED};

/// Unmaps the program's code and constants.
///
/// A service runs most of its code once, while it starts. The kernel maps a page again, from the file, when the
/// program uses it; the others belong to the page cache alone. A segment that the program may write stays mapped, and
/// so does one with a private page (a breakpoint of a debugger, a probe of `perf`), or if `/proc/self/pagemap` cannot
/// be read. A breakpoint that is set between that look and the call is lost.
pub fn unmap_code() {
    let mut segments = Vec::new();
    // SAFETY: the callback gets the vector that it expects, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(of_program), (&raw mut segments).cast()) };
    for segment in segments {
        if has_file_pages_only(segment).unwrap_or(false) {
            unmap(segment);
        }
    }
}

/// Collects the read-only segments of the first object, the program, and ends the iteration.
///
/// # Safety
/// `segments` is a `Vec<VirtRange>`, and `info` is what the C library passes.
unsafe extern "C" fn of_program(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    segments: *mut c_void,
) -> c_int {
    // SAFETY: as the caller promises.
    let (info, segments) = unsafe { (&*info, &mut *segments.cast::<Vec<VirtRange>>()) };
    // SAFETY: the C library counted them.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers {
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            let start = info.dlpi_addr + header.p_vaddr;
            segments.push(VirtRange {
                start: VirtAddr(start / BASE_PAGE_SIZE * BASE_PAGE_SIZE),
                end: VirtAddr((start + header.p_memsz).next_multiple_of(BASE_PAGE_SIZE)),
            });
        }
    }
    1
}

/// Returns true if every page of `segment` that is in memory is the file's.
fn has_file_pages_only(segment: VirtRange) -> std::io::Result<bool> {
    let mut words = vec![0; usize::try_from(segment.len().0 / BASE_PAGE_SIZE).unwrap_or(0) * 8];
    let pagemap = File::open("/proc/self/pagemap")?;
    pagemap.read_exact_at(&mut words, segment.start.0 / BASE_PAGE_SIZE * 8)?;
    let mut words = words
        .as_chunks::<8>()
        .0
        .iter()
        .copied()
        .map(u64::from_ne_bytes);
    Ok(words.all(|word| word & (WORD_PRESENT | WORD_SWAPPED) == 0 || word & WORD_FILE != 0))
}

/// Unmaps a segment; one that is locked in memory stays.
fn unmap(segment: VirtRange) {
    let start = segment.start.0 as *mut c_void;
    let length = usize::try_from(segment.len().0).unwrap_or(0);
    // SAFETY: the segment is a private, read-only mapping of a file. A page of the file has the same contents when the
    // kernel maps it again, and what another process may have put in its place is not this program's.
    unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Constants that only a test reads. A fault on what lies beside them maps what lies around it: 64 KiB
    /// (`fault_around_bytes`), or a large folio of the page cache, 2 MiB at most.
    struct Constants([u8; 6 << 20]);
    static CONSTANTS: Constants = Constants([7; 6 << 20]);
    const MIDDLE: usize = 3 << 20;

    fn is_mapped(address: u64) -> bool {
        let mut word = [0; 8];
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let at = address / BASE_PAGE_SIZE * 8;
        pagemap.read_exact_at(&mut word, at).unwrap();
        u64::from_ne_bytes(word) & WORD_PRESENT != 0
    }

    #[test]
    fn constants_are_unmapped_and_come_back() {
        let value = || std::hint::black_box(&CONSTANTS).0[MIDDLE];
        let address = &raw const CONSTANTS.0[MIDDLE] as u64;
        assert_eq!(value(), 7);
        assert!(is_mapped(address));
        unmap_code();
        assert!(!is_mapped(address));
        assert_eq!(value(), 7);
        assert!(is_mapped(address));
    }

    #[test]
    fn a_segment_with_a_private_page_stays() {
        let segment = VirtRange {
            start: VirtAddr((&raw const CONSTANTS as u64).next_multiple_of(BASE_PAGE_SIZE)),
            end: VirtAddr(
                (&raw const CONSTANTS as u64 + (5 << 20)) / BASE_PAGE_SIZE * BASE_PAGE_SIZE,
            ),
        };
        assert!(has_file_pages_only(segment).unwrap());
        let mut memory = crate::scratch::Scratch::in_base_pages(2 << 20).unwrap();
        memory.touch_page(300);
        assert!(!has_file_pages_only(memory.range()).unwrap());
    }
}
