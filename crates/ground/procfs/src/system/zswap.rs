//! zswap: where pages that go to swap have gone, and the room in its pool.
//!
//! See `Documentation/admin-guide/mm/zswap.rst`, `zswap_store` in `mm/zswap.c` and `swap_writeout` in `mm/page_io.c`.

use std::fs;

use superhue_model::ByteCount;

use super::meminfo::MemInfo;
use super::vmstat::counters;
use crate::Roots;

/// Largest size of the pool, as a percentage of memory; below the sysfs.
const MOST_PERCENT: &str = "module/zswap/parameters/max_pool_percent";

/// Percentage of that size below which a pool that was full accepts pages again; and its default.
const ACCEPT_PERCENT: &str = "module/zswap/parameters/accept_threshold_percent";
const USUAL_ACCEPT_PERCENT: u64 = 90;

/// Pages of the whole machine that went to swap since boot (`/proc/vmstat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwappedOut {
    /// Pages that zswap took (`zswpout`).
    pub to_zswap: u64,
    /// Pages that were written to a device (`pswpout`): zswap was off, or refused them.
    pub to_devices: u64,
}

impl SwappedOut {
    /// Reads the counters; `None` if the kernel does not show them (before Linux 5.19).
    #[must_use]
    pub fn read(roots: &Roots) -> Option<Self> {
        let [to_zswap, to_devices] = counters(roots, ["zswpout", "pswpout"]).ok()?;
        Some(Self {
            to_zswap: to_zswap?,
            to_devices: to_devices?,
        })
    }
}

/// Returns the bytes that the pool of zswap may still grow by before zswap may refuse pages, as it does for a while after it was full
/// (`zswap_check_limits`); `None` if that is not known.
#[must_use]
pub fn zswap_pool_room(roots: &Roots) -> Option<ByteCount> {
    let memory = MemInfo::read(roots).ok()?;
    let (pool, total) = (memory.zswap?, memory.total?);
    let percent = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(roots.sys.join(name)).ok()?;
        text.trim().parse().ok()
    };
    let accept = percent(ACCEPT_PERCENT).unwrap_or(USUAL_ACCEPT_PERCENT);
    let most = u128::from(total.0) * u128::from(percent(MOST_PERCENT)?) / 100;
    let most = most * u128::from(accept) / 100;
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    Some(ByteCount(most.saturating_sub(pool.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_room_are_read_or_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        assert_eq!(SwappedOut::read(&roots), None);
        assert_eq!(zswap_pool_room(&roots), None);
        fs::create_dir_all(&roots.proc).unwrap();
        fs::write(
            roots.proc.join("vmstat"),
            "pswpin 1\npswpout 12\nzswpin 3\nzswpout 40\nzswpwb 1\n",
        )
        .unwrap();
        let expected = SwappedOut {
            to_zswap: 40,
            to_devices: 12,
        };
        assert_eq!(SwappedOut::read(&roots), Some(expected));
        fs::write(roots.proc.join("vmstat"), "pswpout 12\n").unwrap();
        assert_eq!(SwappedOut::read(&roots), None);

        fs::write(
            roots.proc.join("meminfo"),
            "MemTotal:    1000 kB\nZswap:         150 kB\nZswapped:      400 kB\n",
        )
        .unwrap();
        assert_eq!(zswap_pool_room(&roots), None, "no parameter");
        let parameter = roots.sys.join(MOST_PERCENT);
        fs::create_dir_all(parameter.parent().unwrap()).unwrap();
        fs::write(&parameter, "20\n").unwrap();
        assert_eq!(zswap_pool_room(&roots), Some(ByteCount(30 << 10)));
        fs::write(&parameter, "10\n").unwrap();
        assert_eq!(zswap_pool_room(&roots), Some(ByteCount(0)));
    }
}
