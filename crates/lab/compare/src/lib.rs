//! Comparisons, suites and trials for people: tables, pictures, Markdown and CSV of what the crate `superhue-measure` measured.
//!
//! ```text
//!   Comparison ──> ComparisonView ──> table, brief     (terminals)
//!                                 ├─> plot             (SVG)
//!                                 └─> markdown, csv
//!   Suite      ──> SuiteView      ──> the same
//!   Trial      ──> trial_plot::to_svg
//! ```

use std::ops::Deref;

mod columns;
pub mod export;
pub mod plot;
mod suite_picture;
mod suite_table;
mod table;
pub mod trial_plot;

use superhue_measure::{Comparison, Suite};

/// A comparison that is shown to people.
#[derive(Debug, Clone, Copy)]
pub struct ComparisonView<'a>(pub &'a Comparison);

impl Deref for ComparisonView<'_> {
    type Target = Comparison;

    fn deref(&self) -> &Comparison {
        self.0
    }
}

/// A suite that is shown to people.
#[derive(Debug, Clone, Copy)]
pub struct SuiteView<'a>(pub &'a Suite);

impl Deref for SuiteView<'_> {
    type Target = Suite;

    fn deref(&self) -> &Suite {
        self.0
    }
}
