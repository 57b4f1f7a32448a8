//! Key-value server that runs only during the load.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};

/// Longest wait for the server to listen, and for it to end after SIGTERM.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two looks at the server.
const POLL: Duration = Duration::from_millis(10);

/// A running server, stopped when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts `program` and waits until it listens at `address`.
    ///
    /// The server's output goes to standard error, because standard output is for the report.
    ///
    /// # Errors
    /// If another program listens there, or the program cannot be started, ends, or does not listen within ten seconds.
    pub fn start(program: &str, arguments: &[String], address: SocketAddr) -> Result<Self> {
        if TcpStream::connect(address).is_ok() {
            bail!("something listens at {address} already: choose another --port");
        }
        let stderr = std::io::stderr().as_fd().try_clone_to_owned()?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::from(stderr));
        die_with_parent(&mut command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start `{program}`"))?;
        let mut server = Self { child };
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = server.child.try_wait()? {
                bail!("`{program}` ended at once: {status}");
            }
            if start.elapsed() > SERVER_TIMEOUT {
                bail!("`{program}` does not listen at {address} after {SERVER_TIMEOUT:?}");
            }
            thread::sleep(POLL);
        }
        Ok(server)
    }

    /// Returns the process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it by SIGTERM, and by SIGKILL after ten seconds.
    ///
    /// # Errors
    /// If it had ended by itself before, which no server should do during a load.
    pub fn stop(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the server ended by itself: {status}");
        }
        self.end();
        Ok(())
    }

    fn end(&mut self) {
        // A failure means that it has ended already.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), Signal::TERM);
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > SERVER_TIMEOUT {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// Makes the kernel end the command when this process is killed.
///
/// A server that changes its user afterwards (`memcached -u`) loses this setting and keeps running.
fn die_with_parent(command: &mut Command) {
    let hook =
        || rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(Into::into);
    // SAFETY: between fork and exec the hook makes one system call, which is async-signal-safe, and neither allocates
    // nor locks.
    unsafe { command.pre_exec(hook) };
}
