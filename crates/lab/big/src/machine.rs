//! Facts about the machine that is measured.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use superhue::model::ByteCount;
use superhue::procfs::Roots;
use superhue::procfs::hardware::{Cpuid, Virtualization};

use crate::children;
use crate::plan;

/// Files that describe the machine's configuration; a file that cannot be read becomes null.
const SETTINGS: [&str; 17] = [
    "/proc/version",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/vm/overcommit_memory",
    "/proc/self/cgroup",
    "/sys/fs/cgroup/cpu.max",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/pids.max",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/defrag",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
    "/sys/kernel/mm/transparent_hugepage/use_zero_page",
    "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
    "/sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan",
    "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
    "/sys/devices/system/node/online",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/devices/system/cpu/smt/active",
];

/// One result of `superhue check`.
#[derive(Debug, Serialize)]
pub struct Capability {
    id: String,
    verdict: String,
    found: String,
}

/// Facts that could be read about the machine.
#[derive(Debug, Default, Serialize)]
pub struct Facts {
    cpu: Option<String>,
    /// Processors that this process may use at once, by affinity and control groups.
    cpus: usize,
    cpus_of_machine: Option<usize>,
    memory_bytes: Option<u64>,
    available_bytes: Option<u64>,
    /// Memory that control groups still allow; null without a limit.
    group_headroom_bytes: Option<u64>,
    /// Most memory that the steps fill.
    usable_bytes: u64,
    kernel: String,
    is_gvisor: bool,
    virtualization: Option<Virtualization>,
    is_root: bool,
    /// `CapEff` of `/proc/self/status`.
    capabilities: Option<String>,
    has_python: bool,
    load: Option<[f64; 3]>,
    settings: BTreeMap<&'static str, Option<String>>,
    checks: Vec<Capability>,
    /// Reason why there are no checks.
    checks_missing: Option<String>,
}

/// Returns the number of processors that this process may use at once.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the memory that the steps may fill now.
pub fn usable(asked: Option<ByteCount>) -> ByteCount {
    let available = available().unwrap_or(ByteCount(0));
    plan::usable(available, headroom(), asked)
}

fn headroom() -> Option<ByteCount> {
    superhue::sys::cgroup::headroom(Path::new("/proc"), Path::new("/sys"), "self")
}

fn available() -> Option<ByteCount> {
    of_meminfo("MemAvailable").or_else(|| of_meminfo("MemFree"))
}

fn of_meminfo(name: &str) -> Option<ByteCount> {
    field(&fs::read_to_string("/proc/meminfo").ok()?, name)?
        .split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| ByteCount(kib << 10))
}

/// Returns the value of a line `NAME: VALUE`.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .into_iter()
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

/// Returns a size from the text of `/proc/PID/status`.
pub fn size_in(status: &str, name: &str) -> Option<ByteCount> {
    let kib: u64 = field(status, name)?.split(' ').next()?.parse().ok()?;
    Some(ByteCount(kib << 10))
}

/// Returns the peak resident set of a process since its `execve(2)`. `ru_maxrss` of `getrusage(2)` also counts the resident set of the
/// process that forked it.
pub fn peak_rss(pid: u32) -> Option<ByteCount> {
    size_in(
        &fs::read_to_string(format!("/proc/{pid}/status")).ok()?,
        "VmHWM",
    )
}

/// Returns the load averages.
pub fn load() -> Option<[f64; 3]> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let mut values = text.split(' ').map_while(|word| word.parse().ok());
    Some([values.next()?, values.next()?, values.next()?])
}

impl Facts {
    /// Reads the facts, and runs `superhue check`.
    pub fn read(tools: &Path, asked: Option<ByteCount>, patience: Duration) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let version = fs::read_to_string("/proc/version").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let (checks, checks_missing) = match checks(tools, patience) {
            Ok(checks) => (checks, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        Self {
            cpu: field(&cpuinfo, "model name").map(str::to_owned),
            cpus: cpus(),
            cpus_of_machine: Some(
                cpuinfo
                    .lines()
                    .filter(|line| line.starts_with("processor"))
                    .count(),
            )
            .filter(|count| *count > 0),
            memory_bytes: of_meminfo("MemTotal").map(|bytes| bytes.0),
            available_bytes: available().map(|bytes| bytes.0),
            group_headroom_bytes: headroom().map(|bytes| bytes.0),
            usable_bytes: usable(asked).0,
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            is_gvisor: is_gvisor(&version),
            virtualization: Some(Virtualization::read(&Roots::default(), &Cpuid::native())),
            is_root: rustix::process::geteuid().is_root(),
            capabilities: field(&status, "CapEff").map(str::to_owned),
            has_python: has_python(),
            load: load(),
            settings: SETTINGS
                .iter()
                .map(|path| {
                    (
                        *path,
                        fs::read_to_string(path)
                            .ok()
                            .map(|text| text.trim().to_owned()),
                    )
                })
                .collect(),
            checks,
            checks_missing,
        }
    }
}

/// Returns true for gVisor, which always reports a Linux built on a day of 2016 (`pkg/sentry/kernel/version.go`).
fn is_gvisor(version: &str) -> bool {
    version.contains("gVisor") || version.contains("Sun Jan 10 15:06:54 PST 2016")
}

fn has_python() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join("python3").exists())
}

fn checks(tools: &Path, patience: Duration) -> anyhow::Result<Vec<Capability>> {
    let ended = children::run(
        Command::new(tools.join("superhue")).args(["check", "--json"]),
        Instant::now() + patience,
    )?;
    let told: Value = serde_json::from_str(&ended.out)
        .map_err(|_| anyhow::anyhow!("superhue check: {}", ended.complaint()))?;
    let word = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let all = told["capabilities"].as_array().into_iter().flatten();
    Ok(all
        .map(|one| Capability {
            id: word(one, "id"),
            verdict: word(one, "verdict"),
            found: word(one, "found"),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_their_name() {
        assert_eq!(
            field("a: 1\nmodel name\t: AMD EPYC\n", "model name"),
            Some("AMD EPYC")
        );
        assert_eq!(field("a: 1", "b"), None);
        assert_eq!(
            size_in("VmHWM:\t    12 kB\n", "VmHWM"),
            Some(ByteCount(12288))
        );
        assert!(peak_rss(std::process::id()).is_some());
        assert!(is_gvisor(
            "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"
        ));
        assert!(!is_gvisor("Linux version 6.18.44"));
        assert!(cpus() >= 1 && usable(Some(ByteCount(5))) <= ByteCount(5));
    }
}
