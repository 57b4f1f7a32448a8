//! Splitting a superpage into base pages, by debugfs' `split_huge_pages`.
//!
//! The file takes `PID,0xSTART,0xEND` (`Documentation/admin-guide/mm/transhuge.rst`). debugfs is
//! found wherever it is mounted.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use superhue_model::HUGE_PAGE_SIZE;
use superhue_sys::collapse::own_collapse;
use superhue_sys::scratch::Scratch;

use super::Probe;
use super::finding::{Finding, Trial, errno_of, symbol};
use super::look::Look;
use super::surroundings::Surroundings;
use crate::Roots;

pub(super) const SPLIT: Probe = Probe {
    id: "split",
    name: "Split a superpage",
    how: "collapsed 2 MiB of own memory, named it to debugfs' split_huge_pages, looked at page \
          table and bytes",
    used_for: "demoting: giving back what a promotion made resident",
    run: split,
};

const SEED: u64 = 0x5b11;

fn split(around: &Surroundings) -> Trial {
    let mounts = fs::read_to_string(around.roots.proc.join("self/mounts"))
        .map_err(|error| Finding::not_tried("no mount table", errno_of(&error)))?;
    let Some(mount) = debugfs(&mounts) else {
        return Ok(Finding::no("debugfs is not mounted")
            .remedy("as root: mount -t debugfs none /sys/kernel/debug"));
    };
    let file = below(&around.roots, Path::new(&mount)).join("split_huge_pages");
    trial(&file, &Look::own(&around.roots))
}

fn trial(file: &Path, look: &Look) -> Trial {
    // Opening changes nothing, so whether that is allowed can be seen first.
    let mut file = OpenOptions::new()
        .write(true)
        .open(file)
        .map_err(|error| closed(file, &error))?;
    let mut scratch =
        Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    scratch.fill(SEED);
    let region = scratch.region();
    own_collapse(region).map_err(|errno| Finding::not_tried("no superpage to split", errno))?;
    if !look.is_huge(region).map_err(Finding::unseen)? {
        return Err(Finding::unknown(
            "could not be tried: no superpage to split",
        ));
    }
    let range = scratch.range();
    let order = format!(
        "{},{:#x},{:#x}",
        std::process::id(),
        range.start.0,
        range.end.0
    );
    // In one write(2): the file reads one order from each.
    if let Err(error) = file.write_all(order.as_bytes()) {
        return Ok(Finding::no(format!(
            "refused: {}",
            symbol(errno_of(&error))
        )));
    }
    let huge = look.is_huge(region).map_err(Finding::unseen)?;
    Ok(match (huge, scratch.is_intact(SEED)) {
        (_, false) => Finding::no("the split lost bytes: do not use this kernel"),
        (false, true) => Finding::yes("a superpage was split into base pages, bytes intact"),
        (true, true) => Finding::partial("accepted, but the superpage stayed whole"),
    })
}

fn closed(file: &Path, error: &io::Error) -> Finding {
    let errno = errno_of(error);
    let finding = Finding::no(format!("{}: {}", file.display(), symbol(errno)));
    match errno {
        Errno::ACCESS => finding.remedy("run as root"),
        Errno::PERM => {
            finding.remedy("no kernel lockdown: boot with lockdown=none (Secure Boot may force it)")
        }
        Errno::NOENT => finding.remedy("a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y"),
        _ => finding,
    }
}

/// Where debugfs is mounted, from `/proc/PID/mounts` (`fstab(5)`).
fn debugfs(mounts: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        // Blanks in the path are octal escapes; so is nothing else that a debugfs mount would have.
        (kind == "debugfs").then(|| place.replace("\\040", " "))
    })
}

/// A path as the mount table has it, seen from the roots.
fn below(roots: &Roots, path: &Path) -> PathBuf {
    match path.strip_prefix("/sys") {
        Ok(rest) => roots.sys.join(rest),
        Err(_) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn debugfs_is_found_wherever_it_is_mounted() {
        let mounts = "sysfs /sys sysfs rw 0 0\nnone /mnt/my\\040debug debugfs rw 0 0\n";
        assert_eq!(debugfs(mounts).as_deref(), Some("/mnt/my debug"));
        assert_eq!(debugfs("debugfs /sys tracefs rw 0 0\n"), None);
        assert_eq!(debugfs(""), None);
        let roots = Roots::under(Path::new("/recorded"));
        let seen = |path| below(&roots, Path::new(path));
        assert_eq!(
            seen("/sys/kernel/debug"),
            Path::new("/recorded/sys/kernel/debug")
        );
        assert_eq!(seen("/debug"), Path::new("/debug"));
    }

    #[test]
    fn a_file_that_takes_the_order_and_does_nothing_is_no_yes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("split_huge_pages");
        let look = Look::own(&Roots::default());
        assert_eq!(
            trial(&file, &look).unwrap_err().verdict,
            Verdict::No,
            "no such file"
        );
        fs::write(&file, "").unwrap();
        let finding = trial(&file, &look).unwrap_or_else(|early| early);
        assert_ne!(finding.verdict, Verdict::Yes, "{finding:?}");
        if finding.verdict == Verdict::Partial {
            let order = fs::read_to_string(&file).unwrap();
            let words: Vec<_> = order.split(',').collect();
            let address =
                |word: &str| u64::from_str_radix(word.strip_prefix("0x").unwrap(), 16).unwrap();
            assert_eq!(words.len(), 3);
            assert_eq!(words[0], std::process::id().to_string());
            assert_eq!(address(words[2]) - address(words[1]), HUGE_PAGE_SIZE);
        }
    }
}
