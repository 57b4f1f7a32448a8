//! Running the BPF program: proving where memory lies, and walking.

use std::hint::black_box;

use libbpf_rs::ProgramInput;
use rustix::rand::{GetRandomFlags, getrandom};
use superhue_model::{ProcessId, Region, VirtAddr, VirtRange};
use superhue_procfs::{Roots, process};

use super::decode;
use super::load::{self, Kind, PtwalkSkel, Request, Shared, Span, Status};
use super::memory::end_of_memory;
use crate::RegionBits;

const REGIONS_PER_GIANT: u64 = 512;
const REGION_SHIFT: u32 = 21;

/// Attempts of the proof: the kernel may move the page that holds the magic words meanwhile.
const PROOFS: usize = 5;

/// Reason why there is no answer about a process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WalkError {
    /// No process has this number, or it has no memory any more.
    Gone,
    /// The process has other memory than it had.
    Replaced,
    /// The number means another process to the kernel than to `/proc`.
    Other,
    /// The program cannot be run.
    Broken(String),
}

/// The loaded program, and the results of its proof.
pub(super) struct Walker {
    skeleton: PtwalkSkel<'static>,
    /// Page table levels the kernel uses: 4 or 5.
    levels: u32,
    /// Nanoseconds of a clock tick of `/proc`.
    tick: u64,
    /// Ticks that `/proc` adds to start times (`time_namespaces(7)`).
    offset: i64,
}

impl Walker {
    /// Loads the program, and proves where memory lies. The error is a clause for people.
    pub(super) fn new(roots: &Roots) -> Result<Self, String> {
        let mut walker = Self {
            skeleton: load::load(roots)?,
            levels: 0,
            tick: 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1),
            offset: 0,
        };
        walker.levels = walker.prove(end_of_memory(roots)?)?;
        walker.know_self(roots)?;
        Ok(walker)
    }

    /// Returns the first address behind user memory.
    pub(super) const fn user_end(&self) -> u64 {
        if self.levels == 5 { 1 << 56 } else { 1 << 47 }
    }

    /// Returns the number of page table levels that the kernel uses: 4 or 5.
    pub(super) const fn levels(&self) -> u32 {
        self.levels
    }

    /// Takes account of memory that was added to the machine.
    pub(super) fn refresh(&mut self, roots: &Roots) -> Result<(), String> {
        self.levels = self.prove(end_of_memory(roots)?)?;
        Ok(())
    }

    fn shared(&mut self) -> Result<&mut Shared, String> {
        let shared = self.skeleton.maps.bss_data.as_deref_mut();
        shared.ok_or_else(|| "its memory is not mapped".to_owned())
    }

    /// Makes the program find random words of ours through our own page tables. Returns the number of levels.
    fn prove(&mut self, limit: u64) -> Result<u32, String> {
        // Far larger than a page, so that some page holds all of the words.
        let mut page = vec![0_u64; 1024];
        let at = page.as_ptr().addr().next_multiple_of(4096);
        let first = (at - page.as_ptr().addr()) / size_of::<u64>();
        for _ in 0..PROOFS {
            let mut bytes = [0_u8; 32];
            let count = getrandom(&mut bytes, GetRandomFlags::empty())
                .map_err(|errno| format!("no random words: {errno}"))?;
            if count != bytes.len() {
                continue;
            }
            let (words, _) = bytes.as_chunks::<8>();
            let magic: [u64; 4] =
                std::array::from_fn(|i| words.get(i).map_or(0, |word| u64::from_ne_bytes(*word)));
            page.get_mut(first..first + 4)
                .ok_or("no page")?
                .copy_from_slice(&magic);
            black_box(&mut page);
            for levels in [4, 5] {
                let request = &mut self.shared()?.request;
                request.levels = levels;
                request.limit = limit;
                request.magic_at = at as u64;
                request.magic = magic;
                run(&self.skeleton.progs.prove)?;
                if self.shared()?.response.proven == 1 {
                    return Ok(levels);
                }
            }
        }
        Err(
            "where the kernel maps memory could not be proven: no place was found by way of which \
             this process's page tables lead to its own memory"
                .to_owned(),
        )
    }

    /// Checks that our own number means us, and finds out how `/proc` counts start times.
    fn know_self(&mut self, roots: &Roots) -> Result<(), String> {
        let pid = std::process::id();
        let link = roots.proc.join("self");
        let own =
            std::fs::read_link(&link).map_err(|error| format!("{}: {error}", link.display()))?;
        if own.to_str() != Some(&pid.to_string()) {
            return Err(format!(
                "{} belongs to another PID namespace: mount the /proc of this one",
                roots.proc.display()
            ));
        }
        self.ask(pid, 0)?;
        run(&self.skeleton.progs.who)?;
        let (tick, response) = (self.tick, &self.shared()?.response);
        if response.status != Status::PTWALK_DONE || response.is_caller != 1 {
            return Err(
                "this process is in a PID namespace of its own, whose numbers this kernel does not \
                 let BPF programs use: run in the initial one, or on Linux 6.13 or later"
                    .to_owned(),
            );
        }
        let ticks = response.start_boottime / tick;
        let told = process::identify(roots, pid).map_err(|error| error.to_string())?;
        self.offset = told.start_ticks.wrapping_sub(ticks).cast_signed();
        Ok(())
    }

    fn ask(&mut self, pid: u32, context: u64) -> Result<&mut Request, String> {
        let request = &mut self.shared()?.request;
        request.pid = pid;
        request.context = context;
        Ok(request)
    }

    /// Returns the number of the memory that `process` has; no other memory ever had or will have it.
    pub(super) fn memory_of(&mut self, process: ProcessId) -> Result<u64, WalkError> {
        self.ask(process.pid, 0)?;
        run(&self.skeleton.progs.who)?;
        self.check_answer(process)?;
        Ok(self.shared()?.response.context)
    }

    /// Returns the bits of the page tables for all regions of `spans` (ascending, whole regions, below [`user_end`](Self::user_end)), as long as
    /// `process` has the memory `context`.
    pub(super) fn walk(
        &mut self,
        process: ProcessId,
        context: u64,
        spans: &[VirtRange],
    ) -> Result<WalkResult, WalkError> {
        let mut walked = WalkResult::default();
        let capacity = self.shared()?.request.span.len();
        for some in spans.chunks(capacity) {
            let request = self.ask(process.pid, context)?;
            request.spans = some.len() as u32;
            for (place, span) in request.span.iter_mut().zip(some) {
                *place = Span {
                    start: span.start.0,
                    end: span.end.0,
                };
            }
            request.first_span = 0;
            request.first_at = some.first().map_or(0, |span| span.start.0);
            loop {
                run(&self.skeleton.progs.walk)?;
                self.check_answer(process)?;
                let shared = self.shared()?;
                walked.take(shared, some);
                let response = &shared.response;
                if response.status == Status::PTWALK_DONE {
                    break;
                }
                let came_from = (shared.request.first_span, shared.request.first_at);
                let goes_to = (response.next_span, response.next_at);
                if goes_to <= came_from {
                    return Err(WalkError::Broken("the walk does not advance".to_owned()));
                }
                (shared.request.first_span, shared.request.first_at) = goes_to;
            }
        }
        Ok(walked)
    }

    /// Checks that the last answer is about `process`.
    fn check_answer(&mut self, process: ProcessId) -> Result<(), WalkError> {
        let (tick, offset) = (self.tick, self.offset);
        let response = &self.shared()?.response;
        match response.status {
            Status::PTWALK_NO_TASK | Status::PTWALK_NO_MEMORY => return Err(WalkError::Gone),
            Status::PTWALK_DONE | Status::PTWALK_MORE | Status::PTWALK_REPLACED => {}
            status => return Err(WalkError::Broken(format!("the walk ended with {status:?}"))),
        }
        let ticks = (response.start_boottime / tick).wrapping_add_signed(offset);
        // If the offset contains a part of a tick, the sums differ by one.
        let slack = u64::from(offset != 0);
        if ticks.abs_diff(process.start_ticks) > slack {
            return Err(WalkError::Other);
        }
        if response.status == Status::PTWALK_REPLACED {
            return Err(WalkError::Replaced);
        }
        Ok(())
    }
}

/// Result of a walk.
#[derive(Debug, Default)]
pub(super) struct WalkResult {
    /// Ascending by region; one per region.
    pub(super) regions: Vec<RegionBits>,
    /// True if page tables lie in memory that was added since the last proof.
    pub(super) beyond: bool,
}

impl WalkResult {
    fn take(&mut self, shared: &Shared, spans: &[VirtRange]) {
        let response = &shared.response;
        self.beyond |= response.beyond > 0;
        for entry in response.found.iter().take(response.found_count as usize) {
            let region = Region::containing(VirtAddr(entry.address));
            match entry.kind {
                Kind::PTWALK_TABLE => {
                    if let Some(table) = shared.tables.get(entry.table as usize) {
                        let bits = decode::of_table(region, table);
                        if !bits.present.is_empty() {
                            self.push(bits);
                        }
                    }
                }
                Kind::PTWALK_HUGE => {
                    if let Some(bits) = decode::of_huge(region, entry.entry) {
                        self.push(bits);
                    }
                }
                _ => {
                    for index in 0..REGIONS_PER_GIANT {
                        let at = VirtAddr(entry.address + (index << REGION_SHIFT));
                        let region = Region::containing(at);
                        let is_asked = spans.iter().any(|span| span.contains(&region.range()));
                        if let Some(bits) = decode::of_huge(region, entry.entry)
                            && is_asked
                        {
                            self.push(bits);
                        }
                    }
                }
            }
        }
    }

    /// Adds a region that lies behind all before: each span in an entry of 1 GiB meets that entry again.
    fn push(&mut self, bits: RegionBits) {
        if self
            .regions
            .last()
            .is_none_or(|last| last.region < bits.region)
        {
            self.regions.push(bits);
        }
    }
}

fn run(program: &libbpf_rs::ProgramMut<'_>) -> Result<(), String> {
    program
        .test_run(ProgramInput::default())
        .map(drop)
        .map_err(|error| format!("its BPF program does not run: {error}"))
}

impl From<String> for WalkError {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}
