use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use superhue::model::{ByteCount, ProcessId};
use superhue::survey::{Look, Memory, ProcessEntry};

use super::super::super::daemon::DaemonState;
use super::super::super::gathered::TopSnapshot;
use super::super::super::record::entry::{Encoder, Header, ShownView};
use super::super::super::rows::Rows;
use super::*;

/// A snapshot with the processes 1 to `second`, of which the last one was looked at in this second.
fn snapshot(second: u64) -> TopSnapshot {
    let of = |at: u64| {
        let pid = u32::try_from(at).unwrap();
        let memory = Memory {
            rss: Some(ByteCount(at << 20)),
            ..Memory::default()
        };
        ProcessEntry {
            id: ProcessId {
                pid,
                start_ticks: at,
            },
            name: format!("p{at}").into(),
            cgroup: "/x.slice/x.service".into(),
            glanced: Duration::ZERO,
            resident: ByteCount(at << 20),
            anonymous: ByteCount(0),
            look: Look::Done(Duration::from_secs(at), memory),
            gain: None,
            cpu_share: None,
        }
    };
    TopSnapshot {
        at: Duration::from_secs(second),
        processes: (1..=second).map(of).collect(),
        ..TopSnapshot::default()
    }
}

fn rows(second: u64) -> Rows {
    Rows::of(&snapshot(second), &DaemonState::NotYet)
}

/// Lines of the snapshots of these seconds after `offset`; the first of `group` is full.
fn lines(segment: u64, seconds: impl Iterator<Item = u64>, group: usize, offset: u64) -> String {
    let header = Header::new(segment, Duration::from_secs(1));
    let mut text = serde_json::to_string(&header).unwrap() + "\n";
    let mut encoder = Encoder::default();
    for (at, second) in seconds.enumerate() {
        let (gathered, rows) = (snapshot(second), rows(second));
        let shown = ShownView {
            gathered: &gathered,
            asked: &DaemonState::NotYet,
            rows: &rows,
        };
        let at_ms = (offset + second) * 1000 + 400;
        let entry = encoder.entry(at_ms, shown, at.is_multiple_of(group));
        text += &(serde_json::to_string(&entry).unwrap() + "\n");
    }
    text
}

/// 10:00:01 on the day after 1970-01-01.
const TEN: u64 = 86_400 + 36_000;

/// A record of the seconds 1 to 30 in two files; the later ones are in the first file.
fn record(folder: &Path) -> PathBuf {
    let path = folder.join("top.rec");
    let [first, second] = segments::paths(&path);
    fs::write(first, lines(8, 13..=30, 5, TEN)).unwrap();
    fs::write(second, lines(7, 1..=12, 4, TEN)).unwrap();
    path
}

fn error(result: anyhow::Result<Record>) -> String {
    format!("{:#}", result.unwrap_err())
}

#[test]
fn each_snapshot_is_the_same_from_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let mut record = Record::open(&record(folder.path())).unwrap();
    assert_eq!((record.len(), record.damaged()), (30, 0));
    let there_and_back = (0..30)
        .chain((0..30).rev())
        .chain([7, 7, 29, 0, 12, 11, 24]);
    for index in there_and_back {
        let moment = record.moment(index).unwrap();
        let second = index as u64 + 1;
        assert_eq!(moment.at.as_millis() as u64, (TEN + second) * 1000 + 400);
        let expected = rows(second);
        assert_eq!(moment.rows.processes, expected.processes, "{index}");
        assert_eq!(moment.rows.services, expected.services, "{index}");
    }
}

#[test]
fn steps_and_jumps_end_at_the_ends() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::open(&record(folder.path())).unwrap();
    for (from, by, to) in [
        (0, 1, 1),
        (29, 1, 29),
        (0, -1, 0),
        (5, -2, 3),
        (5, 1000, 29),
    ] {
        assert_eq!(record.step(from, by), to, "{from} {by}");
    }
    for (from, seconds, to) in [(0, 10, 10), (29, 10, 29), (20, -5, 15), (3, -60, 0)] {
        assert_eq!(record.jump(from, seconds), to, "{from} {seconds}");
    }
}

#[test]
fn a_jump_passes_a_gap_and_always_moves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    // Nothing was recorded between 3 and 100.
    let seconds = (1..=3).chain(100..=102);
    fs::write(&path, lines(1, seconds, 2, 0)).unwrap();
    let record = Record::open(&path).unwrap();
    assert_eq!((record.jump(2, 60), record.jump(3, -60)), (3, 2));
    assert_eq!((record.jump(1, 1), record.jump(4, -1)), (2, 3));
    // The time within the gap shows the snapshot before it.
    assert_eq!(record.find(RecordTime::At(50)), Ok(2));
}

#[test]
fn times_are_found_and_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::open(&record(folder.path())).unwrap();
    let find = |text: &str| record.find(utc::parse(text).unwrap());
    for (text, index) in [
        ("10:00:01", 0),
        ("10:00:30", 29),
        ("1970-01-02T10:00:14", 13),
        ("+5s", 5),
        ("+0s", 0),
        ("-1s", 28),
        ("-0s", 29),
    ] {
        assert_eq!(find(text), Ok(index), "{text}");
    }
    for outside in [
        "10:00:00",
        "10:00:31",
        "2026-11-28 10:00",
        "+30s",
        "-30s",
        "@0",
    ] {
        let why = find(outside).unwrap_err();
        let range = "1970-01-02 10:00:01 to 1970-01-02 10:00:30 UTC";
        assert!(why.contains(range), "{outside}: {why}");
    }
}

#[test]
fn a_clock_that_was_set_back_hides_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let [first, second] = segments::paths(&path);
    fs::write(first, lines(2, 1..=5, 5, 1000)).unwrap();
    fs::write(second, lines(1, 1..=5, 5, 2000)).unwrap();
    let mut record = Record::open(&path).unwrap();
    assert_eq!(record.find(RecordTime::At(1003)), Ok(7));
    assert_eq!(record.find(RecordTime::At(2005)), Ok(4));
    assert_eq!(record.moment(4).unwrap().at.as_secs(), 2005);
}

#[test]
fn files_that_are_no_record_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let [_, second] = segments::paths(&path);
    assert!(error(Record::open(&path)).contains("there is no such file"));
    fs::write(&path, "").unwrap();
    assert!(error(Record::open(&path)).contains("it has no snapshot"));
    fs::write(&path, "precious\n").unwrap();
    let said = error(Record::open(&path));
    assert!(said.contains("top.rec: it is no record"), "{said}");
    fs::write(&path, "{\"schema\":\"superhue-top-record/9\"}\n").unwrap();
    assert!(error(Record::open(&path)).contains("a newer superhue"));
    assert!(error(Record::open(folder.path())).contains("no regular file"));
    // The recorder was killed when it had emptied the older file, or before it made the newer one.
    fs::write(&path, lines(1, 1..=3, 5, 0)).unwrap();
    fs::write(&second, "").unwrap();
    assert_eq!(Record::open(&path).unwrap().len(), 3);
    fs::rename(&path, &second).unwrap();
    assert_eq!(Record::open(&path).unwrap().len(), 3);
}

#[test]
fn an_entry_with_wrong_fields_is_an_error_and_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let text = lines(1, 1..=3, 5, 0).replace("\"up_ms\":2000", "\"up_ms\":\"x\"");
    fs::write(&path, text).unwrap();
    let mut record = Record::open(&path).unwrap();
    assert_eq!(record.moment(0).unwrap().rows.processes.len(), 1);
    let said = format!("{:#}", record.moment(2).unwrap_err());
    assert!(
        said.contains("snapshot of 1970-01-01 00:00:02 UTC"),
        "{said}"
    );
    assert_eq!(record.moment(0).unwrap().rows.processes.len(), 1);
}
