//! `cpuset.colors.*`: the page colors of a process's control group.
//!
//! Only kernels with the patch series have these files, under cgroup version 2 (`Documentation/admin-guide/cgroup-v2.rst` there).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;
use superhue_model::words;
use superhue_sys::cgroup::{folder_below, memberships};

use crate::Roots;
use crate::system::{file::hint, number};

/// Page colors of a control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupColors {
    /// Path of the group in `/proc/PID/cgroup`.
    pub group: String,
    /// Colors of the group, within those of its parents: a list.
    pub effective: String,
    /// True if allocations fail rather than leave these colors; `None` for the root, which has no such file.
    pub strict: Option<bool>,
    /// Pages by outcome, as the kernel names it (`hit`, `outside`, `unmovable_pinned`, ...).
    pub pages: BTreeMap<String, u64>,
}

impl GroupColors {
    /// Reads the colors of process `pid`; `None` if the kernel has no such files, or the group no cpuset.
    #[must_use]
    pub fn read(roots: &Roots, pid: u32) -> Option<Self> {
        Self::at(roots, &roots.of_process(pid, "cgroup"))
    }

    /// Reads the colors of this process.
    #[must_use]
    pub fn own(roots: &Roots) -> Option<Self> {
        Self::at(roots, &roots.proc.join("self/cgroup"))
    }

    fn at(roots: &Roots, cgroup: &Path) -> Option<Self> {
        let groups = fs::read(cgroup).ok()?;
        let groups = words::of_bytes(&groups);
        let (_, group) = memberships(&groups).find(|(controllers, _)| controllers.is_empty())?;
        let root = roots.sys.join("fs/cgroup");
        let folder = folder_below(&root, group);
        // A group without a cpuset of its own uses the cpuset of its nearest ancestor.
        let mut above = folder
            .ancestors()
            .take_while(|above| above.starts_with(&root));
        let (folder, effective) = above.find_map(|folder| {
            hint(&folder.join("cpuset.colors.effective")).map(|effective| (folder, effective))
        })?;
        let strict = hint(&folder.join("cpuset.colors.strict"));
        let stat = hint(&folder.join("cpuset.colors.stat")).unwrap_or_default();
        let pages = stat.lines().filter_map(|line| {
            let (name, pages) = line.split_once(' ')?;
            Some((name.to_owned(), number(pages).ok()?))
        });
        Some(Self {
            group: group.to_owned(),
            effective,
            strict: strict.map(|strict| strict == "1"),
            pages: pages.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_colors_of_a_group_are_those_of_the_nearest_cpuset() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        assert_eq!(GroupColors::read(&roots, 7), None);
        fs::create_dir_all(roots.of_process(7, "")).unwrap();
        fs::write(roots.of_process(7, "cgroup"), "4:memory:/x\n0::/a/b\n").unwrap();
        assert_eq!(GroupColors::read(&roots, 7), None, "no such kernel");
        let a = roots.sys.join("fs/cgroup/a");
        fs::create_dir_all(a.join("b")).unwrap();
        fs::write(a.join("cpuset.colors.effective"), "0-15\n").unwrap();
        fs::write(a.join("cpuset.colors.strict"), "1\n").unwrap();
        fs::write(a.join("cpuset.colors.stat"), "hit 7\nnear x\noutside 2\n").unwrap();
        let found = GroupColors::read(&roots, 7).unwrap();
        assert_eq!(
            (found.group.as_str(), found.effective.as_str()),
            ("/a/b", "0-15")
        );
        assert_eq!(found.strict, Some(true));
        assert_eq!(found.pages.len(), 2);
        assert_eq!(found.pages["outside"], 2);
        fs::write(roots.of_process(7, "cgroup"), "0::/../../etc\n").unwrap();
        assert_eq!(GroupColors::read(&roots, 7), None);
    }
}
