//! The service that reports to applications which of their pages are accessed: `superhue track`.
//!
//! ```text
//!   applications ==socket==> Server ---add, remove---> Heat     (samples accesses)
//!        ^                     |   <---samples---------
//!        |                     v
//!        +--- list (memfd) -- Client: its process, the lists it got, the lists it has fetched
//!        +--- notice, signal
//! ```
//!
//! ```
//! use std::os::unix::net::UnixStream;
//! use std::time::Duration;
//!
//! use superhue_client::{TrackingOptions, Page, Tracking};
//! use superhue_model::ProcessId;
//! use superhue_serve::Listener;
//! use superhue_track::{Heat, Limits, SampleOutcome, Server};
//!
//! /// No accesses, where `superhue track` has a [`SampledHeat`].
//! struct Still;
//!
//! impl Heat for Still {
//!     fn add(&mut self, _: ProcessId) {}
//!     fn remove(&mut self, _: ProcessId) {}
//!     fn resample_soon(&mut self, _: ProcessId) {}
//!     fn step(&mut self, _: Duration) -> Vec<SampleOutcome> { Vec::new() }
//!     fn due(&self) -> Option<Duration> { None }
//!     fn samples(&self, _: ProcessId) -> u64 { 0 }
//!     fn held(&self, _: ProcessId) -> u64 { 0 }
//!     fn active(&self, _: ProcessId, _: u32, _: usize) -> Option<Vec<Page>> { None }
//! }
//!
//! let folder = tempfile::tempdir()?;
//! let socket = folder.path().join("track.sock");
//! let mut server = Server::new(Listener::new(&socket)?, Still, Limits::default())?;
//! let (stop, stopped) = UnixStream::pair()?;
//! let service = std::thread::spawn(move || server.run(&stopped).map(|()| server.served()));
//!
//! let application = Tracking::enable(&TrackingOptions { socket, ..TrackingOptions::default() })?;
//! drop((application, stop));
//! assert_eq!(service.join().unwrap()?.tracked, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! One thread, one epoll. The cost of a client is bounded: it holds three descriptors (four if root named
//! another process), one list of at most [`Limits::max_pages`], and 72 bytes for each active region.
//! Nothing is queued for it: the next list replaces one that it does not fetch. The service ends a client
//! that sends no request within [`Limits::greeting`].
//!
//! A process may ask for itself only; root for any. [`superhue_client::protocol`] explains why that takes
//! a challenge. The service ends a client that executes another program, so that no other holder of its
//! socket learns the addresses of a setuid program.

mod budget;
mod client;
mod heat;
mod image;
mod publish;
mod sampled;
mod server;

pub use heat::{Heat, SampleOutcome, TrackingLoss};
pub use sampled::SampledHeat;
pub use server::{Limits, Server, ServerCounters, ServerError};
