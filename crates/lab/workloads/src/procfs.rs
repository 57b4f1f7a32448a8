//! The few numbers that a workload reads about itself.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use superhue_model::{ByteCount, VirtRange};

/// Resident memory of this process now.
///
/// # Errors
/// If `/proc` is missing or lacks the field.
pub fn own_rss() -> Result<ByteCount> {
    rss("self")
}

/// Resident memory of a process now (`VmRSS` of `/proc/PID/status`).
///
/// # Errors
/// If there is no such process or `/proc` lacks the field.
pub fn rss(pid: &str) -> Result<ByteCount> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    field_kib(&text, "VmRSS").with_context(|| format!("{path} has no VmRSS"))
}

/// Memory of a process now, with its share of each page that other processes map too (`Pss` of
/// `/proc/PID/smaps_rollup`).
///
/// # Errors
/// The same as those of [`rss`].
pub fn pss(pid: &str) -> Result<ByteCount> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    field_kib(&text, "Pss").with_context(|| format!("{path} has no Pss"))
}

/// CPU time that a process has used so far, in all its threads, in user and kernel mode.
///
/// Fields 14 and 15 of `/proc/PID/stat`, in clock ticks (10 ms as a rule).
///
/// # Errors
/// If there is no such process or `/proc` lacks the fields.
pub fn cpu_time(pid: &str) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ticks = cpu_ticks(&text).with_context(|| format!("{path} is not understood"))?;
    let millis = ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_millis(millis))
}

/// `utime + stime` of a `stat` line.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The command's name is in parentheses and may hold any characters, parentheses and spaces too.
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

/// Memory that is available without swapping (`MemAvailable`), `None` if the kernel does not report it.
#[must_use]
pub fn available() -> Option<ByteCount> {
    field_kib(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// The value of a `Name:   123 kB` line.
fn field_kib(text: &str, name: &str) -> Option<ByteCount> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        if key != name {
            return None;
        }
        let number = value.trim().strip_suffix("kB")?.trim_end();
        number.parse().ok().map(ByteCount::from_kib)
    })
}

/// Huge-mapped anonymous bytes (`AnonHugePages`) of the VMAs of a `smaps` text that lie in `range`.
#[must_use]
pub fn smaps_huge(smaps: &str, range: VirtRange) -> ByteCount {
    let mut inside = false;
    let mut sum = ByteCount(0);
    for line in smaps.lines() {
        if let Some((start, end)) = vma_bounds(line) {
            inside = range.start.0 <= start && end <= range.end.0;
        } else if inside && line.starts_with("AnonHugePages:") {
            sum += field_kib(line, "AnonHugePages").unwrap_or_default();
        }
    }
    sum
}

/// The addresses of a `start-end perms offset ...` line.
fn vma_bounds(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::VirtAddr;

    #[test]
    fn only_the_mapping_asked_for_is_summed() {
        let smaps = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac
7f0000400000-7f0000600000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
";
        let range = VirtRange::new(VirtAddr(0x7f00_0000_0000), VirtAddr(0x7f00_0060_0000)).unwrap();
        assert_eq!(smaps_huge(smaps, range), ByteCount(4 << 20));
        assert_eq!(smaps_huge("", range), ByteCount(0));
        assert_eq!(
            smaps_huge("garbage\n-\nAnonHugePages: x\n", range),
            ByteCount(0)
        );
    }

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let fields = "R 1 2 3 0 -1 4194304 100 0 0 0 123 45 9 9 20 0 1 0 999";
        for name in ["cat", "a b", ")) (", ""] {
            let stat = format!("42 ({name}) {fields}\n");
            assert_eq!(cpu_ticks(&stat), Some(168), "{name}");
        }
        assert_eq!(cpu_ticks("42 (cat) R 1"), None);
        assert_eq!(cpu_ticks(""), None);
        assert!(cpu_time("self").is_ok());
        assert!(cpu_time("0").is_err());
    }

    #[test]
    fn this_process_is_resident() {
        assert!(own_rss().unwrap() > ByteCount(64 << 10));
    }
}
