//! This machine as a machine file: its caches and TLBs as far as they are known, and the assumed values.
//!
//! ```text
//!   sysfs: sizes, ways, lines ──┐
//!   palette: colors and ways ───┼──> machine file ──> Machine
//!   CPUID: TLBs ────────────────┘    (--output keeps it, to be altered)
//! ```

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rustix::thread::sched_getcpu;
use superhue::model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};
use superhue::page_colors::oracles::{PaletteConfig, SharedPalette};
use superhue::procfs::Roots;
use superhue::procfs::hardware::{
    AssessedCache, Cpuid, Geometry, Hardware, TlbArray, TlbKind, TlbWays, Usability,
};
use superhue_papers::cachesim::Machine;

use crate::output::{Failure, UNABLE};

/// Name of this machine on the command line.
pub(super) const NAME: &str = "here";

/// A machine file of this machine, and what a reader of its figures should know.
#[derive(Debug)]
pub(super) struct HostMachine {
    pub(super) machine: Machine,
    pub(super) text: String,
    pub(super) notes: Vec<String>,
}

/// Result of an earlier search for colors here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ColorMeasurement {
    colors: u64,
    ways: Option<u64>,
}

/// Describes this machine, as seen from the current CPU.
pub(super) fn here() -> Result<HostMachine, Failure> {
    let hardware = Hardware::read(&Roots::default(), &Cpuid::native());
    let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let places = PaletteConfig::new(Path::new("/"), runtime_dir.as_deref());
    let measured = SharedPalette::peek(&places).map(|shared| ColorMeasurement {
        colors: shared.palette().colors() as u64,
        ways: shared.palette().ways().map(u64::from),
    });
    let cpu = u32::try_from(sched_getcpu()).unwrap_or_default();
    describe(&hardware, cpu, measured).map_err(|why| {
        let what = format!(
            "cannot describe this machine: {why}; give the name or the file of a machine with --machine (superhue lab --list), \
             or write one like crates/lab/cachesim/machines/zen.toml"
        );
        Failure::new(UNABLE, what)
    })
}

/// A cache as it stands in the file.
struct CacheDescription {
    name: String,
    size: u64,
    ways: u64,
    line: u64,
    source: String,
}

fn describe(
    hardware: &Hardware,
    cpu: u32,
    measured: Option<ColorMeasurement>,
) -> Result<HostMachine, String> {
    let mut notes = Vec::new();
    let described = match &hardware.caches {
        Ok(caches) => caches.as_slice(),
        Err(error) => return Err(error.to_string()),
    };
    let mut caches: Vec<CacheDescription> = Vec::new();
    for level in 1..=3 {
        let Some(judged) = cache_of(described, cpu, level) else {
            if level == 1 {
                return Err("the system does not describe the first data cache".to_owned());
            }
            continue;
        };
        match told(judged) {
            Ok(told) => {
                if let Some(reason) = judged.verdict.reason().filter(|_| level > 2) {
                    notes.push(format!("The {} is doubtful: {reason}.", told.name));
                }
                caches.push(told);
            }
            Err(why) if level == 1 => return Err(format!("its L1d: {why}")),
            Err(why) => notes.push(format!(
                "{} is left out: {why}. What it would serve counts as memory.",
                judged.cache.name()
            )),
        }
        if level == 2 {
            notes.push(measure(&mut caches, measured));
        }
    }
    if caches.len() == 1 {
        notes.push("No cache behind the first one is known.".to_owned());
    }
    let tlbs = tlbs(hardware, &mut notes);
    notes.push(
        "Replacement (LRU), latencies and the costs of walks are assumptions, because no system reports them. Counts hardly depend on them. Times do."
            .to_owned(),
    );
    let processor = hardware.cpu.as_ref().ok().and_then(|cpu| cpu.model.clone());
    let text = written(&processor.unwrap_or_default(), &caches, &tlbs);
    let machine = Machine::parse("this machine", &text).map_err(|error| error.to_string())?;
    Ok(HostMachine {
        machine,
        text,
        notes,
    })
}

fn cache_of(caches: &[AssessedCache], cpu: u32, level: u32) -> Option<&AssessedCache> {
    caches.iter().find(|judged| {
        let cache = &judged.cache;
        let mine = cache.shared_by.as_ref();
        cache.level == Some(level)
            && cache.holds_data()
            && mine.is_none_or(|cpus| cpus.contains(cpu))
    })
}

fn told(judged: &AssessedCache) -> Result<CacheDescription, String> {
    if let Usability::Unusable(reason) = &judged.verdict {
        return Err(reason.clone());
    }
    let geometry = Geometry::of(&judged.cache).map_err(|error| error.to_string())?;
    let (size, sets) = (geometry.size.0, geometry.sets);
    if !sets.is_power_of_two() {
        return Err(format!("{sets} sets are no power of two"));
    }
    let doubt = judged.verdict.reason();
    let doubt = doubt.map_or(String::new(), |reason| format!("; doubtful: {reason}"));
    Ok(CacheDescription {
        name: judged.cache.name(),
        size,
        ways: geometry.ways,
        line: geometry.line.0,
        source: format!("as the system describes it{doubt}"),
    })
}

/// Compares the second cache with the measurement, which wins; returns a sentence about the result.
fn measure(caches: &mut [CacheDescription], measured: Option<ColorMeasurement>) -> String {
    let Some(cache) = caches.iter_mut().find(|cache| cache.name == "L2") else {
        return "There is no L2 to hold a measurement against.".to_owned();
    };
    let said = cache.size / cache.ways / BASE_PAGE_SIZE;
    let Some(ColorMeasurement { colors, ways }) = measured else {
        return format!(
            "The L2 is as the system describes it ({} colors): `superhue colors` would measure it.",
            said.max(1)
        );
    };
    let ways = ways.unwrap_or(cache.ways);
    if (colors, ways) == (said, cache.ways) {
        cache.source = format!(
            "`superhue colors` measured the {colors} colors of {ways} ways that the system describes"
        );
        return format!(
            "The L2 has {colors} colors and {ways} ways, as `superhue colors` measured."
        );
    }
    let size = colors * ways * BASE_PAGE_SIZE;
    // A model selects sets by address bits.
    if !colors.is_power_of_two() {
        return format!(
            "`superhue colors` measured {colors} colors of the L2. That is no power of two, so the model uses the {said} colors that the system reports."
        );
    }
    let before = ByteCount(cache.size);
    cache.size = size;
    cache.ways = ways;
    cache.source = format!("`superhue colors` measured {colors} colors and {ways} ways");
    format!(
        "The L2 has {colors} colors and {ways} ways, as `superhue colors` measured, so {}; the system says {before}.",
        ByteCount(size)
    )
}

/// A TLB as it stands in the file.
struct Entries {
    level: u32,
    entries: u32,
    ways: u32,
    base: bool,
    large: bool,
}

const fn serves_loads(kind: TlbKind) -> bool {
    matches!(kind, TlbKind::Data | TlbKind::Unified | TlbKind::Load)
}

fn tlbs(hardware: &Hardware, notes: &mut Vec<String>) -> Vec<Entries> {
    let page = |large| {
        ByteCount(if large {
            HUGE_PAGE_SIZE
        } else {
            BASE_PAGE_SIZE
        })
    };
    let usual = |level: u32, large: bool| Entries {
        level,
        entries: if level == 1 { 64 } else { 1536 },
        ways: if level == 1 { 64 } else { 12 },
        base: !large,
        large,
    };
    let arrays = match &hardware.tlb {
        Ok(tlb) => tlb.arrays.as_slice(),
        Err(error) => {
            notes.push(format!(
                "TLBs are not known ({error}): those of the machine file `zen` are taken, 64 entries and 1536 behind them."
            ));
            let mut both = [usual(1, false), usual(2, false)];
            for tlb in &mut both {
                tlb.large = true;
            }
            return both.into();
        }
    };
    if let Ok(tlb) = &hardware.tlb {
        notes.extend(tlb.notes.iter().map(|note| format!("TLBs: {note}.")));
    }
    let mut made: Vec<Entries> = Vec::new();
    for level in [1, 2] {
        for large in [false, true] {
            let holds = |array: &&TlbArray| {
                array.level == level && serves_loads(array.kind) && array.pages.contain(page(large))
            };
            // The largest, if there are several.
            let Some(array) = arrays
                .iter()
                .filter(holds)
                .max_by_key(|array| array.entries)
            else {
                if level == 1 {
                    notes.push(format!(
                        "The processor reports no first-level TLB for pages of {}. The model assumes 64 entries.",
                        page(large)
                    ));
                    made.push(usual(1, large));
                }
                continue;
            };
            let shared = array.pages.contain(page(false)) && array.pages.contain(page(true));
            let same = made.iter_mut().find(|other| {
                shared && large && other.level == level && other.entries == array.entries
            });
            if let Some(same) = same {
                same.large = true;
                continue;
            }
            made.push(Entries {
                level,
                entries: array.entries,
                ways: ways(array.entries, array.ways),
                base: !large,
                large,
            });
        }
    }
    made
}

/// Ways that leave a power of two of sets: the number that the processor reports, or the next one that fits.
fn ways(entries: u32, told: Option<TlbWays>) -> u32 {
    let least = match told {
        Some(TlbWays::Exactly(ways) | TlbWays::AtLeast(ways)) => u32::from(ways),
        Some(TlbWays::Full) | None => entries,
    };
    (least.max(1)..=64)
        .find(|ways| entries.is_multiple_of(*ways) && (entries / ways).is_power_of_two())
        .unwrap_or(entries)
}

/// Assumed latencies: of the first cache, the second, the third.
const CYCLES: [u32; 3] = [4, 14, 50];

fn written(processor: &str, caches: &[CacheDescription], tlbs: &[Entries]) -> String {
    let plain = |text: &str| -> String {
        let allowed = |letter: &char| (' '..='~').contains(letter) && !matches!(letter, '"' | '\\');
        text.chars().filter(allowed).take(600).collect()
    };
    let processor = plain(processor);
    let mut text = format!(
        "# This machine, as `superhue lab --machine here` found it. What is assumed says so.\n\
         name = \"This machine\"\nabout = \"{}\"\ncores = 1\nclock_mhz = 3000\npage_kib = {}\nsuperpage_kib = {}\n\
         source = \"the running system; the clock is assumed and changes no figure in cycles\"\n",
        if processor.is_empty() {
            "a processor whose name is not known"
        } else {
            &processor
        },
        BASE_PAGE_SIZE >> 10,
        HUGE_PAGE_SIZE >> 10
    );
    for (cache, cycles) in caches.iter().zip(CYCLES) {
        let _ = write!(
            text,
            "\n[[cache]]\nname = \"{}\"\nsize_kib = {}\nways = {}\nline = {}\nreplacement = \"lru\"\nwrite_back = true\n\
             write_allocate = true\ncycles = {cycles}\nsource = \"{}; replacement and cycles are assumed\"\n",
            plain(&cache.name),
            cache.size >> 10,
            cache.ways,
            cache.line,
            plain(&cache.source)
        );
    }
    for tlb in tlbs {
        let holds = match (tlb.base, tlb.large) {
            (true, true) => "\"base\", \"super\"",
            (true, false) => "\"base\"",
            _ => "\"super\"",
        };
        let _ = write!(
            text,
            "\n[[tlb]]\nname = \"L{}-{}\"\nlevel = {}\nentries = {}\nways = {}\nholds = [{holds}]\ncycles = {}\nsource = \"CPUID, or assumed\"\n",
            tlb.level,
            if tlb.base { "DTLB" } else { "DTLB-2M" },
            tlb.level,
            tlb.entries,
            tlb.ways,
            if tlb.level == 1 { 0 } else { 7 },
        );
    }
    text.push_str(
        "\n[walk]\nentry = 8\ndirectory = false\nthrough = \"L1d\"\ncycles = 10\nsource = \"assumed: four levels of 8-byte entries, those above the last at hand\"\n\
         \n[costs]\nmemory = 300\nwrite_back = 10\nsource = \"assumed\"\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue::procfs::hardware::CpuidTable;

    /// The recorded machines of the crate that parses them.
    fn recorded(name: &str) -> Hardware {
        let folder = tempfile::tempdir().unwrap();
        superhue_testing::unpack_tree(&format!("machines/{name}"), folder.path());
        let cpuid = std::fs::read_to_string(folder.path().join("cpuid.txt")).ok();
        let table = cpuid.and_then(|text| CpuidTable::parse(&text).ok());
        let cpuid = table.map_or_else(Cpuid::none, Cpuid::recorded);
        Hardware::read(&Roots::under(folder.path()), &cpuid)
    }

    #[track_caller]
    fn found(name: &str, measured: Option<ColorMeasurement>) -> (Machine, String) {
        let here = describe(&recorded(name), 0, measured).unwrap_or_else(|why| panic!("{why}"));
        (here.machine, here.notes.join("\n"))
    }

    #[test]
    fn what_cannot_be_is_left_out_and_what_is_not_known_is_taken_and_told() {
        let (machine, notes) = found("vm-impossible-l3", None);
        assert_eq!(machine.caches.len(), 2);
        assert_eq!(machine.caches[1].colors(4096), 32);
        for words in [
            "L3 is left out",
            "TLBs are not known",
            "`superhue colors` would measure it",
            "are assumptions",
        ] {
            assert!(notes.contains(words), "{words}: {notes}");
        }
    }

    #[test]
    fn what_was_measured_is_believed() {
        let measured = |colors, ways| Some(ColorMeasurement { colors, ways });
        let (machine, notes) = found("vm-impossible-l3", measured(64, Some(16)));
        assert_eq!(machine.caches[1].size, 4 << 20);
        assert!(notes.contains("the system says 2.0 MiB"), "{notes}");
        let (machine, notes) = found("vm-impossible-l3", measured(32, None));
        assert_eq!(machine.caches[1].size, 2 << 20);
        assert!(notes.contains("as `superhue colors` measured."), "{notes}");
        let (machine, notes) = found("vm-impossible-l3", measured(31, Some(16)));
        assert_eq!(machine.caches[1].size, 2 << 20);
        assert!(notes.contains("no power of two"), "{notes}");
    }

    #[test]
    fn ways_of_a_tlb_leave_a_power_of_two_of_sets() {
        for (entries, told, expected) in [
            (64, Some(TlbWays::Full), 64),
            (1536, Some(TlbWays::AtLeast(8)), 12),
            (3072, Some(TlbWays::AtLeast(6)), 6),
            (2048, Some(TlbWays::Exactly(8)), 8),
            (96, None, 96),
        ] {
            assert_eq!(ways(entries, told), expected, "{entries} {told:?}");
        }
    }
}
