//! Processes as the command line names them: by number, name, unit, cgroup or user, or all.

use std::collections::BTreeSet;

use superhue::Targets;
use superhue::model::counted;
use superhue::procfs::cgroup::{Cgroup, CgroupError};
use superhue::procfs::process::{all, effective_user, numbers, resident_now, stat};
use superhue::procfs::{ReadError, Roots};
use superhue::sys::user::user_number;

use crate::output::{FAILED, Failure, UNABLE, USAGE, note};
use crate::targets_args::{ProcessName, TargetArgs};

/// Longest command name that the kernel keeps, `TASK_COMM_LEN` of `include/linux/sched.h` without the final zero byte.
const LONGEST_NAME: usize = 15;

/// Most processes that a message lists.
const LISTED: usize = 8;

/// Present processes that the options mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Members {
    /// Process numbers, ascending and without superhue itself unless its number was given.
    pub(super) pids: Vec<u32>,
    /// True if they belong to a set, whose members may end at any time; false if each was given by number.
    pub(super) is_group: bool,
}

/// Returns the processes that the options mean now; `None` for all.
pub(super) fn named(roots: &Roots, named: &TargetArgs) -> Result<Option<Members>, Failure> {
    if let Some(user) = &named.user {
        let number = number_of(user)?;
        let all = all(roots).map_err(|error| Failure::new(FAILED, error))?;
        let theirs = all
            .into_iter()
            .filter(|&pid| effective_user(roots, pid) == Some(number));
        return group(theirs.collect(), user).map(Some);
    }
    let (cgroup, name) = match (&named.cgroup, &named.unit) {
        (Some(path), _) => (Cgroup::find(roots, path), path.display().to_string()),
        (None, Some(unit)) => (Cgroup::of_unit(roots, unit), unit.clone()),
        (None, None) => return by_number_or_name(roots, named),
    };
    let members = cgroup.and_then(|group| group.members());
    let members = members.map_err(|error| Failure::new(code_of(&error), error))?;
    group(members.pids, &name).map(Some)
}

fn by_number_or_name(roots: &Roots, named: &TargetArgs) -> Result<Option<Members>, Failure> {
    if named.processes.is_empty() {
        return Ok(None);
    }
    let mut pids = BTreeSet::new();
    let mut is_group = true;
    for process in &named.processes {
        match process {
            ProcessName::Pid(pid) => {
                is_group = false;
                pids.insert(*pid);
            }
            ProcessName::Named(name) => pids.extend(called(roots, name)?),
        }
    }
    let pids = pids.into_iter().collect();
    Ok(Some(Members { pids, is_group }))
}

/// Returns all processes whose command has this name, without superhue itself.
fn called(roots: &Roots, name: &str) -> Result<Vec<u32>, Failure> {
    let all = all(roots).map_err(|error| Failure::new(FAILED, error))?;
    let own = std::process::id();
    let is_one = |&pid: &u32| {
        let stat = stat(roots, pid);
        pid != own && stat.is_ok_and(|stat| is_called(roots, pid, &stat.comm, name))
    };
    let found: Vec<u32> = all.into_iter().filter(is_one).collect();
    if found.is_empty() {
        let text = format!(
            "no process is called `{name}`; `ps -eo pid,comm` lists the names, and --unit takes the name of a service"
        );
        return Err(Failure::new(FAILED, text));
    }
    Ok(found)
}

/// Returns true if the command name is `name`; of a longer one the kernel keeps the beginning, and the rest is in the first argument.
fn is_called(roots: &Roots, pid: u32, comm: &str, name: &str) -> bool {
    if comm == name {
        return true;
    }
    if name.len() <= LONGEST_NAME || !name.starts_with(comm) {
        return false;
    }
    let words = std::fs::read(roots.of_process(pid, "cmdline")).unwrap_or_default();
    let first = words.split(|&byte| byte == 0).next().unwrap_or_default();
    first.rsplit(|&byte| byte == b'/').next() == Some(name.as_bytes())
}

/// Returns the one process that the options mean; of several in a set, the one with the most resident memory, and a note says so.
pub(super) fn one(roots: &Roots, args: &TargetArgs) -> Result<u32, Failure> {
    let members = match named(roots, args)? {
        Some(members) => members,
        None if args.all => everybody(roots)?,
        None => return Err(nothing_named()),
    };
    if !members.is_group && members.pids.len() > 1 {
        let text = format!(
            "{} are named, and one can be shown at a time",
            counted(members.pids.len() as u64, "process")
        );
        return Err(Failure::new(USAGE, text));
    }
    let size = |&pid: &u32| resident_now(roots, pid).map_or(0, |now| now.total.0);
    let largest = members.pids.iter().copied().max_by_key(size);
    let largest = largest.ok_or_else(nothing_named)?;
    if members.pids.len() > 1 {
        let others = members.pids.iter().filter(|&&pid| pid != largest);
        note(&format!(
            "{} has {}: process {largest} has the most memory, and is the one shown; the others: {}",
            args.typed(),
            counted(members.pids.len() as u64, "process"),
            listed(others)
        ));
    }
    Ok(largest)
}

/// Returns the process of which all others that the options mean are descendants.
pub(super) fn family(roots: &Roots, args: &TargetArgs) -> Result<u32, Failure> {
    let members = named(roots, args)?.ok_or_else(nothing_named)?;
    let of = |pid: u32| superhue::procfs::process::descendants(roots, pid).unwrap_or_default();
    let is_root = |&pid: &u32| {
        let below = of(pid);
        let is_below = |other: &u32| *other == pid || below.contains(other);
        members.pids.iter().all(is_below)
    };
    match members.pids[..] {
        [pid] => Ok(pid),
        _ => members.pids.iter().copied().find(is_root).ok_or_else(|| {
            let text = format!(
                "trial takes one process and its descendants, and these {} are of different families: {}; name one PID, --unit or --cgroup",
                members.pids.len(),
                listed(members.pids.iter())
            );
            Failure::new(USAGE, text)
        }),
    }
}

fn listed<'a>(pids: impl Iterator<Item = &'a u32>) -> String {
    let mut all: Vec<String> = pids.map(ToString::to_string).collect();
    let more = all.len().saturating_sub(LISTED);
    all.truncate(LISTED);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    all.join(", ")
}

/// Returns the processes that the options mean, for a verb that follows them as they come and go.
pub(super) fn targets(roots: &Roots, args: &TargetArgs) -> Result<Targets, Failure> {
    if let Some(path) = &args.cgroup {
        return Ok(Targets::Cgroup(path.clone()));
    }
    if let Some(name) = &args.unit {
        return Ok(Targets::Unit(name.clone()));
    }
    if let Some(user) = &args.user {
        return number_of(user).map(Targets::User);
    }
    match named(roots, args)? {
        Some(members) => Ok(Targets::Processes(members.pids)),
        None if args.all => Ok(Targets::All),
        None => Err(nothing_named()),
    }
}

/// Returns the failure of a verb that needs a process.
pub(super) fn nothing_named() -> Failure {
    let text = "no process is named: give a PID, a command name, --unit, --cgroup, --user or --all";
    Failure::new(USAGE, text)
}

/// Refuses `--no-follow` beside a set, whose processes are all meant, children among them.
pub(super) fn check_follow(args: &TargetArgs, no_follow: bool) -> Result<(), Failure> {
    match no_follow && !args.is_by_number() {
        true => Err(Failure::new(
            USAGE,
            format!(
                "--no-follow works only with PID or NAME; {} names a whole set, children included: leave --no-follow out",
                args.typed()
            ),
        )),
        false => Ok(()),
    }
}

/// Returns all processes that can be seen.
pub(super) fn everybody(roots: &Roots) -> Result<Members, Failure> {
    let all = all(roots).map_err(|error| Failure::new(FAILED, error))?;
    group(all.into_iter().collect(), "/proc")
}

/// Returns true if `/proc` does not show processes of other users: the first process, which every machine and container has, is missing in it
/// (`hidepid` in `Documentation/filesystems/proc.rst`).
pub(super) fn hides_processes(roots: &Roots) -> bool {
    numbers(roots).is_ok_and(|all| !all.contains(&1))
}

/// Returns the exit status for an error about a cgroup.
pub(super) const fn code_of(error: &CgroupError) -> u8 {
    match error {
        CgroupError::NotMounted => UNABLE,
        CgroupError::NotAPath { .. } => USAGE,
        _ => FAILED,
    }
}

/// Returns the exit status for a process that cannot be read.
pub(super) const fn code_of_read(error: &ReadError) -> u8 {
    match error {
        ReadError::Denied { .. } | ReadError::ForeignProc { .. } => UNABLE,
        _ => FAILED,
    }
}

fn group(pids: BTreeSet<u32>, name: &str) -> Result<Members, Failure> {
    let own = std::process::id();
    let pids: Vec<u32> = pids.into_iter().filter(|&pid| pid != own).collect();
    if pids.is_empty() {
        let text =
            format!("{name} has no processes now; see `systemd-cgls`, or /proc/PID/cgroup of one");
        return Err(Failure::new(FAILED, text));
    }
    Ok(Members {
        pids,
        is_group: true,
    })
}

/// Returns the number of a user, by name, or by number if no user has that name.
pub(super) fn number_of(user: &str) -> Result<u32, Failure> {
    // The last number means "no user" to the kernel.
    let by_number = || user.parse().ok().filter(|&number| number != u32::MAX);
    match user_number(user) {
        Ok(Some(number)) => Ok(number),
        Ok(None) | Err(rustix::io::Errno::INVAL) => by_number().ok_or_else(|| {
            let text =
                format!("there is no user `{user}` (see getent passwd), and it is no number");
            Failure::new(FAILED, text)
        }),
        Err(errno) => by_number().ok_or_else(|| {
            let text = format!("cannot look up the user `{user}`: {errno}; try the number");
            Failure::new(FAILED, text)
        }),
    }
}
