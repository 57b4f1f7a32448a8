use std::sync::Arc;
use std::time::Duration;

use superhue::live::{LiveMemory, ProcessAccount, ServiceAccount, WatchAccount};
use superhue::model::{ObjectId, VirtAddr, VirtRange};
use superhue::survey::{Look, Memory, ProcessEntry};
use superhue::{ProcessStatus, SharedObject};
use superhue_daemon::account::{DaemonAccount, RuleAccount};

use crate::terminal::Key;

use super::super::gathered::{Heat, OwnCpu};
use super::super::machine::Machine;
use super::super::state::{KeyOutcome, TimeStep};
use super::*;
use crate::utc::RecordTime;

const MIB: u64 = 1 << 20;

fn process(pid: u32, name: &str, cgroup: &str, mebibytes: u64, huge: Option<u64>) -> ProcessEntry {
    let of = |n: u64| Some(ByteCount(n * MIB));
    let memory = huge.map(|huge| Memory {
        rss: of(mebibytes),
        pss: of(mebibytes - mebibytes / 10),
        anonymous: of(mebibytes),
        anon_huge: of(huge),
    });
    ProcessEntry {
        id: ProcessId {
            pid,
            start_ticks: u64::from(pid) * 10,
        },
        name: name.into(),
        cgroup: cgroup.into(),
        glanced: Duration::from_secs(100),
        resident: ByteCount(mebibytes * MIB),
        anonymous: ByteCount(mebibytes * MIB),
        look: memory.map_or(Look::Denied, |it| Look::Done(Duration::from_secs(97), it)),
        gain: huge.map(|huge| if huge > 500 { 12.5 } else { 0.0 }),
        cpu_share: None,
    }
}

fn gathered() -> TopSnapshot {
    let mut processes = vec![
        process(
            4711,
            "redis-server",
            "/system.slice/redis.service",
            1100,
            Some(1080),
        ),
        process(
            815,
            "postgres",
            "/system.slice/postgresql@15-main.service",
            300,
            Some(0),
        ),
        process(
            816,
            "postgres",
            "/system.slice/postgresql@15-main.service",
            40,
            Some(2),
        ),
        process(1, "init", "/init.scope", 12, None),
        // A program's name must not control the terminal.
        process(
            666,
            "a\u{1b}[2J\u{202e}b\n",
            "/evil\u{9b}1m.slice/x",
            5,
            Some(0),
        ),
    ];
    for n in 0..30 {
        processes.push(process(
            1000 + n,
            "worker",
            "/work.slice/w.service",
            2,
            Some(0),
        ));
    }
    for (pid, share) in [(4711, 1.342), (815, 0.0), (816, 0.0321)] {
        let process = processes.iter_mut().find(|it| it.id.pid == pid);
        process.unwrap().cpu_share = Some(share);
    }
    TopSnapshot {
        at: Duration::from_secs(100),
        processes,
        machine: Machine {
            memory_bytes: Some(ByteCount(24 << 30)),
            available_bytes: Some(ByteCount(20 << 30)),
            anonymous_bytes: Some(ByteCount(3 << 30)),
            anonymous_huge_bytes: Some(ByteCount(1 << 30)),
            collapses_per_second: Some(12.5),
            faults_per_second: Some(0.0),
            splits_per_second: None,
            ..Machine::default()
        },
        own: OwnCpu {
            total: Duration::from_secs(1),
            share: Some(0.0123),
        },
        ..TopSnapshot::default()
    }
}

/// A daemon with a rule that applies to redis.
fn asked() -> DaemonState {
    let account = |at: f64, done: u64| {
        let mut watch = WatchAccount {
            at_seconds: at,
            hot_set_bytes: Some([10, 300, 500].map(|n| ByteCount(n * MIB))),
            ..WatchAccount::default()
        };
        watch.collapses.done = done;
        let memory = LiveMemory {
            processes: 1,
            ..LiveMemory::default()
        };
        let mut service = ServiceAccount {
            memory,
            hot_set_bytes: watch.hot_set_bytes,
            ..ServiceAccount::default()
        };
        service.actions.collapses_done = done;
        service.actions.collapsing_seconds = at / 200.0;
        watch.stalls.collapsing_seconds = at / 200.0;
        watch.services.insert("redis.service".to_owned(), service);
        watch.processes.push(ProcessAccount {
            pid: 4711,
            start_ticks: 47110,
            name: "redis-server".to_owned(),
            service: "redis.service".to_owned(),
            memory,
            hot_set_bytes: Some([8, 290, 480].map(|n| ByteCount(n * MIB))),
            collapses_done: done,
            collapsing_seconds: at / 200.0,
        });
        let mut account = DaemonAccount {
            pid: 9,
            uptime_seconds: at,
            rules_total: 2,
            rules: vec![RuleAccount {
                name: "cache".to_owned(),
                watch: Some(Arc::new(watch)),
                ..RuleAccount::default()
            }],
            ..DaemonAccount::default()
        };
        account.own.cpu_seconds = at / 250.0;
        account.own.rss_bytes = Some(ByteCount(9 * MIB));
        account
    };
    let first = DaemonSample::after(None, account(10.0, 100));
    DaemonState::Here(Box::new(DaemonSample::after(
        Some(&first),
        account(12.0, 125),
    )))
}

fn absent() -> DaemonState {
    DaemonState::Absent("none listens at /run/superhue/ctl.sock".to_owned())
}

fn shown(
    state: &mut State,
    gathered: &TopSnapshot,
    asked: &DaemonState,
    (width, height): (u16, u16),
) -> String {
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    let rows = Rows::of(gathered, asked);
    let shown = ShownView {
        gathered,
        asked,
        rows: &rows,
    };
    draw(&mut buffer, state, shown);
    let line = |y: u16| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
    let lines: Vec<String> = (0..height).map(|y| line(y).trim_end().to_owned()).collect();
    let text = lines.join("\n");
    let is_harmless = |it: char| it == '\n' || !it.is_control() && it != '\u{202e}';
    assert!(text.chars().all(is_harmless), "{text:?}");
    text
}

const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (200, 60);

fn press(state: &mut State, keys: &str) {
    for letter in keys.chars() {
        let key = match letter {
            '\n' => Key::Enter,
            '\u{1b}' => Key::Escape,
            'V' => Key::Down,
            letter => Key::Char(letter),
        };
        assert_eq!(state.press(key), KeyOutcome::No);
    }
}

#[test]
fn services_without_a_daemon() {
    let mut state = State::new(ViewName::Services);
    let text = shown(&mut state, &gathered(), &absent(), SMALL);
    // Figures that only a daemon knows have no column, and do not show as 0.
    assert!(!text.contains("COLL/s") && !text.contains("HOT"), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn services_with_a_daemon() {
    let mut state = State::new(ViewName::Services);
    insta::assert_snapshot!(shown(&mut state, &gathered(), &asked(), SMALL));
    insta::assert_snapshot!(
        "services_with_a_daemon_large",
        shown(&mut state, &gathered(), &asked(), LARGE)
    );
}

#[test]
fn processes_and_what_is_opened() {
    let (gathered, asked) = (gathered(), asked());
    let mut state = State::new(ViewName::Processes);
    insta::assert_snapshot!("processes", shown(&mut state, &gathered, &asked, SMALL));
    insta::assert_snapshot!(
        "processes_large",
        shown(&mut state, &gathered, &asked, LARGE)
    );
    // Goes from a service to one of its processes, and back to the same lines.
    press(&mut state, "s");
    let services = shown(&mut state, &gathered, &asked, SMALL);
    press(&mut state, "V\n");
    let text = shown(&mut state, &gathered, &asked, SMALL);
    assert!(
        text.contains("postgresql@15-main.service: 2 processes") && !text.contains("worker"),
        "{text}"
    );
    press(&mut state, "\n");
    let text = shown(&mut state, &gathered, &asked, SMALL);
    assert!(
        text.contains("postgres (815)") && text.contains("reading ..."),
        "{text}"
    );
    assert_eq!(state.wishes().detail, Some(815));
    press(&mut state, "\u{1b}");
    assert!(shown(&mut state, &gathered, &asked, SMALL).contains("main.service: 2 processes"));
    press(&mut state, "\u{1b}");
    let again = shown(&mut state, &gathered, &asked, SMALL);
    assert_eq!(again, services);
}

#[test]
fn mappings_with_heat() {
    let mut gathered = gathered();
    let range = |start: u64, mebibytes: u64| {
        VirtRange::new(VirtAddr(start), VirtAddr(start + mebibytes * MIB)).unwrap()
    };
    let mapping = |start, mebibytes, huge: u64, name: Option<&str>| MappingStatus {
        range: range(start, mebibytes),
        name: name.map(str::to_owned),
        rss_bytes: Some(ByteCount(mebibytes * MIB)),
        anonymous_bytes: Some(ByteCount(mebibytes * MIB)),
        huge_bytes: Some(ByteCount(huge * MIB)),
        other_huge_bytes: Some(ByteCount(0)),
        page_bytes: None,
        promotable: true,
    };
    let status = ProcessStatus {
        pid: 4711,
        name: "redis-server".to_owned(),
        uid: 0,
        rss_bytes: None,
        anonymous_bytes: None,
        huge_bytes: None,
        coverage: None,
        other_huge_bytes: None,
        bloat_bound_bytes: None,
        swap_bytes: None,
        hugetlb_bytes: None,
        huge_pages_allowed: None,
        unknown_because: None,
        colors: None,
        mappings: vec![
            mapping(0x7f00_0000_0000, 1080, 1080, None),
            mapping(0x5500_0000_0000, 20, 0, Some("[heap]")),
            mapping(0x5600_0000_0000, 2, 0, Some("/tmp/\u{1b}[31mred")),
        ],
        why: None,
    };
    gathered.detail = Some(Detail {
        pid: 4711,
        at: Duration::from_secs(98),
        status: Ok(status),
        heat: [(VirtAddr(0x7f00_0000_0000), 0.25)].into(),
    });
    gathered.heat = Heat {
        tracker: Some(Ok("ptwalk".to_owned())),
        ..Heat::default()
    };
    let mut state = State::new(ViewName::Processes);
    shown(&mut state, &gathered, &asked(), SMALL);
    press(&mut state, "\n");
    insta::assert_snapshot!(shown(&mut state, &gathered, &asked(), SMALL));
    insta::assert_snapshot!(
        "mappings_large",
        shown(&mut state, &gathered, &asked(), LARGE)
    );
    // The process ends while it is shown.
    gathered.processes.retain(|it| it.id.pid != 4711);
    let text = shown(&mut state, &gathered, &asked(), SMALL);
    assert!(text.contains("4711 has ended"), "{text}");
}

#[test]
fn shared_objects() {
    let mut gathered = gathered();
    let object = |inode, mebibytes: u64, off| SharedObject {
        is_file: false,
        name: format!("/dev/shm/object-{inode}"),
        object: ObjectId {
            device: (0, 1),
            inode,
        },
        mappers: inode,
        resident_bytes: ByteCount(mebibytes * MIB),
        resident_is_exact: true,
        misaligned_by_bytes: off,
        huge_mapped_bytes: [(1, ByteCount(mebibytes * MIB)), (2, ByteCount(0))].into(),
        page_tables_saved_bytes: ByteCount(mebibytes * 2048),
    };
    let objects = vec![object(7, 30, None), object(9, 3000, Some(0x1000))];
    gathered.objects = Some((Duration::from_secs(88), Ok(objects)));
    let mut state = State::new(ViewName::Objects);
    insta::assert_snapshot!(shown(&mut state, &gathered, &absent(), SMALL));
    assert!(state.wishes().objects);
}

#[test]
fn what_is_typed_filters() {
    let (gathered, asked) = (gathered(), asked());
    let mut state = State::new(ViewName::Processes);
    shown(&mut state, &gathered, &asked, SMALL);
    press(&mut state, "/POSTq");
    let text = shown(&mut state, &gathered, &asked, SMALL);
    assert!(
        text.contains("filter: POSTq_") && text.contains("nothing has that"),
        "{text}"
    );
    state.press(Key::Backspace);
    press(&mut state, "\n");
    let text = shown(&mut state, &gathered, &asked, SMALL);
    assert_eq!(text.matches("postgres  ").count(), 2, "{text}");
    assert!(
        !text.contains("redis-server") && text.contains("/ filter (POST)"),
        "{text}"
    );
    // Filters by rule, and by number.
    press(&mut state, "\u{1b}/cache\n");
    assert!(shown(&mut state, &gathered, &asked, SMALL).contains("redis-server"));
    press(&mut state, "\u{1b}/4711\n");
    assert!(shown(&mut state, &gathered, &asked, SMALL).contains("redis-server"));
    for _ in 0..1000 {
        state.press(Key::Char('/'));
        state.press(Key::Char('ä'));
    }
    shown(&mut state, &gathered, &asked, SMALL);
}

#[test]
fn columns_sort_both_ways_and_what_is_unknown_comes_last() {
    let (gathered, asked) = (gathered(), asked());
    let mut state = State::new(ViewName::Processes);
    let names = |state: &mut State| -> Vec<String> {
        let text = shown(state, &gathered, &asked, LARGE);
        let rows = text.lines().skip(5);
        rows.filter_map(|row| row.split_whitespace().next().map(str::to_owned))
            .collect()
    };
    assert_eq!(
        names(&mut state)[..3],
        ["redis-server", "postgres", "postgres"]
    );
    press(&mut state, "<");
    assert_eq!(state.sorted_by(), (Column::Pid, false));
    assert_eq!(names(&mut state)[0], "init");
    press(&mut state, ">>>>r");
    assert_eq!(state.sorted_by(), (Column::Coverage, true));
    assert_eq!(names(&mut state)[0], "init", "what is not known");
    press(&mut state, "r");
    assert_eq!(names(&mut state)[0], "redis-server");
}

#[test]
fn the_selected_line_is_followed() {
    let mut gathered = gathered();
    let asked = asked();
    let mut state = State::new(ViewName::Processes);
    shown(&mut state, &gathered, &asked, SMALL);
    press(&mut state, "V");
    shown(&mut state, &gathered, &asked, SMALL);
    assert_eq!(state.window().0, 1);
    // Another process has become larger: the selection stays on its process.
    gathered
        .processes
        .push(process(5, "large", "/x", 5000, Some(0)));
    gathered
        .processes
        .push(process(6, "large", "/x", 5000, Some(0)));
    shown(&mut state, &gathered, &asked, SMALL);
    assert_eq!(state.window().0, 3);
    state.press(Key::End);
    shown(&mut state, &gathered, &asked, SMALL);
    let (selected, window) = state.window();
    assert_eq!((selected, window.end), (36, 37));
    state.press(Key::Home);
    state.press(Key::PageDown);
    shown(&mut state, &gathered, &asked, SMALL);
    assert!(state.window().1.contains(&state.window().0));
}

#[test]
fn help_explains_every_figure() {
    let mut state = State::new(ViewName::Services);
    press(&mut state, "h");
    insta::assert_snapshot!(shown(&mut state, &gathered(), &asked(), SMALL));
}

/// A screen that shows a record.
fn of_record() -> State {
    let mut state = State::new(ViewName::Services);
    state.playhead = Some(Playhead {
        position: "2026-11-28 10:30:05 UTC, snapshot 12 of 480".to_owned(),
        ..Playhead::default()
    });
    state
}

#[test]
fn a_record_is_shown_with_its_time() {
    let (gathered, asked) = (gathered(), asked());
    let mut state = of_record();
    let text = shown(&mut state, &gathered, &asked, SMALL);
    let line = "replay   2026-11-28 10:30:05 UTC, snapshot 12 of 480; recorder 1.23 % of a CPU";
    assert!(text.contains(line) && !text.contains("itself"), "{text}");
    assert!(text.contains("n/b step  N/B minute  g time") && text.ends_with("q end"));
    press(&mut state, "\n");
    let text = shown(&mut state, &gathered, &asked, SMALL);
    assert!(
        text.contains("Escape back  n/b step") && text.ends_with("q end"),
        "{text}"
    );
    press(&mut state, "\n");
    let text = shown(&mut state, &gathered, &asked, SMALL);
    assert!(text.contains("a record has no mappings"), "{text}");
    assert!(
        text.ends_with("q end") && !text.contains("reading"),
        "{text}"
    );
    let later = TopSnapshot::default();
    let text = shown(&mut state, &later, &asked, SMALL);
    assert!(text.contains("4711 is not there at this time"), "{text}");
    press(&mut state, "o");
    let text = shown(&mut state, &gathered, &asked, SMALL);
    assert!(
        text.contains("superhue top objects --record does"),
        "{text}"
    );
    press(&mut state, "h");
    let text = shown(&mut state, &gathered, &asked, SMALL);
    assert!(
        text.contains("go to a time") && text.contains("not known"),
        "{text}"
    );
    let table = |recorded| {
        let rows = Rows::of(&gathered, &asked);
        let shown = ShownView {
            gathered: &gathered,
            asked: &asked,
            rows: &rows,
        };
        super::super::table::text(ViewName::Services, shown, recorded, true)
    };
    let (now, then) = (table(None), table(Some("the time")));
    assert!(
        then.contains("replay   the time\n") && then.contains("AGE"),
        "{then}"
    );
    assert!(!now.contains("replay") && !now.contains("AGE"), "{now}");
    assert!(now.contains("134 %"), "{now}");
}

#[test]
fn keys_step_through_a_record() {
    let mut state = of_record();
    for (key, step) in [
        ('n', TimeStep::Snapshots(1)),
        ('b', TimeStep::Snapshots(-1)),
        ('N', TimeStep::Seconds(60)),
        ('B', TimeStep::Seconds(-60)),
    ] {
        assert_eq!(state.press(Key::Char(key)), KeyOutcome::Go(step), "{key}");
        let mut live = State::new(ViewName::Services);
        assert_eq!(live.press(Key::Char(key)), KeyOutcome::No, "{key}");
    }
    press(&mut state, "g10:3x");
    state.press(Key::Backspace);
    let text = shown(&mut state, &gathered(), &asked(), SMALL);
    assert!(
        text.contains("time (UTC): 10:3_   Enter goes there"),
        "{text}"
    );
    press(&mut state, "0");
    let half_past_ten = TimeStep::To(RecordTime::OfDay(37_800));
    assert_eq!(state.press(Key::Enter), KeyOutcome::Go(half_past_ten));
    // A wrong time is explained until the next key; an empty one, and Escape, go nowhere.
    press(&mut state, "gq\n");
    let text = shown(&mut state, &gathered(), &asked(), SMALL);
    assert!(text.contains("`q` is not a time"), "{text}");
    press(&mut state, "g\ng1\u{1b}");
    let text = shown(&mut state, &gathered(), &asked(), SMALL);
    assert!(
        text.contains("g time") && !text.contains("is not a time"),
        "{text}"
    );
    state.complain("10:30 is not in the record".to_owned());
    let text = shown(&mut state, &gathered(), &asked(), SMALL);
    assert!(text.ends_with("10:30 is not in the record"), "{text}");
    // Letters of a filter are no steps.
    press(&mut state, "/nbg\n");
    assert_eq!(state.filter, "nbg");
    press(&mut state, "\u{1b}h");
    assert_eq!(state.press(Key::Char('q')), KeyOutcome::End);
}

#[test]
fn every_size_can_be_drawn() {
    let mut with_objects = gathered();
    with_objects.objects = Some((Duration::ZERO, Err("why not".to_owned())));
    for width in [1, 2, 13, 14, 15, 30, 59, 79, 80, 81, 300] {
        for height in [1, 2, 3, 4, 7, 8, 9, 24, 100] {
            let mut state = State::new(ViewName::Services);
            for is_replay in [false, true] {
                state.playhead = of_record().playhead.filter(|_| is_replay);
                for keys in [
                    "", "h", "h", "V\n", "\n", "V", "\u{1b}", "o", "p", "\n", "/x\n",
                ] {
                    press(&mut state, keys);
                    shown(&mut state, &with_objects, &asked(), (width, height));
                }
            }
        }
    }
    // Nothing was read yet.
    let mut state = State::new(ViewName::Services);
    let text = shown(
        &mut state,
        &TopSnapshot::default(),
        &DaemonState::NotYet,
        SMALL,
    );
    assert!(text.contains("reading ..."));
}
