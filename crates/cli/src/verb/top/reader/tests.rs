use std::fs;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use superhue::model::ByteCount;

use super::*;
use crate::targets_args::{TargetArgs, WideArgs};

fn args() -> TopArgs {
    TopArgs {
        view: ViewName::Processes,
        targets: TargetArgs::default(),
        width: WideArgs::default(),
        interval: Duration::from_millis(10),
        once: false,
        json: false,
        track: false,
        tracker: None,
        max_overhead: 1.0,
        socket: "/nowhere".into(),
        record: None,
        record_limit: ByteCount(1 << 20),
        replay: None,
        at: None,
    }
}

/// A process whose memory map never ends: in its place is a FIFO without a writer.
#[test]
fn a_process_that_holds_a_reader_up_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    for pid in [7, 8] {
        let process = folder.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&process).unwrap();
        let zeroes = "0 ".repeat(40);
        let stat = format!("{pid} (it) S 1 1 1 0 -1 0 {zeroes}\n");
        fs::write(process.join("stat"), stat).unwrap();
        fs::write(process.join("statm"), "9000 900 0 0 0 0 0\n").unwrap();
        let memory = "1000-2000 ---p 00000000 00:00 0 [rollup]\nRss: 3600 kB\nPss: 3600 kB\n";
        fs::write(process.join("smaps_rollup"), memory).unwrap();
    }
    let blocked = folder.path().join("proc/7/smaps_rollup");
    fs::remove_file(&blocked).unwrap();
    mknodat(CWD, &blocked, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let args = args();
    let roots = Roots::under(folder.path());
    let mut reader = Reader::of(roots, &args, Targets::All, Duration::from_millis(50));
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        reader.mind();
        let latest = reader.latest();
        let is_read = latest.processes.iter().any(|it| it.memory().is_some());
        if latest.avoided == 1 && is_read {
            assert_eq!(latest.processes.len(), 2);
            break;
        }
        assert!(Instant::now() < deadline, "{latest:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Releases the first reader, too.
    drop(reader);
    let _ = fs::write(&blocked, "");
}

#[test]
fn a_tracker_that_is_held_up_is_given_up_and_all_else_goes_on() {
    let args = args();
    let mut reader = Reader::start(&args, Targets::All);
    reader
        .shared
        .tracked()
        .step_began(Instant::now() - TRACKER_HELD_UP);
    reader.mind();
    let tracked = reader.shared.tracked();
    let said = tracked.heat.tracker.clone();
    assert_eq!(said, Some(Err("a process holds the tracker up".to_owned())));
    assert!(!tracked.is_held_up_for(Duration::ZERO));
}
