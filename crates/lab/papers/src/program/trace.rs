//! References of a program under the emulator, as `witness/trace.c` writes them: words of 64 bits.
//!
//! ```text
//!   bits 63-56  kind          bits 55-8  an address, or 0          bits 7-0  of a reference: log2 of its bytes << 1 | store
//!
//!   0 reference     1 anonymous private memory mapped, 2 other memory mapped or memory unmapped, 3 pages emptied (each
//!   followed by a word of bytes), 4 moved (followed by bytes, and where to), 5 a thread began, 6 a process began,
//!   7 another program is to take its place, 8 which failed, 9 anonymous private memory mapped that may not be written,
//!   10 memory that may be written from now on, 11 and that may not (each followed by a word of bytes)
//! ```
//!
//! Pages are numbered in two spaces: one for arms without huge pages, one for arms with them.

use std::collections::BTreeMap;

use superhue_cachesim::Machine;
use superhue_cachesim::space::{Full, Space};

/// Kinds of words, as listed in [`trace`](self).
mod kind {
    pub(super) const REFERENCE: u64 = 0;
    pub(super) const ANONYMOUS: u64 = 1;
    pub(super) const OTHER: u64 = 2;
    pub(super) const EMPTIED: u64 = 3;
    pub(super) const MOVED: u64 = 4;
    pub(super) const THREAD: u64 = 5;
    pub(super) const PROCESS: u64 = 6;
    pub(super) const EXECUTED: u64 = 7;
    pub(super) const NOT_EXECUTED: u64 = 8;
    pub(super) const RESERVED: u64 = 9;
    pub(super) const OPENED: u64 = 10;
    pub(super) const CLOSED: u64 = 11;
}

/// The word of a reference to eight bytes.
pub(crate) const fn word(address: u64, store: bool) -> u64 {
    address << 8 | 3 << 1 | store as u64
}

/// The words of a new mapping of anonymous memory.
pub(crate) const fn mapped(start: u64, bytes: u64) -> [u64; 2] {
    [kind::ANONYMOUS << 56 | start << 8, bytes]
}

/// A region becomes a huge page when 1 of `TOUCHED` of its base pages is touched, as under `superhue run` with its
/// defaults.
pub const TOUCHED: u64 = 4;

/// Reason why a trace cannot be read further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The plugin is of another version, or the program wrote into the ring.
    #[error(
        "the plugin wrote what no trace has ({0:#018x}): it is not of this version; install it together with the command, or build it again with `make lab-trace`"
    )]
    Nonsense(u64),
    /// See [`Full`].
    #[error(transparent)]
    Full(#[from] Full),
}

/// References, each as offset << 1 | 1 for a store.
#[derive(Debug, Default)]
pub struct Block {
    /// Offsets in the space of arms without huge pages.
    pub base: Vec<u64>,
    /// Offsets of the same references in the space of arms with huge pages.
    pub large: Vec<u64>,
}

/// Counts of the program besides its references' addresses.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TraceCounts {
    /// References, including skipped ones; a reference across the end of a line counts as two.
    pub references: u64,
    /// Threads beside the first.
    pub threads: u64,
    /// Processes that it started, whose references are not seen.
    pub processes: u64,
    /// Programs that replaced it by `execve(2)`: one at most.
    pub executed: u64,
}

/// Reader of words, which numbers pages. Another program writes the words, so they may have any value.
#[derive(Debug)]
pub struct Reader {
    /// Pages of arms without huge pages.
    pub base: Space,
    /// Pages of arms with huge pages.
    pub large: Space,
    /// Counts so far.
    pub seen: TraceCounts,
    /// References read since the caller last cleared the block.
    pub block: Block,
    /// Number of first references that only touch pages.
    skip: u64,
    /// Number of references to read after them.
    most: u64,
    line: u64,
    superpage: u64,
    page: u64,
    /// Anonymous private memory that may be written. The kernel makes no huge page across the end of a mapping, so what may not be written is apart.
    anonymous: Ranges,
    /// Anonymous private memory that may not be written: reserved by an allocator, for example.
    reserved: Ranges,
    /// A word whose operands have not come yet.
    begun: Vec<u64>,
}

impl Reader {
    /// Makes a reader for a machine: the first `skip` references only touch pages, then come `most` others.
    #[must_use]
    pub fn new(machine: &Machine, skip: u64, most: u64) -> Self {
        let space = || Space::new(machine.page, machine.superpage);
        Self {
            base: space(),
            large: space(),
            seen: TraceCounts::default(),
            block: Block::default(),
            skip,
            most,
            line: machine.caches[0].line,
            superpage: machine.superpage,
            page: machine.page,
            anonymous: Ranges::default(),
            reserved: Ranges::default(),
            begun: Vec::new(),
        }
    }

    /// Returns true if all requested references have been read.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.seen.references >= self.skip.saturating_add(self.most)
    }

    /// Reads words into the block, until all requested references have been read. The words may be divided between
    /// calls at any place.
    ///
    /// # Errors
    /// If the words are malformed, or need more memory than is modelled. The reader is of no use then.
    pub fn read(&mut self, words: &[u64]) -> Result<(), TraceError> {
        for &word in words {
            if self.is_done() {
                return Ok(());
            }
            if self.begun.is_empty() && word >> 56 == kind::REFERENCE {
                self.reference(word)?;
                continue;
            }
            self.begun.push(word);
            let wanted = match self.begun[0] >> 56 {
                kind::ANONYMOUS
                | kind::OTHER
                | kind::EMPTIED
                | kind::RESERVED
                | kind::OPENED
                | kind::CLOSED => 2,
                kind::MOVED => 3,
                kind::THREAD | kind::PROCESS | kind::EXECUTED | kind::NOT_EXECUTED => 1,
                _ => return Err(TraceError::Nonsense(word)),
            };
            if self.begun.len() == wanted {
                self.event();
                self.begun.clear();
            }
        }
        Ok(())
    }

    fn reference(&mut self, word: u64) -> Result<(), TraceError> {
        let (address, write) = (word >> 8, word & 1);
        let size = word >> 1 & 0x7f;
        if size > 12 {
            return Err(TraceError::Nonsense(word));
        }
        self.one(address, write)?;
        let last = address + (1 << size) - 1;
        if address / self.line != last / self.line {
            self.one(last, write)?;
        }
        Ok(())
    }

    #[inline]
    fn one(&mut self, address: u64, write: u64) -> Result<(), TraceError> {
        let base = match self.base.find(address) {
            Some(at) => at,
            None => self.base.touch(address)?,
        };
        let large = match self.large.find(address) {
            Some(at) => at,
            None => self.touch_large(address)?,
        };
        self.seen.references += 1;
        if self.seen.references > self.skip {
            self.block.base.push(base << 1 | write);
            self.block.large.push(large << 1 | write);
        }
        Ok(())
    }

    /// Touches a page for the first time. Makes the huge page around it if all of its range is anonymous memory, and
    /// either no page of it was touched (like a kernel with transparent huge pages), or enough pages are (like
    /// `superhue run`: see [`TOUCHED`]).
    fn touch_large(&mut self, address: u64) -> Result<u64, TraceError> {
        let start = address / self.superpage * self.superpage;
        let (touched, large) = self.large.around(address);
        let much = (touched + 1) * TOUCHED >= self.superpage / self.page;
        let fits = self.anonymous.covers(start, start + self.superpage);
        if !large && (touched == 0 || much) && fits {
            self.large.promote(address)?;
        }
        Ok(match self.large.find(address) {
            Some(at) => at,
            None => self.large.touch(address)?,
        })
    }

    fn event(&mut self) {
        let (start, bytes) = (
            self.begun[0] << 8 >> 16,
            self.begun.get(1).copied().unwrap_or(0),
        );
        let end = start.saturating_add(bytes);
        match self.begun[0] >> 56 {
            kind::ANONYMOUS => {
                // A new mapping removes the pages that were there.
                self.gone(start, bytes);
                self.reserved.remove(start, end);
                self.anonymous.add(start, end);
            }
            kind::RESERVED => {
                self.gone(start, bytes);
                self.anonymous.remove(start, end);
                self.reserved.add(start, end);
            }
            kind::OTHER => {
                self.gone(start, bytes);
                self.anonymous.remove(start, end);
                self.reserved.remove(start, end);
            }
            kind::OPENED => self.reserved.hand_over(start, end, &mut self.anonymous),
            kind::CLOSED => self.anonymous.hand_over(start, end, &mut self.reserved),
            kind::EMPTIED => self.gone(start, bytes),
            kind::MOVED => {
                let to = self.begun[2];
                let (anonymous, reserved) = (
                    self.anonymous.covers(start, end),
                    self.reserved.covers(start, end),
                );
                for space in [&mut self.base, &mut self.large] {
                    space.rename(start, bytes, to);
                }
                let until = to.saturating_add(bytes);
                for ranges in [&mut self.anonymous, &mut self.reserved] {
                    ranges.remove(start, end);
                    ranges.remove(to, until);
                }
                if anonymous {
                    self.anonymous.add(to, until);
                } else if reserved {
                    self.reserved.add(to, until);
                }
            }
            kind::THREAD => self.seen.threads += 1,
            kind::PROCESS => self.seen.processes += 1,
            kind::EXECUTED => self.seen.executed += 1,
            _ => self.seen.executed = self.seen.executed.saturating_sub(1),
        }
    }

    fn gone(&mut self, start: u64, bytes: u64) {
        for space in [&mut self.base, &mut self.large] {
            space.forget(start, bytes);
        }
    }
}

/// Ranges of addresses, neighbours joined: start to end.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Returns true if one range covers these addresses.
    fn covers(&self, start: u64, end: u64) -> bool {
        let before = self.0.range(..=start).next_back();
        before.is_some_and(|(_, until)| *until >= end)
    }

    /// Returns the ranges that have some of these addresses, from start to end.
    fn hit(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        (self.0.range(..end))
            .filter(|(_, until)| **until > start)
            .map(|(from, until)| (*from, *until))
            .collect()
    }

    /// Removes these addresses; adds to `other` those that were there.
    fn hand_over(&mut self, start: u64, end: u64, other: &mut Self) {
        if start >= end {
            return;
        }
        let hit = self.hit(start, end);
        self.remove(start, end);
        for (from, until) in hit {
            other.add(from.max(start), until.min(end));
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            // An empty range does not even cut a mapping in two.
            return;
        }
        for (from, until) in self.hit(start, end) {
            self.0.remove(&from);
            if from < start {
                self.0.insert(from, start);
            }
            if until > end {
                self.0.insert(end, until);
            }
        }
    }

    fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.remove(start, end);
        let (mut from, mut until) = (start, end);
        if let Some((&before, &its_end)) = self.0.range(..start).next_back()
            && its_end == start
        {
            from = before;
        }
        if let Some(&its_end) = self.0.get(&end) {
            self.0.remove(&end);
            until = its_end;
        }
        self.0.insert(from, until);
    }
}

#[cfg(test)]
mod tests {
    use superhue_cachesim::machines;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn reader(skip: u64, most: u64) -> Reader {
        let machine = Machine::parse("zen.toml", machines::ZEN).unwrap_or_else(|e| panic!("{e}"));
        Reader::new(&machine, skip, most)
    }

    fn load(address: u64) -> u64 {
        address << 8 | 3 << 1
    }

    fn range(kind: u64, start: u64, bytes: u64) -> [u64; 2] {
        [kind << 56 | start << 8, bytes]
    }

    #[track_caller]
    fn read(reader: &mut Reader, words: &[u64]) {
        reader.read(words).unwrap_or_else(|e| panic!("{e}"));
    }

    #[test]
    fn reserved_memory_has_no_huge_pages_until_it_may_be_written() {
        let mut reader = reader(0, 100);
        let start = 0x4000_0000;
        read(&mut reader, &range(kind::RESERVED, start, 4 * MIB));
        read(&mut reader, &range(kind::OPENED, start, 132 << 10));
        read(&mut reader, &[load(start)]);
        assert_eq!(reader.large.dealt(), [1, 0]);
        read(&mut reader, &range(kind::OPENED, start, 4 * MIB));
        read(&mut reader, &[load(start + 2 * MIB)]);
        assert_eq!(reader.large.dealt(), [1, 512]);
        // The last part cannot be written any more.
        read(&mut reader, &range(kind::CLOSED, start + 3 * MIB, MIB));
        assert!(reader.anonymous.covers(start, start + 3 * MIB));
        assert!(!reader.anonymous.covers(start, start + 4 * MIB));
        assert!(reader.reserved.covers(start + 3 * MIB, start + 4 * MIB));
        // Other memory is none of these, whatever its protection.
        read(&mut reader, &range(kind::OPENED, 0x7000_0000, MIB));
        assert!(!reader.anonymous.covers(0x7000_0000, 0x7000_1000));
    }

    #[test]
    fn pages_are_numbered_as_they_are_touched() {
        let mut reader = reader(0, 100);
        read(
            &mut reader,
            &[load(0x7000_5008), load(0x10_0000) | 1, load(0x7000_5ff8)],
        );
        assert_eq!(reader.block.base, [8 << 1, 0x1000 << 1 | 1, 0xff8 << 1]);
        // Eight bytes, of which four lie in the next line and page.
        read(&mut reader, &[load(0x7000_5ffc)]);
        assert_eq!(reader.block.base[3..], [0xffc << 1, 0x2003 << 1]);
        assert_eq!(reader.seen.references, 5);
        assert_eq!(reader.base.dealt(), [3, 0]);
    }

    #[test]
    fn what_is_skipped_touches_pages_and_what_is_beyond_is_not_read() {
        let mut reader = reader(2, 1);
        let words: Vec<u64> = (1..6).map(|page| load(page << 12)).collect();
        read(&mut reader, &words);
        assert!(reader.is_done());
        assert_eq!(reader.block.base, [2 << 13]);
        assert_eq!(reader.base.dealt()[0], 3);
    }

    #[test]
    fn a_superpage_is_made_where_a_kernel_would() {
        let start = 0x4000_0000;
        let mut reader = reader(0, u64::MAX);
        // From one page behind a boundary on: the first whole huge page begins at the next boundary.
        read(
            &mut reader,
            &range(kind::ANONYMOUS, start + 4096, 4 * MIB - 4096),
        );
        read(
            &mut reader,
            &[load(start + 4096), load(start + 2 * MIB + 8)],
        );
        assert_eq!(reader.large.dealt(), [1, 512]);
        assert_eq!(reader.base.dealt(), [2, 0]);
        // Now the missing page is mapped too: a quarter of the first range is enough, and no less.
        read(&mut reader, &range(kind::ANONYMOUS, start, 4096));
        for page in 2..128 {
            read(&mut reader, &[load(start + page * 4096)]);
        }
        assert_eq!(reader.large.dealt(), [127, 512]);
        read(&mut reader, &[load(start + 128 * 4096)]);
        assert_eq!(reader.large.dealt(), [127, 1024]);
        // Mappings of files have no huge pages.
        read(&mut reader, &range(kind::OTHER, start + 4 * MIB, 2 * MIB));
        read(&mut reader, &[load(start + 4 * MIB)]);
        assert_eq!(reader.large.dealt(), [128, 1024]);
    }

    #[test]
    fn memory_comes_and_goes() {
        let mut reader = reader(0, u64::MAX);
        read(&mut reader, &range(kind::ANONYMOUS, 0x20_0000, 4 * MIB));
        read(&mut reader, &[load(0x20_0000)]);
        let moved = [kind::MOVED << 56 | 0x20_0000 << 8, 4096, 0x1000_0000];
        read(&mut reader, &moved);
        read(&mut reader, &[load(0x1000_0008)]);
        // The same frame at another address; the huge page was split.
        assert_eq!(reader.block.base[1], 8 << 1);
        assert_eq!(reader.large.dealt(), [1, 512]);
        assert!(!reader.anonymous.covers(0x20_0000, 0x20_1000));
        assert!(reader.anonymous.covers(0x1000_0000, 0x1000_1000));
        read(&mut reader, &range(kind::EMPTIED, 0x1000_0000, 4096));
        read(&mut reader, &[load(0x1000_0000)]);
        assert_eq!(reader.block.base[2], 0x1000 << 1);
        read(&mut reader, &range(kind::OTHER, 0, 1 << 47));
        assert!(reader.anonymous.0.is_empty());
    }

    #[test]
    fn words_may_come_one_by_one_and_nonsense_is_refused() {
        let mut reader = reader(0, u64::MAX);
        for word in range(kind::ANONYMOUS, 0x20_0000, 2 * MIB) {
            read(&mut reader, &[word]);
        }
        read(
            &mut reader,
            &[
                kind::THREAD << 56,
                kind::PROCESS << 56,
                kind::EXECUTED << 56,
                load(0x20_0000),
            ],
        );
        let TraceCounts {
            threads,
            processes,
            executed,
            references,
        } = reader.seen;
        assert_eq!((threads, processes, executed, references), (1, 1, 1, 1));
        assert_eq!(reader.large.dealt(), [0, 512]);
        for word in [12 << 56, u64::MAX, 40 << 1] {
            assert!(
                matches!(reader.read(&[word]), Err(TraceError::Nonsense(_))),
                "{word:#x}"
            );
            reader.begun.clear();
        }
    }
}
