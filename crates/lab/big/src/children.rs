//! Child processes of the measurement. No child outlives it.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use superhue::sys::process::{ChildEvent, SignalSet, Usage, child_event};

/// Makes the command end with the thread that starts it, and unblocks all its signals.
pub fn bound_to_us(command: &mut Command) -> &mut Command {
    let none = SignalSet::of(&[]);
    // SAFETY: both are system calls, which may be made between fork and exec.
    unsafe {
        command.pre_exec(move || {
            none.apply();
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        })
    }
}

/// Command that has ended.
#[derive(Debug)]
pub struct CommandResult {
    /// Exit status or signal.
    pub event: ChildEvent,
    /// Resources that the command and the children it waited for used.
    pub usage: Usage,
    /// Time from its start to its end.
    pub wall: Duration,
    /// Text that it wrote to standard output.
    pub out: String,
    /// Text that it wrote to standard error.
    pub err: String,
}

impl CommandResult {
    /// Returns true if its status is 0.
    pub fn is_well(&self) -> bool {
        self.event == ChildEvent::Exited(0)
    }

    /// Returns the CPU seconds of the command and of the children it waited for.
    pub fn cpu_seconds(&self) -> f64 {
        self.usage.cpu().as_secs_f64()
    }

    /// Returns the reason why the command failed: its exit status or signal, and the last line of its standard error.
    pub fn complaint(&self) -> String {
        let last = self.err.trim().lines().last().unwrap_or("it said nothing");
        format!(
            "{:?}: {}",
            self.event,
            last.chars().take(300).collect::<String>()
        )
    }
}

/// Running command. Dropping it kills the command.
#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
    begun: Instant,
    out: File,
    err: File,
    is_over: bool,
}

impl RunningCommand {
    /// Starts the command, without input.
    pub fn start(command: &mut Command) -> Result<Self> {
        let (out, err) = (kept()?, kept()?);
        let begun = Instant::now();
        let started = bound_to_us(command)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(err.try_clone()?)
            .spawn();
        let child =
            started.with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(Self {
            child,
            begun,
            out,
            err,
            is_over: false,
        })
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the result once the command has ended, else `None`.
    pub fn ended(&mut self) -> Result<Option<CommandResult>> {
        let Some((event, usage)) = child_event(self.child.id())? else {
            return Ok(None);
        };
        if !matches!(event, ChildEvent::Exited(_) | ChildEvent::Killed(_)) {
            return Ok(None);
        }
        self.is_over = true;
        let wall = self.begun.elapsed();
        Ok(Some(CommandResult {
            event,
            usage,
            wall,
            out: text(&mut self.out)?,
            err: text(&mut self.err)?,
        }))
    }

    /// Waits for its end.
    pub fn wait(mut self, until: Instant) -> Result<CommandResult> {
        loop {
            if let Some(ended) = self.ended()? {
                return Ok(ended);
            }
            if Instant::now() >= until {
                bail!("it did not end in time");
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends SIGTERM and waits; kills the command if it does not end in time.
    pub fn terminate(self, patience: Duration) -> Result<CommandResult> {
        signal(self.pid(), Signal::TERM);
        self.wait(Instant::now() + patience)
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command, until: Instant) -> Result<CommandResult> {
    let name = command.get_program().to_string_lossy().into_owned();
    RunningCommand::start(command)?
        .wait(until)
        .with_context(|| name)
}

/// Makes a file in memory alone, since this module does not know a folder that it may write.
fn kept() -> Result<File> {
    let file = memfd_create("superhue-big", MemfdFlags::CLOEXEC);
    Ok(file
        .context("cannot make a file in memory (memfd_create)")?
        .into())
}

fn text(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(64 << 20).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Sends a signal; ignores a process that has ended.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Kills every process that descends from this one and waits for its own children, for `patience` at most. No descendant is left where
/// this process adopts orphans (`PR_SET_CHILD_SUBREAPER`).
pub fn end_descendants(patience: Duration) {
    let until = Instant::now() + patience;
    loop {
        for pid in descendants(std::process::id()) {
            signal(pid, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                // No child is left.
                Err(_) => return,
            }
        }
        if Instant::now() >= until {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns all processes below one, found by their parents' process IDs.
fn descendants(root: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids
        .filter_map(|pid| {
            Some((
                pid,
                parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?,
            ))
        })
        .collect();
    below(root, &parents)
}

/// Returns the parent in the text of `/proc/PID/stat`: the second field after the name. The name may contain any character.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn below(root: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut children: std::collections::HashMap<u32, Vec<u32>> = std::collections::HashMap::new();
    for (pid, parent) in parents {
        children.entry(*parent).or_default().push(*pid);
    }
    let (mut found, mut next) = (Vec::new(), vec![root]);
    while let Some(pid) = next.pop() {
        let those = children.remove(&pid).unwrap_or_default();
        found.extend(&those);
        next.extend(those);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_by_their_parents() {
        assert_eq!(parent("7 (a) b) S 3 7 7"), Some(3));
        assert_eq!(parent("7 (a"), None);
        let mut found = below(1, &[(2, 1), (3, 2), (4, 9), (5, 3), (1, 1)]);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3, 5]);
    }

    #[test]
    fn a_command_is_bounded_and_its_words_are_kept() {
        let ended = run(
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]),
            Instant::now() + Duration::from_secs(20),
        )
        .unwrap();
        assert_eq!(
            (ended.event, ended.out.as_str(), ended.is_well()),
            (ChildEvent::Exited(3), "out\n", false)
        );
        assert!(ended.complaint().ends_with("err"));
        let begun = Instant::now();
        assert!(
            run(
                Command::new("sleep").arg("60"),
                Instant::now() + Duration::from_millis(50)
            )
            .is_err()
        );
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
