//! Tests of `process` on processes recorded under several kernels and on arm64.

use std::fs;

use superhue_model::{ByteCount, PageCount, ProcessId, Vma, VmaKind};
use superhue_procfs::process::{
    MemoryUse, PageScanner, ScanMethod, VmFlags, all, cpu_now, descendants, identify, maps,
    memory_use, named_maps, parse_maps, parse_smaps, resident_now, session_members, stat, status,
    still_is, view, vma_uses,
};
use superhue_procfs::{ReadError, Roots};

use crate::support::{fixture, fixture_without, why_unseen};

/// Every recorded process with memory: tree, PID, number of VMAs.
const PROCESSES: [(&str, u32, usize); 6] = [
    ("linux-4.19", 812, 15),
    ("linux-5.10", 1337, 15),
    ("linux-6.1", 2201, 16),
    ("linux-6.18", 703, 14),
    ("jvm", 4242, 411),
    ("arm64", 990, 11),
];

fn kib(n: u64) -> Option<ByteCount> {
    Some(ByteCount::from_kib(n))
}

fn kinds(vmas: &[Vma]) -> String {
    use VmaKind::*;
    let kinds = vmas.iter().map(|vma| as_file(vma.clone()).kind);
    let count = |kind| kinds.clone().filter(|&it| it == kind).count();
    format!(
        "anonymous {} heap {} stack {} file {} shared {} special {}",
        count(Anonymous),
        count(Heap),
        count(Stack),
        count(PrivateFile),
        count(Shared),
        count(Special)
    )
}

/// Returns the VMA as the text alone describes it: only its device shows that it is memory.
fn as_file(vma: Vma) -> Vma {
    match vma.kind {
        VmaKind::Shmem(_) => Vma {
            kind: VmaKind::Shared,
            ..vma
        },
        _ => vma,
    }
}

#[test]
fn every_map_is_read_the_same_with_and_without_names() {
    for (tree, pid, count) in PROCESSES {
        let roots = fixture(tree);
        let plain = maps(&roots, pid).unwrap();
        assert_eq!(plain.len(), count, "{tree}");
        let named = named_maps(&roots, pid).unwrap();
        assert!(named.iter().map(|named| &named.vma).eq(&plain), "{tree}");
        let text = fs::read(roots.of_process(pid, "maps")).unwrap();
        let parsed = parse_maps(&text).unwrap();
        let as_files: Vec<Vma> = plain.into_iter().map(as_file).collect();
        assert_eq!(parsed, as_files, "{tree}");
    }
}

#[test]
fn kinds_are_told_apart() {
    let kinds = |tree, pid| kinds(&maps(&fixture(tree), pid).unwrap());
    insta::assert_snapshot!(kinds("linux-4.19", 812), @"anonymous 4 heap 1 stack 1 file 6 shared 0 special 3");
    insta::assert_snapshot!(kinds("linux-5.10", 1337), @"anonymous 2 heap 1 stack 1 file 6 shared 1 special 4");
    insta::assert_snapshot!(kinds("linux-6.1", 2201), @"anonymous 4 heap 1 stack 1 file 6 shared 1 special 3");
    insta::assert_snapshot!(kinds("linux-6.18", 703), @"anonymous 2 heap 1 stack 1 file 6 shared 0 special 4");
    insta::assert_snapshot!(kinds("jvm", 4242), @"anonymous 369 heap 0 stack 1 file 36 shared 2 special 3");
    insta::assert_snapshot!(kinds("arm64", 990), @"anonymous 1 heap 1 stack 1 file 6 shared 0 special 2");
}

#[test]
fn a_jvm_heap_is_promotable_and_its_reserve_is_not() {
    let vmas = maps(&fixture("jvm"), 4242).unwrap();
    let heap = vmas
        .iter()
        .find(|vma| vma.range.start.0 == 0x7_0000_0000)
        .unwrap();
    assert!(heap.is_promotable());
    assert_eq!(heap.range.regions().count(), 65);
    let reserve = vmas
        .iter()
        .find(|vma| vma.range.start.0 == 0x7_0820_0000)
        .unwrap();
    assert!(!reserve.is_promotable());
    let names = named_maps(&fixture("jvm"), 4242).unwrap();
    let label = names
        .iter()
        .find(|named| named.label() == "a library with spaces.jar");
    assert_eq!(label.unwrap().vma.kind, VmaKind::Shared);
}

#[test]
fn arm64_addresses_are_read() {
    let named = named_maps(&fixture("arm64"), 990).unwrap();
    let pool = named
        .iter()
        .find(|named| named.label() == "[anon:pymalloc]")
        .unwrap();
    assert_eq!(pool.vma.range.to_string(), "ffff84000000-ffff88000000");
    assert!(pool.vma.is_promotable());
}

#[test]
fn a_kernel_says_what_it_can_and_nothing_else_is_made_up() {
    let old = status(&fixture("linux-4.19"), 812).unwrap();
    assert_eq!(
        (old.name.as_str(), old.uid, old.threads),
        ("mysqld", 109, Some(31))
    );
    assert_eq!((old.rss_anon, old.swap), (kib(723_056), kib(64)));
    assert_eq!((old.thp_enabled, old.seccomp), (None, Some(0)));

    let switched_off = status(&fixture("linux-5.10"), 1337).unwrap();
    assert_eq!(
        (switched_off.thp_enabled, switched_off.seccomp),
        (Some(false), Some(2))
    );

    let kernel_thread = status(&fixture("linux-6.18"), 2).unwrap();
    assert_eq!((kernel_thread.rss, kernel_thread.thp_enabled), (None, None));
    assert_eq!(kernel_thread.threads, Some(1));
}

#[test]
fn the_rollup_is_the_sum_of_the_vmas() {
    for (tree, pid) in [
        ("linux-4.19", 812),
        ("linux-5.10", 1337),
        ("linux-6.18", 703),
        ("arm64", 990),
    ] {
        let mut rollup = memory_use(&fixture(tree), pid).unwrap();
        assert!(rollup.rss.is_some() && rollup.anon_huge.is_some(), "{tree}");
        // The VMAs do not have that field.
        rollup.pss_anon = None;

        let by_vma = fixture_without(tree, "smaps_rollup");
        assert_eq!(memory_use(&by_vma, pid).unwrap(), rollup, "{tree}");
    }
}

#[test]
fn newer_kernels_tell_more_in_smaps() {
    let rollup = |tree, pid| memory_use(&fixture(tree), pid).unwrap();
    let MemoryUse {
        file_huge,
        ksm,
        anon_huge,
        swap,
        ..
    } = rollup("linux-4.19", 812);
    assert_eq!((file_huge, ksm, swap), (None, None, kib(64)));
    assert_eq!(anon_huge, kib((512 << 10) + 4096));
    assert_eq!(rollup("linux-5.10", 1337).file_huge, kib(0));
    let new = rollup("linux-6.18", 703);
    assert_eq!((new.ksm, new.lazy_free), (kib(128), kib(512)));
}

#[test]
fn smaps_tells_page_sizes_eligibility_and_flags() {
    let find = |tree, pid, label: &str| {
        let vmas = vma_uses(&fixture(tree), pid).unwrap();
        vmas.into_iter()
            .find(|vma| vma.name.as_deref() == Some(label))
            .unwrap()
    };
    let hugetlb = find("linux-5.10", 1337, "/anon_hugepage (deleted)");
    assert_eq!(hugetlb.kernel_page_size, Some(ByteCount(2 << 20)));
    assert!(hugetlb.flags.unwrap().contains(VmFlags::HUGETLB));
    assert_eq!(hugetlb.vma.kind, VmaKind::Special);

    let pool = find("linux-6.18", 703, "[anon:scudo:primary]");
    assert_eq!(pool.thp_eligible, Some(true));
    assert_eq!(pool.flags.unwrap().to_string(), "hg mg sl");

    let advised = find("linux-6.1", 2201, "[anon:work_mem]");
    assert_eq!(advised.flags.unwrap().to_string(), "nh dc");

    assert_eq!(find("linux-4.19", 812, "[heap]").thp_eligible, None);
}

#[test]
fn a_strange_name_is_only_a_name() {
    let roots = fixture("linux-6.18");
    let strange = stat(&roots, 701).unwrap();
    assert_eq!(strange.comm, "a) R 1 (b");
    assert_eq!(
        (strange.state, strange.parent, strange.session),
        ('S', 700, Some(700))
    );
    assert_eq!(
        identify(&roots, 701).unwrap(),
        ProcessId {
            pid: 701,
            start_ticks: 8100
        }
    );
    assert!(still_is(
        &roots,
        ProcessId {
            pid: 701,
            start_ticks: 8100
        }
    ));
    assert!(!still_is(
        &roots,
        ProcessId {
            pid: 701,
            start_ticks: 8101
        }
    ));
    assert!(!still_is(
        &roots,
        ProcessId {
            pid: 9999,
            start_ticks: 8100
        }
    ));
}

#[test]
fn quick_readers_agree_with_the_long_ones() {
    for (tree, pid, _) in PROCESSES {
        let roots = fixture(tree);
        let quick = resident_now(&roots, pid).unwrap();
        let slow = status(&roots, pid).unwrap();
        assert_eq!(Some(quick.total.bytes()), slow.rss, "{tree}");
        assert_eq!(Some(quick.anonymous().bytes()), slow.rss_anon, "{tree}");
    }
    let cpu = cpu_now(&fixture("jvm"), 4242).unwrap();
    assert_eq!((cpu.user_ticks, cpu.system_ticks), (99_120, 4110));
    assert_eq!(
        resident_now(&fixture("linux-6.18"), 2).unwrap().total,
        PageCount(0)
    );
}

#[test]
fn what_has_no_memory_says_why() {
    let roots = fixture("linux-6.18");
    for pid in [2, 15] {
        let is_kernel_thread =
            |error| matches!(error, ReadError::KernelThread { pid: p } if p == pid);
        assert!(is_kernel_thread(maps(&roots, pid).unwrap_err()));
        assert!(is_kernel_thread(memory_use(&roots, pid).unwrap_err()));
        assert!(is_kernel_thread(vma_uses(&roots, pid).unwrap_err()));
        let id = identify(&roots, pid).unwrap();
        assert!(is_kernel_thread(why_unseen(&roots, id)));
    }
    // 702 is a zombie; 9999 never existed.
    assert!(maps(&roots, 702).unwrap_err().is_vanished());
    assert!(memory_use(&roots, 702).unwrap_err().is_vanished());
    let zombie = identify(&roots, 702).unwrap();
    assert!(why_unseen(&roots, zombie).is_vanished());
    assert!(maps(&roots, 9999).unwrap_err().is_vanished());
    assert!(memory_use(&roots, 9999).unwrap_err().is_vanished());
    assert!(identify(&roots, 9999).unwrap_err().is_vanished());
    assert!(resident_now(&roots, 9999).unwrap_err().is_vanished());
}

#[test]
fn a_file_the_kernel_lacks_is_missing_and_the_process_is_not() {
    // The recorded JVM has no smaps, and no recorded process has a pagemap.
    let roots = fixture("jvm");
    let error = vma_uses(&roots, 4242).unwrap_err();
    assert!(matches!(error, ReadError::Missing { .. }), "{error}");
    let id = identify(&roots, 4242).unwrap();
    let error = why_unseen(&roots, id);
    assert!(matches!(error, ReadError::Missing { .. }), "{error}");
}

#[test]
fn a_wrong_identity_is_not_looked_at() {
    let roots = fixture("arm64");
    let other = ProcessId {
        pid: 990,
        start_ticks: 1,
    };
    assert!(why_unseen(&roots, other).is_vanished());
    let error = PageScanner::new().regions(&roots, other, &[]).unwrap_err();
    assert!(!matches!(error, ReadError::Io { .. }), "{error}");
}

#[test]
fn a_recorded_pagemap_is_read_by_its_words() {
    let roots = fixture("linux-6.18");
    // At a low address, so that the file stays small: one full region, one with a single page.
    let process = roots.path().join("proc/705");
    let map = "400000-a00000 rw-p 00000000 00:00 0 \n";
    fs::write(process.join("maps"), map).unwrap();
    fs::write(
        process.join("smaps"),
        format!("{map}Rss: 2052 kB\nAnonHugePages: 2048 kB\n"),
    )
    .unwrap();
    let exclusive = (1_u64 << 63 | 1 << 56).to_ne_bytes();
    let pagemap: Vec<u8> = (0..0xa00_u64)
        .flat_map(|page| match page {
            0x400..0x600 | 0x812 => exclusive,
            _ => [0; 8],
        })
        .collect();
    fs::write(process.join("pagemap"), pagemap).unwrap();

    let mut scanner = PageScanner::new();
    assert_eq!(scanner.method(), None);
    let id = identify(&roots, 705).unwrap();
    let seen = view(&roots, &mut scanner, id).unwrap();
    assert_eq!(scanner.method(), Some(ScanMethod::PagemapFile));
    let found: Vec<_> = seen
        .regions
        .iter()
        .map(|view| (view.region.start().0, view.resident.0, view.huge))
        .collect();
    assert_eq!(
        found,
        [(0x40_0000, 512, Some(true)), (0x80_0000, 1, Some(false))]
    );
    assert_eq!(seen.huge_mapped(), Some(ByteCount(2 << 20)));
}

#[test]
fn the_tree_is_the_same_by_children_and_by_parents() {
    let with_lists = fixture("linux-6.18");
    let without_lists = fixture_without("linux-6.18", "children");
    for (root, expected) in [
        (1, vec![700, 701, 702, 703, 705, 706]),
        (700, vec![701, 702, 703, 705]),
        (703, vec![705]),
        (706, vec![]),
        (2, vec![15]),
    ] {
        assert_eq!(descendants(&with_lists, root).unwrap(), expected, "{root}");
        assert_eq!(
            descendants(&without_lists, root).unwrap(),
            expected,
            "{root}"
        );
    }
    assert!(descendants(&with_lists, 9999).unwrap_err().is_vanished());
    assert!(descendants(&without_lists, 9999).unwrap_err().is_vanished());
}

#[test]
fn a_circle_of_parents_ends() {
    let tree = tempfile::tempdir().unwrap();
    for (pid, parent) in [(5, 6), (6, 5)] {
        let task = tree.path().join(format!("proc/{pid}/task/{pid}"));
        fs::create_dir_all(&task).unwrap();
        fs::write(
            tree.path().join(format!("proc/{pid}/stat")),
            format!("{pid} (x) S {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 7 0 0\n"),
        )
        .unwrap();
    }
    let roots = Roots::under(tree.path());
    assert_eq!(descendants(&roots, 5).unwrap(), [6]);
    for (pid, child) in [(5, 6), (6, 5)] {
        let list = format!("proc/{pid}/task/{pid}/children");
        fs::write(tree.path().join(list), format!("{child} ")).unwrap();
    }
    assert_eq!(descendants(&roots, 5).unwrap(), [6]);
}

#[test]
fn kernel_threads_and_zombies_are_not_listed() {
    let roots = fixture("linux-6.18");
    assert_eq!(all(&roots).unwrap(), [1, 700, 701, 703, 705, 706]);
    let members = |sessions: &[u32]| {
        let found = session_members(&roots, &sessions.iter().copied().collect()).unwrap();
        let each = found.into_iter().map(|(id, session)| (id.pid, session));
        each.collect::<Vec<_>>()
    };
    let ours = [(700, 700), (701, 700), (703, 700), (706, 700)];
    assert_eq!(members(&[700]), ours);
    assert_eq!(members(&[4]), []);
    assert_eq!(members(&[4, 700]), ours);
    let nowhere = Roots::under("/nonexistent".as_ref());
    assert!(matches!(
        all(&nowhere).unwrap_err(),
        ReadError::Missing { .. }
    ));
}

#[test]
fn a_damaged_file_is_named_with_its_line() {
    let roots = fixture("arm64");
    let process = roots.path().join("proc/990");
    fs::write(
        process.join("maps"),
        "400000-a00000 rw-p 0 00:00 0\nnonsense\n",
    )
    .unwrap();
    fs::write(process.join("stat"), "990 (x").unwrap();
    let name = |error: ReadError| error.to_string().rsplit('/').next().unwrap().to_owned();
    assert_eq!(
        name(maps(&roots, 990).unwrap_err()),
        "maps is not understood: line 2: the addresses are not a range"
    );
    assert_eq!(
        name(stat(&roots, 990).unwrap_err()),
        "stat is not understood: line 1: no `)` after the command name"
    );
}

#[test]
fn a_long_map_is_read_whole() {
    // Longer than any buffer, in lines of different length.
    let tree = tempfile::tempdir().unwrap();
    let process = tree.path().join("proc/77");
    fs::create_dir_all(&process).unwrap();
    let text: String = (1..=50_000_u64)
        .map(|n| {
            let (start, end) = (n << 13, (n << 13) + 4096);
            let name = "x".repeat((n % 200) as usize);
            format!("{start:012x}-{end:012x} rw-p 00000000 00:00 0    [anon:{name}]\n")
        })
        .collect();
    fs::write(process.join("maps"), &text).unwrap();
    let vmas = maps(&Roots::under(tree.path()), 77).unwrap();
    assert_eq!(vmas.len(), 50_000);
    assert_eq!(vmas, parse_maps(text.as_bytes()).unwrap());
    assert!(
        vmas.iter()
            .zip(1..)
            .all(|(vma, n)| vma.range.start.0 == n << 13)
    );
}

#[test]
fn smaps_lists_the_vmas_of_maps() {
    for (tree, pid, _) in PROCESSES.into_iter().filter(|(tree, ..)| *tree != "jvm") {
        let roots = fixture(tree);
        let uses = vma_uses(&roots, pid).unwrap();
        assert!(
            uses.iter()
                .map(|vma| &vma.vma)
                .eq(&maps(&roots, pid).unwrap()),
            "{tree}"
        );
        let text = fs::read(roots.of_process(pid, "smaps")).unwrap();
        let as_files = uses.into_iter().map(|mut used| {
            used.vma = as_file(used.vma);
            used
        });
        assert!(as_files.eq(parse_smaps(&text).unwrap()), "{tree}");
    }
}
