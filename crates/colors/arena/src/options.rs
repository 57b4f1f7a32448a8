//! Options of an arena.

use superhue_model::ByteCount;

/// Options of an arena. The default refuses no page because of its color, locks nothing, has no limit and starts at a random
/// color.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ArenaOptions {
    /// Fail rather than use a page of another color.
    pub strict: bool,
    /// Keep the memory from being swapped out (`mlock`).
    pub locked: bool,
    /// Leave the memory out of forked children. While a child shares a page, the first of the two to write it gets a copy in a color
    /// of the kernel's choice, the parent too.
    pub keep_from_children: bool,
    /// Hold at most this much memory.
    pub limit: Option<ByteCount>,
    /// Index into the set at which to begin (modulo its length); random if `None`.
    pub start: Option<usize>,
}

impl ArenaOptions {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`Self::strict`].
    #[must_use]
    pub const fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// Sets [`Self::locked`].
    #[must_use]
    pub const fn locked(mut self, locked: bool) -> Self {
        self.locked = locked;
        self
    }

    /// Sets [`Self::keep_from_children`].
    #[must_use]
    pub const fn keep_from_children(mut self, keep: bool) -> Self {
        self.keep_from_children = keep;
        self
    }

    /// Sets [`Self::limit`].
    #[must_use]
    pub const fn limit(mut self, limit: ByteCount) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets [`Self::start`].
    #[must_use]
    pub const fn start(mut self, start: usize) -> Self {
        self.start = Some(start);
        self
    }
}
