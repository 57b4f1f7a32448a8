//! An oracle whose answers can be checked.

use superhue_color::Page;
use superhue_color::oracles::{Agreement, Oracle, OracleError};
use superhue_model::Color;

/// Oracle whose answers can be tested by evidence that it did not use for them.
pub trait Judge: Oracle + Send {
    /// Tests the claimed colors of pages. Reads the pages, never writes them.
    ///
    /// # Errors
    /// If no page can be tested.
    fn agreement(&mut self, pages: &[(Page, Color)]) -> Result<Agreement, OracleError>;

    /// Checks that the colors are still those of the machine.
    ///
    /// # Errors
    /// [`OracleError::Drifted`] if they are not.
    fn retest(&mut self) -> Result<(), OracleError>;
}
