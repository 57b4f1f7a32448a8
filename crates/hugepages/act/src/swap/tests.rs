//! Making and undoing on a modelled machine, on which superhue can be killed before and after each step.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use superhue_procfs::system::{SwapKind, Zram, ZramUse};

use super::*;
use crate::journal::Journal;
use crate::zram::{PAGE, SwapUuid, first_page};

const OURS: u64 = SIZE.0;

/// A zram device.
#[derive(Debug, Clone, PartialEq)]
struct Device {
    sequence: Option<u64>,
    size: u64,
    limit: u64,
    page: Vec<u8>,
    stored: u64,
    born: SystemTime,
    /// Priority and bytes swapped to it, while it is on.
    on: Option<(i32, u64)>,
    /// True while another program has it open.
    is_open: bool,
}

impl Device {
    fn new(sequence: Option<u64>) -> Self {
        Self {
            sequence,
            size: 0,
            limit: 0,
            page: vec![0; PAGE],
            stored: 0,
            born: SystemTime::now(),
            on: None,
            is_open: false,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    devices: BTreeMap<u32, Device>,
    /// Areas that are not in memory.
    disks: Vec<SwapArea>,
    newest: u64,
    /// Steps until the death of superhue: before the step if even, after it if odd.
    life: Option<usize>,
    is_dead: bool,
    /// Step that fails, and its error.
    refusal: Option<(&'static str, Errno)>,
    short: Option<String>,
    is_denied: bool,
    knows_no_sequence: bool,
}

impl State {
    fn add_device(&mut self) -> u32 {
        self.newest += 1;
        let sequence = (!self.knows_no_sequence).then_some(self.newest);
        let number = (0..).find(|number| !self.devices.contains_key(number));
        let number = number.unwrap();
        self.devices.insert(number, Device::new(sequence));
        number
    }
}

#[derive(Debug, Default)]
struct FakeMachine(Mutex<State>);

impl FakeMachine {
    /// Does one step, unless superhue dies.
    fn step<T>(
        &self,
        name: &'static str,
        step: impl FnOnce(&mut State) -> Result<T, Errno>,
    ) -> io::Result<T> {
        let mut state = self.0.lock().unwrap();
        self.alive(&state)?;
        if let Some((_, errno)) = state.refusal.filter(|(step, _)| *step == name) {
            return Err(errno.into());
        }
        match state.life {
            Some(0) => {
                state.is_dead = true;
                Err(Errno::CANCELED.into())
            }
            Some(1) => {
                step(&mut state)?;
                state.is_dead = true;
                Err(Errno::CANCELED.into())
            }
            life => {
                state.life = life.map(|life| life - 2);
                Ok(step(&mut state)?)
            }
        }
    }

    /// Fails if superhue is dead: a dead process reads nothing.
    fn alive(&self, state: &State) -> io::Result<()> {
        if state.is_dead {
            Err(Errno::CANCELED.into())
        } else {
            Ok(())
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    fn add_device(&self) -> u32 {
        self.change(State::add_device)
    }

    fn device(&self, number: u32, change: impl FnOnce(&mut Device)) {
        self.change(|state| change(state.devices.get_mut(&number).unwrap()));
    }

    fn has(&self, number: u32) -> bool {
        self.change(|state| state.devices.contains_key(&number))
    }

    fn is_on(&self, number: u32) -> bool {
        self.change(|state| state.devices[&number].on.is_some())
    }
}

fn area(path: PathBuf, size: u64, used: u64, priority: i32, zram: Option<u32>) -> SwapArea {
    SwapArea {
        path,
        kind: SwapKind::Device,
        size: ByteCount(size),
        used: ByteCount(used),
        priority,
        zram,
    }
}

fn of(number: u32, device: &Device) -> Zram {
    let is_set_up = device.size > 0;
    Zram {
        number,
        device: Some((253, number)),
        disk_sequence: device.sequence,
        size: Some(ByteCount(device.size)),
        initialised: Some(is_set_up),
        used: Some(ZramUse {
            stored: ByteCount(device.stored),
            memory: ByteCount(device.stored / 2),
            limit: ByteCount(device.limit),
        }),
        gaps: Default::default(),
    }
}

impl SwapMachine for FakeMachine {
    fn may_make(&self) -> Result<(), SwapError> {
        let is_denied = self.change(|state| state.is_denied);
        if is_denied {
            Err(SwapError::Denied)
        } else {
            Ok(())
        }
    }

    fn swaps(&self) -> Result<Vec<SwapArea>, ReadError> {
        self.change(|state| {
            self.alive(state).map_err(|source| ReadError::Io {
                path: "/proc/swaps".into(),
                source,
            })?;
            let on = state.devices.iter().filter_map(|(&number, device)| {
                let (priority, used) = device.on?;
                Some(area(
                    node(number),
                    device.size,
                    used,
                    priority,
                    Some(number),
                ))
            });
            Ok(on.chain(state.disks.clone()).collect())
        })
    }

    fn zrams(&self) -> Result<Vec<Zram>, ReadError> {
        self.change(|state| {
            self.alive(state).map_err(|source| ReadError::Io {
                path: "/sys/block".into(),
                source,
            })?;
            let devices = state.devices.iter();
            Ok(devices
                .map(|(&number, device)| of(number, device))
                .collect())
        })
    }

    fn newest_disk(&self) -> Result<Option<u64>, ReadError> {
        let zrams = self.zrams()?;
        let known: Option<Vec<u64>> = zrams.iter().map(|zram| zram.disk_sequence).collect();
        Ok(known.map(|known| known.into_iter().max().unwrap_or(0)))
    }

    fn zram(&self, number: u32) -> io::Result<Option<Zram>> {
        self.change(|state| {
            self.alive(state)?;
            Ok(state.devices.get(&number).map(|device| of(number, device)))
        })
    }

    fn born(&self, number: u32) -> Option<SystemTime> {
        self.change(|state| Some(state.devices.get(&number)?.born))
    }

    fn short_of_room(&self, back: ByteCount) -> Option<String> {
        self.change(|state| state.short.clone().filter(|_| back.0 > 0))
    }

    fn first_page(&self, number: u32) -> io::Result<Vec<u8>> {
        self.change(|state| {
            self.alive(state)?;
            Ok(state.devices.get(&number).ok_or(Errno::NOENT)?.page.clone())
        })
    }

    fn add(&self) -> io::Result<u32> {
        self.step("add", |state| Ok(state.add_device()))
    }

    fn set(&self, number: u32, attribute: &str, value: ByteCount) -> io::Result<()> {
        let name = ["disksize", "mem_limit"]
            .into_iter()
            .find(|name| *name == attribute);
        self.step(name.unwrap(), |state| {
            let device = state.devices.get_mut(&number).ok_or(Errno::NOENT)?;
            if attribute == "disksize" {
                device.size = value.0;
            } else {
                device.limit = value.0;
            }
            Ok(())
        })
    }

    fn write_first_page(&self, number: u32, page: &[u8]) -> io::Result<()> {
        self.step("header", |state| {
            let device = state.devices.get_mut(&number).ok_or(Errno::NOENT)?;
            if device.size == 0 {
                return Err(Errno::NOSPC);
            }
            device.page = page.to_vec();
            device.stored = PAGE as u64;
            Ok(())
        })
    }

    fn swap_on(&self, number: u32, priority: Option<u16>) -> io::Result<()> {
        self.step("swapon", |state| {
            let device = state.devices.get_mut(&number).ok_or(Errno::NOENT)?;
            if device.page[PAGE - 10..] != *b"SWAPSPACE2" {
                return Err(Errno::INVAL);
            }
            device.on = Some((priority.map_or(-2, i32::from), 0));
            Ok(())
        })
    }

    fn swap_off(&self, number: u32) -> io::Result<()> {
        self.step("swapoff", |state| {
            let device = state.devices.get_mut(&number).ok_or(Errno::NOENT)?;
            device.on.take().map(|_| ()).ok_or(Errno::INVAL)
        })
    }

    fn remove(&self, number: u32) -> io::Result<()> {
        self.step("remove", |state| {
            let device = state.devices.get(&number).ok_or(Errno::NODEV)?;
            if device.on.is_some() || device.is_open {
                return Err(Errno::BUSY);
            }
            state.devices.remove(&number);
            Ok(())
        })
    }
}

/// A machine with a zram of another program that is not set up, and a journal.
struct Bench {
    folder: tempfile::TempDir,
    machine: Arc<FakeMachine>,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("run")).unwrap();
        let machine = Arc::new(FakeMachine::default());
        machine.add_device();
        machine.device(0, |device| device.born -= Duration::from_secs(3600));
        Self { folder, machine }
    }

    fn journal(&self) -> Journal {
        let roots = Roots::under(self.folder.path());
        let mut journal = Journal::at(self.folder.path().join("run/journal"), &roots);
        journal.machine = Arc::clone(&self.machine) as Arc<dyn SwapMachine>;
        journal
    }

    fn make(&self) -> Result<SwapInUse, SwapError> {
        SwapInUse::find_or_make(&self.journal(), true)
    }

    fn find(&self) -> Result<SwapInUse, SwapError> {
        SwapInUse::find_or_make(&self.journal(), false)
    }

    fn devices(&self) -> BTreeMap<u32, Device> {
        self.machine.change(|state| state.devices.clone())
    }

    fn journals(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("run/journal"));
        let paths = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path());
        paths.filter(|path| !path.ends_with("lock")).collect()
    }

    /// Kills superhue after `life` half steps of `superhue`. Returns the report of the next superhue; `None` if it did not die.
    fn killed(&self, life: usize, superhue: impl FnOnce()) -> Option<RestoreReport> {
        self.machine.change(|state| state.life = Some(life));
        superhue();
        let died = self.machine.change(|state| {
            state.life = None;
            std::mem::take(&mut state.is_dead)
        });
        died.then(|| self.journal().recover().unwrap())
    }

    /// Leaves swap on, as if superhue had been killed, and returns the number of the device.
    fn left_on(&self) -> u32 {
        let swap = self.make().unwrap();
        let number = swap.own.as_ref().unwrap().number;
        self.machine.change(|state| state.is_dead = true);
        drop(swap);
        self.machine.change(|state| state.is_dead = false);
        assert!(self.machine.is_on(number) && self.journals().len() == 1);
        number
    }
}

#[test]
fn one_of_our_own_is_there_until_the_end() {
    let bench = Bench::new();
    let before = bench.devices();
    let swap = bench.make().unwrap();
    assert_eq!(swap.own(), Some("/dev/zram1".into()));
    assert_eq!(
        swap.describe(),
        "/dev/zram1, made for this run, of 64.0 MiB"
    );
    assert_eq!(swap.room().unwrap(), SIZE);
    let device = bench.devices()[&1].clone();
    assert_eq!((device.size, device.limit), (OURS, MOST_MEMORY.0));
    assert_eq!(device.on, Some((-2, 0)), "the lowest priority");
    assert_eq!(bench.journals().len(), 1);
    // Another superhue leaves it alone.
    let alive = bench.journal().recover().unwrap();
    assert_eq!((alive.in_use, alive.swap_removed.len()), (1, 0));
    assert!(bench.machine.is_on(1));
    let report = swap.finish();
    assert_eq!(report.swap_removed, [PathBuf::from("/dev/zram1")]);
    assert_eq!((report.left.len(), bench.journals().len()), (0, 0));
    assert_eq!(bench.devices(), before);
    drop(bench.make().unwrap());
    assert_eq!(bench.devices(), before);
}

#[test]
fn killed_before_and_after_each_step_of_making() {
    let mut removed = 0;
    for life in 0.. {
        let bench = Bench::new();
        let before = bench.devices();
        let Some(report) = bench.killed(life, || drop(bench.make().unwrap_err())) else {
            break;
        };
        assert_eq!(bench.devices(), before, "killed after {life} half steps");
        assert_eq!(bench.journals(), Vec::<PathBuf>::new());
        assert_eq!((report.left.len(), report.in_use), (0, 0), "{report:?}");
        removed += report.swap_removed.len();
        if life == 20 {
            panic!("there are not so many steps");
        }
        // The last step that can be reached this way is the one before swap is on.
        if life == 9 {
            break;
        }
    }
    assert_eq!(removed, 9, "but before the first step there was nothing");
}

#[test]
fn killed_before_and_after_each_step_of_undoing() {
    for life in 0.. {
        let bench = Bench::new();
        let before = bench.devices();
        let swap = bench.make().unwrap();
        let died = bench.killed(life, || drop(swap));
        let Some(report) = died else {
            assert_eq!(life, 4, "swapoff and removal");
            break;
        };
        assert_eq!(bench.devices(), before, "killed after {life} half steps");
        assert_eq!((report.left.len(), bench.journals().len()), (0, 0));
        let again = bench.journal().recover().unwrap();
        assert_eq!(again, RestoreReport::default());
    }
}

#[test]
fn a_step_that_fails_leaves_nothing_behind() {
    for step in ["add", "disksize", "mem_limit", "header", "swapon"] {
        let bench = Bench::new();
        let before = bench.devices();
        bench
            .machine
            .change(|state| state.refusal = Some((step, Errno::NOMEM)));
        let error = bench.make().unwrap_err().to_string();
        assert!(
            error.starts_with("cannot ") && error.contains("memory"),
            "{error}"
        );
        assert!(error.ends_with("; nothing of it is left"), "{error}");
        assert_eq!(bench.devices(), before, "{step}");
        assert_eq!(bench.journals(), Vec::<PathBuf>::new());
    }
}

#[test]
fn what_cannot_be_undone_at_once_is_said_and_stays_journalled() {
    let bench = Bench::new();
    let before = bench.devices();
    let refuse = |refusal| bench.machine.change(|state| state.refusal = refusal);
    let swap = bench.make().unwrap();
    refuse(Some(("swapoff", Errno::NOMEM)));
    let report = swap.finish();
    assert!(
        report.left[0].reason.starts_with("cannot take back"),
        "{report:?}"
    );
    assert_eq!(report.left[0].path, PathBuf::from("/dev/zram1"));
    assert!(bench.machine.is_on(1) && bench.journals().len() == 1);
    let again = bench.journal().recover().unwrap();
    assert_eq!((again.left.len(), bench.journals().len()), (1, 1));
    refuse(Some(("remove", Errno::BUSY)));
    let open = bench.journal().recover().unwrap();
    assert!(open.left[0].reason.contains("fuser"), "{open:?}");
    assert!(!bench.machine.is_on(1) && bench.has_journal());
    refuse(None);
    assert_eq!(bench.journal().recover().unwrap().swap_removed.len(), 1);
    assert_eq!(bench.devices(), before);
}

impl Bench {
    fn has_journal(&self) -> bool {
        !self.journals().is_empty()
    }
}

#[test]
fn where_there_is_no_room_to_take_it_back_it_stays_on() {
    let bench = Bench::new();
    let swap = bench.make().unwrap();
    bench
        .machine
        .change(|state| state.short = Some("the group /a has no room".to_owned()));
    let used = |used| {
        bench
            .machine
            .device(1, |device| device.on = Some((-2, used)))
    };
    used(12 << 20);
    let report = swap.finish();
    let reason = &report.left[0].reason;
    assert!(
        reason.starts_with("cannot take back 12.0 MiB") && reason.contains("the group /a"),
        "{reason}"
    );
    assert!(bench.machine.is_on(1) && bench.has_journal());
    // No page is swapped to it any more.
    used(0);
    assert_eq!(bench.journal().recover().unwrap().swap_removed.len(), 1);
}

#[test]
fn what_others_did_meanwhile_is_no_error() {
    // Swapped off; swapped off and reset; removed; removed, and another device has its name.
    for what in 0..4 {
        let bench = Bench::new();
        let swap = bench.make().unwrap();
        bench.machine.device(1, |device| device.on = None);
        if what == 1 {
            bench.machine.device(1, |device| {
                *device = Device::new(device.sequence);
            });
        }
        if what > 1 {
            bench.machine.change(|state| state.devices.remove(&1));
        }
        if what == 3 {
            assert_eq!(bench.machine.add_device(), 1);
        }
        assert_eq!(swap.room().unwrap(), ByteCount(0));
        let report = swap.finish();
        assert_eq!(
            (report.left.len(), bench.journals().len()),
            (0, 0),
            "{report:?}"
        );
        assert_eq!(report.swap_removed.len(), usize::from(what < 2));
        assert_eq!(bench.machine.has(1), what == 3);
    }
}

#[test]
fn a_device_that_is_somebody_elses_by_now_is_left_alone() {
    let other = first_page_of_another();
    // Swap of another program; the same, on; a file system; blank, of another size; blank, and on.
    for what in 0..5 {
        let bench = Bench::new();
        let number = bench.left_on();
        bench.machine.device(number, |device| {
            device.on = None;
            device.stored = 1 << 20;
            device.page = if what < 2 {
                other.clone()
            } else {
                vec![7; PAGE]
            };
            match what {
                1 => device.on = Some((5, 4096)),
                3 => (device.page, device.stored, device.size) = (vec![0; PAGE], 0, OURS * 2),
                4 => (device.page, device.stored, device.on) = (vec![0; PAGE], 0, Some((5, 0))),
                _ => {}
            }
        });
        let theirs = bench.devices();
        let report = bench.journal().recover().unwrap();
        assert!(
            report.left[0].reason.contains("somebody else uses it"),
            "{report:?}"
        );
        assert_eq!(bench.devices(), theirs, "{what}");
        assert_eq!(bench.journals(), Vec::<PathBuf>::new(), "not ours any more");
    }
}

fn first_page_of_another() -> Vec<u8> {
    first_page(SIZE, SwapUuid::random().unwrap()).unwrap()
}

#[test]
fn of_devices_made_at_the_time_only_one_that_nobody_needs_is_taken() {
    /// A superhue that was killed right before the device was made.
    fn killed() -> Bench {
        let bench = Bench::new();
        bench.machine.change(|state| state.life = Some(0));
        drop(bench.make());
        bench
            .machine
            .change(|state| (state.life, state.is_dead) = (None, false));
        assert_eq!(bench.journals().len(), 1);
        bench
    }
    let undone = |bench: &Bench| {
        let devices = bench.devices().len();
        let report = bench.journal().recover().unwrap();
        assert_eq!(bench.journals(), Vec::<PathBuf>::new());
        assert_eq!(bench.devices().len(), devices - report.swap_removed.len());
        report
    };
    let bench = killed();
    assert_eq!(undone(&bench), RestoreReport::default(), "there is none");

    // A device that appears later belongs to another program.
    let bench = killed();
    let number = bench.machine.add_device();
    bench
        .machine
        .device(number, |device| device.born += Duration::from_secs(60));
    assert_eq!(undone(&bench), RestoreReport::default());

    // A device that is set up does, too: superhue would have journalled it first.
    let bench = killed();
    let number = bench.machine.add_device();
    bench.machine.device(number, |device| device.size = OURS);
    assert_eq!(undone(&bench), RestoreReport::default());

    // With two devices, ours cannot be known.
    let bench = killed();
    bench.machine.add_device();
    bench.machine.add_device();
    let report = undone(&bench);
    let reason = &report.left[0].reason;
    assert!(
        reason.contains("/dev/zram2") && reason.contains("echo 1 >"),
        "{reason}"
    );
}

#[test]
fn swap_that_is_on_is_used_and_left_on() {
    let bench = Bench::new();
    bench.machine.device(0, |device| {
        (device.size, device.on) = (1 << 30, Some((100, 1 << 20)));
    });
    let before = bench.devices();
    for swap in [bench.make().unwrap(), bench.find().unwrap()] {
        assert_eq!(swap.own(), None);
        assert_eq!(
            swap.describe(),
            "/dev/zram0, which was on, with 1023.0 MiB of room"
        );
        assert_eq!(swap.room().unwrap(), ByteCount(1023 << 20));
        assert_eq!(swap.finish(), RestoreReport::default());
    }
    let swap = bench.find().unwrap();
    bench.machine.device(0, |device| device.on = None);
    assert_eq!(swap.room().unwrap(), ByteCount(0));
    assert!(swap.describe().contains("switched off"));
    bench
        .machine
        .device(0, |device| device.on = Some((100, 1 << 20)));
    assert_eq!(bench.devices(), before);
}

#[test]
fn each_superhue_that_is_asked_makes_its_own() {
    let bench = Bench::new();
    let first = bench.make().unwrap();
    let second = bench.make().unwrap();
    assert_eq!(second.own(), Some("/dev/zram2".into()));
    // A superhue that may not make one uses the one that is on, as long as that lasts.
    let third = bench.find().unwrap();
    assert_eq!(third.own(), None);
    drop(first);
    assert!(!bench.machine.has(1) && bench.machine.is_on(2));
    assert_eq!(second.room().unwrap(), SIZE);
    drop(second);
    assert_eq!(third.room().unwrap(), ByteCount(0));
    assert!(matches!(bench.find(), Err(SwapError::None)));
}

#[test]
fn without_swap_in_memory_it_is_said_why_and_what_to_do() {
    let bench = Bench::new();
    let disk = |priority| area("/dev/vda2".into(), 1 << 30, 0, priority, None);
    let told = || bench.find().unwrap_err().to_string();
    assert!(
        told().starts_with("no swap is on") && told().contains("--swap"),
        "{}",
        told()
    );
    bench.machine.change(|state| state.disks.push(disk(-2)));
    assert!(
        told().contains("go to /dev/vda2 first") && told().contains("--swap"),
        "{}",
        told()
    );
    bench.machine.device(0, |device| {
        (device.size, device.on) = (8 << 20, Some((-3, 0)))
    });
    assert!(
        told().contains("go to /dev/vda2 first"),
        "it is never used: {}",
        told()
    );
    bench
        .machine
        .device(0, |device| device.on = Some((100, 6 << 20)));
    assert!(told().contains("almost full (2.0 MiB"), "{}", told());
    // In all these cases superhue can make one, which comes before the disk.
    assert_eq!(
        bench.make().unwrap().room().unwrap(),
        ByteCount(SIZE.0 + (2 << 20))
    );

    bench.machine.change(|state| state.is_denied = true);
    let denied = bench.make().unwrap_err().to_string();
    assert!(denied.contains("CAP_SYS_ADMIN"), "{denied}");
    // A caller that may not make one can still use one that is on.
    bench.machine.device(0, |device| device.on = Some((100, 0)));
    assert_eq!(bench.make().unwrap().own(), None);
}

#[test]
fn a_kernel_that_does_not_number_disks_is_not_trusted() {
    let bench = Bench::new();
    bench.machine.change(|state| state.knows_no_sequence = true);
    bench.machine.device(0, |device| device.sequence = None);
    let before = bench.devices();
    assert!(matches!(bench.make(), Err(SwapError::NoDiskSequence)));
    // The same holds if it would be the first device.
    bench.machine.change(|state| state.devices.clear());
    assert!(matches!(bench.make(), Err(SwapError::NoDiskSequence)));
    assert!(bench.devices().is_empty() && before.len() == 1);
    assert_eq!(bench.journals(), Vec::<PathBuf>::new());
}

#[test]
fn an_area_of_ours_comes_before_disks_and_after_all_else() {
    let disk = |priority| area("/dev/vda2".into(), 4096, 0, priority, None);
    let zram = |priority| area("/dev/zram7".into(), 4096, 0, priority, Some(7));
    for (areas, priority) in [
        (vec![], None),
        (vec![zram(100)], None),
        (vec![disk(-2)], Some(0)),
        (vec![disk(0), disk(-2), zram(100)], Some(1)),
        (vec![disk(32766)], Some(32767)),
    ] {
        assert_eq!(priority_above(&areas).unwrap(), priority, "{areas:?}");
    }
    let error = priority_above(&[disk(32767)]).unwrap_err();
    assert!(error.to_string().contains("/dev/vda2"), "{error}");
}

/// The format that superhues of other versions read and write.
#[test]
fn the_journal_of_a_device_reads_as_written() {
    let bench = Bench::new();
    let swap = bench.make().unwrap();
    let text = fs::read_to_string(&bench.journals()[0]).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["schema"], "superhue-journal/2");
    let made = &json["entries"][0]["zram"];
    assert_eq!(
        made["device"],
        serde_json::json!({"number": 1, "disk_sequence": 2})
    );
    assert_eq!(
        (&made["newest_before"], &made["size"]),
        (&1.into(), &OURS.into())
    );
    assert_eq!(made["uuid"].as_str().unwrap().len(), 36);
    drop(swap);
}

/// On a recorded tree, where a journal asks to remove devices that are not ours.
#[test]
fn a_planted_journal_removes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let roots = Roots::under(folder.path());
    let write = |path: PathBuf, text: &str| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let remove = roots.sys.join("class/zram-control/hot_remove");
    write(remove.clone(), "untouched");
    write(
        roots.proc.join("swaps"),
        "title\n/dev/zram3 partition 65532 0 -2\n",
    );
    for (name, text) in [
        ("diskseq", "17\n"),
        ("initstate", "1\n"),
        ("disksize", "67108864\n"),
    ] {
        write(roots.sys.join("block/zram3").join(name), text);
    }
    fs::create_dir(folder.path().join("run")).unwrap();
    let journal = Journal::at(folder.path().join("run/journal"), &roots);
    drop(journal.turn().unwrap());
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for (sequence, left) in [(16, 0), (17, 1)] {
        let text = serde_json::json!({
            "schema": "superhue-journal/2", "boot_id": boot.trim(), "pid": 1,
            "entries": [{"zram": {
                "device": {"number": 3, "disk_sequence": sequence},
                "newest_before": 0, "begun_ms": 0, "size": OURS,
                "uuid": "4336b786-8047-48a9-8ab3-7caaaf9dd0e4",
            }}],
        });
        let path = journal.folder().join("9.0.json");
        fs::write(&path, text.to_string()).unwrap();
        let ours = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&path, ours).unwrap();
        let report = journal.recover().unwrap();
        // Its header cannot be read: there is no such device.
        assert_eq!(
            (report.left.len(), report.swap_removed.len()),
            (left, 0),
            "{report:?}"
        );
        assert_eq!(fs::read(&remove).unwrap(), b"untouched");
    }
}
