//! Prints what this machine lets this caller do, as JSON.
//!
//! ```text
//! cargo run -p superhue --example probe -- [--forbid kill|eperm] [--barred] [ROOT]
//! ```
//!
//! ROOT is a directory with `proc` and `sys` in it (default `/`). With `--forbid`, a seccomp filter
//! first forbids the calls that filters often forbid, by killing as systemd does or by `EPERM` as
//! containers do.
//! With `--barred`, the process first disables huge pages for itself.
//!
//! The tests of the probes run this with fewer privileges than their own, which a process cannot
//! take back. It also counts the descriptors, mappings, threads and children that trials left behind.

use std::path::Path;
use std::{env, fs, io};

use superhue::probe;
use superhue_procfs::Roots;
use superhue_sys::seccomp::RiskyCall;
use superhue_sys::thp::{ThpSwitch, set_thp_switch};
use superhue_testing::{Answer, forbid};

fn main() -> io::Result<()> {
    let mut root = "/".to_owned();
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--barred" => set_thp_switch(ThpSwitch::Never)?,
            "--forbid" => {
                let answer = match arguments.next().as_deref() {
                    Some("kill") => Answer::Kill,
                    Some("eperm") => Answer::NotPermitted,
                    _ => return Err(io::Error::other("--forbid takes kill or eperm")),
                };
                for call in RiskyCall::ALL {
                    forbid(call.number(), answer).map_err(io::Error::other)?;
                }
            }
            _ => root = argument,
        }
    }
    let roots = Roots::under(Path::new(&root));

    let capabilities = probe::all(&roots);
    // Counted after a first round, which allocates what a process keeps in any case, such as its heap.
    let before = held();
    let again = probe::all(&roots);
    let report = serde_json::json!({
        "capabilities": capabilities,
        "again": again,
        "held_before": before,
        "held_after": held(),
    });
    serde_json::to_writer_pretty(io::stdout().lock(), &report)?;
    Ok(())
}

/// Returns the numbers of descriptors, mappings, threads and children of this process.
fn held() -> [Option<usize>; 4] {
    let entries = |path| Some(fs::read_dir(path).ok()?.count());
    let lines = |path| Some(fs::read_to_string(path).ok()?.lines().count());
    let words = |path| Some(fs::read_to_string(path).ok()?.split_whitespace().count());
    [
        entries("/proc/self/fd"),
        lines("/proc/self/maps"),
        entries("/proc/self/task"),
        words("/proc/thread-self/children"),
    ]
}
