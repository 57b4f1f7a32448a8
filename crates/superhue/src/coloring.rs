//! Coloring of the machine and of processes, as a kernel with page coloring reports it, for `superhue status`.

use serde::Serialize;
use superhue_model::PageCount;
use superhue_procfs::process::{GroupColors, ProcessColors, ResidentColor};
use superhue_procfs::system::page_color::{ColorCounts, geometry};
use superhue_procfs::system::{ColorSettings, PageColors};
use superhue_procfs::{ReadError, Roots};

/// Coloring of the machine. Pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ColoringStatus {
    /// True if the kernel lists free pages by color; otherwise no process can request a color.
    pub enabled: bool,
    /// Definition of a color, in the kernel's words.
    pub geometry: String,
    /// Number of colors in this geometry.
    pub colors: usize,
    /// True if every task without a set takes all colors in turn; `None` if it could not be read.
    pub spread_for_all: Option<bool>,
    /// The colors of the kernel's own memory and of tasks without a set; `None`: any.
    pub unassigned: Option<String>,
    /// Pages that left their color when they were moved.
    pub strayed: Option<PageCount>,
    /// By color, over all zones; empty unless enabled.
    pub by_color: Vec<ColorCounts>,
}

/// Colors of a process. Pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessColoring {
    /// The colors that its first thread takes; `None`: any.
    pub set: Option<String>,
    /// True if its allocations fail rather than leave the set.
    pub strict: bool,
    /// Number of colors.
    pub colors: usize,
    /// Definition of a color, in the kernel's words.
    pub geometry: String,
    /// Resident pages of the set, or all without one; `None` where the kernel does not show them to the caller.
    pub inside: Option<PageCount>,
    /// Resident pages of other colors; likewise.
    pub outside: Option<PageCount>,
    /// Resident pages by color; only in the report on a single process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_color: Vec<ResidentColor>,
    /// Colors of its control group; `None` without a cpuset.
    pub group: Option<GroupColors>,
}

/// Returns the machine's coloring; `None` on a kernel without the patch series.
///
/// # Errors
/// Fails when the kernel has it and its file cannot be read or understood.
pub fn of_machine(roots: &Roots) -> Result<Option<ColoringStatus>, ReadError> {
    let coloring = match PageColors::read(roots) {
        Err(ReadError::Missing { .. }) => return Ok(None),
        coloring => coloring?,
    };
    let settings = ColorSettings::read(roots, coloring.colors());
    Ok(Some(ColoringStatus {
        enabled: coloring.enabled,
        geometry: coloring.geometry(),
        colors: coloring.colors(),
        spread_for_all: settings.spread,
        unassigned: settings.unassigned,
        strayed: coloring.strayed,
        by_color: coloring.by_color(),
    }))
}

/// Returns a process's colors, with the counts of each if `in_full`; `None` where the kernel does not report them, or the caller may not read them.
#[must_use]
pub fn of_process(roots: &Roots, pid: u32, in_full: bool) -> Option<ProcessColoring> {
    let found = ProcessColors::read(roots, pid).ok()?;
    Some(ProcessColoring {
        set: found.set.as_ref().map(ToString::to_string),
        strict: found.strict,
        colors: found.count,
        geometry: geometry(found.index.as_ref()),
        inside: found.inside,
        outside: found.outside,
        by_color: if in_full { found.colors } else { Vec::new() },
        group: GroupColors::read(roots, pid),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_stock_kernel_has_nothing_to_say() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        assert_eq!(of_machine(&roots).unwrap(), None);
        assert_eq!(of_process(&roots, 7, true), None);
        fs::create_dir_all(&roots.proc).unwrap();
        fs::write(roots.proc.join("page_color"), "enabled\n").unwrap();
        assert!(matches!(
            of_machine(&roots),
            Err(ReadError::Malformed { .. })
        ));
    }

    #[test]
    fn a_patched_kernel_and_its_processes_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let vm = roots.proc.join("sys/vm");
        let place = roots.of_process(7, "");
        let group = roots.sys.join("fs/cgroup/a");
        for folder in [&vm, &place, &group] {
            fs::create_dir_all(folder).unwrap();
        }
        let machine = "enabled 1\ngeometry masks:0x1000\ncolors 2\nstrayed 3\n\nzone 0 Normal\nbuddy 9\nlisted 9\n\
            ready 0\ncolor free allocated hits fallbacks\n0 5 5 10 1\n1 4 5 7 8\n";
        fs::write(roots.proc.join("page_color"), machine).unwrap();
        fs::write(vm.join("page_color_spread"), "1\n").unwrap();
        fs::write(vm.join("page_color_unassigned"), "0\n").unwrap();
        let shown = of_machine(&roots).unwrap().unwrap();
        assert_eq!((shown.enabled, shown.colors), (true, 2));
        assert_eq!(
            (shown.spread_for_all, shown.unassigned.as_deref()),
            (Some(true), Some("0"))
        );
        assert_eq!(shown.by_color[1].fallbacks, PageCount(8));

        let process = "geometry masks:0x1000\ncolors 2\nset 1\nstrict 1\ninside 40\noutside 2\ncolor base large\n\
            0 2 0\n1 40 0\n";
        fs::write(place.join("page_color"), process).unwrap();
        fs::write(place.join("cgroup"), "0::/a\n").unwrap();
        fs::write(group.join("cpuset.colors.effective"), "1\n").unwrap();
        let brief = of_process(&roots, 7, false).unwrap();
        assert!(brief.by_color.is_empty() && brief.strict);
        assert_eq!(brief.group.unwrap().effective, "1");
        let full = of_process(&roots, 7, true).unwrap();
        assert_eq!(full.by_color[1].base, PageCount(40));
    }
}
