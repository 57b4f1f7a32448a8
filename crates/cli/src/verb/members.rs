//! Processes of a unit, a cgroup or a user, as the command line names them.

use std::collections::BTreeSet;

use superhue::procfs::Roots;
use superhue::procfs::cgroup::{Cgroup, CgroupError};
use superhue::procfs::process::{effective_user, numbers};
use superhue::sys::user::user_number;

use crate::args::NamedArgs;
use crate::output::{FAILED, Failure, UNABLE, USAGE};

/// Returns the processes that the options name, in order, without superhue itself; `None` if there is no such option.
pub(super) fn named(roots: &Roots, named: &NamedArgs) -> Result<Option<Vec<u32>>, Failure> {
    if let Some(user) = &named.user {
        let number = number_of(user)?;
        let all = numbers(roots).map_err(|error| Failure::new(FAILED, error))?;
        let theirs = all
            .into_iter()
            .filter(|&pid| effective_user(roots, pid) == Some(number));
        return some(theirs.collect(), user).map(Some);
    }
    let (group, name) = match (&named.cgroup, &named.unit) {
        (Some(path), _) => (Cgroup::find(roots, path), path.display().to_string()),
        (None, Some(unit)) => (Cgroup::of_unit(roots, unit), unit.clone()),
        (None, None) => return Ok(None),
    };
    let members = group.and_then(|group| group.members());
    let members = members.map_err(|error| Failure::new(code_of(&error), error))?;
    some(members.pids, &name).map(Some)
}

/// Returns the exit status for an error about a cgroup.
pub(super) const fn code_of(error: &CgroupError) -> u8 {
    match error {
        CgroupError::NotMounted => UNABLE,
        CgroupError::NotAPath { .. } => USAGE,
        _ => FAILED,
    }
}

fn some(pids: BTreeSet<u32>, name: &str) -> Result<Vec<u32>, Failure> {
    let own = std::process::id();
    let pids: Vec<u32> = pids.into_iter().filter(|&pid| pid != own).collect();
    if pids.is_empty() {
        let text =
            format!("{name} has no processes now; see `systemd-cgls`, or /proc/PID/cgroup of one");
        return Err(Failure::new(FAILED, text));
    }
    Ok(pids)
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
