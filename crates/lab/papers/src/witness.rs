//! The witness: points that were also run full-system, under a plugin of an emulator that sees each access.
//!
//! `witness/run` leaves, for each guest, the frames that the kernel dealt to the memory of each point, the frames of
//! its page tables, and the counts of the plugin. This module replays the same loops on the same frames, and compares
//! the counts. Plugin and replay share nothing but the machine files: the plugin takes references from an emulated
//! processor, and page sizes and the places of page tables from the guest's own tables; its models of caches and TLBs
//! are code of its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use superhue_cachesim::dump::Dump;
use superhue_cachesim::{Counts, Machine, Placement, Random, machines};

use crate::ReplayError;
use crate::figure::{SWEPT, counted};
use crate::number::number;
use crate::workload::{
    Sink, Stride, fft, fft_bytes, product, product_bytes, strided, sweep, transpose,
    transpose_bytes,
};

/// Value of the field `schema`.
pub const SCHEMA: &str = "superhue-lab-witness/1";

/// Two counts agree if they differ by at most this share of the larger one,
const SHARE: f64 = 0.02;
/// or by at most this number per 1,000 references.
const LEAST: f64 = 0.1;

/// All points, with the counts of the plugin and of the replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Witness {
    /// [`SCHEMA`].
    pub schema: String,
    /// The command that makes it.
    pub command: String,
    /// The points, by guest, in the order in which the guests ran.
    pub points: Vec<WitnessedPoint>,
    /// References of the program that the plugin saw and modelled, per second of the emulator's CPU time.
    pub references_per_second: f64,
    /// The same loops under valgrind's cachegrind.
    pub cachegrind: Vec<CachegrindPoint>,
}

/// Point that ran under the plugin, and was replayed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WitnessedPoint {
    /// The guest: kernel, state of its memory, pages.
    pub guest: String,
    /// The machine file.
    pub machine: String,
    /// The loop, and its dimension, bytes, stride or points.
    pub point: String,
    /// Counts of the replay.
    pub replayed: Misses,
    /// Counts of the plugin, for references to the memory of the loop.
    pub witnessed: Misses,
    /// Counts of the plugin, for all references of the program; the replay has only those to the memory of the loop.
    pub whole: Misses,
    /// References of the program outside the memory of the loop.
    pub outside: u64,
    /// True if misses of the last cache and walks agree.
    pub agrees: bool,
}

impl WitnessedPoint {
    /// Returns true if all counts but those of references are the same: a reference of 16 bytes is two for the
    /// emulator.
    #[must_use]
    pub const fn identical(&self) -> bool {
        let (ours, other) = (&self.replayed, &self.witnessed);
        ours.memory == other.memory
            && ours.walks == other.walks
            && ours.walk_memory == other.walk_memory
            && ours.write_backs == other.write_backs
    }
}

/// Event counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misses {
    /// Loads and stores of the program. One of 16 bytes is two for the emulator.
    pub references: u64,
    /// Misses of the last cache.
    pub memory: u64,
    /// Walks of the page table.
    pub walks: u64,
    /// Loads of walks that no cache served.
    pub walk_memory: u64,
    /// Lines written back.
    pub write_backs: u64,
}

/// Loop under cachegrind, which knows virtual addresses only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachegrindPoint {
    /// The machine file, from which cachegrind takes sizes, ways and lines.
    pub machine: String,
    /// The loop, and its number.
    pub point: String,
    /// Misses of the last cache by data, in a pass, as counted by cachegrind.
    pub cachegrind: u64,
    /// Misses of the replay with pages one after the other in memory, to which virtual addresses are equivalent.
    pub in_order: u64,
    /// Misses that the plugin counted on pages that the aged kernel dealt.
    pub kernel: Option<u64>,
}

/// Loop that can be run and replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Loop {
    kind: Kind,
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Transpose(Stride),
    Sweep,
    Strided,
    Product,
    Fft,
}

impl Loop {
    /// Reads a loop such as `load:87`.
    fn parse(text: &str) -> Option<Self> {
        let (name, number) = text.split_once(':')?;
        let kind = match name {
            "load" => Kind::Transpose(Stride::Load),
            "store" => Kind::Transpose(Stride::Store),
            "sweep" => Kind::Sweep,
            "stride" => Kind::Strided,
            "product" => Kind::Product,
            "fft" => Kind::Fft,
            _ => return None,
        };
        let number = number.parse().ok()?;
        ((1..1 << 32).contains(&number)).then_some(Self { kind, number })
    }

    const fn bytes(self) -> u64 {
        match self.kind {
            Kind::Transpose(_) => transpose_bytes(self.number),
            Kind::Sweep => self.number,
            Kind::Strided => SWEPT,
            Kind::Product => product_bytes(self.number),
            Kind::Fft => fft_bytes(self.number),
        }
    }

    /// Runs the loop like the program of the guest.
    fn run(self, sink: &mut impl Sink, counting: bool) {
        match self.kind {
            Kind::Transpose(stride) => transpose(sink, self.number, stride),
            Kind::Sweep => {
                for _ in 0..if counting { 2 } else { 1 } {
                    sweep(sink, self.number);
                }
            }
            Kind::Strided => {
                strided(sink, SWEPT, self.number, (self.number / 8).clamp(1, 64));
            }
            Kind::Product => product(sink, self.number, if counting { 1..4 } else { 0..1 }),
            Kind::Fft => fft(sink, self.number),
        }
    }
}

/// Line of a file of counts: `point LOOP:NUMBER MACHINE SCOPE key=value...`.
struct Line {
    point: String,
    machine: String,
    /// `loop`, `whole`, or the scope of a cachegrind line.
    scope: String,
    values: BTreeMap<String, f64>,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (Some("point"), Some(point), Some(machine), Some(scope)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return None;
        };
        let values = words
            .map(|word| {
                let (key, value) = word.split_once('=')?;
                let value: f64 = value.parse().ok()?;
                (value.is_finite() && value >= 0.0).then(|| (key.to_owned(), value))
            })
            .collect::<Option<_>>()?;
        Some(Self {
            point: point.to_owned(),
            machine: machine.to_owned(),
            scope: scope.to_owned(),
            values,
        })
    }

    fn of(&self, key: &str) -> Result<f64, ReplayError> {
        let value = self.values.get(key).copied();
        value.ok_or_else(|| ReplayError(format!("{} has no {key}", self.point)))
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts, not below 0"
    )]
    fn count(&self, key: &str) -> Result<u64, ReplayError> {
        Ok(self.of(key)? as u64)
    }

    /// The virtual address of the loop's memory, and the frames of its page tables: directory, tables of entries.
    fn tables(&self) -> Result<(u64, u64, Vec<u64>), ReplayError> {
        let tables: Result<_, _> = (0..)
            .map(|index| format!("table{index}"))
            .take_while(|key| self.values.contains_key(key))
            .map(|key| self.count(&key))
            .collect();
        Ok((self.count("address")?, self.count("directory")?, tables?))
    }

    fn misses(&self) -> Result<Misses, ReplayError> {
        Ok(Misses {
            references: self.count("loads")? + self.count("stores")?,
            memory: self.count("memory")?,
            walks: self.count("walks")?,
            walk_memory: self.count("walk_memory")?,
            write_backs: self.count("write_backs")?,
        })
    }

    fn lines(text: &str) -> Result<Vec<Self>, ReplayError> {
        let line = |(index, text)| {
            let parsed = Self::parse(text);
            parsed.ok_or_else(|| ReplayError(format!("line {} is not a count", index + 1)))
        };
        text.lines().enumerate().map(line).collect()
    }
}

/// The machine with the page-table entries of the guest, of 8 bytes.
fn machine(name: &str) -> Result<Machine, ReplayError> {
    let found = machines::named(name).ok_or_else(|| ReplayError(format!("no machine {name:?}")))?;
    let mut machine = found.map_err(|error| ReplayError(error.to_string()))?;
    machine.walk.entry = 8;
    Ok(machine)
}

fn replayed(machine: &Machine, pages: &Placement, of: Loop) -> Result<Counts, ReplayError> {
    if pages.len() as u64 * pages.page() < of.bytes() {
        let what = format!("{of:?} has fewer pages than it needs");
        return Err(ReplayError(what));
    }
    Ok(counted(machine, pages, |sink, counting| {
        of.run(sink, counting);
    }))
}

fn agree(a: u64, b: u64, references: u64) -> bool {
    let apart = a.abs_diff(b) as f64;
    apart <= SHARE * a.max(b) as f64 || apart <= LEAST * references as f64 / 1000.0
}

impl Witness {
    /// Makes an empty witness.
    #[must_use]
    pub fn new() -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            command: "make lab-witness".to_owned(),
            points: Vec::new(),
            references_per_second: 0.0,
            cachegrind: Vec::new(),
        }
    }

    /// Adds the results of a guest: its counts, and its frames. `seconds` is the sum of the emulator's CPU time over
    /// all guests so far.
    ///
    /// # Errors
    /// If a file is damaged, or the two files are not of the same run.
    pub fn add(
        &mut self,
        guest: &str,
        counts: &str,
        frames: &[u8],
        seconds: &mut f64,
    ) -> Result<(), ReplayError> {
        let dump =
            Dump::parse(frames).map_err(|error| ReplayError(format!("{guest}.frames {error}")))?;
        let lines = Line::lines(counts)
            .map_err(|ReplayError(what)| ReplayError(format!("{guest}.counts: {what}")))?;
        if lines.len() != 2 * dump.draws.len() || lines.is_empty() {
            let what = format!("{guest}: counts and frames are not of the same points");
            return Err(ReplayError(what));
        }
        for (pair, draw) in lines.chunks_exact(2).zip(&dump.draws) {
            let (line, all_of_it) = (&pair[0], &pair[1]);
            let name = format!("{}:{}", line.machine, line.point);
            let belongs = draw.plan == name
                && (line.scope.as_str(), all_of_it.scope.as_str()) == ("loop", "whole")
                && (&line.machine, &line.point) == (&all_of_it.machine, &all_of_it.point);
            let of = Loop::parse(&line.point).filter(|_| belongs);
            let Some(of) = of else {
                let what =
                    format!("{guest}: {name} is no point, or its frames are those of another");
                return Err(ReplayError(what));
            };
            let machine = machine(&line.machine)?;
            let mut random = Random::named(1, &format!("witness/{guest}/{name}"));
            let (address, directory, tables) = line.tables()?;
            let pages = Placement::dealt(&draw.frames, draw.lead, &mut random)
                .and_then(|pages| pages.with_tables(address, directory, &tables))
                .map_err(|error| ReplayError(format!("{guest}: {name}: {error}")))?;
            let counts = replayed(&machine, &pages, of)?;
            let (witnessed, whole) = (line.misses()?, all_of_it.misses()?);
            let replayed = Misses {
                references: counts.references(),
                memory: counts.memory,
                walks: counts.walks,
                walk_memory: counts.walk_memory,
                write_backs: counts.write_backs,
            };
            let all = replayed.references;
            *seconds += line.of("seconds")? + all_of_it.of("seconds")?;
            self.points.push(WitnessedPoint {
                guest: guest.to_owned(),
                machine: line.machine.clone(),
                point: line.point.clone(),
                replayed,
                witnessed,
                whole,
                outside: all_of_it.count("outside")?,
                agrees: agree(replayed.memory, witnessed.memory, all)
                    && agree(replayed.walks, witnessed.walks, all),
            });
        }
        let references = |seen: &WitnessedPoint| seen.witnessed.references + seen.whole.references;
        let seen: u64 = self.points.iter().map(references).sum();
        self.references_per_second = (seen as f64 / seconds.max(1e-9) / 1e5).round() * 1e5;
        Ok(())
    }

    /// Adds the counts of cachegrind; call it after adding the guests.
    ///
    /// # Errors
    /// If the text is damaged.
    pub fn ground(&mut self, counts: &str) -> Result<(), ReplayError> {
        for line in Line::lines(counts)? {
            let of = Loop::parse(&line.point)
                .ok_or_else(|| ReplayError(format!("cachegrind: {} is no point", line.point)))?;
            let machine = machine(&line.machine)?;
            let pages = of.bytes().div_ceil(4096);
            let pages = Placement::sequential(pages as usize, 4096, 1 << 18);
            let kernel = self.points.iter().find(|seen| {
                seen.guest.starts_with("unpatched-aged-base")
                    && seen.machine == line.machine
                    && seen.point == line.point
            });
            self.cachegrind.push(CachegrindPoint {
                cachegrind: line.count("memory")?,
                in_order: replayed(&machine, &pages, of)?.memory,
                kernel: kernel.map(|seen| seen.witnessed.memory),
                machine: line.machine,
                point: line.point,
            });
        }
        Ok(())
    }

    /// Number of points at which plugin and replay do not agree.
    #[must_use]
    pub fn disagreeing(&self) -> usize {
        self.points.iter().filter(|seen| !seen.agrees).count()
    }

    /// Reads a document that [`Self::to_json`] made.
    ///
    /// # Errors
    /// If the text is no such document.
    pub fn from_json(text: &str) -> Result<Self, ReplayError> {
        let read: Result<Self, _> = serde_json::from_str(text);
        match read {
            Ok(witness) if witness.schema == SCHEMA => Ok(witness),
            Ok(witness) => Err(ReplayError(format!(
                "its schema is {:?}, not {SCHEMA:?}",
                witness.schema.chars().take(60).collect::<String>()
            ))),
            Err(error) => Err(ReplayError(error.to_string())),
        }
    }

    /// Writes indented JSON, with a newline at the end.
    ///
    /// # Errors
    /// Errors of `serde_json`: numbers are finite, so none is known.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Writes the section of the page; the command prints it too.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "Some points were run full-system in QEMU: a real kernel, a program with the loop, and a plugin (`witness/`) that sees\n\
             each load and store with its physical address. It has models of its own, written anew, and takes page sizes and the\n\
             places of page tables from the guest's tables. The same loop is replayed on the frames that the program was dealt, and\n\
             with page tables where the guest's were, of entries of 8 bytes in both. (In the figures, where they lie is drawn.)\n\n",
        );
        let apart = self.disagreeing();
        let _ = writeln!(
            text,
            "- {}: misses of the last cache and walks of the page table agree within {} % (or {LEAST} of 1,000 references) at {} of {} points.",
            if apart == 0 { "Met" } else { "MISSED" },
            SHARE * 100.0,
            self.points.len() - apart,
            self.points.len()
        );
        let _ = writeln!(
            text,
            "- At {} of {} points all four counts are exactly the same: misses, walks, loads of walks from memory, and lines written back.",
            self.points.iter().filter(|seen| seen.identical()).count(),
            self.points.len()
        );
        let _ = writeln!(
            text,
            "- {}: {} million references of the program a second of the emulator's CPU time, caches and TLB modelled (bar: 30).\n",
            if self.references_per_second >= 30e6 {
                "Met"
            } else {
                "MISSED"
            },
            number(self.references_per_second / 1e6)
        );
        text.push_str(
            "| guest | machine | point | references | misses: replay | plugin | plugin, whole program | walks: replay | plugin | walk loads from memory: replay | plugin | agree |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for seen in &self.points {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                seen.guest,
                seen.machine,
                seen.point,
                seen.replayed.references,
                seen.replayed.memory,
                seen.witnessed.memory,
                seen.whole.memory,
                seen.replayed.walks,
                seen.witnessed.walks,
                seen.replayed.walk_memory,
                seen.witnessed.walk_memory,
                if seen.agrees { "yes" } else { "NO" }
            );
        }
        let outside: u64 = self.points.iter().map(|seen| seen.outside).sum();
        let all: u64 = self.points.iter().map(|seen| seen.whole.references).sum();
        let _ = writeln!(
            text,
            "\nWhat must agree is what the loop does to its memory, which is what the lab replays. In a second run of each point the plugin models\n\
             all that the program refers to: of {all} references {outside} were to other memory (its stack), and where\n\
             the cache is just full, those lines cost a few misses more. A load of 16 bytes (`fft`) is two for the emulator. What neither sees: the\n\
             kernel's own references, and prefetching.\n",
        );
        text.push_str(
            "Valgrind's cachegrind on the same loops, misses of the last cache in a pass. It goes by virtual addresses, which amounts to\n\
             pages that lie one after the other in memory: what a kernel deals cannot be seen with it. It replaces by LRU, has no TLB, no\n\
             sectors and no walks, and brings a line in for each store that misses. Its pass of the product is a later one, whose rows are warm.\n\n\
             | machine | point | cachegrind | replay, pages in order | plugin, pages of the aged kernel |\n|---|---|---|---|---|\n",
        );
        for ground in &self.cachegrind {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} |",
                ground.machine,
                ground.point,
                ground.cachegrind,
                ground.in_order,
                ground
                    .kernel
                    .map_or(String::new(), |count| count.to_string())
            );
        }
        text
    }
}

impl Default for Witness {
    fn default() -> Self {
        Self::new()
    }
}
