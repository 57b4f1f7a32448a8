//! The models against simpler ones that are obviously right, and invariants of every machine.

use std::collections::BTreeSet;

use proptest::prelude::*;
use superhue_cachesim::cache::Cache;
use superhue_cachesim::dump::{Dump, DumpError};
use superhue_cachesim::machine::{CacheSpec, Inclusion, Machine, Replacement, TlbSpec};
use superhue_cachesim::tlb::Tlb;
use superhue_cachesim::{Placement, Random, System, machines};

/// Number of base pages that huge pages map.
fn in_superpages(placement: &Placement) -> usize {
    let pages = 0..placement.len() as u64;
    let starts = pages.map(|page| page * placement.page());
    starts.filter(|at| placement.translate(*at).1).count()
}

fn spec(ways: u64, sets: u64, sector_lines: u64, replacement: Replacement) -> CacheSpec {
    CacheSpec {
        name: "L".to_owned(),
        size: ways * sets * sector_lines * 64,
        ways,
        line: 64,
        sector_lines,
        replacement,
        inclusion: Inclusion::Neither,
        shared: false,
        virtual_index: false,
        write_back: true,
        write_allocate: true,
        slices: Vec::new(),
        millicycles: 0,
    }
}

/// Blocks of a set with their lines; the block used last comes last.
type Set = Vec<(u64, Vec<(u64, bool)>)>;

/// Textbook LRU: lists, no bits.
struct Naive {
    sets: Vec<Set>,
    ways: usize,
    sector_lines: u64,
}

impl Naive {
    fn reference(&mut self, line: u64, write: bool) -> (bool, Option<(u64, usize, usize)>) {
        let block = line / self.sector_lines;
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(block % count) as usize];
        let mut gone = None;
        let mut lines = match set.iter().position(|(held, _)| *held == block) {
            Some(at) => set.remove(at).1,
            None => {
                if set.len() == self.ways {
                    let (block, lines) = set.remove(0);
                    let dirty = lines.iter().filter(|(_, dirty)| *dirty).count();
                    gone = Some((block, lines.len(), dirty));
                }
                Vec::new()
            }
        };
        let hit = match lines.iter_mut().find(|(held, _)| *held == line) {
            Some((_, dirty)) => {
                *dirty |= write;
                true
            }
            None => {
                lines.push((line, write));
                false
            }
        };
        set.push((block, lines));
        (hit, gone)
    }
}

proptest! {
    #[test]
    fn lru_is_that_of_the_book(
        ways in prop::sample::select(vec![1u64, 2, 3, 4, 8, 12, 16]),
        set_bits in 0u32..5,
        sector_lines in 1u64..=2,
        references in prop::collection::vec((0u64..400, any::<bool>()), 1..600),
    ) {
        let sets = 1 << set_bits;
        let mut cache = Cache::new(&spec(ways, sets, sector_lines, Replacement::Lru));
        let mut naive = Naive { sets: vec![Vec::new(); sets as usize], ways: ways as usize, sector_lines };
        for (line, write) in references {
            let hit = cache.touch(line, write);
            let gone = if hit { None } else { cache.fill(line, write) };
            let gone = gone.map(|gone| {
                (gone.first / sector_lines, gone.valid.count_ones() as usize, gone.dirty.count_ones() as usize)
            });
            prop_assert_eq!((hit, gone), naive.reference(line, write));
        }
        let held: usize = naive.sets.iter().flatten().map(|(_, lines)| lines.len()).sum();
        prop_assert_eq!(cache.len(), held);
    }

    /// A victim belongs to the set, is never the line just used, and no line gets lost.
    #[test]
    fn other_replacements_throw_out_one_of_the_set(
        tree in any::<bool>(),
        references in prop::collection::vec(0u64..300, 1..500),
    ) {
        let kind = if tree { Replacement::TreePlru } else { Replacement::Random };
        let mut cache = Cache::new(&spec(4, 8, 1, kind));
        let mut held = BTreeSet::new();
        let mut last = None;
        for line in references {
            let hit = cache.touch(line, false);
            prop_assert_eq!(hit, held.contains(&line));
            if !hit {
                held.insert(line);
                if let Some(gone) = cache.fill(line, false) {
                    prop_assert_eq!(gone.first % 8, line % 8);
                    prop_assert!(held.remove(&gone.first));
                    prop_assert!(!tree || last != Some(gone.first));
                }
            }
            last = Some(line);
            prop_assert_eq!(cache.len(), held.len());
        }
    }

    #[test]
    fn a_tlb_is_lru_by_the_book(
        (entries, ways) in prop::sample::select(vec![(64usize, 64usize), (9, 9), (8, 8), (64, 4), (12, 3)]),
        pages in prop::collection::vec(0u64..90, 1..800),
    ) {
        let mut tlb = Tlb::new(&TlbSpec {
            name: "T".to_owned(), level: 1, entries: entries as u64, ways: ways as u64,
            base: true, superpages: true, millicycles: 0,
        });
        let sets = entries / ways;
        let mut naive = vec![Vec::new(); sets];
        for page in pages {
            let set = &mut naive[page as usize % sets];
            let at = set.iter().position(|held| *held == page);
            if let Some(at) = at {
                set.remove(at);
            } else if set.len() == ways {
                set.remove(0);
            }
            set.push(page);
            prop_assert_eq!(tlb.touch(page, page), at.is_some());
        }
    }

    /// On every machine each reference is served once, and an inclusive cache has the lines of the caches before it.
    #[test]
    fn references_are_served_once(
        which in 0..machines::ALL.len(),
        seed in any::<u64>(),
        span in 1u64..64,
    ) {
        let (file, text) = machines::ALL[which];
        let machine = Machine::parse(file, text).unwrap();
        let mut random = Random::new(seed);
        let pages = Placement::random(64, machine.page, &mut random);
        let mut system = System::new(&machine);
        let count = 4000;
        let mut used = Vec::new();
        for _ in 0..count {
            let at = random.below(span * machine.page) & !7;
            used.push(at);
            system.reference(0, &pages, at, random.below(3) == 0);
        }
        let counts = system.counts(0);
        prop_assert_eq!(counts.references(), count);
        prop_assert_eq!(counts.served.iter().sum::<u64>() + counts.memory, count);
        prop_assert!(counts.walks + counts.tlb_second == counts.tlb_misses);
        let walked: u64 = counts.walk_served.iter().sum::<u64>() + counts.walk_memory;
        prop_assert!(walked >= counts.walks && walked <= 2 * counts.walks);
        for (level, spec) in machine.caches.iter().enumerate().skip(1) {
            for &at in &used {
                let (physical, _) = pages.translate(at);
                let outer = system.holds(0, level, physical);
                for inner in 0..level {
                    if machine.caches[0].virtual_index && inner == 0 {
                        continue;
                    }
                    let inside = system.holds(0, inner, physical);
                    match spec.inclusion {
                        Inclusion::Inclusive => prop_assert!(!inside || outer),
                        Inclusion::Exclusive => prop_assert!(!(inside && outer)),
                        Inclusion::Neither => {}
                    }
                }
            }
        }
    }

    /// The rule of the kernel series: as many pages as there are colors never share a color.
    #[test]
    fn colored_pages_fill_a_cache_without_conflict(seed in any::<u64>(), passes in 2u64..4) {
        let machine = Machine::parse("celeron-900.toml", machines::CELERON_900).unwrap();
        let pages = Placement::colored(30, 4096, 32, &mut Random::new(seed));
        let mut system = System::new(&machine);
        let mut before = system.counts(0);
        for pass in 0..passes {
            for at in (0..30 * 4096).step_by(8) {
                system.load(0, &pages, at);
            }
            let counts = system.counts(0).since(&before);
            // 30 pages of data in 32 colors; the remaining misses are those of the page table.
            prop_assert!(pass == 0 || counts.memory < 8, "{}", counts.memory);
            before = system.counts(0);
        }
    }

    #[test]
    fn placements_give_no_frame_twice(seed in any::<u64>(), pages in 1usize..700, lead in 0u64..512) {
        let mut random = Random::new(seed);
        let rest = Placement::random(pages, 4096, &mut random);
        let colored = Placement::colored_set(pages, 4096, 64, &[1, 5, 6], &mut random);
        let large = Placement::superpages(pages, (4096, 2 << 20), lead, &rest, &mut random);
        for placement in [&rest, &colored, &large] {
            let frames: BTreeSet<u64> = (0..pages).map(|page| placement.frame(page)).collect();
            prop_assert_eq!(frames.len(), pages);
        }
        prop_assert!((0..pages).all(|page| [1, 5, 6].contains(&(colored.frame(page) % 64))));
        prop_assert_eq!(in_superpages(&large) % 512, 0);
        prop_assert_eq!(in_superpages(&large) == 0, (512 - lead as usize % 512) % 512 + 512 > pages);
    }

    /// Any change of a line of a machine file gives a machine, or an error that names the file.
    #[test]
    fn a_machine_file_may_be_nonsense(
        which in 0..machines::ALL.len(),
        line in 0usize..120,
        text in "[ -~]{0,20}",
        value in any::<bool>(),
    ) {
        let (file, whole) = machines::ALL[which];
        let mut lines: Vec<String> = whole.lines().map(str::to_owned).collect();
        let at = line % lines.len();
        lines[at] = match lines[at].split_once('=') {
            Some((key, _)) if value => format!("{key}= {text}"),
            _ => text,
        };
        match Machine::parse(file, &lines.join("\n")) {
            Ok(machine) => drop(System::new(&machine)),
            Err(error) => {
                prop_assert_eq!(&error.file, file);
                prop_assert!(error.line >= 1 && error.line <= lines.len() + 1);
                prop_assert!(!error.what.is_empty() && !error.key.is_empty());
            }
        }
    }
}

#[test]
fn nonsense_is_refused_by_line_and_key() {
    let cases = [
        (
            "ways = 4\nline = 32\nreplacement = \"lru\"",
            "ways = 5\nline = 32\nreplacement = \"lru\"",
            "size_kib",
        ),
        ("size_kib = 128", "size_kib = -1", "size_kib"),
        ("size_kib = 128", "size_kib = 100", "size_kib"),
        ("clock_mhz = 900", "clock_mhz = nan", "clock_mhz"),
        ("page_kib = 4", "page_kib = 3", "page_kib"),
        ("through = \"L1d\"", "through = \"L9\"", "through"),
        ("holds = [\"super\"]", "holds = [\"base\"]", "holds"),
        ("memory = 110", "memory = inf", "memory"),
        ("entries = 64", "entires = 64", "entires"),
        ("entries = 64", "", "tlb"),
        ("cores = 1", "cores = 0", "cores"),
    ];
    for (from, to, key) in cases {
        let text = machines::CELERON_900.replacen(from, to, 1);
        assert_ne!(text, machines::CELERON_900, "{from}");
        let error = Machine::parse("mine.toml", &text).unwrap_err();
        let line = text.lines().nth(error.line - 1).unwrap_or_default();
        assert!(line.contains(key), "{error}: line is {line:?}");
        assert!(error.to_string().starts_with("mine.toml:"), "{error}");
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn every_machine_can_be_built_and_names_its_sources() {
    for (file, text) in machines::ALL {
        let machine = Machine::parse(file, text).unwrap();
        assert!(machine.caches.len() >= 2, "{file}");
        let tables = text.matches("\n[").count() + 1;
        assert_eq!(text.matches("\nsource = \"").count(), tables, "{file}");
    }
    assert!(machines::named("zen").unwrap().is_ok());
    assert!(machines::named("nothing").is_none());
}

/// Two cores share one cache: lines of one evict lines of the other.
#[test]
fn cores_share_the_last_cache() {
    let machine = Machine::parse("core2-duo.toml", machines::CORE2_DUO).unwrap();
    let mut random = Random::new(1);
    let victim = Placement::random(256, 4096, &mut random);
    let others = Placement::random(2048, 4096, &mut random);
    let misses = |disturbed: bool| {
        let mut system = System::new(&machine);
        for _ in 0..4 {
            for at in (0..256 * 4096).step_by(64) {
                system.load(0, &victim, at);
            }
            for at in (0..2048 * 4096).step_by(64).filter(|_| disturbed) {
                system.load(1, &others, at);
            }
        }
        system.counts(0).memory
    };
    assert!(misses(true) > 2 * misses(false));
}

#[test]
fn superpages_need_few_translations() {
    let machine = Machine::parse("pentium4-1600.toml", machines::PENTIUM4_1600).unwrap();
    let mut random = Random::new(1);
    let base = Placement::random(4096, 4096, &mut random);
    let large = Placement::superpages(4096, (4096, 4 << 20), 0, &base, &mut random);
    let misses = |pages: &Placement| {
        let mut system = System::new(&machine);
        for _ in 0..3 {
            for at in (0..4096 * 4096).step_by(4096) {
                system.load(0, pages, at);
            }
        }
        system.counts(0).tlb_misses
    };
    assert_eq!((misses(&base), misses(&large)), (3 * 4096, 4));
}

fn file(draws: &[(&str, u64, &[u32])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (plan, lead, frames) in draws {
        body.extend(format!("draw {plan} {} {lead}\n", frames.len()).bytes());
        body.extend(frames.iter().flat_map(|word| word.to_le_bytes()));
    }
    let sum = body.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut whole = b"superhue-frames/1 off,aged,base linux=6.12 kernel=off made=0\n".to_vec();
    whole.extend(body);
    whole.extend(format!("\nend {sum:016x}\n").bytes());
    whole
}

#[test]
fn dumps_are_read_whole_or_not_at_all() {
    let whole = file(&[("small", 3, &[10, 11, 7]), ("large", 0, &[])]);
    let dump = Dump::parse(&whole).unwrap();
    assert_eq!(dump.draws.len(), 2);
    assert_eq!(dump.draws[0].frames, [10, 11, 7]);
    for end in 0..whole.len() {
        assert!(Dump::parse(&whole[..end]).is_err(), "cut at {end}");
    }
    let mut changed = whole.clone();
    let at = changed
        .windows(3)
        .position(|three| three == b"\x0a\0\0")
        .unwrap();
    changed[at + 1] ^= 1;
    assert_eq!(Dump::parse(&changed), Err(DumpError::Sum));
    assert_eq!(Dump::parse(b"hello\n"), Err(DumpError::Other));
}

#[test]
fn entries_are_in_the_tables_that_were_found() {
    use superhue_cachesim::Pages;

    // From 500 pages behind a huge page's boundary into the next huge page.
    let frames: Vec<u32> = (0..30).map(|at| 7_000 + 3 * at).collect();
    let pages = Placement::dealt(&frames, 500, &mut Random::new(1)).unwrap();
    let address = 0x7f12_3440_0000 + 500 * 4096;
    let found = pages.clone().with_tables(address, 40, &[41, 42]).unwrap();
    assert_eq!(found.address(5), address + 5);
    assert_eq!(found.translate(4096), pages.translate(4096));
    let directory = |number: u64| 40 * 4096 + number % 512 * 8;
    let number = address >> 21;
    assert_eq!(
        found.entries(0, 8),
        (41 * 4096 + 500 * 8, directory(number))
    );
    assert_eq!(
        found.entries(13 * 4096 + 9, 8),
        (42 * 4096 + 8, directory(number + 1))
    );
    for (address, tables) in [
        (address + 4096, &[41, 42][..]),
        (address + 1, &[41, 42]),
        (address, &[41]),
        (address, &[41, 42, 43]),
    ] {
        let refused = pages.clone().with_tables(address, 40, tables);
        assert!(refused.is_err(), "{address:#x} {tables:?}");
    }
}

#[test]
fn superpages_of_a_dump_are_whole() {
    let mut frames: Vec<u32> = (0..512).map(|at| 1 << 31 | (1024 + at)).collect();
    let mut random = Random::new(1);
    let pages = Placement::dealt(&frames, 0, &mut random).unwrap();
    assert_eq!(in_superpages(&pages), 512);
    assert_eq!(in_superpages(&pages.prefix(100)), 0);
    assert!(Placement::dealt(&frames, 1, &mut random).is_err());
    frames[3] = 5;
    frames[4] = 5;
    assert!(Placement::dealt(&frames, 0, &mut random).is_err());
}
