//! A measured TLB, kept for this machine: measuring again would find the same.
//!
//! Root keeps it in `/var/cache/superhue`, others in `superhue` below `XDG_CACHE_HOME` (`~/.cache`). Files that other users could have written are
//! not used.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use superhue_procfs::Roots;
use superhue_procfs::hardware::Virtualization;
use superhue_procfs::system::Kernel;
use superhue_state::Folder;

use super::measure::ReachMeasurement;

/// Folder of root.
const OF_ROOT: &str = "/var/cache/superhue";
const FILE: &str = "tlb.json";

/// The file has a few hundred bytes.
const LARGEST_FILE: u64 = 16 << 10;

/// More entries than any TLB has, and longer than any walk takes.
const MOST_ENTRIES: u32 = 1 << 20;
const MOST_SECONDS: f64 = 1e-3;

/// Fields of `/proc/cpuinfo` that identify a processor: those of x86 and of arm64 (`arch/*/kernel/cpu/proc.c`, `arch/arm64/kernel/cpuinfo.c`).
const FIELDS: [&str; 11] = [
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "microcode",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "CPU revision",
];

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CachedTlb {
    machine: String,
    tlb: ReachMeasurement,
}

/// Returns what decides the outcome of a measurement: processor, microcode, hypervisor and kernel. `None` where that cannot be read.
pub(super) fn machine(roots: &Roots, virtualization: &Virtualization) -> Option<String> {
    let text = fs::read_to_string(roots.proc.join("cpuinfo")).ok()?;
    let first = text.split("\n\n").next().unwrap_or_default();
    let fields = first.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let name = name.trim();
        FIELDS
            .contains(&name)
            .then(|| format!("{name} {}", value.trim()))
    });
    let mut known: Vec<String> = fields.collect();
    known.push(format!("{:?}", virtualization.machine));
    known.extend(virtualization.hypervisor.clone());
    known.push(Kernel::read(roots).ok()?.release);
    Some(known.join("; "))
}

/// Returns the folder of this user; `None` if the environment names none.
pub(super) fn folder() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(OF_ROOT.into());
    }
    let named = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        // The specification (XDG Base Directory) ignores other paths.
        path.is_absolute().then_some(path)
    };
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(cache.join("superhue"))
}

/// Reads the TLB of this machine; `None` if it is not kept, or its file is not to be trusted.
pub(super) fn read(folder: &Path, machine: &str) -> Option<ReachMeasurement> {
    let folder = Folder::open(folder).ok()??;
    let file = folder.open_file(FILE).ok()??;
    let bytes = folder.read(FILE, &file, LARGEST_FILE).ok()?;
    let kept: CachedTlb = serde_json::from_slice(&bytes).ok()?;
    (kept.machine == machine && is_sane(&kept.tlb)).then_some(kept.tlb)
}

/// Returns true if a measurement could have had this outcome.
fn is_sane(tlb: &ReachMeasurement) -> bool {
    let entries = [&tlb.base, &tlb.huge].map(|of| [of.first, of.last]);
    let is_count = |entries: &u32| (1..=MOST_ENTRIES).contains(entries);
    let are_counts = entries.as_flattened().iter().flatten().all(is_count);
    let costs = &tlb.costs;
    let costs = [
        costs.second_hit_seconds,
        costs.walk_seconds,
        costs.full_walk_seconds,
    ];
    let is_cost = |seconds: &f64| (0.0..MOST_SECONDS).contains(seconds);
    let are_costs = costs.iter().flatten().all(is_cost);
    let ascends = tlb.base.first < tlb.base.last;
    tlb.base.last.is_some() && ascends && are_counts && are_costs
}

/// Keeps the TLB of this machine. `None` if that is not possible: it is measured again the next time.
pub(super) fn write(folder: &Path, machine: &str, tlb: &ReachMeasurement) -> Option<()> {
    // The folder of all caches may be missing, too.
    if let Some(parent) = folder.parent().filter(|parent| !parent.exists()) {
        Folder::make(parent, 0o700).ok()?;
    }
    let folder = Folder::make(folder, 0o755).ok()?;
    let kept = CachedTlb {
        machine: machine.to_owned(),
        tlb: *tlb,
    };
    let bytes = serde_json::to_vec(&kept).ok()?;
    let new = format!("{FILE}.{}", std::process::id());
    let mut file = folder.create_file(&new).ok()?;
    // Renamed when it is whole, so that no reader sees half of it.
    let done = file
        .write_all(&bytes)
        .ok()
        .and_then(|()| folder.rename(&new, FILE).ok());
    if done.is_none() {
        let _ = folder.remove(&new);
    }
    done
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use superhue_testing::{NOBODY, is_root, skip};

    use super::*;
    use crate::tlb::{TlbCosts, TlbEntries};

    const TLB: ReachMeasurement = ReachMeasurement {
        base: TlbEntries {
            first: Some(64),
            last: Some(1536),
        },
        huge: TlbEntries {
            first: Some(32),
            last: None,
        },
        huge_pages_whole: Some(true),
        costs: TlbCosts {
            second_hit_seconds: Some(3e-9),
            walk_seconds: Some(1e-8),
            full_walk_seconds: None,
        },
    };

    #[test]
    fn it_is_kept_for_the_same_machine_alone() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("cache/superhue");
        assert_eq!(read(&folder, "this"), None);
        write(&folder, "this", &TLB).unwrap();
        write(&folder, "this", &TLB).unwrap();
        assert_eq!(read(&folder, "this"), Some(TLB));
        assert_eq!(read(&folder, "other"), None);
        let names: Vec<_> = fs::read_dir(&folder).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn what_others_could_have_written_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("superhue");
        let path = folder.join(FILE);
        write(&folder, "this", &TLB).unwrap();
        let chmod =
            |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        chmod(&path, 0o622);
        assert_eq!(read(&folder, "this"), None, "a file that others may write");
        chmod(&path, 0o600);
        chmod(&folder, 0o777);
        assert_eq!(
            read(&folder, "this"),
            None,
            "a folder that others may write to"
        );
        chmod(&folder, 0o755);
        assert_eq!(read(&folder, "this"), Some(TLB));
        let moved = root.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        symlink(&moved, &path).unwrap();
        assert_eq!(read(&folder, "this"), None, "a symbolic link");
        fs::remove_file(&path).unwrap();
        if !is_root() {
            return skip("root", "cannot make a file of another user");
        }
        fs::rename(&moved, &path).unwrap();
        chown(&path, Some(NOBODY), None).unwrap();
        assert_eq!(read(&folder, "this"), None, "a file of another user");
        // The next measurement takes its place.
        write(&folder, "this", &TLB).unwrap();
        assert_eq!(read(&folder, "this"), Some(TLB));
        chown(&folder, Some(NOBODY), None).unwrap();
        assert_eq!(read(&folder, "this"), None, "a folder of another user");
        assert_eq!(write(&folder, "this", &TLB), None);
    }

    #[test]
    fn garbage_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("superhue");
        write(&folder, "this", &TLB).unwrap();
        let path = folder.join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        for (from, to) in [
            ("1536", "0"),
            ("1536", "4294967295"),
            ("1536", "32"),
            ("1536", "-5"),
            ("1536", "null"),
            ("1e-8", "-1e-8"),
            ("1e-8", "1e300"),
            ("1e-8", "NaN"),
            ("\"base\"", "\"bases\""),
            ("{", ""),
            ("}}", ""),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text, "{from}");
            fs::write(&path, changed).unwrap();
            assert_eq!(read(&folder, "this"), None, "{from} {to}");
        }
        fs::write(&path, format!("{text}{}", " ".repeat(1 << 15))).unwrap();
        assert_eq!(read(&folder, "this"), None, "too long");
        fs::write(&path, &text).unwrap();
        assert_eq!(read(&folder, "this"), Some(TLB));
    }

    #[test]
    fn a_machine_is_its_processor_hypervisor_and_kernel() {
        let root = tempfile::tempdir().unwrap();
        let roots = Roots::under(root.path());
        let nowhere = Virtualization::read(&roots, &superhue_procfs::hardware::Cpuid::none());
        assert_eq!(machine(&roots, &nowhere), None);
        fs::create_dir_all(roots.proc.join("sys/kernel")).unwrap();
        let write = |microcode: &str, release: &str| {
            let text = format!(
                "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 85\nmicrocode\t: {microcode}\ncpu MHz\t\t: 2500\n\n\
                 processor\t: 1\nvendor_id\t: Other\n"
            );
            fs::write(roots.proc.join("cpuinfo"), text).unwrap();
            fs::write(roots.proc.join("sys/kernel/osrelease"), release).unwrap();
            machine(&roots, &nowhere).unwrap()
        };
        let one = write("0x1", "6.18.0\n");
        assert_eq!(
            one,
            "vendor_id GenuineIntel; model 85; microcode 0x1; Unknown; 6.18.0"
        );
        assert_ne!(write("0x2", "6.18.0\n"), one);
        assert_ne!(write("0x1", "6.19.0\n"), one);
        let guest = Virtualization {
            hypervisor: Some("KVM".to_owned()),
            ..nowhere.clone()
        };
        write("0x1", "6.18.0\n");
        assert_ne!(machine(&roots, &guest).unwrap(), one);
    }
}
