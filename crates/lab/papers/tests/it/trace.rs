//! The reader of a program's trace against a naive one: another program writes the words, so they may have any value.

use proptest::prelude::*;
use superhue_papers::cachesim::{Machine, machines};
use superhue_papers::program::TraceError;
use superhue_papers::program::trace::{Reader, TOUCHED, TraceCounts};

const PAGE: u64 = 4096;
/// Small, so that few words touch many huge pages.
const SUPERPAGE: u64 = 16 * PAGE;

fn machine() -> Machine {
    let mut machine = Machine::parse("zen.toml", machines::ZEN).unwrap();
    machine.superpage = SUPERPAGE;
    assert_eq!(machine.page, PAGE);
    machine
}

/// A numbered page: its virtual number, its number in the space, true if it is part of a huge page.
type Page = (u64, u64, bool);

/// Pages in a list, searched from end to end.
#[derive(Default)]
struct NaiveSpace {
    pages: Vec<Page>,
    given: u64,
    dealt: [u64; 2],
    references: Vec<u64>,
}

impl NaiveSpace {
    fn number(&self, page: u64) -> Option<u64> {
        let found = self.pages.iter().find(|(at, ..)| *at == page);
        found.map(|(_, number, _)| *number)
    }

    fn give(&mut self, page: u64, large: bool) {
        self.pages.retain(|(at, ..)| *at != page);
        self.pages.push((page, self.given, large));
        self.given += 1;
        self.dealt[usize::from(large)] += 1;
    }

    /// Removes the pages of a range, and returns them.
    fn take(&mut self, start: u64, bytes: u64) -> Vec<Page> {
        let end = u128::from(start.saturating_add(bytes));
        let (gone, stay) = self.pages.drain(..).partition(|(page, ..)| {
            let first = u128::from(*page) * u128::from(PAGE);
            bytes > 0 && first < end && first + u128::from(PAGE) > u128::from(start)
        });
        self.pages = stay;
        gone
    }
}

/// Kind of mapping of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mapped {
    Other,
    Anonymous,
    /// Anonymous memory that may not be written.
    Reserved,
}

/// History of ranges, oldest first.
#[derive(Default)]
struct NaiveMemory(Vec<(u64, u64, Mapped)>);

impl NaiveMemory {
    /// Returns the parts of a range, each with what it is mapped as by the last entry for it.
    fn parts(&self, start: u64, end: u64) -> Vec<(u64, u64, Mapped)> {
        let ends = self.0.iter().flat_map(|(from, until, _)| [*from, *until]);
        let inside = ends.filter(|at| (start..end).contains(at));
        let mut ends: Vec<u64> = inside.chain([start, end]).collect();
        ends.sort_unstable();
        ends.dedup();
        let at = |at: u64| {
            let mut history = self.0.iter().rev();
            let last = history.find(|(from, until, _)| (*from..*until).contains(&at));
            last.map_or(Mapped::Other, |(_, _, mapped)| *mapped)
        };
        let pairs = ends.windows(2).filter(|pair| pair[0] < pair[1]);
        pairs.map(|pair| (pair[0], pair[1], at(pair[0]))).collect()
    }

    fn is_all(&self, start: u64, end: u64, wanted: Mapped) -> bool {
        start >= end || self.parts(start, end).iter().all(|(.., it)| *it == wanted)
    }

    fn map(&mut self, start: u64, end: u64, mapped: Mapped) {
        self.0.push((start, end, mapped));
    }

    /// Changes the parts of a range that are mapped as `from`.
    fn change(&mut self, start: u64, end: u64, from: Mapped, to: Mapped) {
        if start < end {
            let parts = self.parts(start, end).into_iter();
            for (start, end, _) in parts.filter(|(.., it)| *it == from) {
                self.map(start, end, to);
            }
        }
    }
}

#[derive(Default)]
struct Naive {
    base: NaiveSpace,
    large: NaiveSpace,
    memory: NaiveMemory,
    seen: TraceCounts,
    skip: u64,
    most: u64,
    line: u64,
}

impl Naive {
    fn is_done(&self) -> bool {
        self.seen.references >= self.skip.saturating_add(self.most)
    }

    /// Returns the first malformed word, if there is one.
    fn read(&mut self, words: &[u64]) -> Option<u64> {
        let mut rest = words;
        while let [word, behind @ ..] = rest {
            if self.is_done() {
                return None;
            }
            let address = word >> 8 & ((1 << 48) - 1);
            let operands = match word >> 56 {
                1..=3 | 9..=11 => 1,
                4 => 2,
                0 | 5..=8 => 0,
                _ => return Some(*word),
            };
            if behind.len() < operands {
                return None;
            }
            let (own, behind) = behind.split_at(operands);
            rest = behind;
            match word >> 56 {
                0 => {
                    let log = word >> 1 & 0x7f;
                    if log > 12 {
                        return Some(*word);
                    }
                    self.touch(address, word & 1);
                    let last = address + (1 << log) - 1;
                    if address / self.line != last / self.line {
                        self.touch(last, word & 1);
                    }
                }
                kind @ (1..=3 | 9) => {
                    self.base.take(address, own[0]);
                    self.large.take(address, own[0]);
                    let end = address.saturating_add(own[0]);
                    match kind {
                        1 => self.memory.map(address, end, Mapped::Anonymous),
                        2 => self.memory.map(address, end, Mapped::Other),
                        9 => self.memory.map(address, end, Mapped::Reserved),
                        _ => {}
                    }
                }
                kind @ 10..=11 => {
                    let end = address.saturating_add(own[0]);
                    let (from, to) = match kind {
                        10 => (Mapped::Reserved, Mapped::Anonymous),
                        _ => (Mapped::Anonymous, Mapped::Reserved),
                    };
                    self.memory.change(address, end, from, to);
                }
                4 => self.moved(address, own[0], own[1]),
                5 => self.seen.threads += 1,
                6 => self.seen.processes += 1,
                7 => self.seen.executed += 1,
                _ => self.seen.executed = self.seen.executed.saturating_sub(1),
            }
        }
        None
    }

    fn touch(&mut self, address: u64, store: u64) {
        let page = address / PAGE;
        if self.base.number(page).is_none() {
            self.base.give(page, false);
        }
        if self.large.number(page).is_none() {
            let each = SUPERPAGE / PAGE;
            let around = page / each * each..(page / each + 1) * each;
            let there: Vec<&Page> = (self.large.pages.iter())
                .filter(|(at, ..)| around.contains(at))
                .collect();
            let enough = there.is_empty() || (there.len() as u64 + 1) * TOUCHED >= each;
            let (start, end) = (around.start * PAGE, around.end * PAGE);
            if enough
                && there.iter().all(|(.., large)| !large)
                && self.memory.is_all(start, end, Mapped::Anonymous)
            {
                for page in around {
                    self.large.give(page, true);
                }
            } else {
                self.large.give(page, false);
            }
        }
        self.seen.references += 1;
        if self.seen.references > self.skip {
            for space in [&mut self.base, &mut self.large] {
                let number = space.number(page).unwrap();
                let offset = number * PAGE + address % PAGE;
                space.references.push(offset << 1 | store);
            }
        }
    }

    fn moved(&mut self, start: u64, bytes: u64, to: u64) {
        for space in [&mut self.base, &mut self.large] {
            let taken = space.take(start, bytes);
            space.take(to / PAGE * PAGE, bytes);
            let stay = taken.into_iter().filter(|(.., large)| !large);
            for (at, number, _) in stay {
                let now = at - start / PAGE + to / PAGE;
                space.pages.retain(|(page, ..)| *page != now);
                space.pages.push((now, number, false));
            }
        }
        let (end, until) = (start.saturating_add(bytes), to.saturating_add(bytes));
        let whole = [Mapped::Anonymous, Mapped::Reserved];
        let whole = whole
            .into_iter()
            .find(|it| self.memory.is_all(start, end, *it));
        self.memory.map(start, end, Mapped::Other);
        self.memory.map(to, until, whole.unwrap_or(Mapped::Other));
    }
}

/// Addresses near each other, at both ends of the address space.
fn address() -> impl Strategy<Value = u64> {
    let near = prop_oneof![
        4 => Just(0x4000_0000),
        1 => Just(0),
        1 => Just((1 << 48) - 8 * SUPERPAGE)
    ];
    let inside = prop_oneof![
        3 => 0..8 * SUPERPAGE,
        2 => (0..8 * SUPERPAGE / PAGE).prop_map(|page| page * PAGE),
    ];
    (near, inside).prop_map(|(near, inside)| near + inside)
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0..3 * SUPERPAGE / PAGE).prop_map(|pages| pages * PAGE),
        2 => 0..3 * SUPERPAGE,
        1 => any::<u64>(),
    ]
}

/// Words that the plugin may write.
fn written() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        12 => (address(), 0..13u64, 0..2u64)
            .prop_map(|(at, log, store)| vec![at << 8 | log << 1 | store]),
        // References near each other, as programs make them.
        6 => (address(), 1..40u64)
            .prop_map(|(at, count)| (0..count).map(|n| ((at + n * 1000) % (1 << 48)) << 8 | 3 << 1).collect()),
        6 => (prop_oneof![1..4u64, 9..12u64], address(), bytes()).prop_map(|(kind, at, bytes)| vec![kind << 56 | at << 8, bytes]),
        3 => (address(), bytes(), prop_oneof![4 => address(), 1 => any::<u64>()])
            .prop_map(|(at, bytes, to)| vec![4 << 56 | at << 8, bytes, to]),
        1 => (5..9u64).prop_map(|kind| vec![kind << 56]),
    ]
}

fn trace() -> impl Strategy<Value = Vec<u64>> {
    let any = prop::collection::vec(any::<u64>(), 0..3);
    let written = prop::collection::vec(written(), 0..120);
    (written, prop_oneof![9 => Just(Vec::new()), 1 => any])
        .prop_map(|(written, any)| [written.concat(), any].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Numbers, references, counts and errors are the same, however the words are divided.
    #[test]
    fn the_reader_reads_as_a_naive_one_does(
        words in trace(),
        skip in prop_oneof![2 => Just(0u64), 1 => 0..60u64],
        most in prop_oneof![3 => Just(u64::MAX), 1 => 0..200u64],
        cuts in prop::collection::vec(1..30usize, 1..8),
    ) {
        let machine = machine();
        let mut naive = Naive { skip, most, line: machine.caches[0].line, ..Naive::default() };
        let wrong = naive.read(&words);
        let mut reader = Reader::new(&machine, skip, most);
        let mut rest = &words[..];
        let mut result = Ok(());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() || result.is_err() {
                break;
            }
            let (now, later) = rest.split_at(rest.len().min(*cut));
            result = reader.read(now);
            rest = later;
        }
        prop_assert_eq!(result, wrong.map_or(Ok(()), |word| Err(TraceError::Nonsense(word))));
        prop_assert_eq!(reader.seen, naive.seen);
        prop_assert_eq!(reader.is_done(), naive.is_done());
        prop_assert_eq!(&reader.block.base, &naive.base.references);
        prop_assert_eq!(&reader.block.large, &naive.large.references);
        prop_assert_eq!(reader.base.dealt(), naive.base.dealt);
        prop_assert_eq!(reader.large.dealt(), naive.large.dealt);
    }
}
