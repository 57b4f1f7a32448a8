use std::fs;

use superhue_testing::undisturbed;

use super::*;

const MIB: u64 = 1 << 20;

/// A `/proc` with processes that a test makes.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("proc")).unwrap();
        Self { folder }
    }

    fn roots(&self) -> Roots {
        Roots::under(self.folder.path())
    }

    fn of(&self, pid: u32) -> std::path::PathBuf {
        self.folder.path().join(format!("proc/{pid}"))
    }

    /// Writes a process with `mebibytes` MiB of memory, of which `huge` MiB are huge.
    fn process(&self, pid: u32, start: u64, name: &str, mebibytes: u64, huge: u64) {
        let write = |file: &str, text: String| {
            let path = self.of(pid).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("stat", stat_text(pid, start, name, [0, 0]));
        let pages = mebibytes * 256;
        write("statm", format!("{pages} {pages} 0 0 0 0 0\n"));
        let kib = mebibytes << 10;
        let huge = huge << 10;
        write(
            "smaps_rollup",
            format!(
                "1000-2000 ---p 00000000 00:00 0 [rollup]\nRss: {kib} kB\nPss: {kib} kB\n\
                 Anonymous: {kib} kB\nAnonHugePages: {huge} kB\nShmemPmdMapped: 0 kB\n"
            ),
        );
        write("cgroup", format!("0::/system.slice/{name}.service\n"));
    }

    /// Writes the user and system ticks that a process has used.
    fn use_cpu(&self, pid: u32, start: u64, name: &str, ticks: [u64; 2]) {
        fs::write(
            self.of(pid).join("stat"),
            stat_text(pid, start, name, ticks),
        )
        .unwrap();
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.of(pid)).unwrap();
    }
}

fn stat_text(pid: u32, start: u64, name: &str, [user, system]: [u64; 2]) -> String {
    let zeroes = "0 ".repeat(30);
    format!("{pid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 1 0 {start} {zeroes}\n")
}

const SECOND: Duration = Duration::from_secs(1);

fn survey(machine: &Machine) -> Survey {
    Survey::new(machine.roots(), SECOND, 1e6)
}

fn step(survey: &mut Survey, seconds: u32) -> Vec<u32> {
    let mut looked = Vec::new();
    for _ in 0..1000 {
        let mut told =
            |it: Option<ProcessRead>| looked.extend(it.filter(|it| it.in_full).map(|it| it.pid));
        if !survey.step(SECOND * seconds, &[], &mut told).unwrap() {
            return looked;
        }
    }
    panic!("a survey without an end");
}

fn shown(survey: &Survey) -> Vec<(u32, String, u64, Option<u64>)> {
    let of_one = |it: &ProcessEntry| {
        let huge = it.memory().and_then(|(_, memory)| memory.anon_huge);
        let huge = huge.map(|huge| huge.0 / MIB);
        (it.id.pid, it.name.to_string(), it.resident.0 / MIB, huge)
    };
    survey.processes().map(of_one).collect()
}

#[test]
fn the_largest_are_looked_at_first_and_all_in_the_end() {
    let machine = Machine::new();
    for pid in 1..=9 {
        machine.process(pid, 5, "small", u64::from(pid), 0);
    }
    machine.process(4, 5, "large", 1000, 500);
    let mut survey = survey(&machine);
    let looked = step(&mut survey, 0);
    assert_eq!(looked, [4, 9, 8, 7, 6, 5, 3, 2, 1]);
    let large = shown(&survey).remove(3);
    assert_eq!(large, (4, "large".to_owned(), 1000, Some(500)));
    let cgroup = &survey.processes().next().unwrap().cgroup;
    assert_eq!(&**cgroup, "/system.slice/small.service");
}

#[test]
fn a_process_of_unknown_size_is_not_one_of_0_bytes() {
    let machine = Machine::new();
    machine.process(1, 1, "init", 1, 0);
    machine.process(2, 1, "hidden", 10, 0);
    let statm = machine.of(2).join("statm");
    let text = fs::read(&statm).unwrap();
    fs::remove_file(&statm).unwrap();
    let mut survey = survey(&machine);
    step(&mut survey, 0);
    let numbers = |survey: &Survey| survey.processes().map(|it| it.id.pid).collect::<Vec<_>>();
    assert_eq!(numbers(&survey), [1]);
    fs::write(&statm, text).unwrap();
    step(&mut survey, 10);
    assert_eq!(numbers(&survey), [1, 2]);
    assert_eq!(shown(&survey)[1].2, 10);
}

#[test]
fn who_has_changed_is_looked_at_again_and_what_was_gained_is_known() {
    undisturbed(MAX_STEP_TIME, SECOND.mul_f64(OF_ONE), || {
        let machine = Machine::new();
        machine.process(1, 5, "same", 50, 0);
        machine.process(2, 5, "grows", 50, 0);
        let mut survey = survey(&machine);
        let begun = Instant::now();
        step(&mut survey, 0);
        machine.process(2, 5, "renamed", 100, 20);
        assert_eq!(step(&mut survey, 2), [2]);
        let late = begun.elapsed().as_secs_f64();
        let grown: Vec<_> = survey.processes().filter(|it| it.id.pid == 2).collect();
        assert_eq!(&*grown[0].name, "renamed");
        let gain = grown[0].gain.unwrap();
        // The time that passes during a step counts: a busy machine may delay either look.
        let seconds = 10.0 / gain;
        assert!(
            (seconds - 2.0).abs() < 0.04 + late,
            "10 huge pages in 2 s: {gain}"
        );
        // After long enough, all processes are due.
        assert_eq!(step(&mut survey, 60), [1, 2]);
    });
}

#[test]
fn a_number_that_is_given_anew_is_another_process() {
    undisturbed(MAX_STEP_TIME, SECOND.mul_f64(OF_ONE), || {
        let machine = Machine::new();
        machine.process(1, 5, "old", 50, 40);
        machine.process(2, 5, "gone", 50, 40);
        let mut survey = survey(&machine);
        step(&mut survey, 0);
        machine.end(2);
        machine.process(1, 9, "new", 60, 0);
        step(&mut survey, 2);
        // The identity is known at once, the memory at the next step.
        assert_eq!(shown(&survey), [(1, "new".to_owned(), 60, None)]);
        step(&mut survey, 3);
        assert_eq!(shown(&survey), [(1, "new".to_owned(), 60, Some(0))]);
        let new = survey.processes().next().unwrap();
        assert_eq!((new.id.start_ticks, new.gain), (9, None));
    });
}

#[test]
fn those_who_are_wanted_go_first_and_the_avoided_are_not_looked_at() {
    undisturbed(MAX_STEP_TIME, SECOND.mul_f64(OF_ONE), || {
        let machine = Machine::new();
        for pid in 1..=5 {
            machine.process(pid, 5, "it", 10 * u64::from(pid), 0);
        }
        let mut survey = survey(&machine).avoiding(BTreeSet::from([5]));
        step(&mut survey, 0);
        let avoided = survey.processes().last().unwrap();
        assert_eq!(avoided.look, Look::Failed);
        let mut looked = Vec::new();
        let mut told =
            |it: Option<ProcessRead>| looked.extend(it.filter(|it| it.in_full).map(|it| it.pid));
        survey.step(SECOND * 2, &[2, 1, 7], &mut told).unwrap();
        assert_eq!(looked, [2, 1], "7 is nobody, and no other has changed");
    });
}

/// The bound is on new work: without allowance, no work begins.
#[test]
fn what_is_not_paid_for_waits() {
    undisturbed(MAX_STEP_TIME, SECOND.mul_f64(OF_ONE), || {
        let machine = Machine::new();
        for pid in 1..=50 {
            machine.process(pid, 5, "it", 10, 0);
        }
        let mut survey = Survey::new(machine.roots(), SECOND, 0.0);
        survey.for_new.spend(Duration::ZERO, SECOND);
        assert_eq!(step(&mut survey, 0), Vec::<u32>::new());
        assert!(shown(&survey).is_empty());
        // Wanted processes have a part of their own, but only known processes are looked at.
        survey.enter(7, Duration::ZERO);
        let mut looked = Vec::new();
        let mut told =
            |it: Option<ProcessRead>| looked.extend(it.filter(|it| it.in_full).map(|it| it.pid));
        survey.step(Duration::ZERO, &[7], &mut told).unwrap();
        assert_eq!(looked, [7]);
    });
}

#[test]
fn real_processes_are_surveyed() {
    let mut survey = Survey::new(Roots::default(), SECOND, 1.0);
    survey.look_at_all(Duration::ZERO, &mut |_| {}).unwrap();
    let own = std::process::id();
    let own = survey.processes().find(|it| it.id.pid == own).unwrap();
    let (_, memory) = own.memory().unwrap();
    assert!(memory.pss.unwrap().0 > 0 && own.resident.0 > 0);
}

#[test]
fn a_survey_of_some_processes_reads_no_others() {
    let machine = Machine::new();
    for pid in [10, 11, 12] {
        machine.process(pid, 1, "it", 1, 0);
    }
    let mut survey = survey(&machine).about(Targets::Processes(vec![11, 99]));
    let mut read = BTreeSet::new();
    let mut told = |it: Option<ProcessRead>| read.extend(it.map(|it| it.pid));
    survey.look_at_all(Duration::ZERO, &mut told).unwrap();
    let found: Vec<u32> = survey.processes().map(|it| it.id.pid).collect();
    assert_eq!(found, [11]);
    assert_eq!(read, BTreeSet::from([11]));
    // The files of the machine belong to the user of this test.
    let own = rustix::process::geteuid().as_raw();
    for (user, count) in [(own, 3), (own.wrapping_add(1), 0)] {
        let mut survey =
            super::Survey::new(machine.roots(), SECOND, 1e6).about(Targets::User(user));
        survey.look_at_all(Duration::ZERO, &mut |_| {}).unwrap();
        assert_eq!(survey.processes().count(), count, "{user}");
    }
}

#[test]
fn a_number_means_one_process() {
    let machine = Machine::new();
    machine.process(11, 1, "it", 1, 0);
    let mut survey = survey(&machine).about(Targets::Processes(vec![11]));
    survey.look_at_all(Duration::ZERO, &mut |_| {}).unwrap();
    assert_eq!(survey.processes().count(), 1);
    machine.process(11, 2, "another", 2, 0);
    for seconds in 1..4 {
        step(&mut survey, seconds * 60);
    }
    assert_eq!(survey.processes().count(), 0);
}

#[test]
fn two_reads_make_a_share_of_one_cpu() {
    let mut meter = CpuMeter::default();
    let mut share = |at: f64, total: u64| {
        meter.read(Duration::from_secs_f64(at), Duration::from_secs(total));
        meter.share
    };
    assert_eq!(share(1.0, 2), None, "one read is no share");
    // Two threads used two CPUs for 2 s.
    assert_eq!(share(3.0, 6), Some(2.0));
    // Too soon to be compared: the share stays, and the next read counts from the earlier one.
    assert_eq!(share(3.25, 7), Some(2.0));
    assert_eq!(share(4.0, 7), Some(1.0));
    // An idle process has used 0, which is known.
    assert_eq!(share(6.0, 7), Some(0.0));
}

#[test]
fn looks_and_no_glances_measure_cpu_time() {
    let machine = Machine::new();
    let ticks = rustix::param::clock_ticks_per_second();
    machine.process(7, 70, "it", 10, 0);
    let mut survey = survey(&machine);
    let begun = Instant::now();
    let shares = |survey: &Survey| -> Vec<Option<f64>> {
        survey.processes().map(|it| it.cpu_share).collect()
    };
    assert_eq!(step(&mut survey, 1), [7]);
    assert_eq!(shares(&survey), [None]);
    machine.use_cpu(7, 70, "it", [9 * ticks, 7 * ticks]);
    // Its size is the same, so it is only glanced at.
    assert!(step(&mut survey, 3).is_empty());
    assert_eq!(shares(&survey), [None]);
    assert_eq!(step(&mut survey, 2 + STEADY_INTERVALS), [7]);
    // User and kernel time count. A busy machine may delay either look.
    let late = begun.elapsed().as_secs_f64() / f64::from(STEADY_INTERVALS);
    let share = shares(&survey)[0].unwrap();
    assert!((share - 1.0).abs() < 0.01 + late, "{share}");
}

#[test]
fn cpu_time_of_a_process_that_has_ended_is_nobody_s() {
    let machine = Machine::new();
    machine.process(7, 70, "it", 10, 0);
    let mut survey = survey(&machine);
    let mut look = |seconds: u32| {
        let looked = survey.look_at_all(SECOND * seconds, &mut |_| {});
        looked.unwrap();
        let of_one = |it: &ProcessEntry| (it.id.start_ticks, it.cpu_share.is_some());
        let others = survey.processes().filter(|it| it.id.pid != 8);
        others.map(of_one).collect::<Vec<_>>()
    };
    // One is always there: an empty /proc is not mounted.
    machine.process(8, 80, "other", 10, 0);
    look(1);
    machine.use_cpu(7, 70, "it", [50, 0]);
    assert_eq!(look(2), [(70, true)]);
    // The new process has used more than the old one: the difference would look like a share.
    machine.use_cpu(7, 99, "it", [80, 0]);
    assert_eq!(look(3), [(99, false)]);
    machine.end(7);
    assert!(look(4).is_empty());
}
