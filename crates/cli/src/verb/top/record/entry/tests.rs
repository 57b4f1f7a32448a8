use superhue::survey::{Look, Memory, ProcessEntry};
use superhue_daemon::account::TrialConclusion;

use super::*;

const MIB: u64 = 1 << 20;

fn process(pid: u32, start_ticks: u64, cgroup: &str, look: Look) -> ProcessEntry {
    ProcessEntry {
        id: ProcessId { pid, start_ticks },
        name: format!("program-{pid}").into(),
        cgroup: cgroup.into(),
        glanced: Duration::ZERO,
        resident: ByteCount(MIB),
        anonymous: ByteCount(MIB),
        look,
        gain: matches!(look, Look::Done(..)).then_some(0.1),
        cpu_share: None,
    }
}

fn done(at_ms: u64, huge: u64) -> Look {
    let of = |mebibytes: u64| Some(ByteCount(mebibytes * MIB));
    let memory = Memory {
        rss: of(64),
        pss: of(60),
        anonymous: of(50),
        anon_huge: of(huge),
    };
    Look::Done(Duration::from_millis(at_ms), memory)
}

fn snapshot(at_ms: u64, processes: Vec<ProcessEntry>) -> TopSnapshot {
    TopSnapshot {
        at: Duration::from_millis(at_ms),
        processes,
        unlisted: 3,
        avoided: 1,
        held_up_by: Some((9, Duration::from_millis(1500))),
        machine: Machine {
            memory_bytes: Some(ByteCount(8 << 30)),
            splits_per_second: Some(0.5),
            ..Machine::default()
        },
        own: OwnCpu {
            total: Duration::from_millis(70),
            share: Some(0.0125),
        },
        ..TopSnapshot::default()
    }
}

fn daemon() -> DaemonState {
    let mut sample = DaemonSample::default();
    let watch = WatchAccount {
        hot_set_bytes: Some([1, 2, 3].map(ByteCount)),
        trouble: Some("no tracker".to_owned()),
        ..WatchAccount::default()
    };
    let mut account = DaemonAccount {
        pid: 5,
        rules_total: 2,
        rules: vec![RuleAccount {
            name: "cache".to_owned(),
            processes: 1,
            watch: Some(Arc::new(watch)),
            trial: Some(TrialAccount {
                conclusion: TrialConclusion::Keep,
                metric: String::new(),
                gain: Some(0.03),
                gain_low: Some(0.0125),
                gain_high: None,
                pairs: 40,
                ended_at_seconds: 1_800_000_000,
            }),
            ..RuleAccount::default()
        }],
        ..DaemonAccount::default()
    };
    account.config.error = Some("line 3".to_owned());
    account.own.rss_bytes = Some(ByteCount(9 * MIB));
    sample.account = Arc::new(account);
    let rate = Rate {
        collapses: 2.5,
        splits: None,
        stalled: 0.01,
    };
    sample.rules.insert("cache".to_owned(), rate);
    sample.services.insert("redis.service".to_owned(), rate);
    sample.cpu_share = Some(0.25);
    DaemonState::Here(Box::new(sample))
}

/// Writes snapshots as lines, and returns them with the entries that are read back.
#[derive(Default)]
struct Tape {
    encoder: Encoder,
    decoder: Decoder,
    bytes: Vec<usize>,
}

impl Tape {
    fn pass(&mut self, gathered: &TopSnapshot, asked: &DaemonState, full: bool) -> (Rows, Moment) {
        let rows = Rows::of(gathered, asked);
        let shown = ShownView {
            gathered,
            asked,
            rows: &rows,
        };
        let entry = self.encoder.entry(1_000_000, shown, full);
        let line = serde_json::to_string(&entry).unwrap();
        assert!(!line.contains('\n'), "{line}");
        self.bytes.push(line.len());
        let read: Entry = serde_json::from_str(&line).unwrap();
        assert_eq!(read, entry);
        self.decoder.apply(read);
        (rows, self.decoder.moment())
    }
}

const REDIS: &str = "/system.slice/redis.service";

#[test]
fn a_snapshot_is_read_back_as_it_was_shown() {
    let mut gathered = snapshot(
        5000,
        vec![
            process(1, 10, "/init.scope", Look::Denied),
            process(7, 70, REDIS, done(4000, 20)),
            process(8, 80, REDIS, Look::NotYet),
        ],
    );
    gathered.processes[1].cpu_share = Some(1.25);
    gathered.heat.tracker = Some(Err("no permission".to_owned()));
    gathered.heat.failed.insert("it is gone".to_owned(), 2);
    let mut tape = Tape::default();
    let (rows, moment) = tape.pass(&gathered, &daemon(), true);
    assert_eq!(moment.at, Duration::from_secs(1000));
    assert_eq!(moment.rows.services, rows.services);
    assert_eq!(moment.rows.processes, rows.processes);
    assert_eq!(
        (moment.rows.denied, moment.rows.not_yet, moment.rows.failed),
        (1, 1, 0)
    );
    let redis = &moment.rows.services[1];
    assert_eq!(
        (&*redis.name, redis.cpu_share),
        ("redis.service", Some(1.25))
    );
    assert_eq!(redis.collapses_per_second, Some(2.5));
    let same = |gathered: &TopSnapshot| {
        let heat = &gathered.heat;
        (
            (
                gathered.at,
                gathered.machine,
                gathered.own,
                gathered.unlisted,
            ),
            (gathered.avoided, gathered.held_up_by),
            (heat.tracker.clone(), heat.failed.clone()),
        )
    };
    assert_eq!(same(&moment.gathered), same(&gathered));
    let (DaemonState::Here(read), DaemonState::Here(asked)) = (&moment.asked, daemon()) else {
        panic!("{:?}", moment.asked);
    };
    assert_eq!(read.account, asked.account);
    assert_eq!(
        (&read.rules, read.cpu_share),
        (&asked.rules, asked.cpu_share)
    );
    for other in [
        DaemonState::NotYet,
        DaemonState::Absent("none listens".to_owned()),
    ] {
        let (_, moment) = tape.pass(&gathered, &other, false);
        assert_eq!(format!("{:?}", moment.asked), format!("{other:?}"));
    }
}

#[test]
fn an_entry_has_what_has_changed() {
    let steady = |n: u64| {
        let pids = 100..100 + u32::try_from(n).unwrap();
        pids.map(|pid| process(pid, 1, REDIS, done(1000, 2)))
            .collect::<Vec<_>>()
    };
    let mut processes = steady(200);
    let mut tape = Tape::default();
    tape.pass(
        &snapshot(2000, processes.clone()),
        &DaemonState::NotYet,
        true,
    );
    // Only their age is another one.
    let later = snapshot(3000, processes.clone());
    let (rows, moment) = tape.pass(&later, &DaemonState::NotYet, false);
    assert_eq!(moment.rows.processes, rows.processes);
    assert_eq!(rows.processes[0].age, Some(Duration::from_secs(2)));
    // One has ended, one has another look, one number belongs to another process.
    processes.remove(0);
    processes[0].look = done(3500, 4);
    processes[1].id.start_ticks = 99;
    let latest = snapshot(4000, processes);
    let (rows, moment) = tape.pass(&latest, &DaemonState::NotYet, false);
    assert_eq!(moment.rows.processes, rows.processes);
    assert_eq!(moment.rows.services, rows.services);
    assert_eq!(moment.rows.processes.len(), 199);
    let [full, unchanged, changed] = tape.bytes[..] else {
        panic!("{:?}", tape.bytes);
    };
    assert!(
        unchanged < 600 && changed < 1200 && full > 200 * 100,
        "{:?}",
        tape.bytes
    );
    // A full entry replaces everything that was there before.
    let (rows, moment) = tape.pass(&snapshot(5000, steady(1)), &DaemonState::NotYet, true);
    assert_eq!((moment.rows.processes.len(), rows.processes.len()), (1, 1));
}

#[test]
fn objects_are_kept_until_they_are_read_again() {
    let object = |inode: u64| SharedObject {
        name: "/dev/shm/x".to_owned(),
        object: ObjectId {
            device: (0, 1),
            inode,
        },
        mappers: 2,
        is_file: false,
        resident_bytes: ByteCount(30 * MIB),
        resident_is_exact: true,
        misaligned_by_bytes: Some(4096),
        huge_mapped_bytes: [(1, ByteCount(MIB)), (2, ByteCount(0))].into(),
        page_tables_saved_bytes: ByteCount(4096),
    };
    let read_at = Duration::from_millis(900);
    let mut gathered = snapshot(1000, Vec::new());
    gathered.objects = Some((read_at, Ok(vec![object(7)])));
    let mut tape = Tape::default();
    for full in [true, false] {
        let (rows, moment) = tape.pass(&gathered, &DaemonState::NotYet, full);
        assert_eq!(moment.rows.objects, rows.objects);
        assert_eq!(moment.gathered.objects.map(|it| it.0), Some(read_at));
    }
    assert!(tape.bytes[1] < tape.bytes[0]);
    gathered.objects = Some((gathered.at, Err("denied".to_owned())));
    let (_, moment) = tape.pass(&gathered, &DaemonState::NotYet, false);
    let why = moment.gathered.objects.and_then(|it| it.1.err());
    assert_eq!(why.as_deref(), Some("denied"));
    assert!(moment.rows.objects.is_empty());
}

#[test]
fn fields_of_later_additions_are_ignored() {
    let mut encoder = Encoder::default();
    let (gathered, rows) = (snapshot(1, Vec::new()), Rows::default());
    let shown = ShownView {
        gathered: &gathered,
        asked: &DaemonState::NotYet,
        rows: &rows,
    };
    let mut value = serde_json::to_value(encoder.entry(1, shown, true)).unwrap();
    value["weather"] = serde_json::json!({"rain": true});
    assert!(serde_json::from_value::<Entry>(value.clone()).is_ok());
    value.as_object_mut().unwrap().remove("up_ms");
    assert!(serde_json::from_value::<Entry>(value).is_err());
}
