//! `superhue track`.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use rustix::thread::CapabilitySet;
use superhue::heat::{Sampler, Sampling};
use superhue::procfs::Roots;
use superhue::sys::process::{SignalSet, raise_descriptor_limit};
use superhue::sys::signal::signal_descriptor;
use superhue::trackers::{TrackerKind, choose};
use superhue_serve::{Listener, drop_privileges};
use superhue_track::{Limits, SampledHeat, Server};

use crate::args::{DEFAULT_TRACK_MEMORY, TrackArgs};
use crate::in_two::{Kind, in_two};
use crate::output::{FAILED, Failure, UNABLE, VerbResult, ended, note};
use crate::size_check::check_size;
use crate::terminal::ENDING;

/// Descriptors that a client takes: socket, its process, the one it watches, list, and two of the tracker.
const PER_CLIENT: u64 = 6;
/// Descriptors for everything else.
const OTHERS: u64 = 64;

/// Serves until a signal ends it.
pub fn track(args: &TrackArgs) -> VerbResult {
    // The default is no explicit request.
    if args.max_memory != DEFAULT_TRACK_MEMORY {
        check_size("--max-memory", args.max_memory)?;
    }
    // From here on these signals make the descriptor readable, whenever they arrive. They stay blocked: the one that
    // ends the service is never taken, and would kill it.
    let signals = SignalSet::of(&ENDING);
    let _ = signals.block();
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(FAILED, format!("{what}: {error}"))
    };
    let stop = signal_descriptor(&signals).map_err(|error| failed("signalfd", &error))?;
    let sampling = Sampling {
        max_overhead: args.tracking.max_overhead,
        ..Sampling::default()
    };
    let roots = Roots::default();
    let chosen = choose(&roots, args.tracking.tracker, sampling.scope)
        .map_err(|error| Failure::new(UNABLE, error))?;
    tracing::info!("tracker {}: {}", chosen.tracker.kind(), chosen.why);
    let kind = chosen.tracker.kind();
    let clients = usize::try_from(args.max_clients).unwrap_or(usize::MAX);
    let limits = Limits {
        memory: args.max_memory.0,
        clients: clients.min(descriptors_for(u64::from(args.max_clients))),
        ..Limits::default()
    };
    if limits.clients < clients {
        note(&format!(
            "the limit on open files allows {} clients only, not {clients}: raise it (ulimit -n, \
             LimitNOFILE=)",
            limits.clients
        ));
    }
    let listener = Listener::new(&args.socket).map_err(|error| Failure::new(FAILED, error))?;
    let held = drop_privileges(needed(kind))
        .map_err(|error| failed("cannot give up capabilities", &error))?;
    tracing::info!("holding {held}");
    let heat = SampledHeat::new(Sampler::new(roots, chosen.tracker, sampling));
    note(&format!(
        "serving at {} (tracker {kind})",
        args.socket.display()
    ));
    // If a process holds it up, it restarts without that process: clients must connect again, and the socket stays.
    let mut parts = Some((listener, heat));
    Ok(in_two(Kind::Lasting, || {
        let served = match parts.take() {
            Some((listener, heat)) => serve(listener, heat, limits, &stop),
            None => Err(Failure::new(FAILED, "it was begun already")),
        };
        ended(served)
    }))
}

/// Serves until a signal ends it.
fn serve(listener: Listener, heat: SampledHeat, limits: Limits, stop: &OwnedFd) -> VerbResult {
    let mut server =
        Server::new(listener, heat, limits).map_err(|error| Failure::new(FAILED, error))?;
    let served = server.run(stop);
    let totals = server.served();
    drop(server);
    served.map_err(|error| Failure::new(FAILED, error))?;
    note(&format!(
        "served {} clients; {} connections refused; {} lists, {} of them not fetched in time",
        totals.tracked, totals.refused, totals.published, totals.superseded
    ));
    Ok(ExitCode::SUCCESS)
}

/// Returns the capabilities of the tracker and the service: `CAP_SYS_PTRACE` to read other users' `/proc/PID`,
/// `CAP_DAC_OVERRIDE` for files there with mode 0200, `CAP_KILL` to notify by signal.
fn needed(kind: TrackerKind) -> CapabilitySet {
    let service = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_OVERRIDE | CapabilitySet::KILL;
    service
        | match kind {
            // To run its program, which is loaded already: CAP_PERFMON was for loading. Kernels that let all users run
            // a loaded program need neither.
            TrackerKind::Ptwalk => CapabilitySet::BPF,
            // Page frame numbers.
            TrackerKind::Idle => CapabilitySet::SYS_ADMIN,
            // Its files are root's.
            TrackerKind::Damon => CapabilitySet::empty(),
        }
}

/// Raises the limit on open files as far as `clients` need and the hard limit allows; returns the number of clients for
/// which that is enough.
fn descriptors_for(clients: u64) -> usize {
    let wanted = clients * PER_CLIENT + OTHERS;
    let now = raise_descriptor_limit(Some(wanted));
    let enough = now.map_or(clients, |now| now.saturating_sub(OTHERS) / PER_CLIENT);
    usize::try_from(enough.max(1)).unwrap_or(usize::MAX)
}
