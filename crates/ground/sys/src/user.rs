//! Users by name.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr;

use rustix::io::Errno;

/// Longest entry of the user database that is understood; the usual ones have a hundred bytes.
const ENTRY_AT_MOST: usize = 1 << 20;

/// The number of the user called `name`, from wherever the system keeps users (`getpwnam_r(3)`);
/// `None` when there is no such user.
///
/// # Errors
/// `EINVAL` for a name with a zero byte; `ENOMEM` for an entry of more than a MiB; `EIO`, `EMFILE` and
/// others when the database cannot be read.
pub fn user_number(name: &str) -> Result<Option<u32>, Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let mut buffer = vec![0_u8; 1024];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::zeroed();
        let mut found = ptr::null_mut::<libc::passwd>();
        // SAFETY: the name is a C string; libc writes the entry, at most `len` bytes of the buffer,
        // and `found`, all of which live across the call.
        let error = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        if error == 0 {
            // SAFETY: success with an entry found means that libc has filled `entry` in.
            return Ok((!found.is_null()).then(|| unsafe { entry.assume_init() }.pw_uid));
        }
        match Errno::from_raw_os_error(error) {
            Errno::INTR => {}
            Errno::RANGE if buffer.len() < ENTRY_AT_MOST => buffer.resize(buffer.len() * 4, 0),
            Errno::RANGE => return Err(Errno::NOMEM),
            // Different libraries say "no such user" by these, too (`getpwnam(3)`, NOTES).
            Errno::NOENT | Errno::SRCH | Errno::BADF | Errno::PERM => return Ok(None),
            errno => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_zero_and_nobody_is_called_so() {
        assert_eq!(user_number("root"), Ok(Some(0)));
        assert_eq!(user_number("no such user\n"), Ok(None));
        assert_eq!(user_number(""), Ok(None));
        assert_eq!(user_number("a\0b"), Err(Errno::INVAL));
    }
}
