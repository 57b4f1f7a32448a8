//! Report on a kernel with page coloring, and the advice if it colors by the wrong bits.

use serde::Serialize;
use superhue::ColoringStatus;
use superhue::model::{Color, ColorIndex, Pfn};
use superhue::page_colors::choice::masks_of;
use superhue::page_colors::oracles::{Frames, OracleKind, Pagemap, Trust};
use superhue::procfs::system::page_color::geometry;

use super::oracles::TestedOracle;

/// The part of the document that only such kernels have.
#[derive(Debug, Serialize)]
pub(super) struct Kernel {
    #[serde(flatten)]
    pub(super) coloring: ColoringStatus,
    /// The geometry by another, trusted oracle; `null` if there is none.
    pub(super) measured_geometry: Option<String>,
    /// Advice to the user; `null` if there is nothing to do.
    pub(super) advice: Option<String>,
}

impl Kernel {
    /// Combines a kernel's state and the tests of all oracles; `calculated` has the masks of oracle pfn.
    pub(super) fn new(
        coloring: ColoringStatus,
        tried: &mut [TestedOracle],
        calculated: Option<&ColorIndex>,
    ) -> Self {
        let trust = tried
            .iter()
            .find(|tried| tried.judgement.kind == OracleKind::Kernel);
        let trust = trust.map(|tried| tried.judgement.trust.clone());
        let measured = match &trust {
            Some(Trust::Trusted) | None => None,
            Some(_) => known_index(tried, calculated),
        };
        let measured = measured.map(|index| geometry(Some(&index)));
        Self {
            advice: advice(&coloring, trust.as_ref(), measured.as_deref()),
            measured_geometry: measured,
            coloring,
        }
    }

    /// Formats it as text.
    pub(super) fn text(&self) -> String {
        let coloring = &self.coloring;
        let state = if coloring.enabled { "on" } else { "off" };
        let mut text = format!(
            "\nThe kernel colors pages: {state}; {} colors, geometry {}",
            coloring.colors, coloring.geometry
        );
        let counts = coloring.by_color.iter().map(|color| color.free.0);
        if let (Some(least), Some(most)) = (counts.clone().min(), counts.max()) {
            text += &format!("; free pages of each: {least} to {most}");
        }
        text += ".\n";
        if let Some(advice) = &self.advice {
            text += &format!("{advice}\n");
        }
        text
    }
}

/// Returns the index of a trusted oracle: its masks, or the masks that explain the measured colors.
fn known_index(tried: &mut [TestedOracle], calculated: Option<&ColorIndex>) -> Option<ColorIndex> {
    let trusted = |kind| {
        move |tried: &&mut TestedOracle| {
            tried.judgement.kind == kind && tried.judgement.is_trusted()
        }
    };
    if tried
        .iter_mut()
        .any(|tried| trusted(OracleKind::Pfn)(&tried))
    {
        return calculated.cloned();
    }
    let measured = tried.iter_mut().find(trusted(OracleKind::Measured))?;
    let (oracle, sample) = (measured.oracle.as_mut()?, measured.sample.as_ref()?);
    let pages = sample.pages();
    let mut colors: Vec<Option<Color>> = vec![None; pages.len()];
    let mut frames: Vec<Option<Pfn>> = vec![None; pages.len()];
    oracle.classify(pages, &mut colors).ok()?;
    Pagemap::open().ok()?.frames(pages, &mut frames).ok()?;
    let known: Vec<(Pfn, Color)> = frames
        .into_iter()
        .zip(colors)
        .filter_map(|(frame, color)| Some((frame?, color?)))
        .collect();
    masks_of(&known, oracle.colors())
}

fn advice(
    coloring: &ColoringStatus,
    trust: Option<&Trust>,
    measured: Option<&str>,
) -> Option<String> {
    let set = |geometry: &str| {
        let off = if coloring.enabled {
            "vm.page_coloring=0 "
        } else {
            ""
        };
        format!(
            "as root, while nobody has colors: sysctl {off}vm.page_color_geometry={geometry} vm.page_coloring=1"
        )
    };
    match (trust?, measured) {
        (Trust::Trusted, _) => None,
        (Trust::Refuted(_), Some(geometry)) => Some(format!(
            "It colors by the wrong bits for this cache. Those measured are {geometry}; {}.",
            set(geometry)
        )),
        (Trust::Refuted(_), None) => Some(
            "It colors by the wrong bits for this cache, and which are right is not known (as root they are found, \
             unless a hypervisor is between); run --colors leaves it alone unless --placement kernel is given."
                .to_owned(),
        ),
        (Trust::Untested(_), _) if coloring.enabled => None,
        (Trust::Untested(_), Some(geometry)) => Some(format!("To have it place pages, {}.", set(geometry))),
        (Trust::Untested(_), None) => {
            let geometry = if coloring.colors < 2 { "vm.page_color_geometry=L2 " } else { "" };
            Some(format!("To have it place pages, as root: sysctl {geometry}vm.page_coloring=1."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coloring(enabled: bool, colors: usize) -> ColoringStatus {
        ColoringStatus {
            enabled,
            geometry: "masks:0x1000".to_owned(),
            colors,
            spread_for_all: None,
            unassigned: None,
            strayed: None,
            by_color: Vec::new(),
        }
    }

    #[test]
    fn wrong_bits_are_told_with_the_right_ones_if_known() {
        let refuted = Trust::Refuted("of 8 pages 4 did".to_owned());
        let known = advice(&coloring(true, 2), Some(&refuted), Some("masks:0x2000")).unwrap();
        assert!(
            known.contains(
                "sysctl vm.page_coloring=0 vm.page_color_geometry=masks:0x2000 vm.page_coloring=1"
            ),
            "{known}"
        );
        let unknown = advice(&coloring(true, 2), Some(&refuted), None).unwrap();
        assert!(unknown.contains("not known"), "{unknown}");
    }

    #[test]
    fn what_is_right_needs_no_advice_and_what_is_off_says_how() {
        assert_eq!(
            advice(&coloring(true, 2), Some(&Trust::Trusted), None),
            None
        );
        assert_eq!(advice(&coloring(true, 2), None, None), None);
        let untested = Trust::Untested("off".to_owned());
        assert_eq!(advice(&coloring(true, 2), Some(&untested), None), None);
        let off = advice(&coloring(false, 1), Some(&untested), None).unwrap();
        assert!(
            off.contains("sysctl vm.page_color_geometry=L2 vm.page_coloring=1"),
            "{off}"
        );
        let known = advice(&coloring(false, 2), Some(&untested), Some("masks:0x2000")).unwrap();
        assert!(
            known.contains("sysctl vm.page_color_geometry=masks:0x2000"),
            "{known}"
        );
    }
}
