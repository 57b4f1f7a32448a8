//! Assesses whether the description of a cache is good enough to compute page colors.
//!
//! sysfs repeats the claims of firmware or a hypervisor. They may contradict themselves. They may be right about
//! the cache and useless for its index (slices chosen by an unpublished hash). Or they may describe a
//! cache that only the host sees: an L3 of 480 MiB in a guest with two CPUs. This code guesses nothing: the
//! verdict names the case in a sentence, and only measurement overrules it.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use superhue_model::ByteCount;

use super::{Cache, Geometry, Machine, Virtualization};

/// Level from which caches are usually shared by many cores and made of slices.
const SLICED_LEVEL: u32 = 3;

/// Maximum number of hardware threads of a core (POWER has 8): more of them cannot share one L1.
const MOST_THREADS: usize = 8;

/// Degree to which a cache's description can be trusted for computing colors from page frame numbers.
///
/// Reasons are clauses about the cache ("it ..."), without a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Usability {
    /// The description is consistent, and as far as is known the set index is a run of address bits.
    Usable,
    /// The description may be right, but measurement should confirm it first, for the given reason.
    Doubtful(String),
    /// Nothing follows from the description, for the given reason.
    Unusable(String),
}

impl Usability {
    /// Returns the verdict in a word or two.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::Doubtful(_) => "doubtful",
            Self::Unusable(_) => "not usable",
        }
    }

    /// Returns the reason, if there is one.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Usable => None,
            Self::Doubtful(reason) | Self::Unusable(reason) => Some(reason),
        }
    }
}

impl fmt::Display for Usability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        self.reason()
            .map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

impl Serialize for Usability {
    /// Writes `{"verdict": "...", "reason": "..."}`; the reason of a usable cache is `null`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Usability", 2)?;
        fields.serialize_field("verdict", self.word())?;
        fields.serialize_field("reason", &self.reason())?;
        fields.end()
    }
}

/// A cache and the verdict about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AssessedCache {
    /// Cache as reported.
    #[serde(flatten)]
    pub cache: Cache,
    /// Page colors by the formula, for this cache alone; `None` where the formula does not apply.
    /// Worth only as much as the verdict.
    pub colors: Option<u64>,
    /// Verdict about the description.
    #[serde(flatten)]
    pub verdict: Usability,
}

/// Facts about the machine beside the cache itself.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    /// Hypervisor, which decides whether page frame numbers are physical.
    pub virtualization: &'a Virtualization,
    /// Size of a base page.
    pub page: ByteCount,
    /// True if the processor reports that it hashes addresses to find the set (CPUID leaf 4, EDX bit
    /// 2); `None` if it reports neither.
    pub hashed: Option<bool>,
}

/// Assesses how far the description of a cache can be trusted.
#[must_use]
pub fn assess(cache: Cache, circumstances: &Circumstances<'_>) -> AssessedCache {
    match Geometry::of(&cache) {
        Err(error) => {
            let verdict = Usability::Unusable(error.to_string());
            AssessedCache {
                cache,
                colors: None,
                verdict,
            }
        }
        Ok(geometry) => {
            let colors = geometry.colors(circumstances.page);
            let verdict = of_geometry(&cache, &geometry, circumstances);
            AssessedCache {
                cache,
                colors,
                verdict,
            }
        }
    }
}

fn of_geometry(cache: &Cache, geometry: &Geometry, about: &Circumstances<'_>) -> Usability {
    let guest = about.virtualization.machine == Machine::Virtual;
    let odd = !geometry.sets.is_power_of_two();
    if odd && guest {
        return Usability::Unusable(odd_sets_in_a_guest(cache, geometry, about.virtualization));
    }
    let mut doubts = Vec::new();
    // If a way fits in a page there is one color, whatever the index is.
    if geometry.colors(about.page) != Some(1) {
        doubts.extend(geometry.inferred.map(|which| {
            format!("its {which} must be inferred, so nothing confirms that the rest is right")
        }));
        doubts.extend(about_the_index(cache, geometry, about.hashed));
        doubts.extend(about_the_machine(cache, about.virtualization));
    }
    doubts.extend(about_the_sharing(cache));
    if doubts.is_empty() {
        Usability::Usable
    } else {
        Usability::Doubtful(doubts.join("; "))
    }
}

fn odd_sets_in_a_guest(cache: &Cache, geometry: &Geometry, machine: &Virtualization) -> String {
    let seen = cache.shared_by.as_ref().map_or_else(
        || "the CPUs seen here".to_owned(),
        |cpus| {
            if cpus.len() == 1 {
                format!("CPU {cpus}")
            } else {
                format!("CPUs {cpus}")
            }
        },
    );
    format!(
        "its {} sets are not a power of two and this is a virtual machine{}: how the slices \
         divide the addresses is unknown, and so is which other guests share them with {seen}",
        grouped(geometry.sets),
        machine.in_brackets(),
    )
}

/// Returns doubts about the mapping from address to set.
fn about_the_index(cache: &Cache, geometry: &Geometry, hashed: Option<bool>) -> Option<String> {
    // Without a level the cache may be any.
    let outer = cache.level.is_none_or(|level| level >= SLICED_LEVEL);
    let doubt = if !geometry.sets.is_power_of_two() {
        format!(
            "its {} sets are not a power of two, so it is made of slices, chosen by an unpublished hash \
             of the address",
            grouped(geometry.sets)
        )
    } else if hashed == Some(true) {
        "the processor says that it finds the set by a hash of the address".to_owned()
    } else if hashed.is_none() && outer {
        "a cache of this level is usually made of slices, chosen by an unpublished hash of the \
         address"
            .to_owned()
    } else {
        return None;
    };
    // The index within a slice usually contains that of the previous level.
    let remedy = if outer {
        " (a partition by the colors of the L2 usually divides it too)"
    } else {
        ""
    };
    Some(doubt + remedy)
}

/// Returns doubts about page frame numbers and caches in a virtual machine.
fn about_the_machine(cache: &Cache, virtualization: &Virtualization) -> Option<String> {
    match virtualization.machine {
        Machine::Bare => None,
        Machine::Unknown => Some(
            "whether this is a virtual machine is not known: frame numbers of a guest would say \
             nothing about the set"
                .to_owned(),
        ),
        Machine::Virtual => {
            let others = if cache.level.is_none_or(|level| level >= SLICED_LEVEL) {
                "; other guests may share the cache"
            } else {
                ""
            };
            Some(format!(
                "this is a virtual machine{}: the hypervisor may describe a cache that is not \
                 there, and frame numbers of a guest say nothing about the set{others}",
                virtualization.in_brackets()
            ))
        }
    }
}

/// Returns doubts about the set of CPUs that share the cache.
fn about_the_sharing(cache: &Cache) -> Option<String> {
    let cpus = cache.shared_by.as_ref()?;
    if cpus.is_empty() {
        return Some("the system lists no CPU for it".to_owned());
    }
    (cache.level == Some(1) && cpus.len() > MOST_THREADS).then(|| {
        format!(
            "the system lists {} CPUs for this L1, more than a core has",
            cpus.len()
        )
    })
}

/// Formats a number with thousands separators: `491,520`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{CacheKind, CpuList};
    use crate::system::Gaps;

    const MIB: u64 = 1 << 20;

    fn machine(machine: Machine) -> Virtualization {
        let hypervisor = (machine == Machine::Virtual).then(|| "KVM".to_owned());
        Virtualization {
            machine,
            hypervisor,
            container: None,
            how: Vec::new(),
        }
    }

    fn cache(level: u32, size: u64, ways: u64, cpus: &str) -> Cache {
        Cache {
            level: Some(level),
            kind: Some(CacheKind::Unified),
            size: Some(ByteCount(size)),
            ways: Some(ways),
            sets: Some(size / 64 / ways),
            line: Some(ByteCount(64)),
            lines_per_tag: Some(1),
            shared_by: Some(CpuList::parse(cpus).unwrap()),
            gaps: Gaps::default(),
        }
    }

    fn verdict(cache: Cache, on: Machine, hashed: Option<bool>) -> Usability {
        let virtualization = machine(on);
        let page = ByteCount(4096);
        assess(
            cache,
            &Circumstances {
                virtualization: &virtualization,
                page,
                hashed,
            },
        )
        .verdict
    }

    #[test]
    fn a_private_cache_on_bare_metal_is_usable() {
        assert_eq!(
            verdict(cache(2, 2 * MIB, 16, "0-1"), Machine::Bare, None),
            Usability::Usable
        );
        assert_eq!(
            verdict(cache(2, 5 * MIB / 4, 10, "0"), Machine::Bare, Some(false)),
            Usability::Usable
        );
    }

    #[test]
    fn a_single_color_needs_no_trust_in_the_machine() {
        assert_eq!(
            verdict(cache(1, 48 << 10, 12, "0"), Machine::Virtual, None),
            Usability::Usable
        );
    }

    #[test]
    fn the_impossible_l3_of_a_guest_is_refused_in_a_sentence() {
        let l3 = verdict(cache(3, 480 * MIB, 16, "0-1"), Machine::Virtual, None);
        assert_eq!(
            l3,
            Usability::Unusable(
                "its 491,520 sets are not a power of two and this is a virtual machine \
                 (KVM): how the slices divide the addresses is unknown, and so is which other \
                 guests share them with CPUs 0-1"
                    .to_owned()
            )
        );
    }

    #[test]
    fn slices_on_bare_metal_leave_a_doubt() {
        for (size, ways, hashed, says) in [
            (
                25 * MIB,
                10,
                Some(true),
                "its 40,960 sets are not a power of two",
            ),
            (
                32 * MIB,
                16,
                Some(true),
                "the processor says that it finds the set by a hash",
            ),
            (
                32 * MIB,
                16,
                None,
                "a cache of this level is usually made of slices",
            ),
        ] {
            let Usability::Doubtful(reason) =
                verdict(cache(3, size, ways, "0-7"), Machine::Bare, hashed)
            else {
                panic!("{size} {ways} {hashed:?}");
            };
            assert!(reason.starts_with(says), "{reason}");
        }
        assert_eq!(
            verdict(cache(3, 8 * MIB, 16, "0-7"), Machine::Bare, Some(false)),
            Usability::Usable,
            "an L3 that says it is not hashed"
        );
    }

    #[test]
    fn a_guest_and_an_unknown_machine_leave_a_doubt() {
        let l2 = |on| verdict(cache(2, 2 * MIB, 16, "0"), on, None);
        let guest = l2(Machine::Virtual);
        let reason = guest.reason().unwrap();
        assert!(reason.contains("(KVM)") && reason.contains("frame numbers of a guest"));
        assert!(
            !reason.contains("other guests"),
            "an L2 is a core's own: {reason}"
        );
        assert!(
            l2(Machine::Unknown)
                .reason()
                .unwrap()
                .contains("is not known")
        );
        let l3 = verdict(cache(3, 32 * MIB, 16, "0-1"), Machine::Virtual, None);
        assert!(l3.reason().unwrap().contains("other guests may share"));
    }

    #[test]
    fn a_description_that_cannot_be_is_unusable() {
        let mut wrong = cache(2, 2 * MIB, 16, "0");
        wrong.ways = Some(8);
        let reason = verdict(wrong.clone(), Machine::Bare, None);
        assert_eq!(
            reason.to_string(),
            "not usable: it contradicts itself: 8 ways of 2048 sets of 64 B are not 2.0 MiB"
        );
        wrong.ways = None;
        wrong.sets = None;
        assert!(matches!(
            verdict(wrong, Machine::Bare, None),
            Usability::Unusable(_)
        ));
    }

    #[test]
    fn what_is_inferred_and_who_shares_is_doubted() {
        let mut inferred = cache(2, MIB, 8, "0");
        inferred.ways = None;
        assert_eq!(
            verdict(inferred, Machine::Bare, None).reason(),
            Some("its ways must be inferred, so nothing confirms that the rest is right")
        );
        let crowded = verdict(cache(1, 32 << 10, 8, "0-63"), Machine::Bare, None);
        assert!(
            crowded
                .reason()
                .unwrap()
                .starts_with("the system lists 64 CPUs for this L1")
        );
        let nobody = verdict(cache(2, MIB, 8, ""), Machine::Bare, None);
        assert_eq!(nobody.reason(), Some("the system lists no CPU for it"));
    }

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (491_520, "491,520"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
