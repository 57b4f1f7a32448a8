//! Everything a user can say about how processes are to be watched.

use std::time::Duration;

use superhue_act::Setting;
use superhue_model::{ByteCount, Share};
use superhue_observe::Roots;

use crate::Pages;

/// Share of a region's base pages that must be resident before `resident` promotes it, in percent.
pub const MIN_RESIDENT_DEFAULT: u8 = 75;

/// How processes are to be watched.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which memory gets superpages.
    pub pages: Pages,
    /// How much resident memory promotion may add; `None` is the policy's own default (5 % of
    /// anonymous memory for `resident`, no limit for `always`).
    pub budget: Option<Share>,
    /// Percent of a region that must be resident before `resident` promotes it, 1 to 100.
    pub min_resident: u8,
    /// How long a partly resident region must have stopped growing.
    pub settle: Duration,
    /// Bytes that may be collapsed per second; `None` is the policy's own default.
    pub rate: Option<ByteCount>,
    /// Whether descendants are watched too.
    pub follow: bool,
    /// Whether plans are only listed.
    pub dry_run: bool,
    /// Superpage settings of the machine to hold while the command runs.
    pub settings: Vec<Setting>,
    /// Where the kernel's files are.
    pub roots: Roots,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            pages: Pages::Resident,
            budget: None,
            min_resident: MIN_RESIDENT_DEFAULT,
            settle: Duration::from_millis(100),
            rate: None,
            follow: true,
            dry_run: false,
            settings: Vec::new(),
            roots: Roots::default(),
        }
    }
}
