//! The daemon among 100, 1,000 and 5,000 processes: its cost, and the time until it knows a new service.
//!
//! Each process of the crowd holds 256 KiB and sleeps. The daemon watches the crowd (a rule matches it) or not (the only rule matches
//! the service). The rules match executables in this step's own folder, so the daemon touches no other process of the machine.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use superhue::model::ByteCount;
use superhue::procfs::Roots;
use superhue::procfs::process::{descendants, stat};
use superhue::sys::process::cpu_time_of;

use super::{CGROUP_ROOTS, Context, GROUP, Skip};
use crate::children::RunningCommand;
use crate::machine::size_in;
use crate::plan;
use crate::target::{Kind, Target};

/// Memory that each process of the crowd fills.
const HELD: ByteCount = ByteCount(256 << 10);

/// Memory that each process of the crowd takes in all, with its page tables and kernel stacks.
const EACH: ByteCount = ByteCount(1 << 20);

/// Memory of the service.
const SERVICE: ByteCount = ByteCount(256 << 20);

/// Longest wait for the daemon to know a new service.
const KNOWN_WITHIN: Duration = Duration::from_secs(15);

/// Seconds for which a daemon that only waits for its service is watched.
const IDLE_WINDOW: f64 = 6.0;

/// Measures each size of the crowd, watched and not watched.
pub fn run(context: &Context) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Skip("the daemon needs root".to_owned()).into());
    }
    let sizes = plan::crowds(
        ByteCount(context.usable.0.saturating_sub(SERVICE.0 * 2)),
        EACH,
    );
    if sizes.is_empty() {
        return Err(Skip(format!("only {} of memory may be filled", context.usable)).into());
    }
    let place = Place::new(context)?;
    let mut crowd = Crowd {
        path: place.crowd.clone(),
        held: Vec::new(),
        seconds: context.left().as_secs() + 30,
    };
    for (at, size) in sizes.iter().enumerate() {
        let left = (context.left().as_secs_f64() / (sizes.len() - at) as f64).max(0.0);
        if !context.has_time_for(6.0, &format!("{size} processes"))? {
            break;
        }
        let begun = Instant::now();
        if let Err(error) = crowd.grow(*size, begun + Duration::from_secs_f64(left / 2.0)) {
            context.note(format!(
                "{} of {size} processes could be started: {error:#}",
                crowd.held.len()
            ))?;
        }
        let started = begun.elapsed().as_secs_f64();
        let count = crowd.held.len();
        let each = (left - started) / 2.0;
        for watched in [true, false] {
            // A short window shows little; the watched crowd, which costs more, has priority.
            let window = if each >= 8.0 {
                each - 5.0
            } else if watched {
                each
            } else {
                0.0
            };
            if window < 2.0 || context.left().as_secs_f64() < window + 2.0 {
                context.note(format!(
                    "left out for want of time: {count} processes, {}",
                    if watched { "watched" } else { "not watched" }
                ))?;
                continue;
            }
            match among(
                context,
                &place,
                count,
                watched,
                window.min(if watched { 12.0 } else { IDLE_WINDOW }),
            ) {
                Ok(mut row) => {
                    row["started_in_seconds"] = started.into();
                    context.row(row)?;
                }
                Err(error) => context.note(format!("{count} processes: {error:#}"))?,
            }
        }
        if count < *size {
            break;
        }
    }
    Ok(())
}

/// Folder with the configuration, the socket and two copies of this program.
struct Place {
    folder: PathBuf,
    crowd: PathBuf,
    service: PathBuf,
}

impl Place {
    fn new(context: &Context) -> Result<Self> {
        let folder = context
            .scratch
            .clone()
            .ok_or_else(|| Skip("no folder can be made in /run, /tmp or here".to_owned()))?;
        let (crowd, service) = (folder.join("crowd"), folder.join("service"));
        for copy in [&crowd, &service] {
            fs::copy(&context.own, copy)
                .with_context(|| format!("cannot copy this program to {}", copy.display()))?;
        }
        // Fails where the file system is mounted without execution, or has no room for the copy.
        let tried = Command::new(&crowd)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if !tried.is_ok_and(|status| status.success()) {
            bail!("programs in {} cannot be executed", folder.display());
        }
        Ok(Self {
            folder,
            crowd,
            service,
        })
    }

    fn configure(&self, watched: bool) -> Result<PathBuf> {
        let etc = self.folder.join("etc");
        fs::create_dir_all(&etc)?;
        let rule = |name: &str, path: &Path| {
            format!(
                "[[rule]]\nname = \"{name}\"\nexecutable = \"{}\"\npages = \"auto\"\n",
                path.display()
            )
        };
        let mut text = rule("service", &self.service);
        if watched {
            text.push_str(&rule("crowd", &self.crowd));
        }
        fs::write(etc.join("superhue.toml"), text)?;
        Ok(etc)
    }
}

/// Many processes that hold a little memory. Dropping it kills them.
struct Crowd {
    path: PathBuf,
    held: Vec<Child>,
    /// Seconds after which the processes end by themselves, even if this process was killed.
    seconds: u64,
}

impl Crowd {
    fn grow(&mut self, size: usize, until: Instant) -> Result<()> {
        while self.held.len() < size {
            if Instant::now() >= until {
                bail!("the time for it was over");
            }
            let mut command = Command::new(&self.path);
            command.args(["hold", &HELD.0.to_string(), &self.seconds.to_string()]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            self.held
                .push(command.spawn().context("cannot start a process")?);
        }
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.held {
            let _ = child.kill();
        }
        for child in &mut self.held {
            let _ = child.wait();
        }
    }
}

/// Runs one daemon beside the crowd, and measures it.
fn among(
    context: &Context,
    place: &Place,
    count: usize,
    watched: bool,
    window: f64,
) -> Result<Value> {
    let etc = place.configure(watched)?;
    let socket = place.folder.join("ctl.sock");
    let _ = fs::remove_file(&socket);
    let begun = Instant::now();
    let mut command = context.superhue();
    let mut daemon = RunningCommand::start(
        command
            .arg("daemon")
            .arg("--config")
            .arg(&etc)
            .arg("--socket")
            .arg(&socket),
    )?;
    let pid = daemon.pid();
    let expected = if watched { count } else { 0 };
    let mut all_known = None;
    let patience = Duration::from_secs_f64((window * 2.0).min(20.0));
    while begun.elapsed() < patience && all_known.is_none() {
        if let Some(ended) = daemon.ended()? {
            bail!("the daemon ended: {}", ended.complaint());
        }
        thread::sleep(Duration::from_millis(50));
        if let Ok(status) = ask(&socket) {
            all_known = (processes(&status, "crowd") >= expected as u64)
                .then(|| begun.elapsed().as_secs_f64());
        }
    }
    let status = ask(&socket).context("the daemon does not answer")?;
    let first = cpu_of(pid)?;
    // The daemon spreads the cost of its first looks over time: the last quarter is closest to the lasting cost.
    let (mut before, mut quarters) = (first, Vec::new());
    for _ in 0..4 {
        let at = Instant::now();
        thread::sleep(Duration::from_secs_f64(window / 4.0));
        let now = cpu_of(pid)?;
        quarters.push((now - before) / at.elapsed().as_secs_f64());
        before = now;
    }
    let share = quarters.iter().sum::<f64>() / 4.0;
    let (own, pss) = memory_of(pid)?;
    let memory = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let bytes = |name: &str| size_in(&memory, name).map(|size| size.0);
    let service = new_service(context, place, &socket);
    let total = cpu_of(pid)?;
    let ended = daemon.terminate(Duration::from_secs(5));
    let row = json!({
        "processes": count, "watched": watched, "known": processes(&status, "crowd"),
        "all_known_seconds": all_known, "discovery": status.pointer("/discovery/how"),
        "cpu_seconds_at_start": first, "window_seconds": window, "cpu_share": share, "cpu_share_by_quarter": quarters, "cpu_seconds_in_all": total,
        "ceiling": status.pointer("/own/max_overhead"),
        "own_processes": own, "pss_bytes": pss, "rss_bytes": bytes("VmRSS"), "anonymous_bytes": bytes("RssAnon"), "peak_rss_bytes": bytes("VmHWM"),
        "service": service?, "ended_well": ended.is_ok_and(|ended| ended.is_well()),
    });
    Ok(row)
}

/// Starts a service that fills its memory and touches it. Returns the time until the daemon knows it and until its first huge page.
fn new_service(context: &Context, place: &Place, socket: &Path) -> Result<Value> {
    let begun = Instant::now();
    let mut service = Target::start(&place.service, SERVICE)?;
    let group = Group::of(service.pid());
    service.fill(SERVICE, 1, Duration::from_secs(5), Kind::Base)?;
    let filled = begun.elapsed().as_secs_f64();
    service.ask("stir 1 plain free")?;
    let (mut known, mut first) = (None, None);
    while (first.is_none() || known.is_none()) && begun.elapsed() < KNOWN_WITHIN.min(context.left())
    {
        if let Ok(status) = ask(socket) {
            let now = begun.elapsed().as_secs_f64();
            known = known.or_else(|| (processes(&status, "service") > 0).then_some(now));
        }
        // Read from the service itself: the daemon's account of it may be a second old.
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", service.pid()));
        let huge = rollup.ok().and_then(|it| size_in(&it, "AnonHugePages"));
        let is_huge = huge.is_some_and(|huge| huge.0 > 0);
        first = first.or_else(|| is_huge.then(|| begun.elapsed().as_secs_f64()));
        thread::sleep(Duration::from_millis(20));
    }
    drop(service);
    Ok(
        json!({"own_group": group.is_some(), "filled_seconds": filled, "known_seconds": known, "first_huge_page_seconds": first}),
    )
}

/// A cgroup v2 group, since services usually run in one. Dropping it removes the group.
struct Group(PathBuf);

impl Group {
    /// Makes a group for this process; `None` where that is not possible.
    fn of(pid: u32) -> Option<Self> {
        let root = CGROUP_ROOTS
            .iter()
            .map(Path::new)
            .find(|root| root.join("cgroup.controllers").exists())?;
        let folder = root.join(format!("{GROUP}{pid}"));
        fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        fs::write(group.0.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn rule<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    status["rules"]
        .as_array()?
        .iter()
        .find(|rule| rule["name"] == name)
}

fn processes(status: &Value, name: &str) -> u64 {
    rule(status, name)
        .and_then(|rule| rule["processes"].as_u64())
        .unwrap_or(0)
}

/// Asks the daemon for its status.
fn ask(socket: &Path) -> Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"{\"version\":1,\"request\":\"status\"}\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let mut told: Value = serde_json::from_str(&line)?;
    Ok(told["status"].take())
}

/// Returns the processes of the daemon: itself and its workers.
fn tree_of(pid: u32) -> Result<Vec<u32>> {
    let mut tree = descendants(&Roots::default(), pid)?;
    tree.push(pid);
    Ok(tree)
}

/// Returns the CPU seconds of the daemon and its workers, those that have ended included.
fn cpu_of(pid: u32) -> Result<f64> {
    let roots = Roots::default();
    let mut sum = cpu_time_of(pid).context("the daemon is gone")?;
    for one in tree_of(pid)? {
        // A worker that has ended meanwhile counts for its parent.
        let own = cpu_time_of(one).filter(|_| one != pid);
        let ended = stat(&roots, one).map(|stat| stat.ended_children.total());
        sum += own.unwrap_or_default() + ended.unwrap_or_default();
    }
    Ok(sum.as_secs_f64())
}

/// Returns the number of processes of the daemon, and the memory that is theirs: shared pages count in proportion.
fn memory_of(pid: u32) -> Result<(usize, Option<u64>)> {
    let tree = tree_of(pid)?;
    let pss = |pid: &u32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        Some(size_in(&rollup, "Pss")?.0)
    };
    Ok((tree.len(), tree.iter().map(pss).sum()))
}
