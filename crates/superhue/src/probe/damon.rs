//! DAMON, the kernel's sampling monitor of accesses, by its sysfs interface.
//!
//! The file `avail_operations` lists the kinds of monitoring that the kernel has. It exists only
//! while some program has set up a monitoring context, and setting one up is a change that all
//! users of the machine see. See `Documentation/admin-guide/mm/damon/usage.rst`.
//!
//! ```text
//!   /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds                          number of threads set up
//!                                      /0/contexts/nr_contexts
//!                                                 /0/avail_operations        "vaddr fvaddr paddr"
//! ```

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use superhue_procfs::system::number;

use super::Probe;
use super::finding::{Finding, errno_of, symbol};
use super::surroundings::ProbeEnvironment;

pub(super) const DAMON: Probe = Probe {
    id: "damon",
    name: "DAMON of virtual memory",
    how: "looked into /sys/kernel/mm/damon; changed nothing there, unless that was allowed",
    used_for: "heat tracker `damon`, for very large processes",
    run: |around: &ProbeEnvironment| {
        let directory = around.roots.sys.join("kernel/mm/damon/admin/kdamonds");
        Ok(damon(&directory, around.options.may_touch_damon))
    },
};

fn damon(kdamonds: &Path, may_touch: bool) -> Finding {
    let in_use = match read_count(&kdamonds.join("nr_kdamonds")) {
        Ok(count) => count,
        Err(errno) => return cannot_read(kdamonds, errno),
    };
    if in_use > 0 {
        return match operations_in_use(kdamonds, in_use) {
            Some(operations) => conclude(&operations),
            None => Finding::partial(format!(
                "present, in use by others ({in_use} threads); what it can monitor is not shown"
            )),
        };
    }
    if !may_touch {
        return Finding::partial(
            "present and unused; whether it can monitor virtual memory shows only in use",
        );
    }
    match operations_of_new(kdamonds) {
        Ok(operations) => conclude(&operations),
        Err(errno) => Finding::no(format!("cannot be set up: {}", symbol(errno))),
    }
}

fn cannot_read(kdamonds: &Path, errno: Errno) -> Finding {
    match errno {
        Errno::NOENT if kdamonds.exists() => Finding::unknown("nr_kdamonds does not exist"),
        Errno::NOENT => Finding::no(format!("{} does not exist", kdamonds.display()))
            .remedy("a kernel with CONFIG_DAMON_SYSFS=y and CONFIG_DAMON_VADDR=y"),
        Errno::ACCESS | Errno::PERM => Finding::no(format!(
            "present, but closed to this user: {}",
            symbol(errno)
        ))
        .remedy("run as root"),
        _ => Finding::unknown(format!("nr_kdamonds: {}", symbol(errno))),
    }
}

fn conclude(operations: &str) -> Finding {
    let known = operations.split_whitespace().collect::<Vec<_>>().join(", ");
    if operations
        .split_whitespace()
        .any(|operation| operation == "vaddr")
    {
        Finding::yes(format!("it can monitor: {known}"))
    } else {
        Finding::no(format!("it can monitor: {known}; not vaddr"))
            .remedy("a kernel with CONFIG_DAMON_VADDR=y")
    }
}

fn operations_in_use(kdamonds: &Path, count: u64) -> Option<String> {
    (0..count).find_map(|index| {
        fs::read_to_string(kdamonds.join(format!("{index}/contexts/0/avail_operations"))).ok()
    })
}

/// Sets up one thread with one context, which it never starts, reads its operations, and removes it.
fn operations_of_new(kdamonds: &Path) -> Result<String, Errno> {
    let count = kdamonds.join("nr_kdamonds");
    let io = |error: io::Error| errno_of(&error);
    fs::write(&count, "1").map_err(io)?;
    let operations = fs::write(kdamonds.join("0/contexts/nr_contexts"), "1")
        .and_then(|()| fs::read_to_string(kdamonds.join("0/contexts/0/avail_operations")))
        .map_err(io);
    // The kernel refuses this (EBUSY) if another program has started the thread meanwhile: then
    // the thread belongs to that program.
    let restored = fs::write(&count, "0").map_err(io);
    let operations = operations?;
    restored.map(|()| operations)
}

fn read_count(path: &Path) -> Result<u64, Errno> {
    let text = fs::read_to_string(path).map_err(|error| errno_of(&error))?;
    number(&text).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::super::Availability;
    use super::*;

    /// A `kdamonds` directory as the kernel shows it with one context.
    fn tree(count: &str, operations: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let context = directory.path().join("0/contexts/0");
        fs::create_dir_all(&context).unwrap();
        fs::write(directory.path().join("nr_kdamonds"), count).unwrap();
        fs::write(directory.path().join("0/contexts/nr_contexts"), "0\n").unwrap();
        fs::write(context.join("avail_operations"), operations).unwrap();
        directory
    }

    #[test]
    fn what_others_set_up_is_read_and_left_alone() {
        let tree = tree("1\n", "vaddr\nfvaddr\npaddr\n");
        let finding = damon(tree.path(), true);
        assert_eq!(finding.availability, Availability::Yes);
        assert_eq!(finding.found, "it can monitor: vaddr, fvaddr, paddr");
        assert_eq!(
            fs::read_to_string(tree.path().join("nr_kdamonds")).unwrap(),
            "1\n"
        );
        assert_eq!(
            fs::read_to_string(tree.path().join("0/contexts/nr_contexts")).unwrap(),
            "0\n"
        );
    }

    #[test]
    fn nothing_is_written_unless_allowed() {
        let tree = tree("0\n", "paddr\n");
        assert_eq!(
            damon(tree.path(), false).availability,
            Availability::Partial
        );
        assert_eq!(
            fs::read_to_string(tree.path().join("nr_kdamonds")).unwrap(),
            "0\n"
        );
        let finding = damon(tree.path(), true);
        assert_eq!(finding.availability, Availability::No);
        assert!(finding.remedy.unwrap().contains("CONFIG_DAMON_VADDR"));
        assert_eq!(
            fs::read_to_string(tree.path().join("nr_kdamonds")).unwrap(),
            "0"
        );
    }

    #[test]
    fn it_is_taken_away_again_when_it_cannot_be_read() {
        let tree = tree("0\n", "");
        fs::remove_dir_all(tree.path().join("0/contexts/0")).unwrap();
        let finding = damon(tree.path(), true);
        assert_eq!(finding.availability, Availability::No);
        assert!(finding.found.ends_with("ENOENT"), "{finding:?}");
        assert_eq!(
            fs::read_to_string(tree.path().join("nr_kdamonds")).unwrap(),
            "0"
        );
    }

    #[test]
    fn a_kernel_without_it_says_no() {
        let nothing = tempfile::tempdir().unwrap();
        let finding = damon(&nothing.path().join("kdamonds"), true);
        assert_eq!(finding.availability, Availability::No);
        assert!(finding.remedy.is_some());
    }
}
