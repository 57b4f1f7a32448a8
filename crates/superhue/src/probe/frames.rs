//! Checks that the kernel shows page frame numbers.

use rustix::thread::CapabilitySet;
use superhue_model::BASE_PAGE_SIZE;
use superhue_procfs::hardware::Machine;
use superhue_sys::scratch::Scratch;

use super::Probe;
use super::finding::{Finding, Trial};
use super::look::ProcessFiles;
use super::surroundings::ProbeEnvironment;

pub(super) const PFN: Probe = Probe {
    id: "pfn",
    name: "Page frame numbers",
    how: "touched a page and read its /proc/self/pagemap entry (the number is not printed)",
    used_for: "color oracle `pfn`; heat tracker `idle`",
    run: pfn,
};

fn pfn(around: &ProbeEnvironment) -> Trial {
    let mut scratch = Scratch::untouched(BASE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    scratch.touch();
    let entry = ProcessFiles::own(&around.roots)
        .entry(scratch.range().start)
        .map_err(Finding::unknown)?;
    if !entry.is_present() {
        return Err(Finding::unknown(
            "the page just touched is not present in pagemap",
        ));
    }
    Ok(if entry.frame().is_none() {
        let finding = Finding::no("pagemap shows the page, but hides its frame number");
        match around.grant(CapabilitySet::SYS_ADMIN) {
            Some(grant) => finding.remedy(grant),
            None => finding,
        }
    } else if around.virtualization().machine == Machine::Virtual {
        Finding::yes("shown; a virtual machine's numbers, which say nothing about the host's")
    } else {
        Finding::yes("shown")
    })
}
