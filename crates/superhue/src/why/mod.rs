//! Reasons why the memory of a process is not huge: every resident byte that no huge page maps, with the first reason that holds.
//!
//! ```text
//!   smaps ── mappings, flags ──┐
//!   PAGEMAP_SCAN ── windows ───┼──> classify (reason.rs) ──> bytes by mapping and reason ──> advice.rs
//!   mountinfo, status, words ──┘
//! ```
//!
//! The sum is exact, by mapping and in total: huge bytes and the bytes of all reasons are the resident bytes.

mod advice;
mod reason;

use std::collections::BTreeSet;

use serde::Serialize;
use superhue_model::{
    BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, ObjectId, PageCount, ProcessId, Region, VirtRange,
};
use superhue_policy::Resident;
use superhue_procfs::process::{PageScanner, ScanMethod, VmaUse, WindowUse, shared_pages_of};
use superhue_procfs::system::thp::{Khugepaged, ShmemMode, ThpMode};
use superhue_procfs::system::{BuddyInfo, ThpSettings};
use superhue_procfs::{ReadError, Roots};

pub(crate) use advice::how_to_align;
pub(crate) use reason::Mapping;
pub use reason::{Backing, Reason};
use reason::{Window, classify};

use crate::given_back::LazyFreeFinder;
use crate::group_limits::GroupLimits;

/// Upper bound on regions that are checked for pages that other processes map as well: 32 GiB. Each takes some 5 us.
const SHARING_LOOKED_UP: usize = 1 << 14;

/// Settings by which the machine makes huge pages by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Kinds of anonymous memory for which the kernel makes huge pages of 2 MiB.
    pub enabled: Option<ThpMode>,
    /// Kinds of shared memory for which it does.
    pub shmem_enabled: Option<ShmemMode>,
    /// Huge pages that could be allocated at once, without compaction.
    pub free_huge_pages: Option<u64>,
    /// Limits of the background thread.
    pub khugepaged: Option<Khugepaged>,
    /// Reasons why some of these are not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_because: Vec<String>,
}

/// Memory that is not huge for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// The reason.
    pub reason: Reason,
    /// Aligned 2 MiB windows with such memory, including windows that the mapping fills in part.
    pub regions: u64,
    /// Resident bytes in them.
    pub bytes: ByteCount,
    /// Bytes of it that are swapped out, which `bytes` leaves out.
    pub swapped_bytes: ByteCount,
    /// Bytes that would become resident if all of it were made huge; 0 where that is impossible.
    pub growth_bytes: ByteCount,
    /// Bytes that a collapse would copy although other processes keep the old pages.
    pub copied_bytes: ByteCount,
}

/// Reasons why one mapping is not huge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MappingWhy {
    /// Address range.
    pub range: VirtRange,
    /// Name that the kernel shows for it; `None` for plain anonymous memory.
    pub name: Option<String>,
    /// Kind of memory behind it.
    pub backing: Backing,
    /// Resident bytes.
    pub resident_bytes: ByteCount,
    /// Part of `resident_bytes` that huge pages map, without hugetlbfs.
    pub huge_bytes: ByteCount,
    /// Difference of address and offset modulo 2 MiB, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misaligned_by: Option<ByteCount>,
    /// Resident bytes that another mapping of this process shows as well, and that count only there: rings and garbage collectors map a
    /// file twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapped_again_bytes: Option<ByteCount>,
    /// Number of other processes that map its shared pages, on average; only where a fork's pages are the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_with: Option<f64>,
    /// The rest by reason, most first.
    pub reasons: Vec<Amount>,
}

/// Advice about one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The reason.
    pub reason: Reason,
    /// Kind of the memory.
    pub backing: Backing,
    /// Bytes of such memory.
    pub bytes: ByteCount,
    /// The advice, for people.
    pub text: String,
}

/// Reasons why the memory of one process is not huge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Why {
    /// Resident bytes, counted page by page and once each: `huge_bytes` and the bytes of all reasons. The kernel's RSS counts a page with two
    /// mappings twice.
    pub resident_bytes: ByteCount,
    /// Part of `resident_bytes` that huge pages map, without hugetlbfs.
    pub huge_bytes: ByteCount,
    /// Method of counting pages.
    pub method: ScanMethod,
    /// Pages of a region that policy `resident` needs.
    pub enough_pages: PageCount,
    /// Regions that were not checked for pages of other processes, because there are too many regions.
    pub sharing_unknown: u64,
    /// The sums over all mappings, most first.
    pub reasons: Vec<Amount>,
    /// Advice, in the same order.
    pub advice: Vec<Advice>,
    /// The mappings with resident or swapped memory, those with most memory that is not huge first.
    pub mappings: Vec<MappingWhy>,
}

impl Machine {
    /// Reads the present settings of the machine. Settings that cannot be read are `None`.
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let mut unknown_because = Vec::new();
        let mut note = |error: ReadError| unknown_because.push(error.to_string());
        let settings = ThpSettings::read(roots).map_err(&mut note).ok();
        let free = BuddyInfo::read(roots).map_err(&mut note).ok();
        Self {
            enabled: settings.as_ref().and_then(ThpSettings::huge_page_mode),
            shmem_enabled: settings.as_ref().and_then(shmem_mode),
            free_huge_pages: free.map(|free| free.free_huge_pages()),
            khugepaged: settings.map(|settings| settings.khugepaged),
            unknown_because,
        }
    }
}

/// Returns the kinds of shared memory for which the kernel makes huge pages of 2 MiB, by all setting files together.
fn shmem_mode(settings: &ThpSettings) -> Option<ShmemMode> {
    let top = settings.shmem_enabled;
    let size = settings.of_size(ByteCount(HUGE_PAGE_SIZE));
    match (top, size.and_then(|size| size.shmem_enabled)) {
        (Some(ShmemMode::Deny | ShmemMode::Force), _) | (_, Some(ShmemMode::Inherit) | None) => top,
        (_, of_size) => of_size,
    }
}

/// Looks at every page of `id`, whose mappings are `vmas`, and finds the reasons why it is not huge.
///
/// # Errors
/// The process has ended or may not be inspected.
pub(crate) fn explain(
    roots: &Roots,
    id: ProcessId,
    vmas: &[VmaUse],
    disabled: bool,
    machine: &Machine,
) -> Result<Why, ReadError> {
    let mut mappings = Mapping::all(roots, id, vmas, disabled);
    let mut scanner = PageScanner::new();
    let uses = scanner.window_uses(roots, id, vmas)?;
    let mut windows: Vec<Window> = uses.iter().map(|window| shape(window, vmas)).collect();

    // Most mappings share no page with other processes, as `smaps` shows for the whole mapping; those need no check of each page.
    let is_asked = |(place, window): (usize, &Window)| {
        let vma = uses[place].vma;
        let may = mappings[vma].may_share() && shared_bytes(&vmas[vma]) != Some(ByteCount(0));
        (may && window.whole && !window.huge && window.resident.0 > 0).then_some(place)
    };
    let asked: Vec<usize> = windows.iter().enumerate().filter_map(is_asked).collect();
    let sharing_unknown = asked.len().saturating_sub(SHARING_LOOKED_UP) as u64;
    let looked_up = &asked[..asked.len().min(SHARING_LOOKED_UP)];
    let regions: Vec<Region> = looked_up.iter().map(|&place| uses[place].region).collect();
    let shared = shared_pages_of(roots, id, &regions)?;
    for (&place, shared) in looked_up.iter().zip(shared) {
        windows[place].shared = PageCount(shared.0.min(windows[place].resident.0));
    }

    let mut lazily_freed = LazyFreeFinder::new(roots);
    let mut limits = GroupLimits::new(roots.clone());
    for (place, window) in windows.iter_mut().enumerate() {
        let (region, vma) = (uses[place].region, uses[place].vma);
        let mapping = &mappings[vma];
        if !window.whole || window.huge || window.resident.0 == 0 || mapping.obstacle().is_some() {
            continue;
        }
        if vmas[vma].memory.lazy_free.is_some_and(|lazy| lazy.0 > 0) {
            let lazy = lazily_freed.of_region(id, region).unwrap_or_default();
            window.lazy = lazy.min(window.resident);
        }
        window.guarded = mapping.is_guarded(roots, id, region);
    }
    let no_room = !limits.has_room(id);
    for mapping in &mut mappings {
        mapping.no_room = no_room;
    }

    let method = scanner.method().unwrap_or(ScanMethod::PagemapFile);
    let mut why = sum_up(vmas, &mappings, &uses, &windows, method);
    why.sharing_unknown = sharing_unknown;
    why.advice = advised(&why, id.pid, machine);
    Ok(why)
}

/// Returns the facts about a window, without shared pages, lazily freed pages and guard pages.
fn shape(window: &WindowUse, vmas: &[VmaUse]) -> Window {
    Window {
        whole: vmas[window.vma].vma.range.contains(&window.region.range()),
        huge: window.huge,
        resident: window.resident,
        swapped: window.swapped,
        shared: PageCount(0),
        lazy: PageCount(0),
        guarded: false,
    }
}

/// Returns bytes of a mapping that other processes map as well.
fn shared_bytes(vma: &VmaUse) -> Option<ByteCount> {
    Some(vma.memory.shared_clean? + vma.memory.shared_dirty?)
}

/// Returns the number of other processes that map the shared pages of a mapping, on average: of a page with n mappers, `Pss` counts one n-th.
#[allow(
    clippy::cast_precision_loss,
    reason = "a ratio of byte counts below 2^52"
)]
fn shared_with(vma: &VmaUse) -> Option<f64> {
    let memory = &vma.memory;
    let own = memory.private_clean? + memory.private_dirty?;
    let shared = shared_bytes(vma)?;
    let share = memory.pss? - own;
    (share.0 > 0).then(|| (shared.0 as f64 / share.0 as f64 - 1.0).max(1.0))
}

/// Returns the number of pages of a region that policy `resident` needs.
fn enough() -> PageCount {
    let bytes = Resident::default()
        .min_resident
        .of(ByteCount(HUGE_PAGE_SIZE));
    PageCount(bytes.0.div_ceil(BASE_PAGE_SIZE))
}

/// Adds windows up by mapping and reason, and all mappings.
fn sum_up(
    vmas: &[VmaUse],
    mappings: &[Mapping],
    uses: &[WindowUse],
    windows: &[Window],
    method: ScanMethod,
) -> Why {
    let enough = enough();
    let mut found: Vec<MappingWhy> = Vec::new();
    let mut counted: BTreeSet<(ObjectId, u64)> = BTreeSet::new();
    let mut last = None;
    for (used, window) in uses.iter().zip(windows) {
        let (vma, mapping) = (&vmas[used.vma], &mappings[used.vma]);
        if last != Some(used.vma) {
            last = Some(used.vma);
            let by = mapping.misaligned_by;
            found.push(MappingWhy {
                range: vma.vma.range,
                name: vma.name.clone(),
                backing: mapping.backing,
                resident_bytes: ByteCount(0),
                huge_bytes: ByteCount(0),
                misaligned_by: (by.0 != 0).then_some(by),
                mapped_again_bytes: None,
                shared_with: None,
                reasons: Vec::new(),
            });
        }
        let Some(shown) = found.last_mut() else {
            continue;
        };
        let bytes = window.resident.bytes();
        if part_of(vma, used.region).is_some_and(|part| !counted.insert(part)) {
            *shown.mapped_again_bytes.get_or_insert_default() += bytes;
            continue;
        }
        shown.resident_bytes += bytes;
        let Some(reason) = classify(mapping, window, enough) else {
            shown.huge_bytes += bytes;
            continue;
        };
        if reason == Reason::CopyOnWrite {
            shown.shared_with = shared_with(vma);
        }
        add(&mut shown.reasons, amount(reason, window));
    }
    let mut reasons = Vec::new();
    for mapping in &mut found {
        sort(&mut mapping.reasons);
        for &amount in &mapping.reasons {
            add(&mut reasons, amount);
        }
    }
    sort(&mut reasons);
    found.sort_by_key(|mapping| {
        let rest = mapping.resident_bytes - mapping.huge_bytes;
        (std::cmp::Reverse(rest), mapping.range.start)
    });
    Why {
        resident_bytes: found.iter().map(|mapping| mapping.resident_bytes).sum(),
        huge_bytes: found.iter().map(|mapping| mapping.huge_bytes).sum(),
        method,
        enough_pages: enough,
        sharing_unknown: 0,
        reasons,
        advice: Vec::new(),
        mappings: found,
    }
}

/// Returns the part of a shared object that a region of a mapping shows: the object, and the offset in bytes. `None` for private memory, and
/// for a region that begins before the mapping.
fn part_of(vma: &VmaUse, region: Region) -> Option<(ObjectId, u64)> {
    let part = vma.vma.kind.part()?;
    let inside = region.start().0.checked_sub(vma.vma.range.start.0)?;
    Some((part.object, part.offset + inside))
}

/// Returns the memory of one window as an amount of its reason.
fn amount(reason: Reason, window: &Window) -> Amount {
    let grows = matches!(
        reason,
        Reason::CopyOnWrite
            | Reason::Merged
            | Reason::FreedLazily
            | Reason::Sparse
            | Reason::Swapped
            | Reason::NoRoom
            | Reason::Possible
    );
    Amount {
        reason,
        regions: 1,
        bytes: window.resident.bytes(),
        swapped_bytes: window.swapped.bytes(),
        growth_bytes: ByteCount(if grows { window.growth().bytes().0 } else { 0 }),
        copied_bytes: window.shared.bytes(),
    }
}

fn add(amounts: &mut Vec<Amount>, more: Amount) {
    match amounts.iter_mut().find(|one| one.reason == more.reason) {
        Some(one) => {
            one.regions += more.regions;
            one.bytes += more.bytes;
            one.swapped_bytes += more.swapped_bytes;
            one.growth_bytes += more.growth_bytes;
            one.copied_bytes += more.copied_bytes;
        }
        None => amounts.push(more),
    }
}

fn sort(amounts: &mut [Amount]) {
    amounts.sort_by_key(|one| (std::cmp::Reverse(one.bytes), one.reason));
}

/// Returns advice for each reason, and for each kind of memory that needs its own advice, in the order of the reasons.
fn advised(why: &Why, pid: u32, machine: &Machine) -> Vec<Advice> {
    let mut found: Vec<Advice> = Vec::new();
    for reason in &why.reasons {
        let first = found.len();
        for mapping in &why.mappings {
            let Some(part) = mapping
                .reasons
                .iter()
                .find(|one| one.reason == reason.reason)
            else {
                continue;
            };
            let known = &mut found[first..];
            match known.iter_mut().find(|one| one.backing == mapping.backing) {
                Some(one) => one.bytes += part.bytes,
                None => found.push(Advice {
                    reason: part.reason,
                    backing: mapping.backing,
                    bytes: part.bytes,
                    text: advice::advice(part.reason, mapping.backing, pid, machine),
                }),
            }
        }
        // Most kinds of memory get the same advice.
        let mut of_reason: Vec<Advice> = Vec::new();
        for one in found.drain(first..) {
            match of_reason.iter_mut().find(|known| known.text == one.text) {
                Some(known) => known.bytes += one.bytes,
                None => of_reason.push(one),
            }
        }
        found.append(&mut of_reason);
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use superhue_model::VirtAddr;

    use super::*;

    /// Every byte is either huge or has one reason: by mapping, and in total.
    fn is_exact(why: &Why) {
        let of = |amounts: &[Amount]| amounts.iter().map(|one| one.bytes).sum::<ByteCount>();
        assert_eq!(why.resident_bytes, why.huge_bytes + of(&why.reasons));
        let mut resident = ByteCount(0);
        for mapping in &why.mappings {
            assert_eq!(
                mapping.resident_bytes,
                mapping.huge_bytes + of(&mapping.reasons)
            );
            resident += mapping.resident_bytes;
        }
        assert_eq!(why.resident_bytes, resident);
        let advised: ByteCount = why.advice.iter().map(|one| one.bytes).sum();
        assert_eq!(advised, of(&why.reasons), "each reason comes with advice");
    }

    #[test]
    fn every_byte_of_this_process_has_its_reason() {
        let name = "every_byte_of_this_process_has_its_reason";
        if superhue_testing::passed_in_own_process(module_path!(), name) {
            return;
        }
        let roots = Roots::default();
        let pid = std::process::id();
        let machine = Machine::read(&roots);
        let memory = vec![7_u8; 16 << 20];
        let id = superhue_procfs::process::identify(&roots, pid).unwrap();
        let vmas = superhue_procfs::process::vma_uses(&roots, pid).unwrap();
        let why = explain(&roots, id, &vmas, false, &machine).unwrap();
        is_exact(&why);
        // Memory that nothing reads might never exist.
        assert!(why.resident_bytes.0 >= std::hint::black_box(&memory).len() as u64);
        let not_ours: ByteCount = why
            .reasons
            .iter()
            .filter(|one| matches!(one.reason, Reason::Special | Reason::Hugetlb))
            .map(|one| one.bytes)
            .sum();
        // Threads of other tests start and end meanwhile.
        let rss: ByteCount = vmas.iter().filter_map(|vma| vma.memory.rss).sum();
        let counted = why.resident_bytes - not_ours;
        assert!(counted.0.abs_diff(rss.0) < 8 << 20, "{counted} {rss}");
    }

    #[test]
    fn what_a_process_maps_twice_counts_once() {
        const MIB: u64 = 1 << 20;
        let vma = |start: u64| {
            let head = format!(
                "{start:x}-{:x} rw-s 0 00:01 7 /memfd:ring (deleted)",
                start + 4 * MIB
            );
            reason::tests::vma(&head, "hg")
        };
        let vmas = [vma(8 * MIB), vma(12 * MIB)];
        let mappings: Vec<Mapping> = vmas.iter().map(|vma| Mapping::of(vma, false)).collect();
        let window = |(vma, start): (usize, u64)| WindowUse {
            vma,
            region: Region::containing(VirtAddr(start * MIB)),
            resident: PageCount(512),
            swapped: PageCount(0),
            huge: false,
        };
        let uses: Vec<WindowUse> = [(0, 8), (0, 10), (1, 12), (1, 14)].map(window).into();
        let shapes: Vec<Window> = uses.iter().map(|window| shape(window, &vmas)).collect();
        let why = sum_up(&vmas, &mappings, &uses, &shapes, ScanMethod::PagemapScan);
        assert_eq!(why.resident_bytes, ByteCount(4 * MIB));
        let again = |mapping: &MappingWhy| mapping.mapped_again_bytes;
        let shown: Vec<_> = why.mappings.iter().map(again).collect();
        assert_eq!(shown, [None, Some(ByteCount(4 * MIB))]);
        assert_eq!(why.reasons.len(), 1);
        assert_eq!(why.reasons[0].regions, 2);
    }

    proptest! {
        #[test]
        fn every_byte_has_one_reason(
            areas in proptest::collection::vec(
                (0..5_u64 << 9, 1..5_u64 << 9, 0..8_usize, 0..7_usize, any::<bool>()),
                1..12,
            ),
            windows in proptest::collection::vec((0..513_u64, 0..513_u64, any::<bool>(), 0..513_u64), 1..60),
        ) {
            let names = ["", "[heap]", "[stack]", "[vdso]", "/memfd:a (deleted)", "/dev/shm/a", "/bin/a", "[vvar]"];
            let flags = ["", "hg", "nh", "um", "ui", "ht", "de"];
            let mut vmas = Vec::new();
            let mut at = 0;
            for (gap, pages, name, flag, writable) in areas {
                let start = at + gap * BASE_PAGE_SIZE;
                at = start + pages * BASE_PAGE_SIZE;
                let write = if writable { 'w' } else { '-' };
                let shared = if names[name].starts_with('/') { 's' } else { 'p' };
                let head = format!("{start:x}-{at:x} r{write}-{shared} 0 00:01 {} {}", name / 4, names[name]);
                vmas.push(reason::tests::vma(&head, flags[flag]));
            }
            let mappings: Vec<Mapping> = vmas.iter().map(|vma| Mapping::of(vma, false)).collect();
            let mut cycle = windows.iter().cycle();
            let mut uses = Vec::new();
            for (place, vma) in vmas.iter().enumerate() {
                let (start, end) = (vma.vma.range.start, vma.vma.range.end);
                let mut at = start;
                while at < end {
                    let region = Region::containing(at);
                    let stop = region.range().end.min(end);
                    let room = (stop.0 - at.0) / BASE_PAGE_SIZE;
                    let &(resident, swapped, huge, _) = cycle.next().unwrap();
                    let huge = huge && room == 512;
                    let resident = if huge { room } else { resident.min(room) };
                    let swapped = PageCount(swapped.min(room - resident));
                    uses.push(WindowUse { vma: place, region, resident: PageCount(resident), swapped, huge });
                    at = stop;
                }
            }
            let mut shapes: Vec<Window> = uses.iter().map(|window| shape(window, &vmas)).collect();
            for (shape, window) in shapes.iter_mut().zip(windows.iter().cycle()) {
                shape.shared = PageCount(window.3.min(shape.resident.0));
            }
            let mut why = sum_up(&vmas, &mappings, &uses, &shapes, ScanMethod::PagemapScan);
            why.advice = advised(&why, 1, &Machine {
                enabled: None,
                shmem_enabled: None,
                free_huge_pages: None,
                khugepaged: None,
                unknown_because: Vec::new(),
            });
            is_exact(&why);
            let resident: PageCount = uses.iter().map(|window| window.resident).sum();
            let again: ByteCount = why.mappings.iter().filter_map(|it| it.mapped_again_bytes).sum();
            prop_assert_eq!(why.resident_bytes + again, resident.bytes());
        }
    }
}
