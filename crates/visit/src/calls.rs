//! Numbers of system calls made inside a program, and of their flags, as words.

pub(crate) const SYS_MMAP: u64 = libc::SYS_mmap.cast_unsigned();
pub(crate) const SYS_MUNMAP: u64 = libc::SYS_munmap.cast_unsigned();
pub(crate) const SYS_MADVISE: u64 = libc::SYS_madvise.cast_unsigned();
pub(crate) const SYS_IOCTL: u64 = libc::SYS_ioctl.cast_unsigned();
pub(crate) const SYS_CLOSE: u64 = libc::SYS_close.cast_unsigned();
pub(crate) const SYS_PRCTL: u64 = libc::SYS_prctl.cast_unsigned();
pub(crate) const SYS_USERFAULTFD: u64 = libc::SYS_userfaultfd.cast_unsigned();

pub(crate) const PROT_READ: u64 = word(libc::PROT_READ);
pub(crate) const PROT_WRITE: u64 = word(libc::PROT_WRITE);
pub(crate) const PROT_EXEC: u64 = word(libc::PROT_EXEC);
pub(crate) const MAP_SHARED: u64 = word(libc::MAP_SHARED);
pub(crate) const MAP_FIXED: u64 = word(libc::MAP_FIXED);
pub(crate) const MAP_PRIVATE_ANONYMOUS: u64 = word(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
pub(crate) const MADV_NOHUGEPAGE: u64 = word(libc::MADV_NOHUGEPAGE);
pub(crate) const O_CLOEXEC: u64 = word(libc::O_CLOEXEC);
pub(crate) const PR_GET_TSC: u64 = word(libc::PR_GET_TSC);

const fn word(flag: libc::c_int) -> u64 {
    flag.cast_unsigned() as u64
}
