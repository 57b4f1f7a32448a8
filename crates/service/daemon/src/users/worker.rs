//! Acts for one client: `superhue actuator`, which the daemon starts.
//!
//! ```text
//!   root, the daemon's capabilities          stdin: the client's socket; no other descriptor of the daemon
//!     limits, no new privileges by exec      before it reads anything
//!     identifies the client                  SO_PEERCRED, SO_PEERGROUPS of stdin: the kernel noted them at connect
//!     becomes that user                      groups, gid, uid; keeps CAP_SYS_NICE
//!     checks the result                      root must be out of reach
//!     filters system calls                   no priorities, CPUs, nodes, exec
//!   the user, CAP_SYS_NICE                   not dumpable: the kernel cleared that at the change of user (`commit_creds`)
//!     serves
//! ```
//!
//! The user may end or stop the worker, and cannot reach into it: it is not dumpable, and the kernel lets no process trace or read it without holding
//! all of its capabilities (`cap_ptrace_access_check`). Before the change of user it reads nothing that a user wrote but the name in the client's
//! `/proc/PID/status`. After it, the worker can do
//! what the user can do, and collapse: the filter leaves no other use of the capability (`self_filter`).

use std::io::{Write, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit, umask,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid, set_thread_uid,
};
use superhue::act::{Greeting, ServeError, Terms, framed};
use superhue_procfs::Roots;
use superhue_procfs::process::{numbers_are_ours, status};
use superhue_sys::process::{SignalSet, die_with_parent, is_ignored, set_ignored};
use superhue_sys::self_filter::{SelfFilterError, forbid_to_lent};
use superhue_sys::seqpacket::{Credentials, peer_credentials, peer_groups};

/// Resource limits of a worker. It opens pidfds and files of control groups, holds a few messages, starts no process and writes no file.
const LIMITS: [(Resource, u64); 5] = [
    (Resource::Nofile, 1024),
    (Resource::As, 256 << 20),
    (Resource::Nproc, 0),
    (Resource::Core, 0),
    (Resource::Fsize, 0),
];

/// `SIGPIPE`.
const SIGPIPE: i32 = 13;

/// The capability that it keeps.
const KEPT: CapabilitySet = CapabilitySet::SYS_NICE;

/// Numbers of capabilities, with room for new ones.
const CAPABILITIES: u32 = 64;

/// Reason why a worker does not serve.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The worker was not started by the daemon.
    #[error("superhue actuator is started by the daemon alone: {0}")]
    NotStartedSo(&'static str),
    /// The kernel does not let it become the user.
    #[error("cannot {what}: {errno}")]
    Refused {
        /// Operation that failed.
        what: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
    /// The kernel takes no filter.
    #[error(transparent)]
    Filter(#[from] SelfFilterError),
    /// The result of the change is not as it must be.
    #[error("{0}: nobody is served")]
    NotSafe(&'static str),
    /// Serving failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// Acts for the client at standard input, within these terms (JSON), until the client or the daemon ends. `parent` is the number of the
/// daemon's process.
///
/// # Errors
/// See [`WorkError`]. The client gets the reason, too.
pub fn work(terms: &str, parent: u32) -> Result<(), WorkError> {
    let input = stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|_| WorkError::NotStartedSo("there is no standard input"))?;
    let client = peer_credentials(&input)
        .map_err(|_| WorkError::NotStartedSo("standard input is no socket"))?;
    let terms: Terms = serde_json::from_str(terms)
        .map_err(|_| WorkError::NotStartedSo("the terms are not understood"))?;
    let roots = Roots::default();
    let ready = become_user(&input, client, &roots).and_then(|()| stay_with(parent));
    let mut stream = UnixStream::from(input);
    if let Err(error) = ready {
        let text = format!("the daemon cannot act for you: {error}");
        let message = framed(&Greeting::Refused { text }).unwrap_or_default();
        let _ = stream.write_all(&message);
        return Err(error);
    }
    Ok(superhue::serve_user(stream, client.pid, terms, &roots)?)
}

/// Takes on the credentials that the client had at connect, and keeps only `CAP_SYS_NICE`.
fn become_user(socket: &OwnedFd, client: Credentials, roots: &Roots) -> Result<(), WorkError> {
    // Credentials belong to threads: there must be no other thread.
    let threads = status(roots, std::process::id())
        .ok()
        .and_then(|it| it.threads);
    if threads != Some(1) {
        return Err(WorkError::NotSafe(
            "it has other threads, or /proc does not tell",
        ));
    }
    if numbers_are_ours(roots).is_err() {
        return Err(WorkError::NotSafe("/proc is another PID namespace's"));
    }
    // It could order about processes of its user that it does not see.
    let client_status = status(roots, client.pid);
    if !client_status.is_ok_and(|it| it.pid_namespaces.is_none_or(|count| count == 1)) {
        return Err(WorkError::NotSafe(
            "the client has ended, or is in a PID namespace of its own",
        ));
    }
    if client.uid == 0 || client.uid == u32::MAX || client.gid == u32::MAX {
        return Err(WorkError::NotSafe("the client is root, or nobody"));
    }
    SignalSet::of(&[]).apply();
    // Ignored signals are inherited. SIGPIPE stays ignored, as Rust's runtime wants it.
    for signal in (1..32).filter(|&signal| signal != SIGPIPE && is_ignored(signal)) {
        set_ignored(signal, false);
    }
    umask(Mode::from_raw_mode(0o077));
    for (resource, most) in LIMITS {
        // A limit of the daemon may be lower.
        let most = getrlimit(resource)
            .maximum
            .map_or(most, |hard| hard.min(most));
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit).map_err(refused("set limits"))?;
    }
    set_no_new_privs(true).map_err(refused("give up what exec gives"))?;
    let groups = peer_groups(socket).map_err(refused("find out the client's groups"))?;
    let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
    for number in 0..CAPABILITIES {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match remove_capability_from_bounding_set(one) {
            // No capability has this number.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(refused("empty the bounding set")(errno)),
        }
    }
    let (uid, gid) = (Uid::from_raw(client.uid), Gid::from_raw(client.gid));
    set_thread_groups(&groups).map_err(refused("take on the client's groups"))?;
    set_thread_res_gid(gid, gid, gid).map_err(refused("take on the client's group"))?;
    set_keep_capabilities(true).map_err(refused("keep a capability"))?;
    set_thread_res_uid(uid, uid, uid).map_err(refused("become the client's user"))?;
    let only = CapabilitySets {
        effective: KEPT,
        permitted: KEPT,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, only).map_err(refused("keep CAP_SYS_NICE"))?;
    set_keep_capabilities(false).map_err(refused("give up other capabilities"))?;
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(refused("give up ambient capabilities")(errno)),
    }
    forbid_to_lent()?;
    // The kernel has done so at the change of user. This does not depend on it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(refused("hide its memory"))?;
    is_only(uid, only)
}

/// Checks the result of the change.
fn is_only(uid: Uid, only: CapabilitySets) -> Result<(), WorkError> {
    let held = capabilities(None).map_err(refused("look at capabilities"))?;
    if held != only {
        return Err(WorkError::NotSafe(
            "it holds other capabilities than it should",
        ));
    }
    let is_user = rustix::process::getuid() == uid && rustix::process::geteuid() == uid;
    if !is_user || set_thread_uid(Uid::ROOT).is_ok() {
        return Err(WorkError::NotSafe("it could be root again"));
    }
    Ok(())
}

/// Makes the kernel end this process with the daemon.
fn stay_with(parent: u32) -> Result<(), WorkError> {
    // A change of user clears it.
    match die_with_parent(parent).map_err(refused("end with the daemon"))? {
        true => Ok(()),
        false => Err(WorkError::NotSafe("the daemon has ended")),
    }
}

fn refused(what: &'static str) -> impl Fn(Errno) -> WorkError {
    move |errno| WorkError::Refused { what, errno }
}
