//! `prctl(PR_SET_THP_DISABLE)`: huge pages off for one process and its descendants.
//!
//! See `PR_SET_THP_DISABLE(2const)` and `Documentation/admin-guide/mm/transhuge.rst`. The setting
//! survives `fork` and `execve`.

use rustix::io::Errno;

use crate::pagemap::last_errno;

/// `PR_THP_DISABLE_EXCEPT_ADVISED` of `linux/prctl.h` (Linux 6.18).
const PR_THP_DISABLE_EXCEPT_ADVISED: libc::c_ulong = 1 << 1;

/// Huge pages that the kernel may give the process by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThpSwitch {
    /// Huge pages that the system's setting allows.
    System,
    /// None at all; the kernel refuses `MADV_COLLAPSE` too.
    Never,
    /// Only those requested by `MADV_HUGEPAGE` or `MADV_COLLAPSE`, even under system-wide `always`
    /// (Linux 6.18).
    OnlyAdvised,
}

/// Sets the calling process's switch. Safe between `fork` and `exec`.
///
/// # Errors
/// `EINVAL` if the kernel lacks the mode (before 6.18 for [`ThpSwitch::OnlyAdvised`]).
pub fn set_thp_switch(switch: ThpSwitch) -> Result<(), Errno> {
    let (disable, flags): (libc::c_ulong, libc::c_ulong) = match switch {
        ThpSwitch::System => (0, 0),
        ThpSwitch::Never => (1, 0),
        ThpSwitch::OnlyAdvised => (1, PR_THP_DISABLE_EXCEPT_ADVISED),
    };
    let zero: libc::c_ulong = 0;
    // SAFETY: this prctl takes plain integers and touches no memory of the caller.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, disable, flags, zero, zero) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Reads the calling process's switch.
///
/// # Errors
/// `EINVAL` on a kernel built without transparent huge pages.
pub fn thp_switch() -> Result<ThpSwitch, Errno> {
    let zero: libc::c_ulong = 0;
    // SAFETY: this prctl takes plain integers and touches no memory of the caller.
    let value = unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, zero, zero, zero, zero) };
    match value {
        0 => Ok(ThpSwitch::System),
        1 => Ok(ThpSwitch::Never),
        3 => Ok(ThpSwitch::OnlyAdvised),
        value if value < 0 => Err(last_errno()),
        _ => Err(Errno::INVAL),
    }
}
