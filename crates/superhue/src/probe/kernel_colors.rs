//! Checks that the kernel chooses pages by color itself.

use std::thread;

use rustix::io::Errno;
use superhue_color::kernel::Bounds;
use superhue_model::{BASE_PAGE_SIZE, ColorSet};
use superhue_procfs::ReadError;
use superhue_procfs::process::ProcessColors;
use superhue_procfs::system::PageColors;
use superhue_sys::page_color::{TaskColors, set_task_colors};
use superhue_sys::scratch::Scratch;

use super::Probe;
use super::finding::{Finding, Trial, symbol};
use super::surroundings::ProbeEnvironment;

/// Pages that the trial touches in one color.
const PAGES: usize = 32;

pub(super) const KERNEL: Probe = Probe {
    id: "colors-kernel",
    name: "Page colors by the kernel",
    how: "read /proc/page_color; a thread asked for one color (prctl), touched 32 pages, and the kernel's count of \
          this process's pages by color was compared",
    used_for: "placement `kernel` of `run --colors`; color oracle `kernel`",
    run: kernel,
};

fn kernel(around: &ProbeEnvironment) -> Trial {
    let coloring = PageColors::read(&around.roots).map_err(|error| match error {
        ReadError::Missing { .. } => Finding::no("this kernel has no page coloring").remedy(
            "nothing: superhue recolors pages instead; to have it, a kernel with the patches in kernel/ of Superhue's source",
        ),
        error => Finding::unknown(error.to_string()),
    })?;
    check_offer(&coloring)?;
    let bounds = Bounds::own(&around.roots, &coloring);
    let got = touch(around, &bounds.set)?;
    Ok(conclude(&coloring, &bounds, got))
}

/// Returns `Ok` if page coloring is on and there are colors to choose from.
fn check_offer(coloring: &PageColors) -> Result<(), Finding> {
    let geometry = coloring.geometry();
    if !coloring.enabled {
        let found = format!("there, but off; geometry: {geometry}");
        return Err(
            Finding::partial(found).remedy(format!("as root: {}", coloring.how_to_enable()))
        );
    }
    if coloring.colors() < 2 {
        let found = format!("on, but it makes one color; geometry: {geometry}");
        let remedy =
            "as root: sysctl vm.page_coloring=0 vm.page_color_geometry=L2 vm.page_coloring=1";
        return Err(Finding::partial(found).remedy(remedy));
    }
    Ok(())
}

/// Touches [`PAGES`] pages and returns the number of them that have the first color of `allowed`.
fn touch(around: &ProbeEnvironment, allowed: &ColorSet) -> Result<u64, Finding> {
    let color = allowed
        .iter()
        .next()
        .map_or(0, |color| usize::from(color.0));
    let mut words = vec![0_u64; allowed.colors().div_ceil(64)];
    if let Some(word) = words.get_mut(color / 64) {
        *word = 1 << (color % 64);
    }
    // Of the set, which is this color: all that the kernel shows to an ordinary user.
    let count = || -> Result<u64, Finding> {
        let counted = ProcessColors::of_this_thread(&around.roots);
        let counted = counted.map_err(|error| Finding::unseen(error.to_string()))?;
        let hidden = || Finding::unseen("the kernel does not show the pages of the set".to_owned());
        Ok(counted.inside.ok_or_else(hidden)?.0)
    };
    ProcessColors::own(&around.roots).map_err(|error| Finding::unseen(error.to_string()))?;
    let mut scratch =
        Scratch::untouched(PAGES * BASE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    thread::scope(|scope| {
        let touch = || -> Result<u64, Finding> {
            set_task_colors(TaskColors::Set {
                colors: &words,
                strict: false,
            })
            .map_err(refused)?;
            let before = count()?;
            (0..PAGES).for_each(|page| scratch.touch_page(page));
            // Another part of this process may have allocated pages of that color.
            Ok(count()?.saturating_sub(before).min(PAGES as u64))
        };
        let thread = thread::Builder::new().spawn_scoped(scope, touch);
        thread.map_or_else(
            |_| Err(refused(Errno::AGAIN)),
            |thread| thread.join().unwrap_or_else(|_| Err(refused(Errno::AGAIN))),
        )
    })
}

fn refused(errno: Errno) -> Finding {
    let found = format!("on, but prctl(PR_PAGE_COLOR) says {}", symbol(errno));
    match errno {
        Errno::PERM => Finding::partial(found).remedy(
            "run as root (CAP_SYS_RESOURCE), or in a control group with cpuset.colors; or the colors are those of others: see \
             cpuset.colors.effective",
        ),
        Errno::OPNOTSUPP => {
            Finding::partial(found).remedy("it has just been switched off; try again")
        }
        _ => Finding::no(found),
    }
}

fn conclude(coloring: &PageColors, bounds: &Bounds, got: u64) -> Finding {
    let (colors, geometry) = (coloring.colors(), coloring.geometry());
    let bounded = match &bounds.because {
        Some(because) => format!("; {} may be chosen: {because}", bounds.set),
        None => String::new(),
    };
    let found = format!(
        "{colors} colors ({geometry}); of {PAGES} pages {got} came on the color asked for{bounded}"
    );
    // Another part of this process may have freed pages of that color.
    if got + PAGES as u64 / 8 >= PAGES as u64 {
        Finding::yes(found)
    } else {
        Finding::partial(found).remedy("too little memory of that color is free")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use superhue_procfs::Roots;

    use super::super::Availability;
    use super::*;

    fn found(text: &str) -> Finding {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        fs::create_dir_all(&roots.proc).unwrap();
        fs::write(roots.proc.join("page_color"), text).unwrap();
        kernel(&ProbeEnvironment::of(&roots, Default::default())).unwrap_or_else(|finding| finding)
    }

    #[test]
    fn what_the_kernel_lacks_is_told_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = ProbeEnvironment::of(&Roots::under(folder.path()), Default::default());
        let without = kernel(&nowhere).unwrap_err();
        assert_eq!(without.availability, Availability::No);
        assert!(without.remedy.unwrap().contains("kernel/"));

        let off = found("enabled 0\ngeometry none\ncolors 1\nstrayed 0\n");
        assert_eq!(off.availability, Availability::Partial);
        let remedy = off.remedy.unwrap();
        assert!(
            remedy.contains("sysctl vm.page_color_geometry=L2 vm.page_coloring=1"),
            "{remedy}"
        );

        let known = found("enabled 0\ngeometry masks:0x1000,0x2000\ncolors 4\n");
        assert!(known.found.contains("masks:0x1000,0x2000"));
        assert!(known.remedy.unwrap().ends_with("sysctl vm.page_coloring=1"));

        let one = found("enabled 1\ngeometry 4\ncolors 1\n");
        assert!(one.found.contains("one color") && one.remedy.is_some());

        let garbled = found("enabled perhaps\n");
        assert_eq!(garbled.availability, Availability::Unknown);
        // The file says that coloring is on, but the effect cannot be seen.
        let odd = found("enabled 1\ngeometry masks:0x1000\ncolors 2\n");
        assert_eq!(odd.availability, Availability::Unknown, "{odd:?}");
    }

    #[test]
    fn a_trial_is_judged_by_the_pages_that_came() {
        let coloring = PageColors::parse("enabled 1\ngeometry masks:0x1000\ncolors 2\n").unwrap();
        let all = Bounds {
            set: ColorSet::all(2),
            because: None,
        };
        assert_eq!(
            conclude(&coloring, &all, 31).availability,
            Availability::Yes
        );
        assert_eq!(
            conclude(&coloring, &all, 9).availability,
            Availability::Partial
        );
        assert!(
            refused(Errno::PERM)
                .remedy
                .unwrap()
                .contains("cpuset.colors")
        );
        assert_eq!(refused(Errno::INVAL).availability, Availability::No);
    }
}
