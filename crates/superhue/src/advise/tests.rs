use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use superhue_procfs::hardware::CpuidTable;
use superhue_testing::{ChildGuard, skip};

use super::observe::LEAST_MEMORY;
use super::*;
use crate::tlb::NO_BASE_ENTRIES;

static LOOKED_AT: AtomicBool = AtomicBool::new(false);

/// Processors as they describe themselves, and the expected number of TLB entries or reason.
///
/// To `advise`, a machine without a description of caches is one of them: `advise` reads none.
const PROCESSORS: [(&str, &str, Result<u64, &str>); 5] = [
    (
        "a Xeon whose hypervisor hides the TLB",
        "0 0 20 756e6547 6c65746e 49656e69\n1 0 a06d1 0 80000000 0\n2 0 feff01 f0 0 0\n",
        Err("the processor reports no TLBs; its hypervisor probably hides them"),
    ),
    (
        "Zen 4",
        "0 0 10 68747541 444d4163 69746e65\n80000000 0 80000028 0 0 0\n\
         80000005 0 ff48ff40 ff48ff40 0 0\n80000006 0 5c002200 6c004200 0 0\n",
        Ok(3072),
    ),
    (
        "one that has its levels for huge pages alone",
        "0 0 10 68747541 444d4163 69746e65\n80000000 0 80000028 0 0 0\n80000005 0 ff48ff40 0 0 0\n",
        Err(NO_BASE_ENTRIES),
    ),
    (
        "one of a maker that is not known",
        "0 0 1 746e6543 736c7561 48727561\n",
        Err("how processors by \"CentaurHauls\" report their TLBs is not known"),
    ),
    (
        "none that can be asked",
        "",
        Err("this architecture has no CPUID, and Linux shows no TLBs elsewhere"),
    ),
];

fn cpuid(table: &str) -> Cpuid {
    if table.is_empty() {
        Cpuid::none()
    } else {
        Cpuid::recorded(CpuidTable::parse(table).unwrap())
    }
}

#[test]
fn the_reach_of_a_tlb_is_known_or_its_reason_is() {
    let roots = Roots::default();
    for (name, table, wanted) in PROCESSORS {
        let tlb = find_tlb(&roots, &cpuid(table), TlbSetting::Cpuid);
        let facts = facts(&roots, tlb, Machine::read(&roots));
        let reach = wanted.ok().map(|entries| ByteCount(entries * 4096));
        assert_eq!(facts.tlb_reach_base_bytes, reach, "{name}");
        let why = facts.tlb_unknown_because.as_deref();
        assert_eq!(why, wanted.err(), "{name}");
    }
}

/// A buffer of 32 MiB that is filled again and again.
fn filling() -> ChildGuard {
    let mut busy = Command::new("dd");
    busy.args(["if=/dev/zero", "of=/dev/null", "bs=32M"]);
    ChildGuard::spawn(busy.stderr(Stdio::null()))
}

#[test]
fn who_is_busy_is_watched_on_every_processor() {
    let busy = filling();
    for (name, table, wanted) in PROCESSORS {
        let mut asked = AdviseRequest {
            pids: vec![busy.pid()],
            is_group: false,
            time: Duration::from_secs(2),
            largest_footprint: ByteCount(16 << 20),
            service_of: |_, _| None,
            cpuid: cpuid(table),
            tlb: TlbSetting::Cpuid,
        };
        // The number of windows in that time depends on the machine.
        let (machine, found) = loop {
            let advice = advise(&Roots::default(), &asked, &mut || false).unwrap();
            let found = advice.processes.into_iter().next().unwrap();
            let is_seen = found.hot_100ms_bytes.is_some();
            if is_seen || asked.time >= Duration::from_secs(32) {
                break (advice.machine, found);
            }
            asked.time *= 2;
        };
        if let Some(why) = machine.tracker_unknown_because {
            return skip("tracking", &why);
        }
        assert_eq!(machine.tracker, Some("ptwalk"), "{name}");
        if found.possible_bytes < Some(LEAST_MEMORY) {
            return skip("base-pages", "the kernel makes all memory huge by itself");
        }
        let watched = found.watched.unwrap();
        assert!(watched.windows > 0 && watched.pages > 0, "{name}");
        let hot = found.hot_1ms_bytes.zip(found.hot_100ms_bytes);
        assert!(hot.is_some_and(|(ms, more)| ms <= more), "{name}: {hot:?}");
        match wanted {
            Ok(_) => {
                let is_measured = machine.walks_unknown_because.is_none();
                assert_eq!(found.estimate.is_some(), is_measured, "{name}: {found:?}");
            }
            Err(why) => {
                let why = format!("the reach of this CPU's TLB is not known ({why})");
                assert_eq!(found.unknown_because.as_deref(), Some(&*why), "{name}");
                assert_eq!((found.estimate, found.verdict), (None, Verdict::Unknown));
                assert!(found.because.ends_with(&why), "{}", found.because);
                let wanted = [format!("superhue trial {}", busy.pid())];
                assert_eq!(found.attempts, wanted, "{name}");
                assert!(machine.walks.is_empty(), "{name}: {:?}", machine.walks);
            }
        }
    }
}

#[test]
fn nothing_is_to_be_tried_on_who_has_ended() {
    let mut busy = filling();
    let asked = AdviseRequest {
        pids: vec![busy.pid()],
        is_group: false,
        // The end of the process ends the watching. On a busy machine the first look alone may take seconds.
        time: Duration::from_secs(20),
        largest_footprint: ByteCount(64 << 20),
        service_of: |_, _| {
            LOOKED_AT.store(true, Ordering::Relaxed);
            None
        },
        cpuid: Cpuid::native(),
        tlb: TlbSetting::Cpuid,
    };
    let (mut is_killed, mut asked_before) = (false, false);
    let advice = advise(&Roots::default(), &asked, &mut || {
        // `interrupted` is called before the page tables are read, and again only where a process is watched.
        let is_looked_at = LOOKED_AT.load(Ordering::Relaxed);
        if !std::mem::replace(&mut asked_before, is_looked_at) {
            return false;
        }
        if !is_killed {
            busy.0.kill().unwrap();
            busy.0.wait().unwrap();
            is_killed = true;
        }
        false
    });
    let advice = advice.unwrap();
    let found = &advice.processes[0];
    if !is_killed {
        let why = [
            &advice.machine.tracker_unknown_because,
            &found.unknown_because,
        ];
        return skip("tracking", &format!("{why:?}"));
    }
    assert!(
        found
            .possible_bytes
            .is_some_and(|bytes| bytes >= LEAST_MEMORY)
    );
    let told = (found.verdict, found.no_gain);
    assert_eq!(told, (Verdict::NoGain, Some(NoGain::Ended)), "{found:?}");
    assert!(found.attempts.is_empty(), "{found:?}");
}
