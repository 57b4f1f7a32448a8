use std::os::fd::AsFd as _;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::super::super::daemon::DaemonState;
use super::super::super::gathered::TopSnapshot;
use super::super::super::rows::Rows;
use super::super::entry::{Decoder, Entry};
use super::*;

fn open(path: &Path, limit: u64) -> anyhow::Result<RecordWriter> {
    RecordWriter::open(path, ByteCount(limit), Duration::from_secs(1))
}

/// Appends a snapshot of this second; it has some hundred bytes, and `more` besides.
fn append(writer: &mut RecordWriter, second: u64, more: usize) -> anyhow::Result<()> {
    let gathered = TopSnapshot {
        at: Duration::from_secs(second),
        trouble: Some("x".repeat(more)),
        ..TopSnapshot::default()
    };
    let rows = Rows::default();
    let shown = ShownView {
        gathered: &gathered,
        asked: &DaemonState::NotYet,
        rows: &rows,
    };
    writer.append(Duration::from_secs(second), shown)
}

/// Returns the seconds of the entries of a file, and checks that each can be read.
fn seconds(path: &Path) -> Vec<u64> {
    let text = fs::read(path).unwrap();
    let contents = segments::scan(text.as_slice()).unwrap();
    assert_eq!(contents.damaged, 0);
    let mut decoder = Decoder::default();
    let entry = |place: &segments::EntryPlace| {
        let start = usize::try_from(place.offset).unwrap();
        let entry: Entry = serde_json::from_slice(&text[start..start + place.length]).unwrap();
        decoder.apply(entry);
        let moment = decoder.moment();
        assert_eq!(moment.gathered.at, moment.at);
        moment.at.as_secs()
    };
    contents.entries.iter().map(entry).collect()
}

fn error(result: anyhow::Result<impl std::fmt::Debug>) -> String {
    format!("{:#}", result.unwrap_err())
}

#[test]
fn a_second_recorder_has_neither_name_of_a_record() {
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = segments::paths(&folder.path().join("top.rec"));
    let writer = open(&path, 1 << 20).unwrap();
    for name in [&path, &other] {
        let refused = format!("{:#}", open(name, 1 << 20).unwrap_err());
        assert!(
            refused.contains("another program records to it"),
            "{refused}"
        );
        assert!(name.exists());
    }
    // What another has written meanwhile is not removed as empty.
    fs::write(&other, "x").unwrap();
    drop(writer);
    assert!(other.exists() && !path.exists());
}

#[test]
fn no_segment_has_more_entries_than_a_reader_takes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let [first, second] = segments::paths(&path);
    let mut writer = open(&path, 1 << 20).unwrap();
    writer.most_entries = 3;
    for at in 1..=7 {
        append(&mut writer, at, 0).unwrap();
    }
    assert_eq!(seconds(&first), [7]);
    assert_eq!(seconds(&second), [4, 5, 6]);
    drop(writer);
    // The next writer counts what is there.
    let mut writer = open(&path, 1 << 20).unwrap();
    writer.most_entries = 3;
    for at in 8..=10 {
        append(&mut writer, at, 0).unwrap();
    }
    assert_eq!(seconds(&first), [7, 8, 9]);
    assert_eq!(seconds(&second), [10]);
}

#[test]
fn a_record_stays_below_its_limit_and_keeps_the_newest() {
    const LIMIT: u64 = 64 << 10;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let [first, second] = segments::paths(&path);
    let mut writer = open(&path, LIMIT).unwrap();
    for at in 1..=1000 {
        append(&mut writer, at, 100).unwrap();
        let sizes = [&first, &second].map(|path| fs::metadata(path).map_or(0, |it| it.len()));
        assert!(sizes.iter().sum::<u64>() <= LIMIT, "{at}: {sizes:?}");
    }
    drop(writer);
    let mut all = [seconds(&first), seconds(&second)];
    all.sort();
    let all = all.concat();
    assert_eq!(all.last(), Some(&1000));
    assert!(all[0] > 1, "the oldest are left out");
    assert!(
        all.is_sorted_by(|a, b| a + 1 == *b),
        "none between them: {all:?}"
    );
    assert!(
        all.len() > 50,
        "a segment is half of the limit: {}",
        all.len()
    );
    // It continues in the segment that was written last, and begins with a full entry.
    let mut writer = open(&path, LIMIT).unwrap();
    append(&mut writer, 1001, 100).unwrap();
    assert!(error(open(&path, LIMIT)).contains("another program records to it"));
    drop(writer);
    let mut after = [seconds(&first), seconds(&second)];
    after.sort();
    assert_eq!(after.concat().last(), Some(&1001));
    let smaller = error(open(&path, LIMIT / 8));
    assert!(smaller.contains("give a larger limit"), "{smaller}");
}

#[test]
fn a_torn_entry_is_cut_off_before_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let mut writer = open(&path, 1 << 20).unwrap();
    append(&mut writer, 1, 0).unwrap();
    append(&mut writer, 2, 0).unwrap();
    drop(writer);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    let mut writer = open(&path, 1 << 20).unwrap();
    append(&mut writer, 3, 0).unwrap();
    drop(writer);
    assert_eq!(seconds(&path), [1, 3]);
}

#[test]
fn other_files_are_left_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    let [first, second] = segments::paths(&path);
    for (text, why) in [
        ("precious\n", "is no record"),
        (
            "{\"schema\":\"superhue-top-record/7\"}\n",
            "a newer superhue",
        ),
    ] {
        for at in [&first, &second] {
            fs::write(at, text).unwrap();
            let said = error(open(&path, 1 << 20));
            let named = format!("cannot record to {}: ", at.display());
            assert!(said.contains(why) && said.contains(&named), "{said}");
            assert_eq!(fs::read_to_string(at).unwrap(), text);
            fs::remove_file(at).unwrap();
            assert!(!first.exists(), "nothing is left behind");
        }
    }
    let said = error(open(folder.path(), 1 << 20));
    assert!(said.contains("no regular file"), "{said}");
    let said = error(open(&folder.path().join("none/x"), 1 << 20));
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn a_record_without_snapshots_is_not_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("top.rec");
    drop(open(&path, 1 << 20).unwrap());
    assert!(!path.exists());
    // A snapshot that is larger than a segment: there is no other one yet.
    let mut writer = open(&path, 4096).unwrap();
    let said = error(append(&mut writer, 1, 5000));
    assert!(
        said.contains("one snapshot takes") && said.contains("larger limit"),
        "{said}"
    );
    drop(writer);
    assert!(!path.exists());
    // An empty file that was there stays.
    fs::write(&path, "").unwrap();
    drop(open(&path, 1 << 20).unwrap());
    assert!(path.exists());
    // A snapshot that has become too large ends the record, and what is there stays.
    let mut writer = open(&path, 4096).unwrap();
    append(&mut writer, 1, 0).unwrap();
    let said = error(append(&mut writer, 2, 5000));
    assert!(
        said.contains("snapshots until 1970-01-01 00:00:01 UTC"),
        "{said}"
    );
    drop(writer);
    assert_eq!(seconds(&path), [1]);
}

/// A file that may not grow stands for a full disk: the first page of an entry is written, the second one is not.
#[test]
fn an_entry_that_does_not_fit_the_disk_leaves_no_part() {
    let memory = memfd_create("record", MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = File::from(memory);
    file.write_all(b"whole\n").unwrap();
    file.set_len(4096).unwrap();
    fcntl_add_seals(file.as_fd(), SealFlags::GROW).unwrap();
    let mut segment = Segment {
        path: "/nowhere".into(),
        file,
        size: 0,
        is_new: false,
    };
    segment.file.seek(SeekFrom::Start(6)).unwrap();
    segment.size = 6;
    assert!(segment.append(&[b'x'; 8192]).is_err());
    assert_eq!(segment.file.metadata().unwrap().len(), 6);
    assert_eq!(segment.size, 6);
}
