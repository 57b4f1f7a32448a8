//! The program that a process runs, so that its successor is not taken for it.

use std::fs;

use rustix::io::Errno;
use superhue_model::ProcessId;
use superhue_procfs::{ReadError, Roots};

/// One program in one process: changes with the process and with every `execve(2)`.
///
/// The addresses are those of the code and of the stack, which the kernel chooses again for each
/// program (`proc_pid_stat(5)`, fields 26 and 28).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) process: ProcessId,
    code: u64,
    stack: u64,
    /// Owner of `/proc/PID/stat`: root once the user may not look into the program.
    owner: u32,
}

impl Image {
    /// Returns the program that process `pid` runs now.
    ///
    /// # Errors
    /// `ESRCH` if it is gone; `EACCES` if it may not be looked into; `EIO` if its files make no sense;
    /// other errors of reading them.
    pub(crate) fn of(roots: &Roots, pid: u32) -> Result<Self, Errno> {
        use std::os::unix::fs::MetadataExt;
        let path = roots.of_process(pid, "stat");
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let text = fs::read(&path).map_err(|error| match errno(error) {
            Errno::NOENT => Errno::SRCH,
            other => other,
        })?;
        // The folder belongs to the effective user whatever the program permits (`task_dump_owner` in fs/proc/base.c); the file does not.
        let owner = fs::metadata(&path).map_err(|error| match errno(error) {
            Errno::NOENT => Errno::SRCH,
            other => other,
        })?;
        let [start_ticks, code, stack] = parse(&text).ok_or(Errno::IO)?;
        // The kernel hides it without ptrace access to the process (CAP_SYS_PTRACE); or it is exiting.
        if stack == 0 {
            return Err(Errno::ACCESS);
        }
        Ok(Self {
            process: ProcessId { pid, start_ticks },
            code,
            stack,
            owner: owner.uid(),
        })
    }

    /// Returns true if that program still runs there.
    pub(crate) fn still_is(&self, roots: &Roots) -> bool {
        Self::of(roots, self.process.pid).is_ok_and(|now| now == *self)
    }
}

/// Returns start time, start of the code, start of the stack.
fn parse(stat: &[u8]) -> Option<[u64; 3]> {
    // The name before the last parenthesis may hold anything.
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    // The first is field 3.
    let start = fields.nth(22 - 3)?.parse().ok()?;
    let code = fields.nth(26 - 23)?.parse().ok()?;
    let stack = fields.nth(28 - 27)?.parse().ok()?;
    Some([start, code, stack])
}

/// Returns true if process `pid` is in the same PID namespace as this one.
pub(crate) fn same_pid_namespace(roots: &Roots, pid: u32) -> bool {
    let of = |path| fs::read_link(path).ok();
    let theirs = of(roots.of_process(pid, "ns/pid"));
    theirs.is_some() && theirs == of(roots.proc.join("self/ns/pid"))
}

/// Checks that a process has memory to watch: a kernel thread, or one that is gone, has none.
pub(crate) fn has_memory(roots: &Roots, pid: u32) -> Result<(), ReadError> {
    let stat = superhue_procfs::process::stat(roots, pid)?;
    if stat.is_kernel_thread() {
        return Err(ReadError::KernelThread { pid });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_the_manual() {
        let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let line = format!("7 (a) 1 2 (b) S {}\n", numbers.join(" "));
        assert_eq!(parse(line.as_bytes()), Some([22, 26, 28]));
        assert_eq!(parse(b"7 (a) S 1 2"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn another_program_is_another_image() {
        let roots = Roots::default();
        let me = Image::of(&roots, std::process::id()).unwrap();
        assert!(me.still_is(&roots));
        // A shell that executes another program when it reads a line.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo ready; read line; exec cat"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut line = [0; 6];
        // Its name would come too early: the kernel sets it before the execution is complete.
        std::io::Read::read_exact(&mut output, &mut line).unwrap();
        assert_eq!(&line, b"ready\n");
        let before = Image::of(&roots, child.id()).unwrap();
        let mut input = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, b"go\nhello\n").unwrap();
        std::io::Read::read_exact(&mut output, &mut line).unwrap();
        assert_eq!(&line, b"hello\n");
        assert!(!before.still_is(&roots), "exec was not noticed");
        drop(input);
        child.wait().unwrap();
        // The parent has waited for it, so it has vanished.
        assert_eq!(Image::of(&roots, child.id()).unwrap_err(), Errno::SRCH);
    }
}
