//! Cache allocation by the hardware: CAT of Intel, QoS of AMD and MPAM of Arm, which the kernel offers through one file system, resctrl.
//!
//! A class of tasks has a mask for each cache, and fills only the parts of the cache that the mask selects. The files are those of
//! `Documentation/filesystems/resctrl.rst`. No source is enough by itself:
//!
//! ```text
//!   /proc/cpuinfo       flags of an x86 CPU; the kernel may have no resctrl. arm64 has no flag for MPAM
//!   /proc/filesystems   resctrl is listed: CPU and kernel have it, but perhaps only to monitor
//!   mountinfo           the mount point, if any: the kernel mounts resctrl once only
//!   info/L3, info/L2    the masks; L3DATA and L3CODE where code and data have masks of their own (CDP)
//! ```

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use superhue_model::words;

use super::cache::{positive, read_cache};
use crate::system::file::{self, Attributes};
use crate::system::{Gaps, ParseError, number};
use crate::{Roots, mounts};

/// Name of the file system.
const FILE_SYSTEM: &str = "resctrl";
/// Most bytes that are read of `/proc/cpuinfo`: several times the entry of the first CPU. The kernel computes the entry of each CPU at
/// the read, which takes long for hundreds of CPUs.
const CPUINFO_LIMIT: u64 = 16 << 10;
/// Directories of resctrl that are not groups of tasks with masks.
const NOT_GROUPS: [&str; 3] = ["info", "mon_groups", "mon_data"];

/// Availability of cache allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllocationState {
    /// resctrl is mounted here.
    Mounted,
    /// resctrl is mounted for process 1, but not in the mount namespace of this process.
    MountedElsewhere,
    /// The kernel has resctrl, and no mount of it is visible.
    NotMounted,
    /// The kernel has no resctrl, and the CPU has cache allocation or shows no flags.
    NotInKernel,
    /// The CPU has no cache allocation.
    NotOffered,
    /// A hypervisor hides the CPU's cache allocation, if the CPU has it.
    Hidden,
    /// A file that decides could not be read or understood.
    Unknown,
}

/// Flags of `/proc/cpuinfo` on x86 (`arch/x86/include/asm/cpufeatures.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the CPU, and any combination occurs"
)]
pub struct AllocationFlags {
    /// Allocation of any resource.
    pub rdt_a: bool,
    /// Masks for the L3.
    pub cat_l3: bool,
    /// Masks for the L2.
    pub cat_l2: bool,
    /// Separate masks for code and data in the L3.
    pub cdp_l3: bool,
    /// Separate masks for code and data in the L2.
    pub cdp_l2: bool,
    /// Guest of a hypervisor.
    pub hypervisor: bool,
}

impl AllocationFlags {
    /// Parses the flags of the first CPU in the text of `/proc/cpuinfo`.
    ///
    /// # Errors
    /// If no line has flags, as on other architectures, or the text ends within that line.
    pub fn parse(cpuinfo: &str) -> Result<Self, ParseError> {
        let flags = |line: &str| {
            let (name, words) = line.split_once(':')?;
            (name.trim() == "flags").then(|| words.to_owned())
        };
        let words = (cpuinfo.split_inclusive('\n'))
            .find_map(flags)
            .ok_or_else(|| ParseError::new("no flags, which x86 alone has"))?;
        if !words.ends_with('\n') {
            return Err(ParseError::new("the line of flags has no end"));
        }
        if words.trim().is_empty() {
            return Err(ParseError::new("the line of flags is empty"));
        }
        let has = |flag: &str| words.split_whitespace().any(|word| word == flag);
        Ok(Self {
            rdt_a: has("rdt_a"),
            cat_l3: has("cat_l3"),
            cat_l2: has("cat_l2"),
            cdp_l3: has("cdp_l3"),
            cdp_l2: has("cdp_l2"),
            hypervisor: has("hypervisor"),
        })
    }

    /// Returns true if the CPU has masks for a cache.
    #[must_use]
    pub const fn can_allocate(self) -> bool {
        self.cat_l3 || self.cat_l2
    }
}

/// Masks of one level of caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheMasks {
    /// Level of the caches: 3 or 2.
    pub level: u32,
    /// True if code and data have masks of their own (mount options `cdp` and `cdpl2`).
    pub is_code_apart: bool,
    /// Bits of a mask, each for an equal part of the cache.
    pub bits: Option<u32>,
    /// Fewest bits of a mask; 0 where the mask of a group may be empty.
    pub min_bits: Option<u64>,
    /// Number of different masks (`num_closids`).
    pub closids: Option<u64>,
    /// Ways of such a cache (`ways_of_associativity`).
    pub ways: Option<u64>,
}

impl CacheMasks {
    /// Returns true if two groups can have different parts of the cache; `None` if that is unknown.
    #[must_use]
    pub fn can_divide(&self) -> Option<bool> {
        Some(self.bits? > 1 && self.closids? > 1)
    }
}

/// Offer of CPU and kernel to divide caches between groups of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CacheAllocation {
    /// Availability.
    pub state: AllocationState,
    /// Flags of the CPU; `None` on architectures without flags.
    pub flags: Option<AllocationFlags>,
    /// True if the kernel has resctrl.
    pub is_in_kernel: Option<bool>,
    /// Mount point, as this process sees it, or process 1 if resctrl is mounted elsewhere; `None` without a visible mount.
    pub mount_point: Option<String>,
    /// Levels that can be divided, the L3 first; empty if resctrl divides none, `None` unless it is mounted here and can be listed.
    pub caches: Option<Vec<CacheMasks>>,
    /// Most groups of tasks with masks, the default group included: the kernel takes the smallest number of all resources.
    pub groups: Option<u64>,
    /// Groups that can still be made.
    pub groups_left: Option<u64>,
    /// Reasons for unknown values: by file, below `/proc`, the mount point, or `/sys/devices/system/cpu`.
    pub gaps: Gaps,
}

impl CacheAllocation {
    /// Reads the offer. Never fails: unreadable parts are gaps.
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        let mut proc = Attributes::of(&roots.proc);
        let is_in_kernel = proc.get("filesystems", lists_resctrl);
        let mut gaps = proc.into_gaps();
        let flags = read_flags(roots, &mut gaps);
        let mut found = Self {
            state: AllocationState::Unknown,
            flags,
            is_in_kernel,
            mount_point: None,
            caches: None,
            groups: None,
            groups_left: None,
            gaps,
        };
        match fs::read(roots.proc.join("self/mountinfo")) {
            Ok(table) => found.look_for_mount(roots, &table),
            Err(error) => {
                let reason = format!("cannot be read: {error}");
                found.gaps.note("self/mountinfo", reason);
            }
        }
        found
    }

    /// Finds the mount in the table of this process, or of process 1, and decides on the state.
    fn look_for_mount(&mut self, roots: &Roots, table: &[u8]) {
        if !table.is_empty() && mounts::parse(table).next().is_none() {
            let reason = "not understood: no line is a mount";
            self.gaps.note("self/mountinfo", reason);
            return;
        }
        let mounts = mount_points(table);
        // A bind mount may show one group only, and another file system may lie over a mount: then there is no `info`.
        let has_info = |place: &&PathBuf| roots.below(place).join("info").is_dir();
        if let Some(place) = mounts.iter().find(has_info).or(mounts.last()) {
            self.state = AllocationState::Mounted;
            self.mount_point = Some(shown(place));
            self.read_mounted(roots, &roots.below(place));
            return;
        }
        let of_first = fs::read(roots.of_process(1, "mountinfo")).unwrap_or_default();
        if let Some(place) = mount_points(&of_first).last() {
            self.state = AllocationState::MountedElsewhere;
            self.mount_point = Some(shown(place));
            return;
        }
        self.state = self.unmounted();
    }

    /// Returns the state of a machine where no mount is visible.
    fn unmounted(&self) -> AllocationState {
        match (self.is_in_kernel, self.flags) {
            (None, _) => AllocationState::Unknown,
            (Some(true), _) => AllocationState::NotMounted,
            (Some(false), None) => AllocationState::NotInKernel,
            (Some(false), Some(flags)) if flags.can_allocate() => AllocationState::NotInKernel,
            (Some(false), Some(flags)) if flags.hypervisor => AllocationState::Hidden,
            (Some(false), Some(_)) => AllocationState::NotOffered,
        }
    }

    /// Reads the masks and counts the groups of a mounted resctrl.
    fn read_mounted(&mut self, roots: &Roots, root: &Path) {
        let resources = match directories(&root.join("info")) {
            Ok(resources) => resources,
            Err(error) => {
                let reason = format!("cannot be listed: {error}");
                self.gaps.note("info", reason);
                return;
            }
        };
        let mut caches = Vec::new();
        for level in [3, 2] {
            let plain = format!("L{level}");
            // With masks of their own, code and data have the same number of bits and of masks.
            let apart = format!("L{level}DATA");
            let name = [plain, apart]
                .into_iter()
                .find(|name| resources.contains(name));
            caches.extend(name.map(|name| self.read_masks(roots, root, level, &name)));
        }
        self.caches = Some(caches);
        self.count_groups(root, &resources);
    }

    /// Reads the masks of one resource.
    fn read_masks(&mut self, roots: &Roots, root: &Path, level: u32, name: &str) -> CacheMasks {
        let mut file = Attributes::of(root);
        let bits = file.get(&format!("info/{name}/cbm_mask"), mask_bits);
        let min_bits = file.get(&format!("info/{name}/min_cbm_bits"), |text| {
            let min = number(text)?;
            match bits {
                Some(bits) if min > u64::from(bits) => Err(ParseError::new(format!(
                    "{min} is more than the {bits} bits of cbm_mask"
                ))),
                _ => Ok(min),
            }
        });
        let closids = file.get(&format!("info/{name}/num_closids"), positive);
        for (path, reason) in file.into_gaps().iter() {
            self.gaps.note(path, reason);
        }
        let ways = ways(roots, level);
        if ways.is_none() {
            let reason = "not described by the firmware, or the hypervisor";
            self.gaps.note(format!("ways of the L{level}"), reason);
        }
        CacheMasks {
            level,
            is_code_apart: name.ends_with("DATA"),
            bits,
            min_bits,
            closids,
            ways,
        }
    }

    /// Counts the groups that exist and that can be made.
    fn count_groups(&mut self, root: &Path, resources: &[String]) {
        let left = most_groups(root, resources).and_then(|most| {
            self.groups = Some(most);
            let used = used_groups(root, resources)?;
            let excess = || format!("{used} groups are in use, but num_closids allows {most}");
            most.checked_sub(used).ok_or_else(excess)
        });
        match left {
            Ok(left) => self.groups_left = Some(left),
            Err(reason) => self.gaps.note("groups", reason),
        }
    }

    /// Returns the masks of a level of caches; `None` if resctrl does not divide it, or is not mounted.
    #[must_use]
    pub fn masks(&self, level: u32) -> Option<&CacheMasks> {
        let caches = self.caches.as_ref()?;
        caches.iter().find(|cache| cache.level == level)
    }

    /// Returns true if the L3 can be divided, also if resctrl must be mounted first; `None` if that is unknown.
    #[must_use]
    pub fn can_divide_l3(&self) -> Option<bool> {
        match self.state {
            AllocationState::Mounted => {
                self.caches.as_ref()?;
                self.masks(3).map_or(Some(false), CacheMasks::can_divide)
            }
            AllocationState::NotMounted | AllocationState::MountedElsewhere => {
                // Haswell has masks for the L3 without the flag, and MPAM has no flag at all.
                let flags = self.flags.filter(|flags| flags.can_allocate())?;
                Some(flags.cat_l3)
            }
            AllocationState::NotInKernel
            | AllocationState::NotOffered
            | AllocationState::Hidden => Some(false),
            AllocationState::Unknown => None,
        }
    }
}

/// Returns a path in words that JSON can hold.
fn shown(place: &Path) -> String {
    words::of_bytes(place.as_os_str().as_bytes()).into_owned()
}

/// Reads the flags of the first CPU.
fn read_flags(roots: &Roots, gaps: &mut Gaps) -> Option<AllocationFlags> {
    let mut text = Vec::new();
    let file = File::open(roots.proc.join("cpuinfo"));
    let read = file.and_then(|file| file.take(CPUINFO_LIMIT).read_to_end(&mut text));
    let flags = match read {
        Ok(_) => AllocationFlags::parse(&String::from_utf8_lossy(&text))
            .map_err(|error| format!("not understood: {error}")),
        Err(error) => Err(format!("cannot be read: {error}")),
    };
    flags.map_err(|reason| gaps.note("cpuinfo", reason)).ok()
}

/// Returns true if the text of `/proc/filesystems` lists resctrl: a file system in a line, behind `nodev` if it needs no device.
fn lists_resctrl(text: &str) -> Result<bool, ParseError> {
    if !text.ends_with('\n') {
        return Err(ParseError::new("the list has no end"));
    }
    let mut names = (text.lines()).filter_map(|line| line.split_whitespace().next_back());
    Ok(names.any(|name| name == FILE_SYSTEM))
}

/// Returns the mount points of resctrl in a table of mounts, in its order.
fn mount_points(table: &[u8]) -> Vec<PathBuf> {
    mounts::parse(table)
        .filter(|mount| mount.kind == FILE_SYSTEM.as_bytes())
        .map(|mount| mount.place())
        .collect()
}

/// Returns the number of bits in a mask as resctrl writes it: hexadecimal, without `0x`.
fn mask_bits(text: &str) -> Result<u32, ParseError> {
    let digits = text.trim();
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mask = u64::from_str_radix(digits, 16).ok().filter(|_| is_plain);
    match mask {
        None => Err(ParseError::no(text, "hexadecimal mask of at most 64 bits")),
        Some(0) => Err(ParseError::new("a mask without bits")),
        Some(mask) => Ok(mask.count_ones()),
    }
}

/// Returns the names of the directories in a directory. Symbolic links are none.
fn directories(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(names)
}

/// Returns the text of a file; `None` if there is none.
fn optional(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the most groups: the smallest `num_closids` of the resources that have one. On failure returns the reason.
fn most_groups(root: &Path, resources: &[String]) -> Result<u64, String> {
    let mut least = None;
    for resource in resources {
        let name = format!("info/{resource}/num_closids");
        let text = optional(&root.join(&name)).map_err(|error| format!("{name}: {error}"))?;
        let Some(text) = text else { continue };
        let closids = positive(&text).map_err(|error| format!("{name}: {error}"))?;
        least = Some(least.map_or(closids, |least: u64| least.min(closids)));
    }
    least.ok_or_else(|| "no resource has num_closids".to_owned())
}

/// Returns the number of identifiers in use: by the default group, by each group below the root, and by I/O (`io_alloc`, Linux 6.19).
/// On failure returns the reason.
fn used_groups(root: &Path, resources: &[String]) -> Result<u64, String> {
    let groups = directories(root).map_err(|error| format!("cannot be listed: {error}"))?;
    let mut used = 1;
    for group in groups
        .iter()
        .filter(|name| !NOT_GROUPS.contains(&name.as_str()))
    {
        let place = root.join(group);
        let mode = optional(&place.join("mode"));
        let holds_identifier = match mode.map_err(|error| format!("mode of {group}: {error}"))? {
            // The kernel frees the identifier as soon as the data is locked.
            Some(mode) => mode.trim() != "pseudo-locked",
            // Linux before 4.19 has no modes; otherwise the group has been removed meanwhile.
            None => place.is_dir(),
        };
        used += u64::from(holds_identifier);
    }
    for resource in resources {
        let name = format!("info/{resource}/io_alloc");
        let state = optional(&root.join(&name)).map_err(|error| format!("{name}: {error}"))?;
        if state.is_some_and(|state| state.trim() == "enabled") {
            // Code and data share the identifier.
            return Ok(used + 1);
        }
    }
    Ok(used)
}

/// Returns the ways of the data cache of a level, at the first CPU that describes its caches.
fn ways(roots: &Roots, level: u32) -> Option<u64> {
    let cpus = file::numbered(&roots.sys.join("devices/system/cpu"), "cpu", "").ok()?;
    // An offline CPU describes none.
    let described = |cpu: &Path| file::numbered(&cpu.join("cache"), "index", "").ok();
    let indexes = (cpus.iter())
        .filter_map(|(_, cpu)| described(cpu))
        .find(|indexes| !indexes.is_empty())?;
    let mut caches = indexes.iter().map(|(_, index)| read_cache(index));
    let is_meant = |cache: &super::Cache| cache.level == Some(level) && cache.holds_data();
    caches.find(is_meant)?.ways
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::system::tests::machine;

    const CPUINFO: &str = "processor\t: 0\nvmx flags\t: cat_l2\nflags\t\t: fpu rdt_a cat_l3 cdp_l3x\n\n\
                           processor\t: 1\nflags\t\t: fpu hypervisor\n";
    const FILE_SYSTEMS: &str = "nodev\tsysfs\n\text4\nnodev\tresctrl\n";
    const NO_MOUNT: &str = "29 1 259:2 / / rw - ext4 /dev/a rw\n";

    /// Machine in a temporary folder, with files by path.
    fn machine_of(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        files
            .iter()
            .for_each(|(path, text)| write(&root, path, text));
        root
    }

    fn write(root: &TempDir, path: &str, text: &str) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn read(root: &TempDir) -> CacheAllocation {
        CacheAllocation::read(&Roots::under(root.path()))
    }

    #[test]
    fn intel_has_its_masks_and_the_kernel_limits_the_groups_by_bandwidth() {
        let found = read(&machine("resctrl-intel"));
        assert_eq!(found.state, AllocationState::Mounted);
        assert_eq!(found.mount_point.as_deref(), Some("/sys/fs/resctrl"));
        let flags = found.flags.unwrap();
        assert!(flags.rdt_a && flags.cat_l3 && flags.cdp_l3, "{flags:?}");
        assert!(
            !flags.cat_l2 && !flags.cdp_l2 && !flags.hypervisor,
            "{flags:?}"
        );
        let l3 = CacheMasks {
            level: 3,
            is_code_apart: false,
            bits: Some(11),
            min_bits: Some(1),
            closids: Some(16),
            ways: Some(11),
        };
        assert_eq!(found.caches, Some(vec![l3]));
        // Of 8 for bandwidth, the default group and two others have one; the pseudo-locked group has none.
        assert_eq!((found.groups, found.groups_left), (Some(8), Some(5)));
        assert_eq!(found.can_divide_l3(), Some(true));
        assert!(found.gaps.is_empty(), "{:?}", found.gaps);
    }

    #[test]
    fn code_and_data_apart_are_one_cache_and_io_takes_a_group() {
        let found = read(&machine("resctrl-amd-cdp"));
        let [l3] = &found.caches.as_ref().unwrap()[..] else {
            panic!("{found:?}")
        };
        assert!(l3.is_code_apart);
        assert_eq!((l3.bits, l3.min_bits), (Some(16), Some(0)));
        assert_eq!((l3.closids, l3.ways), (Some(8), Some(16)));
        assert_eq!((found.groups, found.groups_left), (Some(8), Some(6)));
    }

    #[test]
    fn mpam_needs_no_flags() {
        let found = read(&machine("resctrl-arm64"));
        assert_eq!((found.state, found.flags), (AllocationState::Mounted, None));
        assert!(found.gaps.reason("cpuinfo").unwrap().contains("no flags"));
        let levels: Vec<u32> = (found.caches.iter().flatten())
            .map(|cache| cache.level)
            .collect();
        assert_eq!(levels, [3, 2]);
        assert_eq!(found.masks(2).unwrap().bits, Some(8));
        assert_eq!(found.masks(3).unwrap().ways, None);
        assert!(found.gaps.reason("ways of the L3").is_some());
        assert_eq!((found.groups, found.groups_left), (Some(32), Some(31)));
    }

    #[test]
    fn the_state_follows_from_cpu_and_kernel() {
        use AllocationState::{Hidden, NotInKernel, NotMounted, NotOffered, Unknown};
        let without = "nodev\tsysfs\n\text4\nnodev\tresctrl2\n";
        let flags = |flags: &str| format!("processor\t: 0\nflags\t\t: fpu {flags}\n");
        for (cpuinfo, file_systems, state, can_divide) in [
            (flags("cat_l3"), FILE_SYSTEMS, NotMounted, Some(true)),
            (flags("cat_l2"), FILE_SYSTEMS, NotMounted, Some(false)),
            (flags("cqm_llc"), FILE_SYSTEMS, NotMounted, None),
            (
                "Features\t: fp\n".to_owned(),
                FILE_SYSTEMS,
                NotMounted,
                None,
            ),
            (flags("cat_l3"), without, NotInKernel, Some(false)),
            (
                flags("hypervisor cat_l3"),
                without,
                NotInKernel,
                Some(false),
            ),
            (
                "Features\t: fp\n".to_owned(),
                without,
                NotInKernel,
                Some(false),
            ),
            (flags("hypervisor"), without, Hidden, Some(false)),
            (flags("xcat_l3 cat_l33"), without, NotOffered, Some(false)),
            (flags("cat_l3"), "", Unknown, None),
            (flags("cat_l3"), "nodev\tresctrl", Unknown, None),
        ] {
            let root = machine_of(&[
                ("proc/cpuinfo", cpuinfo.as_str()),
                ("proc/filesystems", file_systems),
                ("proc/self/mountinfo", NO_MOUNT),
            ]);
            let found = read(&root);
            let case = format!("{cpuinfo:?} {file_systems:?}: {found:?}");
            assert_eq!(
                (found.state, found.can_divide_l3()),
                (state, can_divide),
                "{case}"
            );
            assert_eq!((found.caches, found.groups_left), (None, None), "{case}");
        }
    }

    #[test]
    fn flags_are_those_of_the_first_cpu_and_whole() {
        let flags = AllocationFlags::parse(CPUINFO).unwrap();
        let expected = AllocationFlags {
            rdt_a: true,
            cat_l3: true,
            ..AllocationFlags::default()
        };
        assert_eq!(flags, expected);
        for text in [
            "",
            "processor\t: 0\n",
            "vmx flags\t: cat_l3\n",
            "flags\t\t: fpu cat",
            "flags\t\t: \n",
        ] {
            assert!(AllocationFlags::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn masks_are_hexadecimal_and_have_bits() {
        assert_eq!(mask_bits("7ff\n"), Ok(11));
        assert_eq!(mask_bits("fffff\n"), Ok(20));
        assert_eq!(mask_bits("ffffffffffffffff\n"), Ok(64));
        for text in [
            "",
            "0\n",
            "+f",
            "-1",
            "0xff",
            "fg",
            "f f",
            "1ffffffffffffffff",
        ] {
            assert!(mask_bits(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn broken_files_are_unknown_and_never_zero() {
        for (file, text, reason) in [
            ("info/L3/cbm_mask", "0\n", "without bits"),
            ("info/L3/cbm_mask", "", "hexadecimal"),
            ("info/L3/num_closids", "0\n", "not known"),
            ("info/L3/num_closids", "many\n", "number"),
            ("info/L3/min_cbm_bits", "12\n", "more than the 11 bits"),
        ] {
            let root = machine("resctrl-intel");
            write(&root, &format!("sys/fs/resctrl/{file}"), text);
            let found = read(&root);
            let l3 = found.masks(3).unwrap();
            let value = match file {
                "info/L3/cbm_mask" => l3.bits.map(u64::from),
                "info/L3/num_closids" => l3.closids,
                _ => l3.min_bits,
            };
            assert_eq!(value, None, "{file} {text:?}");
            let said = found.gaps.reason(file).unwrap();
            assert!(said.contains(reason), "{file}: {said}");
            let is_divisible = file.ends_with("min_cbm_bits").then_some(true);
            assert_eq!(found.can_divide_l3(), is_divisible, "{file} {text:?}");
        }
    }

    #[test]
    fn groups_that_cannot_be_counted_are_unknown() {
        let root = machine("resctrl-intel");
        write(&root, "sys/fs/resctrl/info/MB/num_closids", "x\n");
        let found = read(&root);
        assert_eq!((found.groups, found.groups_left), (None, None));
        assert!(found.gaps.reason("groups").unwrap().contains("MB"));

        write(&root, "sys/fs/resctrl/info/MB/num_closids", "2\n");
        let found = read(&root);
        assert_eq!((found.groups, found.groups_left), (Some(2), None));
        assert!(found.gaps.reason("groups").unwrap().contains("3 groups"));

        write(&root, "sys/fs/resctrl/info/MB/num_closids", "4\n");
        let mode = root.path().join("sys/fs/resctrl/web/mode");
        fs::remove_file(&mode).unwrap();
        assert_eq!(read(&root).groups_left, Some(1), "a kernel without modes");
        fs::create_dir(&mode).unwrap();
        assert_eq!(read(&root).groups_left, None, "unreadable");
    }

    #[test]
    fn links_in_resctrl_are_no_groups() {
        let root = machine("resctrl-intel");
        let resctrl = root.path().join("sys/fs/resctrl");
        symlink(resctrl.join("web"), resctrl.join("alias")).unwrap();
        symlink(resctrl.join("info/L3"), resctrl.join("info/L2")).unwrap();
        let found = read(&root);
        assert_eq!(found.groups_left, Some(5));
        assert_eq!(found.masks(2), None);
    }

    #[test]
    fn a_mount_that_shows_no_info_is_unknown() {
        let root = machine("resctrl-intel");
        fs::remove_dir_all(root.path().join("sys/fs/resctrl")).unwrap();
        let found = read(&root);
        assert_eq!(
            (found.state, found.caches.as_ref()),
            (AllocationState::Mounted, None)
        );
        assert_eq!((found.groups_left, found.can_divide_l3()), (None, None));
        assert!(found.gaps.reason("info").is_some());

        // Monitoring alone.
        write(&root, "sys/fs/resctrl/info/L3_MON/num_rmids", "144\n");
        let found = read(&root);
        assert_eq!(
            (found.caches.as_deref(), found.can_divide_l3()),
            (Some(&[][..]), Some(false))
        );
        assert_eq!(found.groups_left, None);
    }

    #[test]
    fn resctrl_is_found_at_its_mount_point() {
        let root = machine("resctrl-intel");
        let other = root.path().join("my resctrl");
        fs::rename(root.path().join("sys/fs/resctrl"), &other).unwrap();
        let place = other.to_str().unwrap().replace(' ', "\\040");
        let hidden = "40 23 0:40 / /sys/fs/resctrl rw - resctrl resctrl rw\n";
        let table = format!("41 29 0:40 / {place} rw - resctrl resctrl rw\n{hidden}");
        write(&root, "proc/self/mountinfo", &table);
        let found = read(&root);
        assert_eq!(found.mount_point.as_deref(), other.to_str());
        assert_eq!(found.masks(3).unwrap().bits, Some(11));

        // Other file systems whose names are alike are not resctrl, whatever the folder contains.
        let alike = "41 29 0:40 / /sys/fs/resctrl rw - fuse.resctrl resctrl rw\n";
        write(&root, "proc/self/mountinfo", alike);
        assert_eq!(read(&root).state, AllocationState::NotMounted);
    }

    #[test]
    fn a_mount_of_process_1_is_elsewhere() {
        let root = machine("resctrl-intel");
        let table = fs::read_to_string(root.path().join("proc/self/mountinfo")).unwrap();
        write(&root, "proc/1/mountinfo", &table);
        write(&root, "proc/self/mountinfo", NO_MOUNT);
        let found = read(&root);
        assert_eq!(found.state, AllocationState::MountedElsewhere);
        assert_eq!(found.mount_point.as_deref(), Some("/sys/fs/resctrl"));
        assert_eq!(
            (found.caches.as_ref(), found.can_divide_l3()),
            (None, Some(true))
        );
    }

    #[test]
    fn unreadable_files_leave_the_state_unknown() {
        let root = machine_of(&[
            ("proc/cpuinfo", CPUINFO),
            ("proc/filesystems", FILE_SYSTEMS),
        ]);
        for text in [None, Some("nonsense\n")] {
            text.iter()
                .for_each(|text| write(&root, "proc/self/mountinfo", text));
            let found = read(&root);
            assert_eq!(
                (found.state, found.can_divide_l3()),
                (AllocationState::Unknown, None)
            );
            assert!(found.gaps.reason("self/mountinfo").is_some());
        }
        let nothing = read(&tempfile::tempdir().unwrap());
        assert_eq!(
            (nothing.state, nothing.flags),
            (AllocationState::Unknown, None)
        );
        assert_eq!(nothing.is_in_kernel, None);
        for file in ["cpuinfo", "filesystems", "self/mountinfo"] {
            assert!(nothing.gaps.reason(file).is_some(), "{file}");
        }
    }

    #[test]
    fn the_running_machine_can_be_read() {
        let found = CacheAllocation::read(&Roots::default());
        assert_ne!(found.state, AllocationState::Unknown, "{:?}", found.gaps);
        serde_json::to_string(&found).unwrap();
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text in ".*", bytes: Vec<u8>) {
            let _ = (AllocationFlags::parse(&text), lists_resctrl(&text), mask_bits(&text));
            let _ = mount_points(&bytes);
        }

        #[test]
        fn every_mask_has_its_bits(mask in 1_u64..) {
            prop_assert_eq!(mask_bits(&format!("{mask:x}\n")), Ok(mask.count_ones()));
        }
    }
}
