//! Memory of known colors, dealt by a kernel with page coloring.
//!
//! A thread requests one color after the other and populates a part of the memory with each. An allocation never fails
//! because of color, so the thread reads the kernel's count of this process's pages by color before and after: a color
//! of which too few pages came is not known.

use std::thread;

use crate::oracles::{Backing, KernelOracle, OracleError, Sample};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, PageCount};
use superhue_procfs::Roots;
use superhue_procfs::process::ProcessColors;
use superhue_procfs::system::PageColors;
use superhue_sys::page_color::{TaskColors, set_task_colors};

/// One page in this number may have another color: other threads of the process allocate meanwhile.
const TOLERANCE: u64 = 16;

/// Pages of all colors that this process may take, and the oracle that knows their colors.
#[derive(Debug)]
pub struct ColoredSample {
    /// The pages.
    pub sample: Sample,
    /// Knows the colors of these pages, and of no others.
    pub oracle: KernelOracle,
    /// Number of colors that have pages.
    pub colors: usize,
}

/// Has the kernel deal about `size` bytes, an equal number of pages of each color, on a thread that ends.
///
/// # Errors
/// [`OracleError::Unavailable`] where coloring is off, there is one color only, no memory, or no color was dealt.
pub fn deal(
    roots: &Roots,
    coloring: &PageColors,
    size: ByteCount,
) -> Result<ColoredSample, OracleError> {
    let colors = coloring.colors();
    if !coloring.enabled {
        let how = coloring.how_to_enable();
        return unavailable(format!("page coloring is off: {how}"));
    } else if colors < 2 {
        return unavailable("the kernel knows one color only".to_owned());
    }
    let count = || {
        let counted = ProcessColors::own(roots);
        counted.map_err(|error| OracleError::Unavailable(error.to_string()))
    };
    let before = count()?;
    if before.colors.is_empty() {
        return unavailable(
            "the kernel shows the pages of each color to root only (CAP_SYS_ADMIN)".to_owned(),
        );
    }
    let (sample, asked) = populate(size, colors)?;
    let after = count()?;
    if before.index != coloring.index || after.index != coloring.index {
        return unavailable("the kernel's geometry has just been changed".to_owned());
    }
    let size = PageCount(sample.pages().len() as u64 / colors as u64);
    let came = before.colors.iter().zip(&after.colors);
    let came = came.map(|(before, after)| after.base.0.saturating_sub(before.base.0));
    let enough = came.map(|came| came + size.0.div_ceil(TOLERANCE) >= size.0);
    let dealt: Vec<bool> = asked
        .iter()
        .zip(enough)
        .map(|(asked, came)| asked.is_ok() && came)
        .collect();
    let known = dealt.iter().filter(|dealt| **dealt).count();
    if known == 0 {
        return unavailable(match asked.into_iter().find_map(Result::err) {
            Some(errno) => format!("the kernel gives none of its colors: {errno}"),
            None => "of no color enough pages came".to_owned(),
        });
    }
    let oracle = KernelOracle::new(&sample, dealt)?;
    Ok(ColoredSample {
        sample,
        oracle,
        colors: known,
    })
}

fn unavailable<T>(why: String) -> Result<T, OracleError> {
    Err(OracleError::Unavailable(why))
}

/// The memory, and for each color the kernel's answer to the request for it.
type PopulateResult = (Sample, Vec<Result<(), rustix::io::Errno>>);

fn populate(size: ByteCount, colors: usize) -> Result<PopulateResult, OracleError> {
    let size = size.max(ByteCount(colors as u64 * BASE_PAGE_SIZE));
    let populate = || {
        let mut asked = Vec::with_capacity(colors);
        let sample = Sample::in_parts(size, Backing::BasePages, colors, &mut |color| {
            let mut words = vec![0; colors.div_ceil(64)];
            if let Some(word) = words.get_mut(color / 64) {
                *word = 1 << (color % 64);
            }
            asked.push(set_task_colors(TaskColors::Set {
                colors: &words,
                strict: false,
            }));
        });
        sample.map(|sample| (sample, asked))
    };
    let populated = thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, populate);
        thread.map(thread::ScopedJoinHandle::join)
    });
    match populated {
        Ok(Ok(Ok(populated))) => Ok(populated),
        Ok(Ok(Err(error))) => unavailable(format!("no memory of {size} to deal: {error}")),
        Ok(Err(_)) => unavailable("the thread that is dealt pages failed".to_owned()),
        Err(error) => unavailable(format!("no thread to be dealt pages: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use crate::oracles::Oracle;
    use superhue_testing::skip;

    use super::*;

    #[test]
    fn what_is_off_or_has_one_color_deals_nothing() {
        let roots = Roots::default();
        let deal = |text: &str| {
            let coloring = PageColors::parse(text).unwrap();
            deal(&roots, &coloring, ByteCount(2 << 20))
                .unwrap_err()
                .to_string()
        };
        let off = deal("enabled 0\ngeometry masks:0x1000\ncolors 2\n");
        assert!(off.contains("sysctl vm.page_coloring=1"), "{off}");
        let one = deal("enabled 1\ngeometry 4\ncolors 1\n");
        assert!(one.contains("one color"), "{one}");
    }

    #[test]
    fn a_patched_kernel_deals_pages_of_all_colors() {
        let roots = Roots::default();
        let coloring = match PageColors::read(&roots) {
            Ok(coloring) if coloring.enabled && coloring.colors() > 1 => coloring,
            Ok(_) => return skip("kernel-coloring", "page coloring is off"),
            Err(error) => return skip("kernel-coloring", &error.to_string()),
        };
        let mut dealt = deal(&roots, &coloring, ByteCount(16 << 20)).unwrap();
        let pages = dealt.sample.pages();
        let mut colors = vec![None; pages.len()];
        dealt.oracle.classify(pages, &mut colors).unwrap();
        let told = colors.iter().flatten().count();
        assert!(told * 10 >= pages.len() * 9, "{told} of {}", pages.len());
        assert_eq!(dealt.oracle.colors(), coloring.colors());
    }
}
