//! Files that superhue keeps between runs: journals, claims, locks.
//!
//! Superhue acts on the contents of such a file with the rights of the process that reads it. So it trusts a file only
//! if no other user can have written it: it checks owner, type and mode on an open descriptor, and follows no symbolic
//! links. Locks are files that no other user can open, because a process that can open a file can lock it. Every wait
//! for a lock has a limit.
//!
//! ```text
//!   folder      of root or this user; writable by the owner alone, or sticky (/dev/shm)
//!   file in it  a regular file of root or this user, with one name, writable by the owner alone
//!   lock        such a file of this user, mode 0600
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
pub use lock::{LockedFile, lock_within};
