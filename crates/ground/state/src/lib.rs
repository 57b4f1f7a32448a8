//! Files that superhue keeps between runs: journals, claims, locks.
//!
//! What such a file says is done with the rights of whoever reads it, so it is believed only if
//! nobody else can have written it: an open descriptor is asked who owns the file, what it is and
//! who may write to it, and symbolic links are not followed. Locks are files that nobody else can
//! open, since whoever can open a file can lock it; and no lock is waited for without end.
//!
//! ```text
//!   folder      of root or ours; writable by the owner alone, or sticky (/dev/shm)
//!   file in it  a regular file of root or ours, with one name, writable by the owner alone
//!   lock        such a file, ours, mode 0600
//! ```
//!
//! ```
//! use std::io::Write as _;
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let somewhere = std::env::temp_dir().join(format!("superhue-doc-{}", std::process::id()));
//! let folder = superhue_state::Folder::make(&somewhere, 0o700)?;
//! let lock = folder.lock("journal.lock", Duration::from_secs(1))?;
//! folder.create_file("journal.new")?.write_all(b"what was changed\n")?;
//! folder.rename("journal.new", "journal")?;
//! drop(lock);
//! assert!(folder.open_file("journal")?.is_some());
//! # std::fs::remove_dir_all(&somewhere)?;
//! # Ok(())
//! # }
//! ```

mod error;
mod file;
mod folder;
mod lock;

pub use error::StateError;
pub use file::read_regular;
pub use folder::Folder;
pub use lock::lock_within;
