//! Passing the agent on when the program executes another one.
//!
//! Each function below stands before libc's of the same name. It adds Superhue's variables to the
//! new program's environment if the agent can be loaded there, and calls the real one. It may run
//! between `vfork` and `exec`, so it neither allocates nor locks; what does not fit its fixed
//! buffers is passed on unchanged, and that child then runs without an agent.
//!
//! `execl` and its kin, `system` and `popen` are not covered: the programs they start run without an
//! agent (and Superhue counts them).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use superhue_mailbox::{TICKET_VARIABLE, agent_loads_into};

use crate::environment::{self, AGENT, PRELOAD, TICKET, TUNABLE, TUNABLES};
use crate::raw::{self, bytes_of};

type Strings = *const *const c_char;
type Execvpe = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
) -> c_int;

static REAL_EXECVPE: AtomicUsize = AtomicUsize::new(0);
static REAL_SPAWN: AtomicUsize = AtomicUsize::new(0);
static REAL_SPAWNP: AtomicUsize = AtomicUsize::new(0);

/// Looks up libc's functions, before `main`: `dlsym` may not be called after a fork.
pub(crate) fn find_real_functions() {
    for (place, name) in [
        (&REAL_EXECVPE, c"execvpe"),
        (&REAL_SPAWN, c"posix_spawn"),
        (&REAL_SPAWNP, c"posix_spawnp"),
    ] {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        place.store(found as usize, Relaxed);
    }
}

/// `execve(2)`.
///
/// # Safety
/// That of `execve(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: the caller's promise; sets errno as libc's does.
    unsafe {
        with_agent(Target::Path(path), envp, |envp| {
            libc::syscall(libc::SYS_execve, path, argv, envp) as c_int
        })
    }
}

/// `execv(3)`.
///
/// # Safety
/// That of `execv(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, argv, environment::current()) }
}

/// `execvp(3)`.
///
/// # Safety
/// That of `execvp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, argv, environment::current()) }
}

/// `execvpe(3)`.
///
/// # Safety
/// That of `execvpe(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvpe(
    file: *const c_char,
    argv: Strings,
    envp: Strings,
) -> c_int {
    let real = REAL_EXECVPE.load(Relaxed);
    if real == 0 {
        set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: the address of libc's `execvpe`; the rest is the caller's promise.
    unsafe {
        let real: Execvpe = std::mem::transmute(real);
        with_agent(Target::Name(file), envp, |envp| real(file, argv, envp))
    }
}

/// `posix_spawn(3)`.
///
/// # Safety
/// That of `posix_spawn(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let spawn = |envp| spawn_by(&REAL_SPAWN, pid, path, actions, attributes, argv, envp);
        with_agent(Target::Path(path), envp, spawn)
    }
}

/// `posix_spawnp(3)`.
///
/// # Safety
/// That of `posix_spawnp(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let spawn = |envp| spawn_by(&REAL_SPAWNP, pid, file, actions, attributes, argv, envp);
        with_agent(Target::Name(file), envp, spawn)
    }
}

/// # Safety
/// `real` holds 0 or the address of a function of type [`Spawn`], called as it demands.
unsafe fn spawn_by(
    real: &AtomicUsize,
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    envp: Strings,
) -> c_int {
    let real = real.load(Relaxed);
    if real == 0 {
        return libc::ENOSYS;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let real: Spawn = std::mem::transmute(real);
        real(pid, file, actions, attributes, argv, envp)
    }
}

/// How the program to execute is named.
#[derive(Clone, Copy)]
enum Target {
    /// By its path.
    Path(*const c_char),
    /// By a name to look for in `PATH`.
    Name(*const c_char),
}

/// Calls `execute` with an environment that brings the agent along if it can, else with `envp`.
///
/// # Safety
/// The pointers are as `execve(2)` demands.
unsafe fn with_agent(
    target: Target,
    envp: Strings,
    execute: impl FnOnce(Strings) -> c_int,
) -> c_int {
    if TICKET.get().is_empty() || AGENT.get().is_empty() {
        return execute(envp);
    }
    let errno = get_errno();
    // SAFETY: the caller's promise.
    let loads = unsafe {
        match target {
            Target::Path(path) => bytes_of(path).is_some() && loads_at(CStr::from_ptr(path), 0),
            Target::Name(name) => bytes_of(name).is_some_and(loads_by_name),
        }
    };
    let mut buffers = Buffers::new();
    // SAFETY: the caller's promise.
    let extended = loads && unsafe { buffers.extend(envp) };
    set_errno(errno);
    execute(if extended {
        buffers.entries.as_ptr()
    } else {
        envp
    })
}

/// Room for the extended environment. About 7 KiB: less than `execvp` itself takes of the stack.
struct Buffers {
    entries: [*const c_char; Self::ENTRIES],
    preload: [u8; 2048],
    tunables: [u8; 1024],
    ticket: [u8; 128],
}

impl Buffers {
    const ENTRIES: usize = 512;

    const fn new() -> Self {
        Self {
            entries: [std::ptr::null(); Self::ENTRIES],
            preload: [0; 2048],
            tunables: [0; 1024],
            ticket: [0; 128],
        }
    }

    /// Fills in the entries of `envp` and Superhue's; `false` if something does not fit.
    ///
    /// # Safety
    /// `envp` is null or an array of C strings ending in a null pointer.
    unsafe fn extend(&mut self, envp: Strings) -> bool {
        // The user's values, and where in the environment they stand.
        let mut users_preload: Option<(&[u8], usize)> = None;
        let mut users_tunables: Option<(&[u8], usize)> = None;
        let mut count = 0;
        let mut from = envp;
        while !from.is_null() {
            // SAFETY: not past the null pointer, at which this loop ends.
            let entry = unsafe { *from };
            // SAFETY: the caller's promise.
            let Some(text) = (unsafe { bytes_of(entry) }) else {
                break;
            };
            // SAFETY: `entry` was not the terminator.
            from = unsafe { from.add(1) };
            if text.starts_with(TICKET_VARIABLE.as_bytes()) {
                continue;
            }
            if let Some(value) = text.strip_prefix(PRELOAD) {
                users_preload = users_preload.or(Some((value, count)));
            } else if let (Some(value), false) =
                (text.strip_prefix(TUNABLES), TUNABLE.get().is_empty())
            {
                users_tunables = users_tunables.or(Some((value, count)));
            }
            // Four stay free: ours and the terminator.
            if count + 4 >= Self::ENTRIES {
                return false;
            }
            self.entries[count] = entry;
            count += 1;
        }
        // In their places if the user has set them, so that the order stays; else at the end.
        let mut place = |users: Option<(&[u8], usize)>| {
            users.map_or_else(
                || {
                    count += 1;
                    count - 1
                },
                |(_, at)| at,
            )
        };
        let (colon, users): (&[u8], &[u8]) = users_preload.map_or((b"", b""), |(v, _)| (b":", v));
        let mut fits = join(&mut self.preload, &[PRELOAD, AGENT.get(), colon, users]);
        self.entries[place(users_preload)] = self.preload.as_ptr().cast();
        fits &= join(&mut self.ticket, &[TICKET.get()]);
        self.entries[place(None)] = self.ticket.as_ptr().cast();
        if !TUNABLE.get().is_empty() {
            let (users, colon): (&[u8], &[u8]) =
                users_tunables.map_or((b"", b""), |(v, _)| (v, b":"));
            fits &= join(&mut self.tunables, &[TUNABLES, users, colon, TUNABLE.get()]);
            self.entries[place(users_tunables)] = self.tunables.as_ptr().cast();
        }
        self.entries[count] = std::ptr::null();
        fits
    }
}

/// Writes the parts one after the other, and a terminator; `false` if they do not fit.
fn join(buffer: &mut [u8], parts: &[&[u8]]) -> bool {
    let mut end = 0;
    for part in parts {
        let Some(place) = buffer.get_mut(end..end + part.len()) else {
            return false;
        };
        place.copy_from_slice(part);
        end += part.len();
    }
    buffer.get_mut(end).is_some_and(|last| {
        *last = 0;
        true
    })
}

/// Whether the agent loads into the program that `execvp` would find under `name`.
fn loads_by_name(name: &[u8]) -> bool {
    let mut path = [0_u8; 1024];
    let found = |path: &mut [u8; 1024], parts: &[&[u8]]| -> Option<bool> {
        if !join(path, parts) {
            return None;
        }
        let path = CStr::from_bytes_until_nul(path).ok()?;
        is_executable(path).then(|| loads_at(path, 0))
    };
    if name.contains(&b'/') {
        return found(&mut path, &[name]).unwrap_or(false);
    }
    let search = environment_value(b"PATH=").unwrap_or(b"/bin:/usr/bin");
    search
        .split(|&b| b == b':')
        .map(|folder| if folder.is_empty() { &b"."[..] } else { folder })
        .find_map(|folder| found(&mut path, &[folder, b"/", name]))
        .unwrap_or(false)
}

fn environment_value(name: &[u8]) -> Option<&'static [u8]> {
    let mut entries = environment::current();
    while !entries.is_null() {
        // SAFETY: libc's array of C strings, which ends in a null pointer.
        let text = unsafe { bytes_of(*entries) }?;
        if let Some(value) = text.strip_prefix(name) {
            return Some(value);
        }
        // SAFETY: the entry was not the terminator.
        entries = unsafe { entries.add(1) };
    }
    None
}

fn is_executable(path: &CStr) -> bool {
    let at = libc::AT_FDCWD as usize;
    let arguments = [at, path.as_ptr() as usize, libc::X_OK as usize, 0, 0, 0];
    // SAFETY: the path is a C string that outlives the call.
    unsafe { raw::syscall(libc::SYS_faccessat, arguments) == 0 }
}

/// Whether the agent loads into the program at `path`; a script's interpreter decides for it.
fn loads_at(path: &CStr, depth: u32) -> bool {
    // Set-user-ID programs get no preloaded library, and must not see our variables.
    const PRIVILEGED: u32 = libc::S_ISUID | libc::S_ISGID;
    // The kernel follows scripts that are interpreted by scripts four deep.
    if depth > 4 {
        return false;
    }
    let Ok(fd) = usize::try_from(raw::open(path, libc::O_RDONLY | libc::O_NONBLOCK)) else {
        return false;
    };
    let mut head = [0_u8; 1024];
    let plain = raw::file_status(fd).is_some_and(|status| {
        status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_mode & PRIVILEGED == 0
    });
    let length = if plain {
        raw::read_head(fd, &mut head)
    } else {
        0
    };
    raw::close(fd);
    match agent_loads_into(&head[..length]) {
        Ok(None) => true,
        Ok(Some(interpreter)) => {
            let mut path = [0_u8; 256];
            join(&mut path, &[interpreter])
                && CStr::from_bytes_until_nul(&path).is_ok_and(|path| loads_at(path, depth + 1))
        }
        Err(_) => false,
    }
}

fn get_errno() -> c_int {
    // SAFETY: libc's own location for the calling thread.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: libc's own location for the calling thread.
    unsafe { *libc::__errno_location() = value };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_joined_only_where_they_fit() {
        let mut buffer = [7_u8; 8];
        assert!(join(&mut buffer, &[b"abc", b"", b"defg"]));
        assert_eq!(&buffer, b"abcdefg\0");
        assert!(!join(&mut buffer, &[b"abcdefgh"]));
        assert!(!join(&mut buffer, &[b"abcdefghi"]));
    }

    #[test]
    fn shells_load_the_agent_and_nonsense_does_not() {
        assert!(loads_at(c"/bin/sh", 0));
        assert!(loads_by_name(b"sh"));
        assert!(!loads_by_name(b"there-is-no-such-program"));
        assert!(!loads_at(c"/etc/passwd", 0));
        assert!(!loads_at(c"/bin", 0));
        // Set-user-ID, wherever Debian has it.
        assert!(!loads_at(c"/usr/bin/passwd", 0));
    }
}
