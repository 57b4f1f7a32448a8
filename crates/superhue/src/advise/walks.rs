//! The cost of walks on this machine: measured, and kept for an hour.
//!
//! The cost changes: other guests of the host use the same caches and memory.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use superhue_color::walks::{WalkCost, WalkCosts, walk_costs};
use superhue_model::{BASE_PAGE_SIZE, ByteCount};
use superhue_procfs::Roots;
use superhue_procfs::system::MemInfo;
use superhue_state::Folder;

/// Folder of the kept costs. Only root can write there, and files that others could have written are not used.
const FOLDER: &str = "/run/superhue";
const FILE: &str = "walks.json";
/// The file has a few hundred bytes.
const LARGEST_FILE: u64 = 64 << 10;

/// Part of the available memory that a measurement may use: one in this many.
const PART: u64 = 4;

/// The smallest footprint that is measured.
const MIN_FOOTPRINT_BYTES: u64 = 16 << 20;

/// Costs are measured again after this many seconds.
const KEPT: f64 = 3600.0;

#[derive(Debug, Serialize, Deserialize)]
struct CachedWalkCosts {
    boot: String,
    /// Seconds after boot at which the costs were measured.
    uptime: f64,
    together: Vec<CachedWalkCost>,
    scattered: Vec<CachedWalkCost>,
}

/// Footprint in bytes; nanoseconds apart, chained and in order; and the three gains.
type CachedWalkCost = (u64, [f64; 3], [f64; 3]);

/// Returns costs of walks up to `pages` base pages, or as far as memory and `largest` allow. The error is the reason in words.
pub(super) fn costs(roots: &Roots, pages: f64, largest: ByteCount) -> Result<WalkCosts, String> {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of pages"
    )]
    let wanted = (pages.max(1.0) as u64).saturating_mul(BASE_PAGE_SIZE);
    let available = MemInfo::read(roots).ok().and_then(|info| info.available);
    let available = available.ok_or("how much memory is available is not known")?;
    // Three times: in two kinds of base pages and in huge pages.
    let most = largest.0.min(available.0 / PART / 3);
    let footprint = wanted
        .next_power_of_two()
        .clamp(MIN_FOOTPRINT_BYTES, most.max(MIN_FOOTPRINT_BYTES));
    if most < MIN_FOOTPRINT_BYTES {
        return Err(format!(
            "what walks cost could not be measured: {available} are available, of which no more than a quarter is used"
        ));
    }
    let reaches = |costs: &WalkCosts| {
        costs
            .together
            .last()
            .is_some_and(|last| last.footprint.0 * 2 > footprint)
    };
    if let Some(kept) = read(roots).filter(|costs| reaches(costs)) {
        return Ok(kept);
    }
    let costs = walk_costs(ByteCount(footprint))
        .map_err(|errno| format!("what walks cost could not be measured: {errno}"))?;
    // If the costs cannot be kept, they are measured again the next time.
    let _ = write(roots, &costs);
    Ok(costs)
}

fn folder() -> PathBuf {
    Path::new(FOLDER).to_owned()
}

fn boot(roots: &Roots) -> Option<String> {
    std::fs::read_to_string(roots.proc.join("sys/kernel/random/boot_id")).ok()
}

fn uptime(roots: &Roots) -> Option<f64> {
    let text = std::fs::read_to_string(roots.proc.join("uptime")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn read(roots: &Roots) -> Option<WalkCosts> {
    let folder = Folder::open(&folder()).ok()??;
    let file = folder.open_file(FILE).ok()??;
    let bytes = folder.read(FILE, &file, LARGEST_FILE).ok()?;
    let kept: CachedWalkCosts = serde_json::from_slice(&bytes).ok()?;
    let age = uptime(roots)? - kept.uptime;
    if kept.boot != boot(roots)? || !(0.0..KEPT).contains(&age) {
        return None;
    }
    Some(WalkCosts {
        together: believed(&kept.together)?,
        scattered: believed(&kept.scattered)?,
    })
}

/// Returns the kept costs, if all of them make sense.
fn believed(costs: &[CachedWalkCost]) -> Option<Vec<WalkCost>> {
    let sane = |ns: f64| ns.is_finite() && (0.0..1e6).contains(&ns);
    costs
        .iter()
        .map(|&(footprint, ns, gains)| {
            let [apart_ns, chained_ns, in_order_ns] = ns;
            let [apart_gain, chained_gain, in_order_gain] = gains;
            let is_sane = ns.into_iter().all(sane)
                && gains.into_iter().all(|gain| (0.0..1.0).contains(&gain));
            is_sane.then_some(WalkCost {
                footprint: ByteCount(footprint),
                apart_ns,
                chained_ns,
                in_order_ns,
                apart_gain,
                chained_gain,
                in_order_gain,
            })
        })
        .collect()
}

fn write(roots: &Roots, costs: &WalkCosts) -> Option<()> {
    let folder = Folder::make(&folder(), 0o755).ok()?;
    let kept = |costs: &[WalkCost]| -> Vec<CachedWalkCost> {
        let kept = costs.iter().map(|cost| {
            let ns = [cost.apart_ns, cost.chained_ns, cost.in_order_ns];
            let gains = [cost.apart_gain, cost.chained_gain, cost.in_order_gain];
            (cost.footprint.0, ns, gains)
        });
        kept.collect()
    };
    let kept = CachedWalkCosts {
        boot: boot(roots)?,
        uptime: uptime(roots)?,
        together: kept(&costs.together),
        scattered: kept(&costs.scattered),
    };
    let new = format!("{FILE}.{}", std::process::id());
    let mut file = folder.create_file(&new).ok()?;
    let written = serde_json::to_vec(&kept)
        .ok()
        .and_then(|bytes| file.write_all(&bytes).ok());
    // Renamed when it is whole, so that no reader sees half of it.
    let done = written.and_then(|()| folder.rename(&new, FILE).ok());
    if done.is_none() {
        let _ = folder.remove(&new);
    }
    done
}
