//! The colors that a task may choose from.
//!
//! The colors of its control group, if that group (or one above) has a set; else the unassigned ones, if some are
//! reserved for other groups; else all. Without `CAP_SYS_RESOURCE` the kernel lets a task choose only in a group with
//! colors.

use superhue_model::ColorSet;
use superhue_procfs::Roots;
use superhue_procfs::process::GroupColors;
use superhue_procfs::system::{ColorSettings, PageColors};

/// Bounds of the caller's choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bounds {
    /// The colors it may choose from.
    pub set: ColorSet,
    /// Source of the bound, in words; `None` if nothing bounds the choice.
    pub because: Option<String>,
}

impl Bounds {
    /// Reads the bounds of this process.
    #[must_use]
    pub fn own(roots: &Roots, coloring: &PageColors) -> Self {
        let colors = coloring.colors();
        let bounding = |text: &str| {
            let set = ColorSettings::parse_set(text, colors).ok();
            set.filter(|set| !set.is_all())
        };
        let group = GroupColors::own(roots).and_then(|group| {
            let because = format!("the control group {} has these", group.group);
            Some((bounding(&group.effective)?, because))
        });
        let unassigned = || {
            let unassigned = ColorSettings::read(roots, colors).unassigned?;
            let because = "the others are reserved (vm.page_color_unassigned)".to_owned();
            Some((bounding(&unassigned)?, because))
        };
        match group.or_else(unassigned) {
            Some((set, because)) => Self {
                set,
                because: Some(because),
            },
            None => Self {
                set: ColorSet::all(colors),
                because: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_group_comes_before_what_is_unassigned() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let coloring =
            PageColors::parse("enabled 1\ngeometry masks:0x1000,0x2000\ncolors 4\n").unwrap();
        let all = Bounds::own(&roots, &coloring);
        assert!(all.set.is_all() && all.because.is_none());
        let vm = roots.proc.join("sys/vm");
        fs::create_dir_all(&vm).unwrap();
        fs::write(vm.join("page_color_unassigned"), "0-1\n").unwrap();
        let unassigned = Bounds::own(&roots, &coloring);
        assert_eq!(unassigned.set.to_string(), "0-1");
        assert!(unassigned.because.unwrap().contains("unassigned"));
        let group = roots.sys.join("fs/cgroup/a");
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(roots.proc.join("self")).unwrap();
        fs::write(roots.proc.join("self/cgroup"), "0::/a\n").unwrap();
        fs::write(group.join("cpuset.colors.effective"), "0-3\n").unwrap();
        assert_eq!(Bounds::own(&roots, &coloring).set.to_string(), "0-1");
        fs::write(group.join("cpuset.colors.effective"), "2-3\n").unwrap();
        let bounds = Bounds::own(&roots, &coloring);
        assert_eq!(bounds.set.to_string(), "2-3");
        assert!(bounds.because.unwrap().contains("/a"));
    }
}
