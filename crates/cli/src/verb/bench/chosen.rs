//! Choice of workloads.

use std::fmt::Write as _;

use superhue_bench::arm::Arm;
use superhue_bench::workload::{Workload, all};

use crate::named::meaning_of_arm;

/// A workload of its own kind: not a figure by size, but jobs beside partners.
const ISOLATION: &str = "isolation";
const ABOUT_ISOLATION: &str = "jobs of a victim while a partner has the CPU in between";
/// Stands for all workloads.
const ALL: &str = "all";

/// Workloads to measure.
pub(super) struct WorkloadSelection {
    pub(super) workloads: Vec<Box<dyn Workload>>,
    pub(super) isolation: bool,
}

impl WorkloadSelection {
    /// Returns the workloads of these names, each once, in the order of the list; or the reason why not.
    pub(super) fn of(names: &[String]) -> Result<Self, String> {
        let known: Vec<&str> = all()
            .iter()
            .map(|workload| workload.name())
            .chain([ISOLATION, ALL])
            .collect();
        if let Some(wrong) = names.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(format!(
                "`{wrong}` is no workload: there are {}",
                known.join(", ")
            ));
        }
        let wanted = |name: &str| names.iter().any(|wanted| wanted == name || wanted == ALL);
        let workloads = all().into_iter().filter(|workload| wanted(workload.name()));
        Ok(Self {
            workloads: workloads.collect(),
            isolation: wanted(ISOLATION),
        })
    }
}

/// Returns the text of --list.
pub(super) fn list() -> String {
    let mut out = String::from("workloads:\n");
    for workload in all() {
        let _ = writeln!(out, "  {:<16} {}", workload.name(), workload.about());
    }
    let _ = writeln!(out, "  {ISOLATION:<16} {ABOUT_ISOLATION}");
    let _ = writeln!(out, "  {ALL:<16} all of these");
    out.push_str("arms:\n");
    for arm in Arm::ALL {
        let about = meaning_of_arm(arm);
        let _ = writeln!(out, "  {:<16} {about}", arm.name());
    }
    out
}
