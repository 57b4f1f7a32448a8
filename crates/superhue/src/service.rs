//! The worker that acts for a user of the daemon: `superhue actuator`.
//!
//! It has the credentials of the user and `CAP_SYS_NICE`, so it sees and reaches what the user could look at, and nothing else: the kernel
//! asks for ptrace read access (`process_madvise(2)`). What speaks against a collapse is looked at here, as if the user could collapse by
//! himself, and so is what the terms allow.

use std::os::unix::net::UnixStream;

use superhue_act::{Metered, ServeError, Sight, Terms, serve};
use superhue_model::{ByteCount, PageCount, ProcessId, Region, VirtAddr};
use superhue_procfs::Roots;
use superhue_procfs::process::{is_huge_mapped, resident_pages, status};

use crate::session::kernel_actuator;

/// Takes orders from the user's program on `stream`, whose process has the number `client`, until it goes.
///
/// # Errors
/// See [`ServeError`].
pub fn serve_user(
    stream: UnixStream,
    client: u32,
    terms: Terms,
    roots: &Roots,
) -> Result<(), ServeError> {
    serve(stream, client, terms, |ways| {
        let inner = kernel_actuator(roots, ways.mappers());
        let sight = Box::new(Seen(roots.clone()));
        Box::new(Metered::new(inner, sight, terms, ways.mappers()))
    })
}

/// What the user may look at.
struct Seen(Roots);

impl Sight for Seen {
    fn resident(&self, process: ProcessId, region: Region) -> Option<PageCount> {
        resident_pages(&self.0, process, region).ok()
    }

    fn is_huge(&self, process: ProcessId, region: Region) -> Option<bool> {
        is_huge_mapped(&self.0, process, region).ok().flatten()
    }

    fn anonymous(&self, process: ProcessId) -> Option<ByteCount> {
        // Anybody may read the sizes of all; those of others are no reason to allow more.
        let page = Region::containing(VirtAddr(0));
        resident_pages(&self.0, process, page).ok()?;
        status(&self.0, process.pid).ok()?.rss_anon
    }
}
