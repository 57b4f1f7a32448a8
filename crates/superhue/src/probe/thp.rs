//! Huge pages that the kernel makes by itself, and the switch that one process has over that.

use rustix::io::Errno;
use superhue_model::HUGE_PAGE_SIZE;
use superhue_procfs::system::ThpSettings;
use superhue_procfs::system::thp::ThpMode;
use superhue_sys::scratch::Scratch;
use superhue_sys::scratch_child::{Backing, ScratchChild};
use superhue_sys::thp::{ThpSwitch, thp_switch};

use super::Probe;
use super::finding::{Finding, Trial, symbol};
use super::look::ProcessFiles;
use super::surroundings::ProbeEnvironment;

pub(super) const MODE: Probe = Probe {
    id: "thp-mode",
    name: "Huge pages by the kernel itself",
    how: "read /sys/kernel/mm/transparent_hugepage, then touched fresh memory with and without \
          MADV_HUGEPAGE",
    used_for: "the effect of --pages kernel, the baseline of comparisons",
    run: mode,
};

pub(super) const PER_PROCESS: Probe = Probe {
    id: "thp-per-process",
    name: "Huge page switch of one process",
    how: "had a scratch child set PR_SET_THP_DISABLE, touch advised memory and collapse some",
    used_for: "--pages never, and keeping the kernel's own huge pages out of a policy's way",
    run: per_process,
};

/// True where touching fresh memory made a huge page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FaultResults {
    plain: bool,
    advised: bool,
}

fn mode(around: &ProbeEnvironment) -> Trial {
    let set = ThpSettings::read(&around.roots)
        .ok()
        .and_then(|settings| settings.huge_page_mode());
    let look = ProcessFiles::own(&around.roots);
    let mut plain = Scratch::untouched(HUGE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    plain.touch();
    let mut advised = Scratch::untouched(HUGE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    if let Err(errno) = advised.advise_huge() {
        return Ok(Finding::no(format!(
            "MADV_HUGEPAGE: {}: this kernel has none",
            symbol(errno)
        ))
        .remedy("a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y"));
    }
    advised.touch();
    let at_fault = FaultResults {
        plain: look.is_huge(plain.region()).map_err(Finding::unseen)?,
        advised: look.is_huge(advised.region()).map_err(Finding::unseen)?,
    };
    Ok(conclude_from_mode(set, at_fault, thp_switch()))
}

fn conclude_from_mode(
    set: Option<ThpMode>,
    at_fault: FaultResults,
    switch: Result<ThpSwitch, Errno>,
) -> Finding {
    let mode = match set {
        Some(mode) => format!("mode `{mode}`: "),
        None => "mode not readable: ".to_owned(),
    };
    match at_fault {
        FaultResults { plain: true, .. } => {
            return Finding::yes(format!("{mode}a fault in any memory makes one"));
        }
        FaultResults { advised: true, .. } => {
            return Finding::yes(format!(
                "{mode}a fault makes one where the program asked (MADV_HUGEPAGE), not elsewhere"
            ));
        }
        _ => {}
    }
    match (set, switch) {
        (_, Ok(ThpSwitch::Never)) => Finding::no(format!(
            "{mode}this process is barred from them (PR_SET_THP_DISABLE)"
        ))
        .remedy("start it from a parent without that setting"),
        (Some(ThpMode::Never), _) => {
            Finding::no(format!("{mode}a fault makes none, whether asked to or not")).remedy(
                "not needed: MADV_COLLAPSE does not ask the mode; host-wide: echo madvise > \
                 /sys/kernel/mm/transparent_hugepage/enabled",
            )
        }
        _ => Finding::partial(format!(
            "{mode}yet a fault made none, where asked to either"
        ))
        .remedy("free or compact memory: perhaps no huge page was free just now"),
    }
}

fn per_process(around: &ProbeEnvironment) -> Trial {
    let child = ScratchChild::start().map_err(Finding::no_child)?;
    let look = ProcessFiles::at(&around.roots, child.pid());
    let never = under(ThpSwitch::Never, &child, &look)?;
    let only_advised = under(ThpSwitch::OnlyAdvised, &child, &look)?;
    Ok(conclude_from_switch(never, only_advised))
}

/// Tries memory in a child that has set its switch. The inner error is that of setting the switch.
fn under(
    switch: ThpSwitch,
    child: &ScratchChild,
    look: &ProcessFiles,
) -> Result<Result<SwitchResults, Errno>, Finding> {
    if let Err(errno) = child.set_thp_switch(switch) {
        return Ok(Err(errno));
    }
    let at_fault = |advise: bool| {
        let region = child.map(Backing::Untouched).map_err(Finding::no_child)?;
        if advise {
            // A kernel without huge pages refuses this, and makes none at a fault either.
            let _ = child.advise_huge();
        }
        child.touch().map_err(Finding::no_child)?;
        look.is_huge(region).map_err(Finding::unseen)
    };
    let at_fault = FaultResults {
        plain: at_fault(false)?,
        advised: at_fault(true)?,
    };
    child.map(Backing::BasePages).map_err(Finding::no_child)?;
    child.fill(1).map_err(Finding::no_child)?;
    Ok(Ok(SwitchResults {
        at_fault,
        collapse: child.collapse(),
    }))
}

/// Results of faults and of a collapse under a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SwitchResults {
    at_fault: FaultResults,
    collapse: Result<(), Errno>,
}

fn conclude_from_switch(
    never: Result<SwitchResults, Errno>,
    only_advised: Result<SwitchResults, Errno>,
) -> Finding {
    let never = match never {
        Err(errno) => {
            return Finding::no(format!("PR_SET_THP_DISABLE: {}", symbol(errno)))
                .remedy("a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y");
        }
        Ok(SwitchResults {
            at_fault:
                FaultResults {
                    plain: false,
                    advised: false,
                },
            collapse,
        }) => {
            format!(
                "`never`: none at a fault, MADV_COLLAPSE {}",
                outcome(collapse)
            )
        }
        Ok(_) => return Finding::no("`never` is accepted, but a fault still makes huge pages"),
    };
    match only_advised {
        Err(errno) => Finding::partial(format!("{never}; `only advised`: {}", symbol(errno)))
            .remedy("Linux 6.18 or later for `only advised` (PR_THP_DISABLE_EXCEPT_ADVISED)"),
        Ok(SwitchResults {
            at_fault: FaultResults { plain: true, .. },
            ..
        }) => Finding::partial(format!(
            "{never}; `only advised` is accepted, but a fault in other memory makes huge pages"
        )),
        Ok(SwitchResults { at_fault, collapse }) => {
            let advised = if at_fault.advised { "some" } else { "none" };
            Finding::yes(format!(
                "{never}; `only advised`: {advised} at a fault in advised memory, none elsewhere, \
                 MADV_COLLAPSE {}",
                outcome(collapse)
            ))
        }
    }
}

fn outcome(collapse: Result<(), Errno>) -> String {
    match collapse {
        Ok(()) => "works".to_owned(),
        Err(errno) => format!("refused ({})", symbol(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Availability;
    use super::*;

    const NONE: FaultResults = FaultResults {
        plain: false,
        advised: false,
    };
    const ADVISED: FaultResults = FaultResults {
        plain: false,
        advised: true,
    };
    const ANY: FaultResults = FaultResults {
        plain: true,
        advised: true,
    };

    #[test]
    fn the_trial_decides_and_not_the_setting() {
        let availability =
            |set, seen| conclude_from_mode(set, seen, Ok(ThpSwitch::System)).availability;
        assert_eq!(
            availability(Some(ThpMode::Madvise), ADVISED),
            Availability::Yes
        );
        assert_eq!(availability(Some(ThpMode::Never), ANY), Availability::Yes);
        assert_eq!(availability(None, ADVISED), Availability::Yes);
        assert_eq!(availability(Some(ThpMode::Never), NONE), Availability::No);
        assert_eq!(
            availability(Some(ThpMode::Always), NONE),
            Availability::Partial
        );
        assert_eq!(availability(None, NONE), Availability::Partial);
        let barred = conclude_from_mode(Some(ThpMode::Always), NONE, Ok(ThpSwitch::Never));
        assert_eq!(barred.availability, Availability::No);
    }

    #[test]
    fn a_switch_that_does_not_switch_is_no_yes() {
        let under = |at_fault, collapse| Ok(SwitchResults { at_fault, collapse });
        let never = under(NONE, Err(Errno::INVAL));
        let availability = |never, advised| conclude_from_switch(never, advised).availability;
        assert_eq!(
            availability(never, under(ADVISED, Ok(()))),
            Availability::Yes
        );
        assert_eq!(
            availability(never, under(NONE, Ok(()))),
            Availability::Yes,
            "mode `never`"
        );
        assert_eq!(
            availability(never, Err(Errno::INVAL)),
            Availability::Partial
        );
        assert_eq!(
            availability(never, under(ANY, Ok(()))),
            Availability::Partial
        );
        assert_eq!(
            availability(under(ADVISED, Ok(())), under(ADVISED, Ok(()))),
            Availability::No
        );
        assert_eq!(
            availability(Err(Errno::INVAL), Err(Errno::INVAL)),
            Availability::No
        );
    }
}
