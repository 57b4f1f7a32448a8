//! What the program must not do while some of its pages are out, and who sees to that.

/// Held while pages of the program are out: between [`enter`](Self::enter) and [`leave`](Self::leave), some tens of
/// microseconds each time.
pub trait Guard {
    /// Keeps the program from forking and from starting threads until [`leave`](Self::leave), as far as that goes (a lock that
    /// handlers of `pthread_atfork(3)` take). False if that cannot be done at once.
    ///
    /// It must not wait: whoever has the lock may himself be waiting for us, at a hole or for an event to be read. It is asked again
    /// after those have been seen to, and given up after a while.
    fn enter(&mut self) -> bool {
        true
    }

    /// The program may go on.
    fn leave(&mut self) {}

    /// Whether no fork can come between the two, whichever way it is made. Needed only where forks are not seen, which
    /// takes `CAP_SYS_PTRACE`: a child would find zeroes in place of the pages that are out.
    fn excludes_forks(&self) -> bool {
        false
    }

    /// Whether threads may have been started since this was asked before. They are looked at again then.
    fn threads_changed(&mut self) -> bool {
        true
    }
}

/// Leaves the program alone. Forks are seen, and wait, all the same.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unguarded;

impl Guard for Unguarded {}
