//! A curve from a comparison: the longest run of a program with each number of colors.
//!
//! ```text
//!   superhue compare --report control.json --arm '2=--colors 0-1' --arm '4=--colors 0-3' --arm '8=--colors 0-7' -- ./control
//!       └──> 2 colors: longest wall time of its runs, 4 colors: ...
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use superhue::model::ColorRequest;
use superhue::page_colors::plan::{Curve, Unit};
use superhue_measure::{Arm, Builtin, Comparison};

use crate::verb::document::{MAX_DOCUMENT_BYTES, read_document};

/// The share of a run's memory that must be on its colors for its time to count.
const LEAST_SHARE: f64 = 0.9;

/// Reads the curve of a program from a document of `superhue compare`.
///
/// # Errors
/// A sentence that names the fault of the document.
pub(super) fn curve(path: &Path) -> Result<Curve, String> {
    let read = || -> Result<Curve, String> {
        let text = read_document(path, MAX_DOCUMENT_BYTES).map_err(|error| format!("{error:#}"))?;
        let comparison = Comparison::from_json(&text).map_err(|error| error.to_string())?;
        let share = Builtin::ColorShare.name();
        if !comparison.metrics.iter().any(|metric| metric.name == share) {
            return Err(
                "it does not say whether the runs had their colors: measure it again, with --colors in an arm and this version of superhue"
                    .to_owned(),
            );
        }
        let runs = comparison.samples.iter().filter(|record| record.counts());
        let mut times = Vec::new();
        for record in runs {
            let arm = comparison.arms.get(record.arm);
            let Some((arm, colors)) = arm.and_then(|arm| Some((arm, colors_of(arm)?))) else {
                continue;
            };
            had_its_colors(arm, record.sample.get(share))?;
            let time = record.sample.get(Builtin::Wall.name());
            times.extend(time.map(|time| (colors, time)));
        }
        of_times(times.into_iter())
    };
    read().map_err(|error| format!("cannot take a curve from {}: {error}", path.display()))
}

/// Checks that a run had its colors: the time of another one says nothing about them.
///
/// # Errors
/// A sentence with the arm and the share.
fn had_its_colors(arm: &Arm, share: Option<f64>) -> Result<(), String> {
    let how = match share {
        Some(share) if share >= LEAST_SHARE => return Ok(()),
        Some(share) => format!("only {:.0} % of its memory on its colors", share * 100.0),
        None => "no memory that is known to be on its colors".to_owned(),
    };
    Err(format!(
        "a run of arm `{}` had {how}: superhue recolors a program after half a second, so compare runs of many seconds, or use --placement kernel",
        arm.name
    ))
}

/// The number of colors of an arm; `None` if its options have no list of colors.
fn colors_of(arm: &Arm) -> Option<usize> {
    let mut options = arm.options.clone();
    for (name, value) in &arm.parameters {
        options = options.replace(&format!("{{{name}}}"), value);
    }
    let words = shell_words::split(&options).ok()?;
    let place = words.iter().position(|word| word.starts_with("--colors"))?;
    let list = match words[place].strip_prefix("--colors=") {
        Some(list) => list,
        None => words.get(place + 1)?,
    };
    match list.parse().ok()? {
        ColorRequest::List(ranges) => {
            let counts = ranges
                .iter()
                .map(|&(low, high)| usize::from(high - low) + 1);
            Some(counts.sum())
        }
        _ => None,
    }
}

/// The longest time with each number of colors or more: chance may make a run with more colors longer, and the plan must count with it.
fn of_times(times: impl Iterator<Item = (usize, f64)>) -> Result<Curve, String> {
    let mut longest: BTreeMap<usize, f64> = BTreeMap::new();
    for (colors, time) in times {
        let known = longest.entry(colors).or_insert(time);
        *known = known.max(time);
    }
    if longest.len() < 2 {
        return Err(
            "it has no two arms with good runs and --colors LIST of different lengths".to_owned(),
        );
    }
    let mut above = 0.0_f64;
    for time in longest.values_mut().rev() {
        above = above.max(*time);
        *time = above;
    }
    Curve::new(Unit::Seconds, longest.into_iter().collect()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_have_the_colors_of_their_lists() {
        let colors = |options: &str| colors_of(&Arm::new("arm", options));
        assert_eq!(colors("--colors 0-3,8 --swap"), Some(5));
        assert_eq!(colors("--pages kernel --colors=2"), Some(1));
        for options in [
            "--colors spread",
            "--colors 50%",
            "--pages hot",
            "--colors",
            "--colors 3-1",
        ] {
            assert_eq!(colors(options), None, "{options}");
        }
        let mut scanned = Arm::new("arm", "--colors 0-{n}");
        scanned.parameters.insert("n".to_owned(), "7".to_owned());
        assert_eq!(colors_of(&scanned), Some(8));
    }

    #[test]
    fn a_run_without_its_colors_is_no_point_of_a_curve() {
        let arm = Arm::new("four", "--colors 0-3");
        assert_eq!(had_its_colors(&arm, Some(0.97)), Ok(()));
        let said = had_its_colors(&arm, Some(0.25)).unwrap_err();
        assert!(said.contains("`four` had only 25 %"), "{said}");
        let said = had_its_colors(&arm, None).unwrap_err();
        assert!(said.contains("no memory that is known"), "{said}");
    }

    #[test]
    fn the_longest_time_with_so_many_colors_or_more_counts() {
        let times = [(2, 5.0), (4, 1.0), (2, 4.0), (8, 2.0), (16, 1.5), (4, 1.2)];
        let curve = of_times(times.into_iter()).unwrap();
        assert_eq!(curve.points(), [(2, 5.0), (4, 2.0), (8, 2.0), (16, 1.5)]);
        let one = of_times([(2, 5.0), (2, 4.0)].into_iter()).unwrap_err();
        assert!(one.contains("no two arms"), "{one}");
    }

    #[test]
    fn what_is_no_comparison_is_refused_with_its_path() {
        let missing = curve(Path::new("/nowhere/a.json")).unwrap_err();
        assert!(missing.contains("/nowhere/a.json"), "{missing}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, "{}").unwrap();
        assert!(
            curve(&path)
                .unwrap_err()
                .contains("cannot take a curve from")
        );
    }
}
