//! The cache whose colors are used.

use superhue::procfs::hardware::{AssessedCache, Geometry};

/// The level whose colors are used: on most processors the last private cache of a core, which timing finds on all of them.
const LEVEL: u32 = 2;

/// Returns the cache of this CPU whose colors are meant: its L2; without one, the nearest cache that has colors.
pub(super) fn of_cpu(caches: &[AssessedCache], cpu: u32) -> Option<&AssessedCache> {
    let mine = |judged: &&AssessedCache| {
        judged.cache.holds_data()
            && (judged.cache.shared_by.as_ref()).is_none_or(|cpus| cpus.contains(cpu))
    };
    let second = |judged: &&AssessedCache| judged.cache.level == Some(LEVEL);
    let colored = |judged: &&AssessedCache| judged.colors.is_some_and(|colors| colors > 1);
    (caches.iter().filter(mine).find(second)).or_else(|| caches.iter().filter(mine).find(colored))
}

/// The usable part of a cache's description: a first guess for all measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Claim {
    pub(super) ways: Option<u64>,
    pub(super) colors: Option<u64>,
}

impl Claim {
    pub(super) fn of(judged: Option<&AssessedCache>) -> Self {
        let geometry = judged.and_then(|judged| Geometry::of(&judged.cache).ok());
        Self {
            ways: geometry.map(|geometry| geometry.ways),
            colors: judged.and_then(|judged| judged.colors),
        }
    }
}
