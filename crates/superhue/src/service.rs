//! Serves one user of the daemon: the engine of `superhue actuator`.
//!
//! The worker has the credentials of the user and `CAP_SYS_NICE`. The kernel requires ptrace read access (`process_madvise(2)`), so the worker
//! reaches what the user could look at, and nothing else. The same objections hold as in a process that collapses by itself.

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use superhue_act::{LimitedActuator, ResidencyView, ServeError, Terms, serve};
use superhue_model::{ByteCount, PageCount, ProcessId, Region, VirtAddr};
use superhue_procfs::Roots;
use superhue_procfs::process::{is_huge_mapped, resident_pages, status, still_runs};

use crate::actuator::kernel_actuator;
use crate::given_back::LazyFreeFinder;

/// Carries out the orders of a client on `stream` until it closes the stream. `client` is the number of its process.
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
        let inner = kernel_actuator(roots, ways.mappers(), true);
        let sight = Box::new(LocalSight {
            roots: roots.clone(),
            lazily_freed: Mutex::new(LazyFreeFinder::new(roots)),
        });
        Box::new(LimitedActuator::new(inner, sight, terms, ways.mappers()))
    })
}

/// ResidencyView with the rights of this process.
struct LocalSight {
    roots: Roots,
    lazily_freed: Mutex<LazyFreeFinder>,
}

impl ResidencyView for LocalSight {
    fn resident(&self, process: ProcessId, region: Region) -> Option<PageCount> {
        let present = resident_pages(&self.roots, process, region).ok()?;
        let lazily_freed = self.lazily_freed.lock();
        let lazy = lazily_freed
            .unwrap_or_else(PoisonError::into_inner)
            .of_region(process, region);
        Some(PageCount(present.0.saturating_sub(lazy.ok()?.0)))
    }

    fn is_huge(&self, process: ProcessId, region: Region) -> Option<bool> {
        is_huge_mapped(&self.roots, process, region).ok().flatten()
    }

    fn anonymous(&self, process: ProcessId) -> Option<ByteCount> {
        // All users may read the size of every process. Only accessible processes count.
        let page = Region::containing(VirtAddr(0));
        resident_pages(&self.roots, process, page).ok()?;
        status(&self.roots, process.pid).ok()?.rss_anon
    }

    fn runs(&self, process: ProcessId) -> bool {
        still_runs(&self.roots, process)
    }
}
