//! Reasons why there is no swap in memory, or no zram device for it.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use superhue_model::ByteCount;
use superhue_procfs::ReadError;

use crate::restored::UnrestoredPath;
use crate::setting::SettingsError;

/// Reason why there is no usable swap in memory.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    /// No swap is on.
    #[error(
        "no swap is on, and colors of running programs are changed by taking their pages out to swap and in again; --swap makes a \
         small one in memory (zram), as root"
    )]
    None,
    /// Pages would go to a disk.
    #[error(
        "swap is on, but pages go to {} first, which is not in memory: they come back from there in the frames that they had, or \
         20 times as slowly; --swap makes a small one in memory (zram), as root", path.display()
    )]
    OnDisk {
        /// Area on the disk.
        path: PathBuf,
    },
    /// There is too little room.
    #[error(
        "swap in memory is almost full ({left} are left): end what fills it, make it larger, or --swap makes a small one (zram), as root"
    )]
    Full {
        /// Room.
        left: ByteCount,
    },
    /// The kernel has no zram.
    #[error(
        "cannot make swap in memory: {} does not exist; as root `modprobe zram num_devices=0`, and where there is no such module, a \
         kernel with CONFIG_ZRAM", path.display()
    )]
    NoZram {
        /// Missing file.
        path: PathBuf,
    },
    /// The caller lacks permission.
    #[error(
        "may not make swap in memory: run as root (CAP_SYS_ADMIN) where /sys can be written (not in a container; systemd: \
         ProtectKernelTunables=no); or have root set one up (zram-generator; zramctl, mkswap, swapon)"
    )]
    Denied,
    /// A seccomp filter kills the caller of the system call.
    #[error(
        "cannot make swap in memory: a seccomp filter kills the caller of {call}(2); allow it (systemd: SystemCallFilter=@swap, containers: \
         --security-opt seccomp=)"
    )]
    Killed {
        /// The system call.
        call: &'static str,
    },
    /// The kernel gives no number by which to recognise our device.
    #[error(
        "cannot make swap in memory: this kernel does not number its disks (diskseq, Linux 5.15), so that a killed superhue's could \
         not be told from others; set one up by hand (zramctl --find --size 64M, mkswap, swapon)"
    )]
    NoDiskSequence,
    /// Pages would go to another area in any case.
    #[error(
        "cannot make swap in memory that is used before {}, which has the highest priority that there is: give that a lower one \
         (swapoff, swapon --priority)", path.display()
    )]
    Outranked {
        /// Area with the highest priority.
        path: PathBuf,
    },
    /// The kernel has no zswap.
    #[error(
        "{} does not exist, and without zswap a page that a program uses while it is taken out could part from what the kernel \
         holds of it: a kernel with CONFIG_ZSWAP", path.display()
    )]
    NoZswap {
        /// Switch of zswap, a file that does not exist.
        path: PathBuf,
    },
    /// zswap is off.
    #[error(
        "zswap is off ({} is N), and without it a page that a program uses while it is taken out could part from what the kernel \
         holds of it; --swap switches it on meanwhile, as root", path.display()
    )]
    ZswapOff {
        /// Switch of zswap.
        path: PathBuf,
    },
    /// zswap is on, and does not take every page.
    #[error(
        "zswap is on, and {why}: such a page would go to the swap device, and could part from what the kernel holds of it"
    )]
    ZswapRefuses {
        /// The finding, as a clause.
        why: &'static str,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] SettingsError),
    /// The present state cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A step failed.
    #[error("cannot {what} {}: {source}; {}", path.display(), left_behind(left))]
    Step {
        /// The step.
        what: &'static str,
        /// File, device or system call of the step.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
        /// Results of earlier steps that could not be undone.
        left: Vec<UnrestoredPath>,
    },
}

impl SwapError {
    pub(crate) fn step(what: &'static str, path: impl AsRef<Path>, source: io::Error) -> Self {
        Self::Step {
            what,
            path: path.as_ref().to_owned(),
            source,
            left: Vec::new(),
        }
    }

    pub(crate) fn random(errno: Errno) -> Self {
        Self::step("number a swap area with", "getrandom(2)", errno.into())
    }

    /// Adds the remains of a failed undo to the error.
    pub(crate) fn leaving(mut self, behind: Vec<UnrestoredPath>) -> Self {
        if let Self::Step { left, .. } = &mut self {
            *left = behind;
        }
        self
    }
}

fn left_behind(left: &[UnrestoredPath]) -> String {
    match left.first() {
        None => "nothing of it is left".to_owned(),
        Some(UnrestoredPath { path, reason }) => format!("{} was left: {reason}", path.display()),
    }
}
