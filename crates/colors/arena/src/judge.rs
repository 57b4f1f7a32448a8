//! An oracle that can be checked.

use superhue_color::Page;
use superhue_color::oracles::{Agreement, Oracle, OracleError};
use superhue_model::Color;

/// An oracle whose answers can be tested by evidence that it did not use for them.
pub trait Judge: Oracle + Send {
    /// Tests pages whose colors are claimed. Reads the pages, never writes them.
    ///
    /// # Errors
    /// When nothing can be tested.
    fn agreement(&mut self, pages: &[(Page, Color)]) -> Result<Agreement, OracleError>;

    /// Whether the colors are still those of the machine.
    ///
    /// # Errors
    /// [`OracleError::Drifted`] if they are not.
    fn retest(&mut self) -> Result<(), OracleError>;
}
