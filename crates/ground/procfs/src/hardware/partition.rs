//! Division of a cache by page colors: the number of parts, and the tasks between which it is divided.
//!
//! A part is of use only if its task keeps its private caches whole. So the usable colors of
//! a cache are not those of its own formula, but those that remain after division by the colors of the caches nearer to the
//! CPU: N = 2^n, n = (c_k - a_k) - max(c_i - a_i), i < k (Zhang, Guan, Wang 2014).
//!
//! ```text
//!   L3 index   | .............................. |    512 colors of its own
//!   L2 index                | ................. |     32 colors
//!              | N = 2^4    |                         16 parts that leave the L2 whole
//! ```
//!
//! A part matters only in a shared cache: shared between CPUs for tasks that run at the
//! same time, on one core for tasks that take turns. On processors with several last-level
//! caches (AMD's core complexes) each is divided separately.

use serde::Serialize;
use superhue_model::ByteCount;

use super::{AssessedCache, Cache, CpuList, Geometry, Usability};

/// Tasks that share a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// The hardware threads of one core: tasks that take turns, and SMT siblings.
    Core,
    /// Several cores: tasks that run at the same time.
    Cores,
    /// Not known.
    Unknown,
}

/// Effect of page colors on the caches of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Partition {
    /// Usual name: `L2`.
    pub cache: String,
    /// Level; 1 is nearest to the CPU.
    pub level: Option<u32>,
    /// CPUs of each cache of this kind: one entry if all CPUs share one cache. Empty if the CPUs are
    /// not known.
    pub domains: Vec<CpuList>,
    /// Tasks that share the cache.
    pub sharing: Sharing,
    /// Colors of this cache alone; `None` where the formula does not apply.
    pub colors: Option<u64>,
    /// Parts that leave every cache nearer to the CPU whole; `None` where the formula does not apply
    /// or the description is not usable.
    pub usable_colors: Option<u64>,
    /// Reason for confirming this by measurement; `None` if there is no doubt.
    pub doubt: Option<String>,
    /// Summary of everything but the doubt, in a sentence without its full stop.
    pub explanation: String,
}

/// Computes the effect of page colors on each kind of data cache, nearest level first.
///
/// Caches of one level that differ (cores of two types) are two kinds.
#[must_use]
pub fn partitions(caches: &[AssessedCache], page: ByteCount) -> Vec<Partition> {
    let data = |assessed: &&AssessedCache| assessed.cache.holds_data();
    let mut kinds: Vec<Vec<&AssessedCache>> = Vec::new();
    for assessed in caches.iter().filter(data) {
        let alike = |kind: &&mut Vec<&AssessedCache>| {
            kind.first()
                .is_some_and(|first| form(&first.cache) == form(&assessed.cache))
        };
        match kinds.iter_mut().find(alike) {
            Some(kind) => kind.push(assessed),
            None => kinds.push(vec![assessed]),
        }
    }
    let kinds = kinds.iter().filter(|kind| !kind.is_empty());
    kinds.map(|kind| of_kind(kind, caches, page)).collect()
}

/// Explains in a sentence without its full stop whether page colors can separate tasks on different CPUs.
#[must_use]
pub fn between_cpus(partitions: &[Partition]) -> String {
    let shared: Vec<&Partition> = (partitions.iter())
        .filter(|partition| partition.sharing == Sharing::Cores)
        .collect();
    let divided = |partition: &&&Partition| partition.usable_colors.is_some_and(|parts| parts > 1);
    // Tasks on different cores meet last in the outermost cache.
    if let Some(last) = shared.iter().rev().find(divided) {
        let (cache, parts) = (&last.cache, last.usable_colors.unwrap_or_default());
        let sure = match last.doubt {
            None => "tasks",
            Some(_) => "if the description can be believed, which is doubtful, tasks",
        };
        return format!("{sure} on different CPUs can be kept apart in the {cache}: {parts} parts");
    }
    match shared.last() {
        _ if partitions.is_empty() => "the caches are not described".to_owned(),
        Some(last) => format!(
            "by calculation tasks on different CPUs cannot be kept apart in the {}; colors of the \
             caches nearer to the CPU keep apart what takes turns on one",
            last.cache
        ),
        None => {
            "no cache is known to be shared by several cores: colors keep apart only what takes \
                 turns on one"
                .to_owned()
        }
    }
}

/// Returns the values that caches of one kind have in common.
fn form(cache: &Cache) -> (Option<u32>, Option<ByteCount>, Option<u64>, Option<u64>) {
    (cache.level, cache.size, cache.ways, cache.sets)
}

fn of_kind(kind: &[&AssessedCache], all: &[AssessedCache], page: ByteCount) -> Partition {
    let domains: Option<Vec<CpuList>> = (kind.iter())
        .map(|assessed| assessed.cache.shared_by.clone())
        .collect();
    let domains = domains.unwrap_or_default();
    let first = kind.first().copied();
    let sharing = first.map_or(Sharing::Unknown, |first| sharing(&first.cache, all));
    let usable = first.and_then(|first| usable(first, all, page));
    let colors = first.and_then(|first| first.colors);
    let explanation = first.map_or_else(String::new, |first| {
        explain(first, usable, sharing, &domains)
    });
    Partition {
        cache: first.map_or_else(String::new, |first| first.cache.name()),
        level: first.and_then(|first| first.cache.level),
        domains,
        sharing,
        colors,
        usable_colors: usable,
        doubt: match first.map(|first| &first.verdict) {
            Some(Usability::Doubtful(reason)) => Some(reason.clone()),
            _ => None,
        },
        explanation,
    }
}

/// Returns the data caches nearer to the CPUs that use `cache`.
fn inner<'a>(cache: &'a Cache, all: &'a [AssessedCache]) -> impl Iterator<Item = &'a Cache> {
    let nearer = move |other: &&Cache| {
        other.holds_data() && other.level < cache.level && meet(other, cache) != Some(false)
    };
    all.iter().map(|assessed| &assessed.cache).filter(nearer)
}

/// Returns true if some CPU uses both caches; `None` if the CPUs are not known.
fn meet(a: &Cache, b: &Cache) -> Option<bool> {
    let (a, b) = (a.shared_by.as_ref()?, b.shared_by.as_ref()?);
    Some(a.numbers().iter().any(|&cpu| b.contains(cpu)))
}

/// Determines the tasks that share a cache. CPUs that share a first level are one core.
fn sharing(cache: &Cache, all: &[AssessedCache]) -> Sharing {
    let Some(cpus) = &cache.shared_by else {
        return Sharing::Unknown;
    };
    let core = (inner(cache, all)).filter(|inner| inner.level == Some(1));
    let core: Option<Vec<usize>> = core
        .map(|first| first.shared_by.as_ref().map(CpuList::len))
        .collect();
    match core.as_deref().and_then(|sizes| sizes.iter().max()) {
        Some(&threads) if cpus.len() > threads => Sharing::Cores,
        Some(_) => Sharing::Core,
        None if cache.level == Some(1) || cpus.len() == 1 => Sharing::Core,
        None => Sharing::Unknown,
    }
}

fn usable(assessed: &AssessedCache, all: &[AssessedCache], page: ByteCount) -> Option<u64> {
    if matches!(assessed.verdict, Usability::Unusable(_)) {
        return None;
    }
    let inner: Result<Vec<Geometry>, _> = inner(&assessed.cache, all).map(Geometry::of).collect();
    let geometry = Geometry::of(&assessed.cache).ok()?;
    geometry.colors_beyond(&inner.ok()?, page)
}

fn explain(
    assessed: &AssessedCache,
    usable: Option<u64>,
    sharing: Sharing,
    domains: &[CpuList],
) -> String {
    let reason = assessed.verdict.reason();
    let parts = match (usable, assessed.colors) {
        (None, _) => {
            let reason = reason.unwrap_or("a cache nearer to the CPU is not known in full");
            return format!("cannot be divided by calculation: {reason}");
        }
        (Some(1), Some(1)) => return "one color: each page reaches every set".to_owned(),
        (Some(1), _) => {
            return "its ways are no larger than those of a cache nearer to the CPU: what divides it \
                    divides that one too"
                .to_owned();
        }
        (Some(parts), Some(colors)) if parts < colors => format!(
            "{parts} parts of {} of its {colors} colors each, which leave the caches nearer to the \
             CPU whole",
            colors / parts
        ),
        (Some(parts), _) => format!("{parts} parts"),
    };
    let who = match sharing {
        Sharing::Core => ", between tasks that take turns on one core".to_owned(),
        Sharing::Unknown => String::new(),
        Sharing::Cores => between_cores(domains),
    };
    format!("{parts}{who}")
}

fn between_cores(domains: &[CpuList]) -> String {
    /// Maximum number of listed domains.
    const LISTED: usize = 8;
    let list: Vec<String> = (domains.iter().take(LISTED))
        .map(ToString::to_string)
        .collect();
    let list = list.join("; ");
    let more = if domains.len() > LISTED { "; ..." } else { "" };
    match domains {
        [] | [_] => format!(", between tasks on CPUs {list}"),
        several => format!(
            ", in each of {} such caches by itself (CPUs {list}{more}): tasks below different ones do \
             not meet in them",
            several.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hardware::{CacheKind, Circumstances, Machine, Virtualization, assess};
    use crate::system::Gaps;

    const PAGE: ByteCount = ByteCount(4096);

    fn cache(level: u32, kib: u64, ways: u64, cpus: &str) -> AssessedCache {
        let kind = if level == 1 {
            CacheKind::Data
        } else {
            CacheKind::Unified
        };
        let cache = Cache {
            level: Some(level),
            kind: Some(kind),
            size: Some(ByteCount(kib << 10)),
            ways: Some(ways),
            sets: Some((kib << 10) / 64 / ways),
            line: Some(ByteCount(64)),
            lines_per_tag: Some(1),
            shared_by: Some(CpuList::parse(cpus).unwrap()),
            gaps: Gaps::default(),
        };
        let virtualization = Virtualization {
            machine: Machine::Bare,
            hypervisor: None,
            container: None,
            how: Vec::new(),
        };
        let about = Circumstances {
            virtualization: &virtualization,
            page: PAGE,
            hashed: Some(false),
        };
        assess(cache, &about)
    }

    fn usable(caches: &[AssessedCache]) -> Vec<Option<u64>> {
        let all = partitions(caches, PAGE);
        all.iter().map(|part| part.usable_colors).collect()
    }

    #[test]
    fn cores_of_two_kinds_are_assessed_by_their_own_caches() {
        let caches = [
            cache(1, 48, 12, "0-1"),
            cache(1, 32, 8, "2"),
            cache(1, 32, 8, "3"),
            cache(2, 2048, 16, "0-1"),
            cache(2, 4096, 16, "2-3"),
            cache(3, 16384, 16, "0-3"),
        ];
        let all = partitions(&caches, PAGE);
        let l2: Vec<_> = all.iter().filter(|part| part.cache == "L2").collect();
        assert_eq!(l2.len(), 2);
        assert_eq!(
            (l2[0].usable_colors, l2[0].sharing),
            (Some(32), Sharing::Core)
        );
        assert_eq!(
            (l2[1].usable_colors, l2[1].sharing),
            (Some(64), Sharing::Cores)
        );
        // The larger L2 determines what is left of the L3's 256.
        let l3 = all.last().unwrap();
        assert_eq!((l3.colors, l3.usable_colors), (Some(256), Some(4)));
    }

    #[test]
    fn a_cache_with_ways_no_larger_than_the_inner_ones_divides_nothing_alone() {
        let caches = [
            cache(1, 32, 8, "0"),
            cache(2, 2048, 8, "0"),
            cache(3, 4096, 16, "0"),
        ];
        assert_eq!(usable(&caches), [Some(1), Some(64), Some(1)]);
        let all = partitions(&caches, PAGE);
        assert!(all[2].explanation.contains("divides that one too"));
        assert!(between_cpus(&all).contains("no cache is known to be shared"));
    }

    #[test]
    fn an_unknown_inner_cache_leaves_the_outer_one_undivided() {
        let mut first = cache(1, 32, 8, "0");
        first.cache.ways = None;
        first.cache.sets = None;
        assert_eq!(usable(&[first, cache(2, 1024, 8, "0")]), [None, None]);
        assert!(partitions(&[], PAGE).is_empty());
    }

    proptest! {
        /// The paper's formula, in logarithms.
        #[test]
        fn the_formula_of_the_paper_holds(
            caches in prop::collection::vec((0_u32..5, 4_u32..15), 1..4),
        ) {
            let assessed: Vec<AssessedCache> = (1_u32..).zip(&caches)
                .map(|(level, &(a, sets))| cache(level, (64 << (a + sets)) >> 10, 1 << a, "0"))
                .collect();
            prop_assume!(assessed.iter().all(|assessed| assessed.cache.size.unwrap().0 >= 1024));
            let ways: Vec<u32> = caches.iter().map(|&(_, sets)| sets + 6).collect();
            for (k, found) in usable(&assessed).into_iter().enumerate() {
                let widest = ways[..k].iter().copied().max().unwrap_or(0).max(12);
                prop_assert_eq!(found, Some(1 << ways[k].saturating_sub(widest)));
            }
        }
    }
}
