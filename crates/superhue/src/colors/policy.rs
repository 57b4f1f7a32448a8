//! Policy of a command whose memory the kernel places.

use rustix::io::Errno;
use superhue_color::kernel::{Bounds, try_colors, wanted};
use superhue_color::oracles::Judgement;
use superhue_model::{ColorIndex, ColorSet};
use superhue_procfs::Roots;
use superhue_procfs::system::PageColors;
use superhue_sys::page_color::set_task_colors;

/// Colors for a command, and their geometry.
#[derive(Debug, Clone)]
pub(crate) struct KernelPolicy {
    pub(crate) set: ColorSet,
    pub(crate) strict: bool,
    pub(crate) index: ColorIndex,
    pub(crate) geometry: String,
    pub(crate) judgement: Judgement,
    /// Counts of the whole machine when the command starts.
    pub(crate) before: PageColors,
    words: Vec<u64>,
}

impl KernelPolicy {
    pub(super) fn new(
        set: ColorSet,
        strict: bool,
        coloring: &PageColors,
        judgement: Judgement,
    ) -> Option<Self> {
        Some(Self {
            words: set.to_words(),
            set,
            strict,
            index: coloring.index.clone()?,
            geometry: coloring.geometry(),
            judgement,
            before: coloring.clone(),
        })
    }

    /// Gives the calling task these colors. Safe between `fork` and `exec`.
    ///
    /// # Errors
    /// As [`set_task_colors`].
    pub(crate) fn apply(&self) -> Result<(), Errno> {
        set_task_colors(wanted(&self.set, &self.words, self.strict))
    }

    /// Tests whether a command may have these colors.
    ///
    /// # Errors
    /// As [`set_task_colors`].
    pub(crate) fn allowed(&self) -> Result<(), Errno> {
        try_colors(&self.set, self.strict)
    }

    /// Explains why the kernel refused, and what to do.
    pub(super) fn explain(&self, errno: Errno, roots: &Roots) -> String {
        explain(&self.set, errno, &Bounds::own(roots, &self.before))
    }
}

fn explain(set: &ColorSet, errno: Errno, bounds: &Bounds) -> String {
    match errno {
        Errno::PERM => match &bounds.because {
            Some(because) if !set.iter().all(|color| bounds.set.contains(color)) => format!(
                "colors {set} may not be chosen here: {because}: {}; ask for some of those, or have the \
                 administrator change that",
                bounds.set
            ),
            _ => format!(
                "colors {set} may not be chosen here: that takes CAP_SYS_RESOURCE (root), unless they are within \
                 cpuset.colors of the control group and not strict; or others have reserved them \
                 (cpuset.colors.effective, vm.page_color_unassigned)"
            ),
        },
        Errno::INVAL => format!(
            "the kernel knows no colors {set}: its geometry has just been changed; superhue status shows it"
        ),
        Errno::OPNOTSUPP => {
            "page coloring has just been switched off; as root: sysctl vm.page_coloring=1"
                .to_owned()
        }
        errno => format!("the kernel refused colors {set}: {errno}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_who_and_what_to_do() {
        let set = ColorSet::from_words(&[0b1100], 4).unwrap();
        let bounds = Bounds {
            set: ColorSet::from_words(&[0b0011], 4).unwrap(),
            because: Some("the control group /a has these".to_owned()),
        };
        let said = explain(&set, Errno::PERM, &bounds);
        assert!(
            said.contains("colors 2-3") && said.contains("/a has these: 0-1"),
            "{said}"
        );
        // Its bounds hold these colors, so the bounds are not the obstacle.
        let within = ColorSet::from_words(&[0b0001], 4).unwrap();
        let said = explain(&within, Errno::PERM, &bounds);
        assert!(
            said.contains("CAP_SYS_RESOURCE") && !said.contains("/a has these"),
            "{said}"
        );
        let free = Bounds {
            set: ColorSet::all(4),
            because: None,
        };
        let said = explain(&set, Errno::PERM, &free);
        assert!(said.contains("CAP_SYS_RESOURCE") && said.contains("cpuset.colors.effective"));
        assert!(explain(&set, Errno::INVAL, &free).contains("geometry"));
        assert!(explain(&set, Errno::OPNOTSUPP, &free).contains("sysctl"));
        assert!(explain(&set, Errno::NOMEM, &free).contains("2-3"));
    }
}
