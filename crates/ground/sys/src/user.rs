//! Users and groups by name.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::io::Errno;

/// Maximum size of a user database entry in bytes; the usual ones have a hundred.
const ENTRY_AT_MOST: usize = 1 << 20;

/// Returns the number of the user called `name`, from the system's user database (`getpwnam_r(3)`);
/// `None` when there is no such user.
///
/// # Errors
/// `EINVAL` for a name with a zero byte; `ENOMEM` for an entry of more than a MiB; `EIO`, `EMFILE` and
/// others when the database cannot be read.
pub fn user_number(name: &str) -> Result<Option<u32>, Errno> {
    // SAFETY: `getpwnam_r` keeps the contract of `Lookup`.
    let entry = unsafe { look_up::<libc::passwd>(name, libc::getpwnam_r) };
    Ok(entry?.map(|entry| entry.pw_uid))
}

/// Returns the number of the group called `name`, from the system's group database (`getgrnam_r(3)`);
/// `None` when there is no such group.
///
/// # Errors
/// As for [`user_number`].
pub fn group_number(name: &str) -> Result<Option<u32>, Errno> {
    // SAFETY: `getgrnam_r` keeps the contract of `Lookup`.
    let entry = unsafe { look_up::<libc::group>(name, libc::getgrnam_r) };
    Ok(entry?.map(|entry| entry.gr_gid))
}

/// `int getXXnam_r(const char *name, struct XX *entry, char *buffer, size_t length, struct XX **found)`: fills in the entry, with at most
/// `length` bytes of the buffer, and sets `found` to it; to null if there is none. Returns an error number.
type Lookup<T> = unsafe extern "C" fn(
    *const libc::c_char,
    *mut T,
    *mut libc::c_char,
    libc::size_t,
    *mut *mut T,
) -> libc::c_int;

/// Restricts look-ups to `/etc/passwd` and `/etc/group`, which glibc reads itself. A program with glibc linked in cannot load the
/// libraries that `nsswitch.conf(5)` names, such as `libnss_systemd`: glibc tries to, and crashes.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
fn look_in_files_alone() {
    unsafe extern "C" {
        /// Sets the services of a database in place of `nsswitch.conf` (`nss.h`).
        fn __nss_configure_lookup(
            database: *const libc::c_char,
            services: *const libc::c_char,
        ) -> libc::c_int;
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        for database in [c"passwd", c"group"] {
            // SAFETY: both are C strings that live for ever; this runs before any look-up.
            unsafe { __nss_configure_lookup(database.as_ptr(), c"files".as_ptr()) };
        }
    });
}

/// Returns the entry called `name`. Its pointers are dangling.
///
/// # Safety
/// `lookup` keeps the contract of [`Lookup`], and all zeroes are a `T`.
unsafe fn look_up<T>(name: &str, lookup: Lookup<T>) -> Result<Option<T>, Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    look_in_files_alone();
    let mut buffer = vec![0_u8; 1024];
    loop {
        let mut entry = MaybeUninit::<T>::zeroed();
        let mut found = ptr::null_mut::<T>();
        // SAFETY: the name is a C string; libc writes the entry, at most `len` bytes of the buffer,
        // and `found`, all of which live across the call.
        let error = unsafe {
            lookup(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        if error == 0 {
            // SAFETY: success with an entry found means that libc has filled `entry` in.
            return Ok((!found.is_null()).then(|| unsafe { entry.assume_init() }));
        }
        match Errno::from_raw_os_error(error) {
            Errno::INTR => {}
            Errno::RANGE if buffer.len() < ENTRY_AT_MOST => buffer.resize(buffer.len() * 4, 0),
            Errno::RANGE => return Err(Errno::NOMEM),
            // Some libraries return these errors for "there is none" as well (`getpwnam(3)`, NOTES).
            Errno::NOENT | Errno::SRCH | Errno::BADF | Errno::PERM => return Ok(None),
            errno => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_root_is_zero_and_none_is_called_so() {
        assert_eq!(group_number("root"), Ok(Some(0)));
        assert_eq!(group_number("no such group\n"), Ok(None));
        assert_eq!(group_number("a\0b"), Err(Errno::INVAL));
    }

    #[test]
    fn root_is_zero_and_nobody_is_called_so() {
        assert_eq!(user_number("root"), Ok(Some(0)));
        assert_eq!(user_number("no such user\n"), Ok(None));
        assert_eq!(user_number(""), Ok(None));
        assert_eq!(user_number("a\0b"), Err(Errno::INVAL));
    }
}
