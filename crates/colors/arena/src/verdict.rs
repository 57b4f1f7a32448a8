//! Result of an independent test of memory.

use std::collections::BTreeMap;

use superhue_color::Page;
use superhue_color::oracles::OracleError;
use superhue_model::{Color, ColorSet, PageCount};

use crate::Judge;

/// Maximum number of tested pages; of more pages, a sample at equal distances is tested.
const SAMPLE: usize = 4096;

/// Result of an independent test of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Base pages that are resident.
    pub resident: PageCount,
    /// Base pages that are not resident: they have no color.
    pub absent: PageCount,
    /// Resident pages shared with another process since a fork: the first process that writes one gets a copy in a color of the
    /// kernel's choice.
    pub shared: PageCount,
    /// Resident pages that were tested: all of them, or 4,096 at equal distances.
    pub tested: PageCount,
    /// Tested pages whose color is in the set, confirmed at cache lines that classification did not use.
    pub right: PageCount,
    /// Tested pages of another color, or whose color was not confirmed.
    pub wrong: PageCount,
    /// Tested pages whose color is uncertain.
    pub unsure: PageCount,
    /// Tested pages of the most common color of the set; with an even spread this is `tested` divided by the number of colors.
    pub commonest: PageCount,
}

impl Verdict {
    /// Returns the share of right pages among the tested ones, 0 to 1; `None` if none was tested.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "at most 4,096")]
    pub fn share(&self) -> Option<f64> {
        (self.tested.0 > 0).then(|| self.right.0 as f64 / self.tested.0 as f64)
    }
}

/// Tests resident pages. The caller fills in the counts of absent and shared pages.
pub fn of_pages(
    judge: &mut dyn Judge,
    resident: &[Page],
    set: &ColorSet,
) -> Result<Verdict, OracleError> {
    let step = resident.len().div_ceil(SAMPLE).max(1);
    let pages: Vec<Page> = resident.iter().copied().step_by(step).collect();
    let mut colors = vec![None; pages.len()];
    if !pages.is_empty() {
        judge.classify(&pages, &mut colors)?;
    }
    let told = pages.iter().zip(&colors);
    let claimed: Vec<(Page, Color)> = told
        .filter_map(|(page, color)| color.map(|color| (*page, color)))
        .collect();
    let inside: Vec<(Page, Color)> = claimed
        .iter()
        .copied()
        .filter(|(_, color)| set.contains(*color))
        .collect();
    let agreement = judge.agreement(&inside)?;
    // A page that another color evicts as well proves nothing.
    let right = agreement.own.saturating_sub(agreement.foreign);
    let mut commonest: BTreeMap<Color, usize> = BTreeMap::new();
    for (_, color) in &inside {
        *commonest.entry(*color).or_default() += 1;
    }
    let count = |pages: usize| PageCount(pages as u64);
    Ok(Verdict {
        resident: count(resident.len()),
        tested: count(pages.len()),
        right: count(right),
        wrong: count(claimed.len() - right.min(claimed.len())),
        unsure: count(pages.len() - claimed.len()),
        commonest: count(commonest.into_values().max().unwrap_or_default()),
        ..Verdict::default()
    })
}
