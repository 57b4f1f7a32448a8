//! Options that name processes, the same in every verb that takes some.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Processes as a user names them.
#[derive(Debug, Clone, Default, Args)]
pub struct TargetArgs {
    /// Processes by number (PID) or by command name, which means all of that name.
    #[arg(value_name = "PID|NAME", value_parser = parse_process, value_hint = ValueHint::Other,
          conflicts_with_all = ["unit", "cgroup", "user", "all"])]
    pub processes: Vec<ProcessName>,
    /// The processes of this systemd unit (redis, or redis.service).
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other, help_heading = "Processes",
          conflicts_with_all = ["cgroup", "user", "all"])]
    pub unit: Option<String>,
    /// The processes of this cgroup and of the cgroups below it: its path below /sys/fs/cgroup
    /// (system.slice/redis.service), or in full.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath, help_heading = "Processes",
          conflicts_with_all = ["user", "all"])]
    pub cgroup: Option<PathBuf>,
    /// The processes of this effective user, by name or number.
    #[arg(long, value_name = "USER", value_hint = ValueHint::Username, help_heading = "Processes")]
    pub user: Option<String>,
    /// All processes that can be seen, except superhue itself.
    #[arg(long, help_heading = "Processes")]
    pub all: bool,
}

/// Help of the processes for a verb that shows one.
pub const ONE_PROCESS: &str = "Process to show: one PID; of a name, --unit, --cgroup, --user or --all, the process with the most memory";

/// Help of the processes for a verb that takes one family.
pub const ONE_FAMILY: &str = "Processes by number (PID) or by command name. Several must be one family: a process and its descendants";

/// The ids of these options, for conflicts with others.
pub const TARGETS: [&str; 5] = ["processes", "unit", "cgroup", "user", "all"];

/// Table width.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct WideArgs {
    /// Show all columns and whole names, wider than the terminal if need be.
    #[arg(long)]
    pub wide: bool,
}

/// A process, or all processes of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessName {
    /// By number.
    Pid(u32),
    /// By command name.
    Named(String),
}

impl TargetArgs {
    /// Returns true if the options name nothing.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
            && self.unit.is_none()
            && self.cgroup.is_none()
            && self.user.is_none()
            && !self.all
    }

    /// Returns true if processes are given by number or name, and not by a set whose members change.
    pub fn is_by_number(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Returns the options as they would be typed again.
    pub fn typed(&self) -> String {
        if let Some(unit) = &self.unit {
            return format!("--unit {}", shell_words::quote(unit));
        }
        if let Some(path) = &self.cgroup {
            return format!("--cgroup {}", shell_words::quote(&path.to_string_lossy()));
        }
        if let Some(user) = &self.user {
            return format!("--user {}", shell_words::quote(user));
        }
        if self.all {
            return "--all".to_owned();
        }
        let names = self.processes.iter().map(|one| match one {
            ProcessName::Pid(pid) => pid.to_string(),
            ProcessName::Named(name) => shell_words::quote(name).into_owned(),
        });
        names.collect::<Vec<_>>().join(" ")
    }
}

/// Reads a PID, or the name of a command.
fn parse_process(text: &str) -> Result<ProcessName, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        let pid = text.parse().ok().filter(|&pid: &u32| pid > 0);
        return pid
            .map(ProcessName::Pid)
            .ok_or_else(|| format!("`{text}` is not the number of a process"));
    }
    if text.is_empty() || text.starts_with('-') {
        return Err(format!("`{text}` is neither a PID nor a command name"));
    }
    Ok(ProcessName::Named(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_told_apart() {
        assert_eq!(parse_process("812"), Ok(ProcessName::Pid(812)));
        assert_eq!(
            parse_process("redis-server"),
            Ok(ProcessName::Named("redis-server".to_owned()))
        );
        for wrong in ["", "0", "-1", "-x", "99999999999"] {
            assert!(parse_process(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn options_are_typed_again_as_they_were() {
        let mut named = TargetArgs::default();
        assert!(named.is_empty());
        named.processes = vec![ProcessName::Pid(7), ProcessName::Named("a b".to_owned())];
        assert_eq!(named.typed(), "7 'a b'");
        named.user = Some("alice".to_owned());
        assert_eq!(named.typed(), "--user alice");
        named.unit = Some(r"app-a\x2db.scope".to_owned());
        assert_eq!(named.typed(), r"--unit 'app-a\x2db.scope'");
    }
}
