//! `superhue trial --swap`: frames of split memory are scattered as they were before huge pages, through swap in memory.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use ::superhue::act::SwapInUse;
use ::superhue::procfs::Roots;
use serde_json::Value;
use superhue_testing::alone;

use crate::support::{
    ChildGuard, FILLING, User, collapse_works, output, python, skip, superhue, text,
};

/// Fills 32 MiB in random order, which scatters its frames; after a line of input prints whether all is intact.
const PROGRAM: &str = r"
import random, sys, threading, time
memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pages = list(range(0, len(memory), 4096))
random.Random(1).shuffle(pages)
for at in pages:
    memory[at:at + 8] = at.to_bytes(8, 'little')
def use():
    while True:
        memory[::4096]
        time.sleep(.002)
threading.Thread(target=use, daemon=True).start()
print('filled', flush=True)
sys.stdin.readline()
print(whole(memory), flush=True)
";

#[test]
fn off_has_its_frames_scattered_as_before() {
    let _alone = alone();
    if let Err(error) = SwapInUse::may_make(&Roots::default()) {
        return skip("zram", &error.to_string());
    }
    let Some(python) = python().filter(|_| collapse_works()) else {
        return;
    };
    let mut command = Command::new(python);
    command
        .args(["-c", &format!("{FILLING}{PROGRAM}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = ChildGuard::start(&mut command);
    let mut filled = [0; b"filled\n".len()];
    target
        .0
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut filled)
        .unwrap();
    let before = fs::read_to_string("/proc/swaps").unwrap();
    let pid = target.pid().to_string();
    let ended = output(&mut superhue(
        User::Same,
        &[
            "trial",
            "--pages",
            "resident",
            "--block",
            "100ms",
            "--learn",
            "20s",
            "--for",
            "2m",
            "--swap",
            "--metric-kind",
            "gauge",
            "--metric-command",
            // A metric that never changes decides nothing.
            "date +5.000%N",
            "--seed",
            "3",
            "--json",
            &pid,
        ],
    ));
    let document: Value = serde_json::from_slice(&ended.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&ended.stderr)));
    assert_eq!(
        document["verdict"]["outcome"], "no-difference",
        "{document}"
    );
    let frames = &document["frames"];
    let (Some(scattered), Some(off)) = (
        frames["neighbors_before"].as_f64(),
        frames["neighbors_off"].as_f64(),
    ) else {
        return skip("frames", &format!("frame numbers are hidden: {frames}"));
    };
    if scattered >= 0.5 {
        return skip(
            "frames",
            &format!("random order has not scattered them: {frames}"),
        );
    }
    assert!(frames["through"].is_string(), "{frames}");
    assert!(off < 0.1, "{frames}");
    // Fifteen whole regions at least for each time that the policy was switched off; the program itself brings many of their pages in.
    let times = document["switching"]["times_off"].as_u64().unwrap();
    let moved = frames["moved_pages"].as_u64().unwrap();
    assert!(moved >= times * 15 * 512 / 10, "{times} {frames}");
    assert_eq!(fs::read_to_string("/proc/swaps").unwrap(), before);
    target.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    target.wait();
    let mut said = String::new();
    target
        .0
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert_eq!(said, "True\n");
}
