//! Pictures of heat (accesses to the memory of a process, over time) and of page colors.
//!
//! ```text
//!   samples ──> Recorder ──> Series ──┐
//!   (time x page, bounded memory)     ├──> Heat ──> to_svg ──> to_png
//!   counts per page, hot set, cost ───┘     |
//!                                           +── to_json / from_json: `superhue-heat/1`
//! ```
//!
//! [`svg`] draws all of them, and the pictures of `superhue compare` and `superhue bench`.
//!
//! ```
//! use superhue_plot::svg::{Anchor, Ink, Svg};
//!
//! let mut svg = Svg::new(120, 40, "two runs");
//! svg.text_below(8, 8, 13, Anchor::Left, Ink::Text, "a < b");
//! svg.dot(60, 20, 4, Ink::Arm(0), 0.5);
//! assert!(svg.finish().contains("a &lt; b"));
//! ```
//!
//! And of latency against the number of pages, which proves page colors: [`Latency`] ──> [`latency_svg`].
//!
//! A [`Heat`] has all that a picture needs, so stored JSON alone is enough to draw the picture again, on any machine. The crate starts no process,
//! reads no clock and opens no file. It draws text with its own font (`font/README.md`), so a picture looks the same everywhere.

mod bands;
mod cells;
mod document;
mod draw;
mod latency;
#[cfg(feature = "png")]
mod raster;
mod record;
pub mod svg;

pub use bands::Area;
pub use cells::{Cell, decode, encode};
pub use document::{
    Band, Column, Cost, EndReason, Heat, HotPoint, HotSet, Mapping, Observation, Process,
    ReadError, Run, SCHEMA, Series, Target,
};
pub use draw::{color, how, latency_svg, size, time, to_svg};
pub use latency::{Arm, Cliff, Latency, Point};
#[cfg(feature = "png")]
pub use raster::{RasterError, to_png};
pub use record::{Recorder, SampleReading};
