//! The tracker on a tree of ordinary files, whose bits the tests change as the kernel would.

use std::fs;
use std::os::unix::fs::FileExt;

use superhue_model::VirtAddr;
use superhue_procfs::process::identify;
use superhue_testing::recorded_file;

use super::*;

const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;
const LRU: u64 = 1 << 5;
const TAIL: u64 = 1 << 16;
const IDLE: u64 = 1 << 25;

/// First page of the heap, the second page of a region; it has 600.
const HEAP: u64 = 512 * 20 + 1;
/// First page of a mapped file of 16 pages.
const MAPPED_FILE: u64 = 512 * 30;

/// A process with these mappings, and the machine's frames.
struct Tree {
    folder: tempfile::TempDir,
    process: ProcessId,
}

impl Tree {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("proc/700");
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(folder.path().join("sys/kernel/mm/page_idle")).unwrap();
        let stat = recorded_file("processes/linux-6.18", "proc/700/stat");
        fs::write(own.join("stat"), stat).unwrap();
        let line = |first: u64, pages: u64, rest: &str| {
            format!("{:x}-{:x} {rest}\n", first << 12, (first + pages) << 12)
        };
        let maps = line(HEAP, 600, "rw-p 00000000 00:00 0 [heap]")
            + &line(MAPPED_FILE, 16, "r--p 00000000 08:01 5 /lib/x.so");
        fs::write(own.join("maps"), maps).unwrap();
        let process = identify(&Roots::under(folder.path()), 700).unwrap();
        let tree = Self { folder, process };
        tree.page(MAPPED_FILE + 16, 0);
        tree.frame(4000, 0);
        tree.set("sys/kernel/mm/page_idle/bitmap", 100, 0);
        tree
    }

    fn roots(&self) -> Roots {
        Roots::under(self.folder.path())
    }

    fn open(&self, name: &str) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.folder.path().join(name))
            .unwrap()
    }

    fn set(&self, name: &str, index: u64, word: u64) {
        self.open(name)
            .write_all_at(&word.to_ne_bytes(), index * 8)
            .unwrap();
    }

    fn page(&self, page: u64, word: u64) {
        self.set("proc/700/pagemap", page, word);
    }

    fn frame(&self, frame: u64, flags: u64) {
        self.set("proc/kpageflags", frame, flags);
    }

    fn word(&self, frame: u64) -> u64 {
        let bitmap = self.open("sys/kernel/mm/page_idle/bitmap");
        frames::read_words(&bitmap, frame / 64, 1).unwrap()[0]
    }

    /// Clears the frame's mark, as an access does.
    fn access(&self, frame: u64) {
        let word = self.word(frame) & !(1 << (frame % 64));
        self.set("sys/kernel/mm/page_idle/bitmap", frame / 64, word);
    }

    fn is_marked(&self, frame: u64) -> bool {
        self.word(frame) >> (frame % 64) & 1 == 1
    }

    fn tracker(&self, scope: Scope) -> IdleTracker {
        let bitmap = self.open("sys/kernel/mm/page_idle/bitmap");
        let flags = self.open("proc/kpageflags");
        IdleTracker::over(&self.roots(), scope, bitmap, flags, false)
    }

    /// Returns the present and the touched pages of a read.
    fn read(&self, tracker: &mut IdleTracker, ranges: &[VirtRange]) -> (Vec<u64>, Vec<u64>) {
        let Reading::Pages(regions) = tracker.read(self.process, ranges).unwrap() else {
            panic!("pages")
        };
        assert!(regions.is_sorted_by_key(|bits| bits.region));
        let pages = |set: fn(&RegionBits) -> &PageSet| {
            let of = |bits: &RegionBits| {
                let first = bits.region.start().0 >> 12;
                let pages: Vec<u64> = set(bits).iter().map(|page| first + page as u64).collect();
                pages
            };
            regions.iter().flat_map(of).collect()
        };
        (pages(|bits| &bits.present), pages(|bits| &bits.accessed))
    }
}

fn everything() -> [VirtRange; 1] {
    [VirtRange {
        start: VirtAddr(0),
        end: VirtAddr(1 << 40),
    }]
}

#[test]
fn touched_pages_are_those_whose_frames_lost_their_mark() {
    let tree = Tree::new();
    for (page, frame) in [(HEAP, 70), (HEAP + 1, 3000), (HEAP + 599, 65)] {
        tree.page(page, PRESENT | frame);
        tree.frame(frame, LRU | IDLE);
    }
    tree.page(MAPPED_FILE, PRESENT | OF_FILE | 66);
    tree.frame(66, LRU | IDLE);
    let mut tracker = tree.tracker(Scope::Anonymous);
    let armed = tracker.arm(tree.process).unwrap();
    assert!(!armed.flushed && armed.locked.is_zero());
    assert!([70, 3000, 65].iter().all(|&frame| tree.is_marked(frame)));
    assert!(!tree.is_marked(66), "a file's page is out of scope");

    tree.access(3000);
    let all = vec![HEAP, HEAP + 1, HEAP + 599];
    assert_eq!(
        tree.read(&mut tracker, &everything()),
        (all, vec![HEAP + 1])
    );
    let range = VirtRange {
        start: VirtAddr((HEAP + 2) << 12),
        end: VirtAddr((HEAP + 600) << 12),
    };
    let (present, accessed) = tree.read(&mut tracker, &[range]);
    assert_eq!((present, accessed), (vec![HEAP + 599], vec![]));
}

#[test]
fn what_took_no_mark_is_not_known_and_left_out() {
    let tree = Tree::new();
    // The first page is on no LRU list; the second is on one, but the kernel did not mark it.
    for (page, frame, flags) in [
        (HEAP, 70, 0),
        (HEAP + 1, 71, LRU),
        (HEAP + 2, 72, LRU | IDLE),
    ] {
        tree.page(page, PRESENT | frame);
        tree.frame(frame, flags);
    }
    let mut tracker = tree.tracker(Scope::Anonymous);
    tracker.arm(tree.process).unwrap();
    assert!(!tree.is_marked(70));
    tree.access(71);
    let found = tree.read(&mut tracker, &everything());
    assert_eq!(found, (vec![HEAP + 2], vec![]));
}

#[test]
fn pages_of_one_folio_share_a_mark() {
    let tree = Tree::new();
    for offset in 0..4 {
        tree.page(HEAP + offset, PRESENT | (80 + offset));
        let tail = if offset == 0 { 0 } else { TAIL };
        tree.frame(80 + offset, LRU | IDLE | tail);
    }
    let mut tracker = tree.tracker(Scope::Anonymous);
    tracker.arm(tree.process).unwrap();
    assert_eq!(tree.word(80), 1 << (80 % 64), "the head alone");
    let all: Vec<u64> = (HEAP..HEAP + 4).collect();
    assert!(tree.read(&mut tracker, &everything()).1.is_empty());
    tree.access(80);
    assert_eq!(tree.read(&mut tracker, &everything()), (all.clone(), all));
}

#[test]
fn memory_that_moved_meanwhile_is_judged_by_what_is_known() {
    let tree = Tree::new();
    for offset in 0..4 {
        tree.page(HEAP + offset, PRESENT | (80 + offset));
        tree.frame(80 + offset, LRU | IDLE);
    }
    let mut tracker = tree.tracker(Scope::All);
    tracker.arm(tree.process).unwrap();
    // One page migrated with its mark, one was copied on write, one is gone; two are new.
    tree.page(HEAP, PRESENT | 100);
    tree.frame(100, LRU | IDLE);
    tree.set(
        "sys/kernel/mm/page_idle/bitmap",
        1,
        1 << (100 - 64) | tree.word(80),
    );
    tree.page(HEAP + 1, PRESENT | 200);
    tree.frame(200, LRU);
    tree.page(HEAP + 2, 0);
    tree.page(HEAP + 9, PRESENT | 201);
    tree.frame(201, LRU);
    tree.page(MAPPED_FILE, PRESENT | OF_FILE | 202);
    tree.frame(202, LRU);
    assert_eq!(
        tree.read(&mut tracker, &everything()),
        (
            vec![HEAP, HEAP + 1, HEAP + 3, HEAP + 9],
            vec![HEAP + 1, HEAP + 9]
        )
    );
}

#[test]
fn a_region_collapsed_meanwhile_is_not_known() {
    let noted = |page, huge| ArmedPage {
        page,
        huge,
        marked: true,
    };
    let now = |page| Page {
        page,
        frame: page + 5,
        head: page + 5,
        huge: true,
        file: false,
        usable: true,
    };
    let before = [noted(511, false), noted(512, true), noted(1030, false)];
    let mut collapsed = CollapsedRegions::default();
    assert!(collapsed.holds(&now(0), &before));
    assert!(!collapsed.holds(&now(512), &before));
    assert!(!collapsed.holds(&now(600), &before));
    assert!(collapsed.holds(&now(1024), &before));
    // No page was there before: a fault brought it.
    assert!(!collapsed.holds(&now(2048), &before));
    assert_eq!(touched(None, &now(2048), None), Some(true));
}

#[test]
fn a_process_that_was_not_armed_or_is_gone_has_no_sample() {
    let tree = Tree::new();
    let mut tracker = tree.tracker(Scope::Anonymous);
    let read = |tracker: &mut IdleTracker| tracker.read(tree.process, &everything());
    assert!(matches!(read(&mut tracker), Err(TrackError::Replaced(_))));
    tracker.arm(tree.process).unwrap();
    assert!(read(&mut tracker).is_ok());
    tracker.release(tree.process);
    assert!(matches!(read(&mut tracker), Err(TrackError::Replaced(_))));

    tracker.arm(tree.process).unwrap();
    // The kernel shows this once the memory is gone.
    tree.open("proc/700/pagemap").set_len(0).unwrap();
    assert!(matches!(read(&mut tracker), Err(TrackError::Replaced(_))));
    let another = ProcessId {
        start_ticks: tree.process.start_ticks + 1,
        ..tree.process
    };
    let error = tracker.arm(another).unwrap_err();
    assert!(matches!(error, TrackError::Read(error) if error.is_vanished()));
}

#[test]
fn hidden_frames_make_it_unusable_and_say_what_helps() {
    let tree = Tree::new();
    tree.page(HEAP, PRESENT);
    let error = tree
        .tracker(Scope::Anonymous)
        .arm(tree.process)
        .unwrap_err();
    assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    let error = IdleTracker::new(&Roots::under(Path::new("/nonexistent")), Scope::All).unwrap_err();
    assert!(
        error.to_string().contains("CONFIG_IDLE_PAGE_TRACKING"),
        "{error}"
    );
}

#[test]
fn ranges_are_cut_to_what_both_have() {
    let ranges = |list: &[(u64, u64)]| -> Vec<VirtRange> {
        let range = |&(start, end)| VirtRange::new(VirtAddr(start), VirtAddr(end)).unwrap();
        list.iter().map(range).collect()
    };
    let left = ranges(&[(0, 10), (20, 30), (40, 50)]);
    let right = ranges(&[(5, 25), (28, 45), (50, 60)]);
    let both = ranges(&[(5, 10), (20, 25), (28, 30), (40, 45)]);
    assert_eq!(common(&left, &right), both);
    assert_eq!(common(&right, &left), both);
    assert_eq!(common(&left, &[]), []);
}

#[test]
fn the_tlb_is_flushed_only_where_that_does_nothing_else() {
    let tree = Tree::new();
    let path = tree.folder.path().join("proc/700/clear_refs");
    fs::write(&path, "").unwrap();
    let mut tracker = tree.tracker(Scope::Anonymous);
    assert!(!tracker.arm(tree.process).unwrap().flushed);
    assert_eq!(fs::read_to_string(&path).unwrap(), "");

    tracker.may_flush = true;
    assert!(tracker.arm(tree.process).unwrap().flushed);
    assert_eq!(fs::read_to_string(&path).unwrap(), "4");

    // If the flush is impossible, the sample is taken without it, and the result shows that.
    fs::remove_file(&path).unwrap();
    let armed = tracker.arm(tree.process).unwrap();
    assert!(!armed.flushed && armed.locked.is_zero());
}
