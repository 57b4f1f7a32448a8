//! `get_robust_list(2)`: where a thread keeps its list of robust locks, which is where its library keeps the thread.

use superhue_model::VirtAddr;

/// Where thread `tid` of this process has the head of its list of robust locks. glibc has it in the same line of 64
/// bytes as the word that the kernel clears when the thread ends.
///
/// `None` if it has none, or is gone, or on a processor that this is not written for. Uses no thread-local storage, and so
/// not `libc::syscall`, which sets `errno`.
#[must_use]
pub fn robust_list(tid: u32) -> Option<VirtAddr> {
    let (mut head, mut length) = (0_u64, 0_u64);
    (ask(tid, &mut head, &mut length) == 0 && head != 0).then_some(VirtAddr(head))
}

#[cfg(target_arch = "x86_64")]
fn ask(tid: u32, head: &mut u64, length: &mut u64) -> i64 {
    let mut result = libc::SYS_get_robust_list;
    // SAFETY: the kernel writes the two words behind the pointers and nothing else; it spares all registers but these.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") u64::from(tid),
            in("rsi") std::ptr::from_mut(head),
            in("rdx") std::ptr::from_mut(length),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
fn ask(tid: u32, head: &mut u64, length: &mut u64) -> i64 {
    let mut result = i64::from(tid);
    // SAFETY: the kernel writes the two words behind the pointers and nothing else; it spares all registers but x0.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") libc::SYS_get_robust_list,
            inlateout("x0") result,
            in("x1") std::ptr::from_mut(head),
            in("x2") std::ptr::from_mut(length),
            options(nostack),
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn ask(_: u32, _: &mut u64, _: &mut u64) -> i64 {
    -1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_has_a_list_and_init_does_not_tell() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let head = robust_list(u32::try_from(tid).unwrap()).unwrap();
        // SAFETY: plain query of the thread's own pointer.
        let myself = unsafe { libc::pthread_self() } as u64;
        assert!((myself..myself + 4096).contains(&head.0));
        assert_eq!(robust_list(u32::MAX), None);
    }
}
