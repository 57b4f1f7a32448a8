//! Means by which a policy acts on this machine, for this caller.
//!
//! | policy     | system mode `always`   | `madvise`                        | `never`             |
//! |------------|------------------------|----------------------------------|---------------------|
//! | `kernel`   | look only              | look only                        | look only           |
//! | `never`    | switch off (prctl)     | switch off (prctl)               | switch off (prctl)  |
//! | `always`   | the kernel does it     | collapse                         | collapse            |
//! | `resident` | only advised + collapse| collapse                         | collapse            |
//! | `hot`      | as `resident`          | as `resident`                    | as `resident`       |
//! | `auto`     | the kernel's stay      | collapse                         | collapse            |
//!
//! *switch off* is `PR_SET_THP_DISABLE`; *only advised* its flag of Linux 6.18, which keeps the
//! kernel from making huge pages by itself and still lets `MADV_COLLAPSE` through; *collapse* acts
//! from outside, which takes `CAP_SYS_NICE`, or the daemon collapses for a user (`means.rs`). Under `madvise` and `never`, `always` is a
//! moment late: memory gets its huge pages soon after its first touch. `--system enabled=always` is not late.

use serde::Serialize;
use superhue_procfs::system::ThpSettings;
use superhue_procfs::system::thp::ThpMode;
use superhue_sys::thp::{ThpSwitch, set_thp_switch, thp_switch};

use crate::means::{Means, MeansError, WITHOUT_CAPABILITY};
use crate::{Config, Pages};

/// Means by which a policy acts.
#[derive(Debug, Clone, Serialize)]
pub struct Mechanism {
    /// Huge page switch that the command starts with.
    #[serde(skip)]
    pub switch: ThpSwitch,
    /// True if regions are collapsed at all.
    pub collapses: bool,
    /// Sentences for the report on what works here and what does not.
    pub notes: Vec<String>,
    /// Reason why no huge pages are made although the policy asks for some; `None` if some can be made, or none are to be.
    #[serde(skip)]
    pub obstacle: Option<String>,
    /// Process that collapses them.
    #[serde(skip)]
    pub(crate) means: Means,
}

impl Mechanism {
    /// Returns the mechanism for a command that the caller starts.
    #[must_use]
    pub fn for_command(config: &Config) -> Self {
        let mode = ThpSettings::read_huge_page_mode(&config.roots);
        let mut mechanism = Self::plan(config.likely_pages(), mode, only_advised_works());
        if let Err(why) = mechanism.find_means(config) {
            mechanism.give_up(why);
        }
        mechanism
    }

    /// Collapses nothing, for this reason.
    fn give_up(&mut self, why: MeansError) {
        self.collapses = false;
        let (link, why) = match why {
            MeansError::NotPermitted(why) => (
                ", as",
                format!("that takes CAP_SYS_NICE, and {why}: {WITHOUT_CAPABILITY}"),
            ),
            MeansError::Impossible(why) => (":", why),
        };
        self.notes
            .push(format!("no huge pages were made{link} {why}"));
        self.obstacle = Some(why);
    }

    /// Returns the mechanism for running processes: the caller cannot set their switch from outside.
    ///
    /// # Errors
    /// The reason why the caller may not act on them, as a clause.
    pub(crate) fn for_running(config: &Config) -> Result<Self, String> {
        let mode = ThpSettings::read_huge_page_mode(&config.roots);
        let pages = config.likely_pages();
        let mut notes = Vec::new();
        match (pages, mode) {
            (Pages::Never, _) => notes.push(
                "huge pages can be switched off only for a command that superhue starts: \
                 only looking"
                    .to_owned(),
            ),
            (Pages::Resident | Pages::Hot, Some(ThpMode::Always)) => notes.push(
                "the system-wide mode `always` gives these processes huge pages by itself; \
                 superhue can only add to that"
                    .to_owned(),
            ),
            (Pages::Always, Some(ThpMode::Madvise | ThpMode::Never)) => notes.push(
                "memory gets its huge pages soon after it is first touched, not when".to_owned(),
            ),
            _ => {}
        }
        let mut mechanism = Self {
            switch: ThpSwitch::System,
            collapses: pages.promotes(),
            notes,
            obstacle: None,
            means: Means::default(),
        };
        match mechanism.find_means(config) {
            Ok(()) => Ok(mechanism),
            Err(MeansError::NotPermitted(why) | MeansError::Impossible(why)) => Err(why),
        }
    }

    /// Finds the means of collapsing, if the policy collapses anything.
    fn find_means(&mut self, config: &Config) -> Result<(), MeansError> {
        if self.collapses && !config.dry_run {
            self.means = Means::find(&config.roots)?;
            self.notes.extend(self.means.note());
        }
        Ok(())
    }

    pub(crate) fn plan(pages: Pages, mode: Option<ThpMode>, only_advised_works: bool) -> Self {
        let mut plan = Self {
            switch: ThpSwitch::System,
            collapses: pages.promotes(),
            notes: Vec::new(),
            obstacle: None,
            means: Means::default(),
        };
        match (pages, mode) {
            (Pages::Kernel, _) => {}
            (Pages::Never, _) => plan.switch = ThpSwitch::Never,
            (Pages::Always, Some(ThpMode::Always)) => {
                plan.collapses = false;
                plan.notes
                    .push("the system-wide mode is `always` already".to_owned());
            }
            (Pages::Always, Some(mode @ (ThpMode::Madvise | ThpMode::Never))) => {
                plan.notes.push(format!(
                    "the system-wide mode is `{mode}`: memory gets its huge pages soon after it is \
                     first touched, not when (--system enabled=always, as root, changes the mode meanwhile)"
                ));
            }
            (Pages::Resident | Pages::Hot, Some(ThpMode::Always)) if only_advised_works => {
                plan.switch = ThpSwitch::OnlyAdvised;
            }
            (Pages::Resident | Pages::Hot, Some(ThpMode::Always)) => plan.notes.push(
                "the system-wide mode is `always` and this kernel (before 6.18) cannot keep it \
                 from one process: superhue can only add to what it gives \
                 (--system enabled=madvise changes the mode meanwhile)"
                    .to_owned(),
            ),
            (Pages::Resident | Pages::Hot, Some(ThpMode::Madvise | ThpMode::Never)) => {}
            // The kernel makes its huge pages at the page fault, sooner than Superhue could. Unused ones are split later.
            (Pages::Auto, Some(_)) => {}
            (Pages::Auto | Pages::Always | Pages::Resident | Pages::Hot, None) => {
                // The switch does no harm under any mode, and under `always` the policy needs it.
                if !matches!(pages, Pages::Always | Pages::Auto) && only_advised_works {
                    plan.switch = ThpSwitch::OnlyAdvised;
                }
                plan.notes.push(
                    "what the machine gives by itself is not known, as its settings are hidden here \
                     (/sys/kernel/mm/transparent_hugepage): what works was found out by trying"
                        .to_owned(),
                );
            }
        }
        plan
    }
}

/// Returns true if this kernel has the mode of Linux 6.18. Sets it on this process to find out, and restores the old one.
fn only_advised_works() -> bool {
    let Ok(before) = thp_switch() else {
        return false;
    };
    let works = set_thp_switch(ThpSwitch::OnlyAdvised).is_ok();
    works && set_thp_switch(before).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mechanism_that_gives_up_has_its_reason() {
        let plan = || Mechanism::plan(Pages::Resident, Some(ThpMode::Madvise), true);
        assert_eq!(plan().obstacle, None);
        // It is to make none; --system may change the mode.
        for (pages, mode) in [
            (Pages::Kernel, ThpMode::Never),
            (Pages::Always, ThpMode::Always),
        ] {
            let plan = Mechanism::plan(pages, Some(mode), true);
            assert_eq!((plan.collapses, plan.obstacle), (false, None));
        }
        let mut refused = plan();
        refused.give_up(MeansError::NotPermitted("nobody helps".to_owned()));
        let why = format!("that takes CAP_SYS_NICE, and nobody helps: {WITHOUT_CAPABILITY}");
        assert_eq!(
            refused.notes,
            [format!("no huge pages were made, as {why}")]
        );
        assert_eq!((refused.collapses, refused.obstacle), (false, Some(why)));
        let mut impossible = plan();
        impossible.give_up(MeansError::Impossible("it cannot".to_owned()));
        assert_eq!(impossible.notes, ["no huge pages were made: it cannot"]);
        assert_eq!(impossible.obstacle.as_deref(), Some("it cannot"));
    }

    #[test]
    fn each_policy_finds_its_way_under_each_system_mode() {
        use ThpMode::{Always, Madvise, Never};
        let plan = |pages, mode| Mechanism::plan(pages, Some(mode), true);
        for mode in [Always, Madvise, Never] {
            assert_eq!(plan(Pages::Never, mode).switch, ThpSwitch::Never);
            assert_eq!(plan(Pages::Kernel, mode).switch, ThpSwitch::System);
            assert!(!plan(Pages::Kernel, mode).collapses);
            for pages in [Pages::Resident, Pages::Hot, Pages::Auto] {
                assert!(plan(pages, mode).collapses);
            }
            // Also in the mode `always`: huge pages that the kernel makes at the fault stay.
            assert_eq!(plan(Pages::Auto, mode).switch, ThpSwitch::System);
        }
        assert_eq!(plan(Pages::Resident, Always).switch, ThpSwitch::OnlyAdvised);
        assert_eq!(plan(Pages::Hot, Always).switch, ThpSwitch::OnlyAdvised);
        assert_eq!(plan(Pages::Resident, Madvise).switch, ThpSwitch::System);
        assert!(!plan(Pages::Always, Always).collapses);
        for mode in [Madvise, Never] {
            let late = plan(Pages::Always, mode);
            assert!(late.collapses);
            assert!(late.notes[0].contains("--system enabled=always"));
        }

        let old = Mechanism::plan(Pages::Resident, Some(Always), false);
        assert_eq!(old.switch, ThpSwitch::System);
        assert!(old.notes[0].contains("6.18"));
        // Where settings are hidden, every policy still collapses.
        for pages in [Pages::Always, Pages::Resident, Pages::Hot] {
            let hidden = Mechanism::plan(pages, None, true);
            assert!(hidden.collapses && hidden.notes[0].contains("hidden"));
            let switch = if pages == Pages::Always {
                ThpSwitch::System
            } else {
                ThpSwitch::OnlyAdvised
            };
            assert_eq!(hidden.switch, switch);
        }
    }
}
