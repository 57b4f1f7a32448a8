//! Choice of the mechanism that places memory by color: the kernel itself, or Superhue by recoloring pages.

use superhue_color::oracles::{Judgement, Trust};
use superhue_procfs::ReadError;
use superhue_procfs::system::PageColors;

use super::ColorsError;
use crate::options::ColorPlacement;

/// Result of [`decide`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Choice {
    /// The kernel; its geometry was tested.
    Kernel(Judgement),
    /// Recoloring, with a note about the kernel for the report.
    Recolor(Option<String>),
}

/// Chooses the mechanism. `judge` tests the kernel's geometry, and is called only if the result matters.
///
/// # Errors
/// [`ColorsError::Kernel`]: the user requires the kernel, and it does not color.
pub(super) fn decide(
    asked: ColorPlacement,
    coloring: Result<&PageColors, &ReadError>,
    judge: impl FnOnce(&PageColors) -> Judgement,
) -> Result<Choice, ColorsError> {
    let recolor = |note: Option<String>, refusal: String| match asked {
        ColorPlacement::Kernel => Err(ColorsError::Kernel(refusal)),
        ColorPlacement::Auto | ColorPlacement::Recolor => Ok(Choice::Recolor(note)),
    };
    if asked == ColorPlacement::Recolor {
        return Ok(Choice::Recolor(None));
    }
    let coloring = match coloring {
        Ok(coloring) => coloring,
        // A stock kernel needs no note.
        Err(error @ ReadError::Missing { .. }) => return recolor(None, error.to_string()),
        Err(error) => return recolor(Some(error.to_string()), error.to_string()),
    };
    if !coloring.enabled || coloring.colors() < 2 {
        let what = if coloring.enabled {
            "the kernel knows one color only; as root: sysctl vm.page_coloring=0 vm.page_color_geometry=L2 \
             vm.page_coloring=1"
                .to_owned()
        } else {
            let how = coloring.how_to_enable();
            format!("this kernel can place pages by color itself, which is off; as root: {how}")
        };
        return recolor(Some(what.clone()), what);
    }
    let judgement = judge(coloring);
    match &judgement.trust {
        Trust::Refuted(why) if asked == ColorPlacement::Auto => {
            let geometry = coloring.geometry();
            Ok(Choice::Recolor(Some(format!(
                "the kernel's geometry {geometry} is refuted: {why}; superhue colors says more"
            ))))
        }
        Trust::Trusted | Trust::Untested(_) | Trust::Refuted(_) => Ok(Choice::Kernel(judgement)),
    }
}

#[cfg(test)]
mod tests {
    use superhue_color::oracles::OracleKind;

    use super::*;

    fn missing() -> ReadError {
        ReadError::Missing {
            path: "/proc/page_color".into(),
            meaning: "no page coloring",
        }
    }

    fn judged(trust: Trust) -> impl FnOnce(&PageColors) -> Judgement {
        move |_| Judgement {
            trust,
            ..Judgement::untested(OracleKind::Kernel, String::new())
        }
    }

    fn never(_: &PageColors) -> Judgement {
        panic!("nothing depends on it")
    }

    #[test]
    fn stock_kernels_are_recolored_on_without_a_word() {
        use ColorPlacement::{Auto, Kernel, Recolor};
        for asked in [Auto, Recolor] {
            assert_eq!(
                decide(asked, Err(&missing()), never).unwrap(),
                Choice::Recolor(None)
            );
        }
        let refused = decide(Kernel, Err(&missing()), never).unwrap_err();
        assert!(
            refused.to_string().contains("no page coloring"),
            "{refused}"
        );
    }

    #[test]
    fn what_is_off_says_how_to_switch_it_on() {
        use ColorPlacement::{Auto, Kernel, Recolor};
        let off = PageColors::parse("enabled 0\ngeometry none\ncolors 1\n").unwrap();
        let Choice::Recolor(Some(note)) = decide(Auto, Ok(&off), never).unwrap() else {
            panic!("off, so recoloring");
        };
        assert!(
            note.contains("sysctl vm.page_color_geometry=L2 vm.page_coloring=1"),
            "{note}"
        );
        assert_eq!(
            decide(Recolor, Ok(&off), never).unwrap(),
            Choice::Recolor(None)
        );
        assert!(decide(Kernel, Ok(&off), never).is_err());
        let one = PageColors::parse("enabled 1\ngeometry 4\ncolors 1\n").unwrap();
        assert!(matches!(
            decide(Auto, Ok(&one), never),
            Ok(Choice::Recolor(Some(_)))
        ));
    }

    #[test]
    fn a_refuted_geometry_is_used_only_if_asked_for() {
        use ColorPlacement::{Auto, Kernel};
        let on = PageColors::parse("enabled 1\ngeometry masks:0x1000\ncolors 2\n").unwrap();
        let decide = |asked, trust| decide(asked, Ok(&on), judged(trust)).unwrap();
        assert!(matches!(decide(Auto, Trust::Trusted), Choice::Kernel(_)));
        let untested = Trust::Untested("busy".to_owned());
        assert!(matches!(decide(Auto, untested), Choice::Kernel(_)));
        let refuted = || Trust::Refuted("of 8 pages 4 did".to_owned());
        let Choice::Recolor(Some(note)) = decide(Auto, refuted()) else {
            panic!("refuted, so recoloring");
        };
        assert!(note.contains("masks:0x1000") && note.contains("of 8 pages 4 did"));
        assert!(matches!(decide(Kernel, refuted()), Choice::Kernel(_)));
    }
}
