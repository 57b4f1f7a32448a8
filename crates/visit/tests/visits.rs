//! Visits of a program that checks every word it writes.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test"
)]

mod target;

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use superhue_model::{ColorRequest, HUGE_PAGE_SIZE, Obstacle, Region, VirtAddr};
use superhue_visit::{Advised, Done, Limits, Placed, Visited, Visitor, Want, Work};

use target::{PATIENCE, Target};

/// A visiting process, which is started again once it has ended, as in use: where a program does not stand in time (the machine may
/// have stood still), only its end lets go of it.
fn visitor() -> Visitor {
    Visitor::new(&std::env::current_exe().unwrap())
}

/// A visit as soon as one may be.
fn visit(visitor: &mut Visitor, target: &Target, work: &Work) -> Result<Visited, Obstacle> {
    // Long enough for a build without optimization on a busy machine.
    let limits = Limits {
        max_pause: Duration::from_millis(50),
        share: 100,
        ..Limits::default()
    };
    let begun = Instant::now();
    loop {
        thread::sleep(visitor.wait_for(target.id));
        match visitor.visit(target.id, work, limits) {
            // On a busy machine a thread may wait for a CPU longer than it may take to stop.
            Err(Obstacle::Paced | Obstacle::Unstoppable | Obstacle::Busy)
                if begun.elapsed() < PATIENCE => {}
            other => return other,
        }
    }
}

/// Eight regions of a program's memory.
fn regions(target: &Target) -> Vec<Region> {
    let first = target.start.next_multiple_of(HUGE_PAGE_SIZE);
    let starts = (0..8).map(|at| first + at * HUGE_PAGE_SIZE);
    starts
        .map(|start| Region::containing(VirtAddr(start)))
        .collect()
}

#[test]
fn regions_are_collapsed_while_every_word_is_checked() {
    let target = Target::start(32);
    let mut visitor = visitor();
    let regions = regions(&target);
    let mut left = regions.as_slice();
    let begun = Instant::now();
    let mut done = 0;
    while !left.is_empty() && begun.elapsed() < PATIENCE {
        let visited = visit(&mut visitor, &target, &Work::Collapse(left.to_vec())).unwrap();
        let Done::Advised(results) = visited.done else {
            panic!("{visited:?}");
        };
        assert!(visited.threads >= 7, "{}", visited.threads);
        done += results.iter().filter(|it| **it == Advised::Done).count();
        left = &left[results.len()..];
    }
    assert!(left.is_empty());
    if done == 0 {
        superhue_testing::skip("collapse", "no region could be collapsed");
    }
    for _ in 0..50 {
        let visited = visit(&mut visitor, &target, &Work::Split(regions.clone())).unwrap();
        assert!(matches!(visited.done, Done::Advised(_)));
    }
    target.finish();
}

/// The last pages of every gap between the mappings of a program: there the kernel maps what is mapped next.
fn gaps(target: &Target) -> Vec<VirtAddr> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.id.pid)).unwrap();
    let bounds = maps.lines().map(|line| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        [start, end].map(|bound| u64::from_str_radix(bound, 16).unwrap())
    });
    let bounds: Vec<[u64; 2]> = bounds.collect();
    let gaps = bounds.windows(2).map(|pair| (pair[0][1], pair[1][0]));
    let pages = gaps
        .flat_map(|(start, end)| (start.max(end.saturating_sub(64 << 12))..end).step_by(1 << 12));
    pages.map(VirtAddr).collect()
}

#[test]
fn what_was_mapped_for_the_visit_is_not_taken_for_the_programs() {
    let Some((mut visitor, colors)) = with_palette() else {
        return;
    };
    let target = Target::start(8);
    let pages = gaps(&target);
    assert!(pages.len() >= 64);
    let want = Want::Within(
        "spread"
            .parse::<ColorRequest>()
            .unwrap()
            .of(colors)
            .unwrap()
            .unwrap(),
    );
    for _ in 0..4 {
        let pages = pages.clone();
        let work = Work::Place {
            pages,
            want: want.clone(),
        };
        let visited = visit(&mut visitor, &target, &work).unwrap();
        let Done::Placed(placed) = visited.done else {
            panic!("{visited:?}");
        };
        let moved = placed
            .iter()
            .filter(|it| matches!(it, Placed::Exchanged(_)));
        assert_eq!(moved.count(), 0);
    }
    target.finish();
}

#[test]
fn nothing_of_a_visit_stays() {
    let target = Target::start(8);
    let before = target.traces();
    let mut visitor = visitor();
    for _ in 0..20 {
        let visited = visit(&mut visitor, &target, &Work::Tidy).unwrap();
        assert_eq!(visited.done, Done::Tidied(0));
    }
    target.assert_untouched(&before);
    target.finish();
}

#[test]
fn who_becomes_ours_by_his_maker_is_let_go() {
    let target = Target::start_cloner();
    let mut visitor = visitor();
    let limits = Limits {
        share: 100,
        ..Limits::default()
    };
    let begun = Instant::now();
    let mut done = 0;
    while done < 300 && begun.elapsed() < PATIENCE {
        done += u32::from(visitor.visit(target.id, &Work::Tidy, limits).is_ok());
    }
    assert_eq!(done, 300);
    target.finish();
}

#[test]
fn who_is_killed_in_a_visit_can_be_waited_for() {
    for after in 0..30 {
        let target = Target::start(8);
        let id = target.id;
        let (begun, begins) = std::sync::mpsc::channel();
        let visits = thread::spawn(move || {
            let mut visitor = visitor();
            let limits = Limits {
                share: 100,
                ..Limits::default()
            };
            loop {
                let visited = visitor.visit(id, &Work::Tidy, limits);
                let _ = begun.send(());
                if visited == Err(Obstacle::Gone) {
                    // Still there: what it traces would not be let go otherwise.
                    return visitor;
                }
            }
        });
        begins.recv().unwrap();
        thread::sleep(Duration::from_micros(100 * after));
        target.kill();
        drop(visits.join().unwrap());
    }
}

#[test]
fn pages_that_are_gone_are_not_touched() {
    let Some((mut visitor, _)) = with_palette() else {
        return;
    };
    let target = Target::start(4);
    let before = target.traces();
    // Not mapped, the kernel's, and one that is there.
    let pages = [
        VirtAddr(4096),
        VirtAddr(0x7fff_ffff_f000),
        VirtAddr(target.start),
    ];
    let told = all_colors(&mut visitor, &target, &pages);
    assert_eq!(told[..2], [None, None]);
    // A handler of SIGSEGV is among the traces.
    target.assert_untouched(&before);
    target.finish();
}

#[test]
fn pages_that_the_kernel_uses_for_threads_stay() {
    let Some((mut visitor, colors)) = with_palette() else {
        return;
    };
    let target = Target::start(4);
    if target.rseq == 0 {
        return superhue_testing::skip("rseq", "this C library has none");
    }
    let half: ColorRequest = "50%".parse().unwrap();
    let set = half.of(colors).unwrap().unwrap();
    let work = Work::Place {
        pages: vec![VirtAddr(target.rseq & !4095)],
        want: Want::Within(set),
    };
    let visited = visit(&mut visitor, &target, &work).unwrap();
    let left = superhue_visit::Left::Rseq;
    assert_eq!(visited.done, Done::Placed(vec![Placed::Left(left)]));
    target.finish();
}

#[test]
fn colors_are_told_and_pages_exchanged() {
    let Some((mut visitor, colors)) = with_palette() else {
        return;
    };
    let target = Target::start(16);
    let before = target.traces();
    let pages: Vec<VirtAddr> = (0..256)
        .map(|at| VirtAddr(target.start + at * 4096))
        .collect();
    let known = told_as(&mut visitor, &target, &pages, |color| color.is_some());
    assert!(known * 100 >= pages.len() * 90, "{known} of 256");
    // All on the first half of the colors.
    let half: ColorRequest = "50%".parse().unwrap();
    let set = half.of(colors).unwrap().unwrap();
    let mut done = 0;
    let begun = Instant::now();
    while done < pages.len() && begun.elapsed() < PATIENCE {
        let work = Work::Place {
            pages: pages[done..].to_vec(),
            want: Want::Within(set.clone()),
        };
        let visited = visit(&mut visitor, &target, &work).unwrap();
        let Done::Placed(placed) = visited.done else {
            panic!("{:?}", visited.done);
        };
        let settled = placed
            .iter()
            .take_while(|it| !matches!(it, Placed::Left(_)))
            .count();
        done += settled;
    }
    assert_eq!(done, pages.len());
    let right = told_as(&mut visitor, &target, &pages, |color| {
        color.is_some_and(|color| set.contains(color))
    });
    assert!(right * 100 >= pages.len() * 90, "{right} of 256");
    target.assert_untouched(&before);
    target.finish();
}

/// How many pages are told as wanted: those that are not are asked a second time, for what a neighbour
/// does to the cache spoils one answer, seldom two. Of pages placed by chance, 75 % would pass.
fn told_as(
    visitor: &mut Visitor,
    target: &Target,
    pages: &[VirtAddr],
    wanted: impl Fn(Option<superhue_model::Color>) -> bool,
) -> usize {
    let mut rest = pages.to_vec();
    for _ in 0..2 {
        let told = all_colors(visitor, target, &rest);
        let mut answers = told.into_iter();
        rest.retain(|_| !wanted(answers.next().flatten()));
    }
    pages.len() - rest.len()
}

fn all_colors(
    visitor: &mut Visitor,
    target: &Target,
    pages: &[VirtAddr],
) -> Vec<Option<superhue_model::Color>> {
    let mut told = Vec::new();
    let begun = Instant::now();
    while told.len() < pages.len() {
        // On a busy machine the time of many a visit ends before anything is told.
        assert!(begun.elapsed() < PATIENCE, "{told:?}");
        let rest = pages[told.len()..].to_vec();
        let visited = visit(visitor, target, &Work::Colors(rest)).unwrap();
        let Done::Colors(more) = visited.done else {
            panic!("{:?}", visited.done);
        };
        told.extend(more);
    }
    told
}

/// With the palette of this machine, if there is one or one can be found.
fn with_palette() -> Option<(Visitor, usize)> {
    use superhue_color::oracles::{HardwareProbe, PaletteConfig, SharedPalette};
    let config = PaletteConfig::new(std::path::Path::new("/"), None);
    let opened = HardwareProbe::new()
        .map_err(|error| error.to_string())
        .and_then(|mut probe| {
            SharedPalette::open_or_find(&mut probe, &config, |_| {}).map_err(|e| e.to_string())
        });
    if let Err(error) = opened {
        superhue_testing::skip("colors", &error);
        return None;
    }
    let mut visitor = visitor();
    match visitor.use_palette(&config.places) {
        Ok(colors) => Some((visitor, colors)),
        Err(error) => {
            superhue_testing::skip("colors", &error.to_string());
            None
        }
    }
}

#[test]
fn what_a_killed_visiting_process_left_is_removed() {
    let target = Target::start(32);
    let before = target.traces();
    let mut visitor = visitor();
    let regions = regions(&target);
    let stop = AtomicBool::new(false);
    let mut killed = 0;
    thread::scope(|scope| {
        let killer = scope.spawn(|| target.kill_visitors_inside(&stop));
        let begun = Instant::now();
        while !killer.is_finished() && begun.elapsed() < PATIENCE {
            let limits = Limits {
                share: 100,
                ..Limits::default()
            };
            for work in [
                Work::Collapse(regions.clone()),
                Work::Split(regions.clone()),
            ] {
                thread::sleep(visitor.wait_for(target.id));
                let visited = visitor.visit(target.id, &work, limits);
                let passes = visited.as_ref().err().is_none_or(|it| it.may_pass());
                assert!(passes, "{visited:?}");
            }
        }
        stop.store(true, Relaxed);
        killed = killer.join().unwrap();
    });
    assert!(killed > 0, "no visit was met");
    // Tidied first.
    let visited = visit(&mut visitor, &target, &Work::Tidy).unwrap();
    assert_eq!(visited.done, Done::Tidied(0));
    target.assert_untouched(&before);
    target.finish_after_kills();
}

/// Not a test: the visiting process, in one of its own.
#[test]
fn visitor_process() {
    // As it is started by `Visitor::new`, which passes its tests by name.
    if std::env::args().skip(1).eq(["visitor"]) {
        let messages = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned();
        superhue_visit::serve(UnixStream::from(messages.unwrap())).unwrap();
        std::process::exit(0);
    }
}

/// Not a test: the program that is visited, in a process of its own.
#[test]
fn target() {
    target::be_one();
}
