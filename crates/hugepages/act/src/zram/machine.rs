//! Changes of the machine for a swap area of our own: each step is one call, so that tests can stop between any two.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use superhue_model::ByteCount;
use superhue_procfs::cgroup::short_of_room;
use superhue_procfs::system::{MemInfo, SwapArea, Zram, newest_disk, read_swaps, read_zrams};
use superhue_procfs::{ReadError, Roots};
use superhue_sys::seccomp::RiskyCall;
use superhue_sys::swap::{swap_off, swap_on};

use super::error::SwapError;
use super::header::PAGE;

/// Attempts to remove a device while another program, such as udev, has it open, and the time between them.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// Attempts of `swapoff` after a signal.
const INTERRUPTIONS: u32 = 100;

/// Memory in bytes that must be available besides the pages that come back.
const LEAST_AVAILABLE: u64 = 32 << 20;

/// Swap and zram devices: their state, and changes of it.
pub(crate) trait SwapMachine: fmt::Debug + Send + Sync {
    /// Checks that a device can be made; otherwise returns the reason.
    fn may_make(&self) -> Result<(), SwapError>;
    /// Returns the areas that are on.
    fn swaps(&self) -> Result<Vec<SwapArea>, ReadError>;
    /// Returns all zram devices.
    fn zrams(&self) -> Result<Vec<Zram>, ReadError>;
    /// Returns the highest disk sequence number; 0 where there is no disk, `None` where the kernel does not number them.
    fn newest_disk(&self) -> Result<Option<u64>, ReadError>;
    /// Returns one zram device; `None` if there is none of this number.
    fn zram(&self, number: u32) -> io::Result<Option<Zram>>;
    /// Returns the time at which a device was made, if nothing was ever written to it: it is the modification time of the node.
    fn born(&self, number: u32) -> Option<SystemTime>;
    /// Returns the reason why that much cannot come back from swap; `None` if there is room.
    fn short_of_room(&self, back: ByteCount) -> Option<String>;
    /// Reads the first page of a device.
    fn first_page(&self, number: u32) -> io::Result<Vec<u8>>;

    /// Makes a device, and returns its number.
    fn add(&self) -> io::Result<u32>;
    /// Writes an attribute of a device.
    fn set(&self, number: u32, attribute: &str, value: ByteCount) -> io::Result<()>;
    /// Writes the first page of a device.
    fn write_first_page(&self, number: u32, page: &[u8]) -> io::Result<()>;
    /// Switches swap to a device on.
    fn swap_on(&self, number: u32, priority: Option<u16>) -> io::Result<()>;
    /// Switches swap to a device off.
    fn swap_off(&self, number: u32) -> io::Result<()>;
    /// Removes a device, with all that is on it. The kernel refuses that while it is in use.
    fn remove(&self, number: u32) -> io::Result<()>;
}

/// The machine below these roots.
#[derive(Debug)]
pub(crate) struct RealMachine {
    roots: Roots,
    /// Folder of the device nodes.
    dev: PathBuf,
}

/// Returns the path of the device of this number.
pub(crate) fn node(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/zram{number}"))
}

impl RealMachine {
    pub(crate) fn of(roots: &Roots) -> Self {
        // A recorded tree must not lead to the devices of this machine.
        let dev = if *roots == Roots::default() {
            PathBuf::from("/dev")
        } else {
            roots.sys.with_file_name("dev")
        };
        Self {
            roots: roots.clone(),
            dev,
        }
    }

    fn control(&self, name: &str) -> PathBuf {
        self.roots.sys.join("class/zram-control").join(name)
    }

    fn path(&self, number: u32) -> PathBuf {
        self.dev.join(format!("zram{number}"))
    }

    /// Opens a device, if the node in `/dev` is the one of this number.
    fn open(&self, number: u32, how: &OpenOptions) -> io::Result<File> {
        let file = how.open(self.path(number))?;
        let about = file.metadata()?;
        let wanted = Zram::read(&self.roots, number).and_then(|zram| zram.device);
        let found = (
            rustix::fs::major(about.rdev()),
            rustix::fs::minor(about.rdev()),
        );
        if about.file_type().is_block_device() && wanted == Some(found) {
            Ok(file)
        } else {
            let text = "it is another device than /sys says";
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
    }
}

impl SwapMachine for RealMachine {
    fn may_make(&self) -> Result<(), SwapError> {
        // Reading the first file would make a device. A device that we could not remove again must not be made.
        let to_add = self.control("hot_add");
        let to_remove = self.control("hot_remove");
        for (path, how) in [
            (to_add, File::options().read(true)),
            (to_remove, File::options().write(true)),
        ] {
            if let Err(error) = how.open(&path) {
                return Err(match error.kind() {
                    io::ErrorKind::NotFound => SwapError::NoZram { path },
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                        SwapError::Denied
                    }
                    _ => SwapError::step("open", &path, error),
                });
            }
        }
        let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
        if held.is_ok_and(|held| !held.contains(CapabilitySet::SYS_ADMIN)) {
            return Err(SwapError::Denied);
        }
        for call in [RiskyCall::Swapon, RiskyCall::Swapoff] {
            if call.is_survived() == Ok(false) {
                return Err(SwapError::Killed { call: call.name() });
            }
        }
        Ok(())
    }

    fn swaps(&self) -> Result<Vec<SwapArea>, ReadError> {
        read_swaps(&self.roots)
    }

    fn zrams(&self) -> Result<Vec<Zram>, ReadError> {
        read_zrams(&self.roots)
    }

    fn newest_disk(&self) -> Result<Option<u64>, ReadError> {
        newest_disk(&self.roots)
    }

    fn zram(&self, number: u32) -> io::Result<Option<Zram>> {
        let block = self.roots.sys.join("block");
        match fs::metadata(block.join(format!("zram{number}"))) {
            Ok(_) => Ok(Zram::read(&self.roots, number)),
            // Where block devices cannot be seen at all, we must not take the device for removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::metadata(&block).map(|_| None)
            }
            Err(error) => Err(error),
        }
    }

    fn born(&self, number: u32) -> Option<SystemTime> {
        fs::metadata(self.path(number)).ok()?.modified().ok()
    }

    fn short_of_room(&self, back: ByteCount) -> Option<String> {
        if back.0 == 0 {
            return None;
        }
        let available = MemInfo::read(&self.roots)
            .ok()
            .and_then(|info| info.available);
        if let Some(available) = available
            && available.0 < back.0.saturating_add(LEAST_AVAILABLE)
        {
            return Some(format!("only {available} of memory are available"));
        }
        let short = short_of_room(&self.roots, back)?;
        Some(format!(
            "the control group {} has room for {} only, and the kernel would end its programs",
            short.folder.display(),
            short.room
        ))
    }

    fn first_page(&self, number: u32) -> io::Result<Vec<u8>> {
        let file = self.open(number, File::options().read(true))?;
        let mut page = vec![0; PAGE];
        file.read_exact_at(&mut page, 0)?;
        Ok(page)
    }

    fn add(&self) -> io::Result<u32> {
        let mut bytes = [0; 32];
        let length = File::open(self.control("hot_add"))?.read(&mut bytes)?;
        let text = str::from_utf8(bytes.get(..length).unwrap_or_default());
        let number = text.ok().and_then(|text| text.trim().parse().ok());
        number
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the kernel gave no number"))
    }

    fn set(&self, number: u32, attribute: &str, value: ByteCount) -> io::Result<()> {
        let folder = self.roots.sys.join(format!("block/zram{number}"));
        write(&folder.join(attribute), &value.0.to_string())
    }

    fn write_first_page(&self, number: u32, page: &[u8]) -> io::Result<()> {
        // `O_EXCL` keeps us from a device that another program has mounted or swaps to.
        let alone = OFlags::EXCL.bits().cast_signed();
        let file = self.open(
            number,
            File::options().read(true).write(true).custom_flags(alone),
        )?;
        file.write_all_at(page, 0)?;
        file.sync_all()
    }

    fn swap_on(&self, number: u32, priority: Option<u16>) -> io::Result<()> {
        Ok(swap_on(&self.path(number), priority)?)
    }

    fn swap_off(&self, number: u32) -> io::Result<()> {
        let path = self.path(number);
        let mut done = swap_off(&path);
        for _ in 0..INTERRUPTIONS {
            if done != Err(Errno::INTR) {
                break;
            }
            done = swap_off(&path);
        }
        Ok(done?)
    }

    fn remove(&self, number: u32) -> io::Result<()> {
        let path = self.control("hot_remove");
        let mut done = write(&path, &number.to_string());
        for _ in 0..TRIES {
            match &done {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                _ => break,
            }
            thread::sleep(BETWEEN_TRIES);
            done = write(&path, &number.to_string());
        }
        done
    }
}

/// Writes into an existing file.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_needs_memory_and_nothing_needs_none() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let machine = RealMachine::of(&roots);
        fs::create_dir(&roots.proc).unwrap();
        fs::write(roots.proc.join("meminfo"), "MemAvailable: 40960 kB\n").unwrap();
        let short = |mib: u64| machine.short_of_room(ByteCount(mib << 20));
        assert_eq!(short(8), None);
        assert!(short(9).unwrap().contains("40.0 MiB"));
        fs::write(roots.proc.join("meminfo"), "MemAvailable: 0 kB\n").unwrap();
        assert_eq!(short(0), None);
    }
}
