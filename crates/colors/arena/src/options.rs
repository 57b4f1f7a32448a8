//! How an arena is to be.

use superhue_model::ByteCount;

/// How an arena is to be. The default: no page is refused because of its color, nothing is locked, no limit, a random
/// start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ArenaOptions {
    /// Fail rather than use a page of another color.
    pub strict: bool,
    /// Keep the memory from being swapped out (`mlock`).
    pub locked: bool,
    /// Leave it out of forked children. As long as a child shares a page, whoever writes it first gets a copy of a color
    /// of the kernel's choice, the parent too.
    pub keep_from_children: bool,
    /// Hold at most so much memory.
    pub limit: Option<ByteCount>,
    /// Begin so many colors into the set (modulo its length); otherwise anywhere.
    pub start: Option<usize>,
}

impl ArenaOptions {
    /// The default.
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
