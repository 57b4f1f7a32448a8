//! Description of a machine's caches and TLBs, read from a file.

use serde::Deserialize;
use toml::Spanned;

/// Upper limit of cache levels.
pub const LEVELS: usize = 4;

/// Reason why a machine file is refused: `file:line: key: what`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {key}: {what}")]
pub struct MachineError {
    /// The name of the file, as the caller gave it.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The key, or the table if a key is missing in it.
    pub key: String,
    /// Fault of the key.
    pub what: String,
}

/// Model of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Name in tables.
    pub name: String,
    /// Document that describes this kind of processor.
    pub about: String,
    /// Cores, each with private caches and TLBs of its own.
    pub cores: usize,
    /// Clock in MHz; turns cycles into seconds.
    pub clock_mhz: f64,
    /// Bytes of a base page.
    pub page: u64,
    /// Bytes of a huge page.
    pub superpage: u64,
    /// The caches from the core outwards; shared ones last.
    pub caches: Vec<CacheSpec>,
    /// The TLBs, in the order of the file.
    pub tlbs: Vec<TlbSpec>,
    /// Page-table walk after a TLB miss.
    pub walk: WalkSpec,
    /// Costs outside the caches.
    pub costs: Costs,
}

/// Rule that chooses the block of a set to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The least recently used block.
    Lru,
    /// The block that a binary tree of bits points to; each use turns the bits on its path away (pseudo-LRU).
    TreePlru,
    /// A random block.
    Random,
}

/// Relation of an outer cache to the caches before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inclusion {
    /// The cache holds all that they hold: they lose every line that it evicts.
    Inclusive,
    /// Neither inclusive nor exclusive.
    Neither,
    /// The cache holds the lines that the cache before it evicted, and gives them back.
    Exclusive,
}

/// A cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec {
    /// Name of the cache: `L1d`.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Blocks of a set.
    pub ways: u64,
    /// Bytes of a line.
    pub line: u64,
    /// Lines under one tag.
    pub sector_lines: u64,
    /// Rule that chooses the block to replace.
    pub replacement: Replacement,
    /// Relation to the caches before it.
    pub inclusion: Inclusion,
    /// True if all cores share it.
    pub shared: bool,
    /// True if the virtual address chooses the set.
    pub virtual_index: bool,
    /// True if a store stays in this cache until the line is evicted; otherwise the store passes to the next level at
    /// once.
    pub write_back: bool,
    /// True if a store that misses brings the line in.
    pub write_allocate: bool,
    /// Physical address bits whose parity is one bit of the number of the slice.
    pub slices: Vec<u64>,
    /// Cycles, in thousandths, of a reference that this cache serves.
    pub millicycles: u64,
}

impl CacheSpec {
    /// Page colors of a cache that is indexed by physical address: way size / page size.
    #[must_use]
    pub fn colors(&self, page: u64) -> u64 {
        (self.size / self.ways / page).max(1)
    }
}

/// A TLB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlbSpec {
    /// Name of the TLB: `DTLB`.
    pub name: String,
    /// Level: 1, or 2 for the TLB behind it.
    pub level: u64,
    /// Translations it holds.
    pub entries: u64,
    /// Translations of a set.
    pub ways: u64,
    /// True if it holds translations of base pages.
    pub base: bool,
    /// True if it holds translations of huge pages.
    pub superpages: bool,
    /// Cycles, in thousandths, of a translation that this TLB holds; level 1 costs none.
    pub millicycles: u64,
}

/// Page-table walk after a TLB miss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkSpec {
    /// Bytes of an entry of a page table.
    pub entry: u64,
    /// True if the walk also loads the directory's entry; otherwise the model assumes that the entry is at hand.
    pub directory: bool,
    /// First cache that the walk asks, by its position in [`Machine::caches`].
    pub through: usize,
    /// Cycles, in thousandths, besides those of the loads.
    pub millicycles: u64,
}

/// Costs besides those of caches, in thousandths of a cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costs {
    /// A reference that no cache serves.
    pub memory: u64,
    /// A line that is written back to memory.
    pub write_back: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMachine {
    name: Spanned<String>,
    about: Spanned<String>,
    cores: Spanned<u64>,
    clock_mhz: Spanned<f64>,
    page_kib: Spanned<u64>,
    superpage_kib: Spanned<u64>,
    source: Spanned<String>,
    #[serde(default)]
    cache: Vec<Spanned<RawCache>>,
    #[serde(default)]
    tlb: Vec<Spanned<RawTlb>>,
    walk: Spanned<RawWalk>,
    costs: Spanned<RawCosts>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCache {
    name: Spanned<String>,
    size_kib: Spanned<u64>,
    ways: Spanned<u64>,
    line: Spanned<u64>,
    #[serde(default)]
    sector_lines: Option<Spanned<u64>>,
    replacement: Spanned<Replacement>,
    #[serde(default)]
    inclusion: Option<Spanned<Inclusion>>,
    #[serde(default)]
    shared: Option<Spanned<bool>>,
    #[serde(default)]
    virtual_index: Option<Spanned<bool>>,
    write_back: Spanned<bool>,
    write_allocate: Spanned<bool>,
    #[serde(default)]
    slices: Vec<Spanned<Vec<u64>>>,
    cycles: Spanned<f64>,
    source: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTlb {
    name: Spanned<String>,
    level: Spanned<u64>,
    entries: Spanned<u64>,
    ways: Spanned<u64>,
    holds: Spanned<Vec<PageClass>>,
    #[serde(default)]
    cycles: Option<Spanned<f64>>,
    source: Spanned<String>,
}

#[derive(Deserialize, PartialEq, Eq, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum PageClass {
    Base,
    Super,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWalk {
    entry: Spanned<u64>,
    directory: Spanned<bool>,
    through: Spanned<String>,
    cycles: Spanned<f64>,
    source: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCosts {
    memory: Spanned<f64>,
    write_back: Spanned<f64>,
    source: Spanned<String>,
}

/// Text of a machine file, for the positions of errors.
struct Text<'a> {
    file: &'a str,
    text: &'a str,
}

impl Text<'_> {
    fn error(&self, at: usize, key: Option<&str>, what: impl Into<String>) -> MachineError {
        let at = at.min(self.text.len());
        let before = &self.text.as_bytes()[..at];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        // A key or a table's name begins its line.
        let text = self.text.lines().nth(line - 1).unwrap_or_default().trim();
        let found = text.split('=').next().unwrap_or_default();
        let found = found.trim().trim_matches(['[', ']']);
        let key = key.unwrap_or(if found.is_empty() { "the file" } else { found });
        MachineError {
            file: self.file.to_owned(),
            line,
            key: key.to_owned(),
            what: what.into(),
        }
    }

    fn refuse<T, U>(
        &self,
        value: &Spanned<T>,
        key: &str,
        what: impl Into<String>,
    ) -> Result<U, MachineError> {
        Err(self.error(value.span().start, Some(key), what))
    }

    fn number(
        &self,
        value: &Spanned<u64>,
        key: &str,
        range: std::ops::RangeInclusive<u64>,
        power_of_two: bool,
    ) -> Result<u64, MachineError> {
        let number = *value.get_ref();
        if !range.contains(&number) {
            let what = format!("{number} is not from {} to {}", range.start(), range.end());
            return self.refuse(value, key, what);
        }
        if power_of_two && !number.is_power_of_two() {
            return self.refuse(value, key, format!("{number} is no power of two"));
        }
        Ok(number)
    }

    fn cycles(&self, value: &Spanned<f64>, key: &str) -> Result<u64, MachineError> {
        let cycles = *value.get_ref();
        if !(0.0..=1e6).contains(&cycles) {
            return self.refuse(
                value,
                key,
                format!("{cycles} is not from 0 to 1000000 cycles"),
            );
        }
        // The value is in the range just tested.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "tested above"
        )]
        Ok((cycles * 1000.0).round() as u64)
    }

    fn words(&self, value: &Spanned<String>, key: &str) -> Result<String, MachineError> {
        let words = value.get_ref().trim();
        if words.is_empty() || words.len() > 2000 {
            return self.refuse(value, key, "must be 1 to 2000 bytes of text");
        }
        Ok(words.to_owned())
    }
}

impl Machine {
    /// Reads the text of a machine file; `file` is its name, for errors.
    ///
    /// # Errors
    /// A text that is no TOML, lacks a key, has an unknown one, or describes a machine that cannot exist: with line and
    /// key.
    pub fn parse(file: &str, text: &str) -> Result<Self, MachineError> {
        let place = Text { file, text };
        let raw: RawMachine = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            place.error(at, None, error.message())
        })?;
        place.words(&raw.source, "source")?;
        let page = place.number(&raw.page_kib, "page_kib", 1..=1024, true)? * 1024;
        let superpage =
            place.number(&raw.superpage_kib, "superpage_kib", 2..=1 << 20, true)? * 1024;
        if superpage <= page {
            return place.refuse(&raw.superpage_kib, "superpage_kib", "is not above page_kib");
        }
        let clock_mhz = *raw.clock_mhz.get_ref();
        if !(1.0..=100_000.0).contains(&clock_mhz) {
            let what = format!("{clock_mhz} is not from 1 to 100000");
            return place.refuse(&raw.clock_mhz, "clock_mhz", what);
        }
        let caches = caches(&place, &raw)?;
        let machine = Self {
            name: place.words(&raw.name, "name")?,
            about: place.words(&raw.about, "about")?,
            cores: usize::try_from(place.number(&raw.cores, "cores", 1..=64, false)?).unwrap_or(1),
            clock_mhz,
            page,
            superpage,
            tlbs: tlbs(&place, &raw)?,
            walk: walk(&place, &raw.walk, &caches)?,
            costs: costs(&place, raw.costs.get_ref())?,
            caches,
        };
        Ok(machine)
    }

    /// The last cache; the page colors are colors of this cache.
    ///
    /// # Panics
    /// Never: a machine has at least one cache.
    #[must_use]
    pub fn last(&self) -> &CacheSpec {
        &self.caches[self.caches.len() - 1]
    }
}

fn caches(place: &Text<'_>, raw: &RawMachine) -> Result<Vec<CacheSpec>, MachineError> {
    if raw.cache.is_empty() || raw.cache.len() > LEVELS {
        let what = format!("there must be 1 to {LEVELS} tables [[cache]]");
        return Err(place.error(0, Some("cache"), what));
    }
    let mut made: Vec<CacheSpec> = Vec::new();
    for raw in raw.cache.iter().map(Spanned::get_ref) {
        let spec = cache(place, raw, &made)?;
        made.push(spec);
    }
    Ok(made)
}

fn cache(
    place: &Text<'_>,
    raw: &RawCache,
    before: &[CacheSpec],
) -> Result<CacheSpec, MachineError> {
    let flag = |flag: &Option<Spanned<bool>>| flag.as_ref().is_some_and(|flag| *flag.get_ref());
    place.words(&raw.source, "source")?;
    let size = place.number(&raw.size_kib, "size_kib", 1..=1 << 20, false)? * 1024;
    let ways = place.number(&raw.ways, "ways", 1..=64, false)?;
    let line = place.number(&raw.line, "line", 8..=1024, true)?;
    let sector_lines = match &raw.sector_lines {
        Some(lines) => place.number(lines, "sector_lines", 1..=2, true)?,
        None => 1,
    };
    let mut slices = Vec::new();
    for bits in &raw.slices {
        let mut mask = 0u64;
        for &bit in bits.get_ref() {
            if !(6..=47).contains(&bit) {
                return place.refuse(bits, "slices", format!("bit {bit} is not from 6 to 47"));
            }
            mask |= 1 << bit;
        }
        if mask == 0 || slices.contains(&mask) {
            return place.refuse(bits, "slices", "each needs bits of its own");
        }
        slices.push(mask);
    }
    let sets = size / (line * sector_lines * ways);
    if sets == 0 || sets * line * sector_lines * ways != size || !sets.is_power_of_two() {
        let what = format!(
            "{} KiB in {ways} ways of {} bytes is not a power of two of sets",
            size / 1024,
            line * sector_lines
        );
        return place.refuse(&raw.size_kib, "size_kib", what);
    }
    if sets >> slices.len() == 0 {
        return place.refuse(&raw.slices[0], "slices", "there are more slices than sets");
    }
    let replacement = *raw.replacement.get_ref();
    if replacement == Replacement::TreePlru && !ways.is_power_of_two() {
        return place.refuse(&raw.ways, "ways", "tree-plru needs a power of two");
    }
    let inclusion = match &raw.inclusion {
        Some(inclusion) if before.is_empty() => {
            let what = "the first cache has none before it";
            return place.refuse(inclusion, "inclusion", what);
        }
        Some(inclusion) => *inclusion.get_ref(),
        None => Inclusion::Neither,
    };
    let virtual_index = flag(&raw.virtual_index);
    if let Some(flag) = &raw.virtual_index
        && virtual_index
        && (!before.is_empty() || sector_lines > 1)
    {
        return place.refuse(
            flag,
            "virtual_index",
            "only the first cache, without sectors, has that",
        );
    }
    let spec = CacheSpec {
        name: place.words(&raw.name, "name")?,
        size,
        ways,
        line,
        sector_lines,
        replacement,
        inclusion,
        shared: flag(&raw.shared),
        virtual_index,
        write_back: *raw.write_back.get_ref(),
        write_allocate: *raw.write_allocate.get_ref(),
        slices,
        millicycles: place.cycles(&raw.cycles, "cycles")?,
    };
    let Some(inner) = before.last() else {
        if spec.shared {
            return place.refuse(&raw.name, "shared", "the first cache is each core's own");
        }
        return Ok(spec);
    };
    if before.iter().any(|other| other.name == spec.name) {
        return place.refuse(&raw.name, "name", "another cache has this name");
    }
    if spec.line < inner.line {
        return place.refuse(
            &raw.line,
            "line",
            "is smaller than that of the cache before",
        );
    }
    if inner.shared && !spec.shared {
        return place.refuse(&raw.name, "shared", "a private cache behind a shared one");
    }
    if let Some(set) = &raw.inclusion
        && inclusion != Inclusion::Neither
        && before[0].virtual_index
    {
        let what = "only `neither` goes with a first cache that has virtual_index";
        return place.refuse(set, "inclusion", what);
    }
    if let Some(set) = &raw.inclusion
        && inclusion == Inclusion::Exclusive
        && (spec.line != inner.line || sector_lines > 1)
    {
        let what = "exclusive needs lines like those of the cache before, without sectors";
        return place.refuse(set, "inclusion", what);
    }
    if !spec.write_back {
        let what = "only the first cache may write through";
        return place.refuse(&raw.write_back, "write_back", what);
    }
    Ok(spec)
}

fn tlbs(place: &Text<'_>, raw: &RawMachine) -> Result<Vec<TlbSpec>, MachineError> {
    let mut made: Vec<TlbSpec> = Vec::new();
    for table in &raw.tlb {
        let raw = table.get_ref();
        place.words(&raw.source, "source")?;
        let entries = place.number(&raw.entries, "entries", 1..=65_536, false)?;
        let ways = place.number(&raw.ways, "ways", 1..=entries, false)?;
        if !entries.is_multiple_of(ways) || !(entries / ways).is_power_of_two() {
            let what = format!("{entries} entries in {ways} ways are not a power of two of sets");
            return place.refuse(&raw.ways, "ways", what);
        }
        if ways != entries && ways > 64 {
            return place.refuse(&raw.ways, "ways", "is above 64, and not all entries");
        }
        let spec = TlbSpec {
            name: place.words(&raw.name, "name")?,
            level: place.number(&raw.level, "level", 1..=2, false)?,
            entries,
            ways,
            base: raw.holds.get_ref().contains(&PageClass::Base),
            superpages: raw.holds.get_ref().contains(&PageClass::Super),
            millicycles: match &raw.cycles {
                Some(cycles) => place.cycles(cycles, "cycles")?,
                None => 0,
            },
        };
        let twice = made.iter().any(|other| {
            other.level == spec.level
                && (other.base && spec.base || other.superpages && spec.superpages)
        });
        if twice || !(spec.base || spec.superpages) {
            let what = "each kind of page, `base` and `super`, is in one TLB of a level";
            return place.refuse(&raw.holds, "holds", what);
        }
        made.push(spec);
    }
    let first = |wanted: fn(&TlbSpec) -> bool| made.iter().any(|tlb| tlb.level == 1 && wanted(tlb));
    if !first(|tlb| tlb.base) || !first(|tlb| tlb.superpages) {
        let at = raw.tlb.first().map_or(0, |tlb| tlb.span().start);
        let what = "TLBs of level 1 must hold `base` and `super`";
        return Err(place.error(at, Some("tlb"), what));
    }
    Ok(made)
}

fn walk(
    place: &Text<'_>,
    raw: &Spanned<RawWalk>,
    caches: &[CacheSpec],
) -> Result<WalkSpec, MachineError> {
    let raw = raw.get_ref();
    place.words(&raw.source, "source")?;
    let entry = place.number(&raw.entry, "entry", 4..=8, true)?;
    let through = raw.through.get_ref();
    let Some(through) = caches.iter().position(|cache| cache.name == *through) else {
        let what = format!("there is no cache {through:?}");
        return place.refuse(&raw.through, "through", what);
    };
    Ok(WalkSpec {
        entry,
        directory: *raw.directory.get_ref(),
        through,
        millicycles: place.cycles(&raw.cycles, "cycles")?,
    })
}

fn costs(place: &Text<'_>, raw: &RawCosts) -> Result<Costs, MachineError> {
    place.words(&raw.source, "source")?;
    Ok(Costs {
        memory: place.cycles(&raw.memory, "memory")?,
        write_back: place.cycles(&raw.write_back, "write_back")?,
    })
}
