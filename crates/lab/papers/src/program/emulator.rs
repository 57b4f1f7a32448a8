//! A program under user-mode QEMU, with a plugin that reports the program's references (`witness/trace.c`).
//!
//! ```text
//!   program - emulator - plugin --> ring in memory --> words, until the reader stops
//! ```
//!
//! The ring is a file in memory that the plugin maps. Its first page holds the positions of both sides; behind it there
//! is room for words. When the ring is full, the program waits. No part of it is on a disk.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::iter::once;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use superhue_procfs::Roots;
use superhue_procfs::process::descendants;
use superhue_sys::overdue::TerminatingProcesses;

/// Emulator of 64-bit x86 programs.
pub const EMULATOR: &str = "qemu-x86_64";
/// Package of Debian 12 that has it.
pub const PACKAGE: &str = "qemu-user";

const HEAD: u64 = 4096;
const MAGIC: u64 = 0x3165_6361_7274_6873;
const WRITTEN: u64 = 64;
const TAKEN: u64 = 128;
const STOP: u64 = 136;
/// Words in the ring: 16 MiB.
const ROOM: u64 = 2 << 20;
/// Time between two looks at an empty ring.
const NAP: Duration = Duration::from_micros(300);

/// Reason why a program cannot be run and traced.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    /// The emulator is not installed.
    #[error(
        "cannot find {EMULATOR} on the PATH; superhue needs it to record memory references: install it (Debian 12: apt-get install {PACKAGE})"
    )]
    NoEmulator,
    /// The emulator is installed, but takes no plugins.
    #[error("{} takes no plugins, so what a program refers to cannot be seen: {why} (that of Debian 12, version 7.2, takes them)", .path.display())]
    NoPlugins {
        /// The emulator.
        path: PathBuf,
        /// The emulator's own words.
        why: String,
    },
    /// The plugin is not there.
    #[error("there is no plugin at {}: install a package of superhue, or run `make lab-trace` in the sources; --plugin names another file", .0.display())]
    NoPlugin(PathBuf),
    /// There is no such command.
    #[error("cannot run `{name}`: {why}; check the name and PATH")]
    NotFound {
        /// The name, as the user gave it.
        name: String,
        /// The reason.
        why: String,
    },
    /// The command exists, but is no program that can be emulated.
    #[error("cannot trace `{name}`: {why}")]
    NotExecutable {
        /// The name, as the user gave it.
        name: String,
        /// The reason.
        why: String,
    },
    /// The system refused an operation.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
    /// The positions in the ring are wrong: the traced program wrote into the ring, which is mapped in its address
    /// space.
    #[error(
        "the places in the trace make no sense ({written} words written, {taken} taken): the program wrote into the emulator's memory"
    )]
    Overwritten {
        /// Words that the plugin has written, by the ring's first page.
        written: u64,
        /// Words that the reader has taken.
        taken: u64,
    },
    /// The emulator ended before the first instruction of the program.
    #[error(
        "{EMULATOR} ended before the program began ({ending}): see its message above; build the plugin for this version of the emulator"
    )]
    NotBegun {
        /// The emulator's end.
        ending: Ending,
    },
}

/// End of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with a status.
    Exited(i32),
    /// By a signal.
    Killed(i32),
}

impl std::fmt::Display for Ending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(status) => write!(formatter, "exit status {status}"),
            Self::Killed(signal) => write!(formatter, "signal {signal}"),
        }
    }
}

impl Ending {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Killed(signal.unwrap_or(0)),
        }
    }
}

/// An installed emulator with its plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emulator {
    path: PathBuf,
    plugin: PathBuf,
    version: String,
}

impl Emulator {
    /// Finds the emulator on the `PATH`, with a plugin.
    ///
    /// # Errors
    /// If emulator or plugin is missing, or the emulator takes no plugins.
    pub fn find(plugin: &Path) -> Result<Self, EmulatorError> {
        let path = on_path(OsStr::new(EMULATOR)).ok_or(EmulatorError::NoEmulator)?;
        let system = |what| move |source| EmulatorError::System { what, source };
        let said = Command::new(&path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(system("run qemu-x86_64"))?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let version = said.lines().next().unwrap_or("").trim().to_owned();
        let help = Command::new(&path)
            .arg("-help")
            .stdin(Stdio::null())
            .output()
            .map_err(system("run qemu-x86_64"))?;
        if !String::from_utf8_lossy(&help.stdout).contains("-plugin") {
            let why = format!("it is {version:?}, and its help knows no -plugin");
            return Err(EmulatorError::NoPlugins { path, why });
        }
        // The emulator is started in the folder of the program.
        let file = plugin.canonicalize().ok().filter(|file| file.is_file());
        let Some(plugin) = file else {
            return Err(EmulatorError::NoPlugin(plugin.to_owned()));
        };
        Ok(Self {
            path,
            plugin,
            version,
        })
    }

    /// The emulator's version, in its own words.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Starts a command. `set` may change its input, output and folder.
    ///
    /// # Errors
    /// If there is no such command, or it cannot be emulated.
    pub(super) fn start(
        &self,
        command: &[OsString],
        set: impl FnOnce(&mut Command),
    ) -> Result<EmulatedProgram, EmulatorError> {
        let program = Program::find(command)?;
        let system = |what| move |source| EmulatorError::System { what, source };
        let ring = memfd_create("superhue-trace", MemfdFlags::CLOEXEC)
            .map_err(|errno| system("make memory for the trace")(errno.into()))?;
        let ring = File::from(ring);
        ring.set_len(HEAD + ROOM * 8)
            .map_err(system("make memory for the trace"))?;
        let own = std::process::id();
        let mut option = OsString::from("file=");
        option.push(doubled_commas(self.plugin.as_os_str()));
        option.push(format!(
            ",ring=/proc/{own}/fd/{},parent={own}",
            ring.as_raw_fd()
        ));
        let mut emulator = Command::new(&self.path);
        // A fixed seed, so that the program gets the same random bytes from the kernel in each run.
        emulator
            .args(["-cpu", "max", "-seed", "1", "-plugin"])
            .arg(option)
            .arg("-0")
            .arg(&program.name)
            .arg(&program.path)
            .args(&program.arguments);
        set(&mut emulator);
        let child = emulator.spawn().map_err(system("start qemu-x86_64"))?;
        Ok(EmulatedProgram {
            child,
            ring,
            taken: 0,
            ended: None,
        })
    }
}

/// Doubles commas: a comma separates the options of a plugin, and two commas stand for one.
fn doubled_commas(path: &OsStr) -> OsString {
    let bytes = path.as_bytes().iter();
    let doubled: Vec<u8> = bytes
        .flat_map(|byte| std::iter::repeat_n(*byte, if *byte == b',' { 2 } else { 1 }))
        .collect();
    OsStr::from_bytes(&doubled).to_owned()
}

/// Program for the emulator, with its arguments.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    path: PathBuf,
    /// The program's own name (`argv[0]`).
    name: OsString,
    arguments: Vec<OsString>,
}

impl Program {
    fn find(command: &[OsString]) -> Result<Self, EmulatorError> {
        let (name, arguments) = command
            .split_first()
            .ok_or_else(|| EmulatorError::NotFound {
                name: String::new(),
                why: "no command was given".to_owned(),
            })?;
        let told = name.to_string_lossy().into_owned();
        let path = on_path(name).ok_or_else(|| EmulatorError::NotFound {
            name: told.clone(),
            why: "there is no such file".to_owned(),
        })?;
        let no = |why: String| EmulatorError::NotExecutable {
            name: told.clone(),
            why,
        };
        let mut path = path;
        let (mut name, mut arguments) = (name.clone(), arguments.to_vec());
        // An interpreter may be a script.
        for _ in 0..4 {
            let metadata = fs::metadata(&path).map_err(|error| no(error.to_string()))?;
            if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
                return Err(no("it is no file that may be executed".to_owned()));
            }
            let start = beginning(&path).map_err(|error| no(error.to_string()))?;
            let Some(line) = start.strip_prefix(b"#!") else {
                return match kind_of(&start) {
                    Ok(()) => Ok(Self {
                        path,
                        name,
                        arguments,
                    }),
                    Err(why) => Err(no(why)),
                };
            };
            // Follows a script as the kernel does: the interpreter, at most one argument, the script.
            let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
            let line = line.trim_ascii();
            let cut = line.iter().position(u8::is_ascii_whitespace);
            let (interpreter, argument) = line.split_at(cut.unwrap_or(line.len()));
            if interpreter.is_empty() {
                return Err(no("it is a script without an interpreter".to_owned()));
            }
            arguments.insert(0, path.into_os_string());
            let argument = argument.trim_ascii();
            if !argument.is_empty() {
                arguments.insert(0, OsStr::from_bytes(argument).to_owned());
            }
            name = OsStr::from_bytes(interpreter).to_owned();
            path = PathBuf::from(&name);
        }
        Err(no(
            "its interpreters are scripts themselves, again and again".to_owned(),
        ))
    }
}

fn beginning(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 256];
    let read = File::open(path)?.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Checks that a file is a program for the emulator. Returns the reason if it is not.
fn kind_of(start: &[u8]) -> Result<(), String> {
    const X86_64: u16 = 62;
    let [0x7f, b'E', b'L', b'F', class, ..] = start else {
        return Err("it is neither a program (ELF) nor a script".to_owned());
    };
    if *class != 2 {
        return Err("it is a 32-bit program, and 64-bit ones for x86 alone are traced".to_owned());
    }
    match start.get(18..20) {
        Some(machine) if machine == X86_64.to_le_bytes() => Ok(()),
        _ => Err("it is for another kind of processor than x86-64".to_owned()),
    }
}

/// Finds a file by name, as the shell does.
fn on_path(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return path.exists().then_some(path);
    }
    if name.is_empty() {
        return None;
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut places = env::split_paths(&path).map(|folder| folder.join(name));
    places.find(|path| {
        let found = fs::metadata(path);
        found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

/// A running program.
#[derive(Debug)]
pub(super) struct EmulatedProgram {
    child: Child,
    ring: File,
    taken: u64,
    ended: Option<Ending>,
}

impl EmulatedProgram {
    fn word(&self, at: u64) -> Result<u64, EmulatorError> {
        let mut word = [0; 8];
        self.ring
            .read_exact_at(&mut word, at)
            .map_err(|source| EmulatorError::System {
                what: "read the trace",
                source,
            })?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Number of words that can be taken.
    fn there(&self) -> Result<u64, EmulatorError> {
        let written = self.word(WRITTEN)?;
        let there = written.checked_sub(self.taken);
        there
            .filter(|there| *there <= ROOM)
            .ok_or(EmulatorError::Overwritten {
                written,
                taken: self.taken,
            })
    }

    fn tell(&self, at: u64, word: u64) -> Result<(), EmulatorError> {
        self.ring
            .write_all_at(&word.to_ne_bytes(), at)
            .map_err(|source| EmulatorError::System {
                what: "write to the trace",
                source,
            })
    }

    /// Returns the next words, or no words if none come for 50 ms; `None` when the program has ended and all its words
    /// have been read.
    pub(super) fn words(&mut self, most: u64) -> Result<Option<Vec<u64>>, EmulatorError> {
        let until = Instant::now() + Duration::from_millis(50);
        let mut there = self.there()?;
        while there == 0 {
            if self.ended.is_some() {
                return self.begun().map(|()| None);
            }
            self.look()?;
            // The program may have written its last words after the first look at the ring and before its end.
            there = self.there()?;
            if there == 0 && self.ended.is_none() {
                if Instant::now() > until {
                    return Ok(Some(Vec::new()));
                }
                thread::sleep(NAP);
            }
        }
        let from = self.taken % ROOM;
        let count = there.min(most).min(ROOM - from);
        let mut bytes = vec![0; usize::try_from(count * 8).unwrap_or(0)];
        self.ring
            .read_exact_at(&mut bytes, HEAD + from * 8)
            .map_err(|source| EmulatorError::System {
                what: "read the trace",
                source,
            })?;
        self.taken += count;
        self.tell(TAKEN, self.taken)?;
        let words = bytes.chunks_exact(8);
        let words = words.map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        Ok(Some(words.collect()))
    }

    fn begun(&self) -> Result<(), EmulatorError> {
        match self.ended {
            Some(ending) if self.word(0)? != MAGIC => Err(EmulatorError::NotBegun { ending }),
            _ => Ok(()),
        }
    }

    fn look(&mut self) -> Result<(), EmulatorError> {
        let ended = self
            .child
            .try_wait()
            .map_err(|source| EmulatorError::System {
                what: "wait for the program",
                source,
            })?;
        self.ended = self.ended.or(ended.map(Ending::of));
        Ok(())
    }

    /// Ends the program. Returns its end, and false if it had ended by itself. Otherwise sends SIGTERM to it and all
    /// its descendants, kills those that do not end, and returns true.
    pub(super) fn end(mut self) -> Result<(Ending, bool), EmulatorError> {
        self.tell(STOP, 1)?;
        self.look()?;
        if let Some(ending) = self.ended {
            return Ok((ending, false));
        }
        let own = self.child.id();
        let others = descendants(&Roots::default(), own).unwrap_or_default();
        let overdue = TerminatingProcesses::tell(once(own).chain(others));
        while self.ended.is_none() && Instant::now() < overdue.deadline() {
            thread::sleep(Duration::from_millis(2));
            self.look()?;
        }
        drop(overdue);
        let status = self.child.wait();
        let status = status.map_err(|source| EmulatorError::System {
            what: "wait for the program",
            source,
        })?;
        Ok((self.ended.unwrap_or_else(|| Ending::of(status)), true))
    }
}

impl Drop for EmulatedProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(words: &[&str]) -> Result<Program, EmulatorError> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Program::find(&words)
    }

    #[track_caller]
    fn why(words: &[&str]) -> String {
        program(words).map_or_else(|error| error.to_string(), |found| format!("{found:?}"))
    }

    #[test]
    fn commands_are_found_as_shells_do() {
        let folder = env::temp_dir().join(format!("superhue-emulator-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{e}"));
        let file = |name: &str, bytes: &[u8], mode: u32| {
            let path = folder.join(name);
            fs::write(&path, bytes).unwrap_or_else(|e| panic!("{e}"));
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(&path, mode).unwrap_or_else(|e| panic!("{e}"));
            path.to_string_lossy().into_owned()
        };
        let elf = |class: u8, machine: u8| {
            let mut bytes = vec![0x7f, b'E', b'L', b'F', class];
            bytes.resize(18, 0);
            bytes.extend([machine, 0]);
            bytes
        };
        let good = file("good", &elf(2, 62), 0o755);
        let script = file("script", format!("#! {good} -a b \necho").as_bytes(), 0o755);
        let plain = program(&[&good, "x"]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(plain.path.to_string_lossy(), good);
        assert_eq!(
            (plain.name, plain.arguments),
            (OsString::from(&good), vec!["x".into()])
        );
        let found = program(&[&script, "x"]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(found.path.to_string_lossy(), good);
        assert_eq!(found.arguments, ["-a b", script.as_str(), "x"]);
        for (bytes, mode, word) in [
            (&elf(1, 3)[..], 0o755, "32-bit"),
            (&elf(2, 183), 0o755, "another kind of processor"),
            (b"MZ", 0o755, "neither a program"),
            (b"", 0o755, "neither a program"),
            (&elf(2, 62), 0o644, "may be executed"),
            (b"#!\n", 0o755, "without an interpreter"),
            (b"#!/nonexistent/x\n", 0o755, "No such file"),
        ] {
            let path = file("bad", bytes, mode);
            assert!(why(&[&path]).contains(word), "{word}: {}", why(&[&path]));
        }
        let itself = file(
            "itself",
            format!("#!{}/itself\n", folder.display()).as_bytes(),
            0o755,
        );
        assert!(
            why(&[&itself]).contains("again and again"),
            "{}",
            why(&[&itself])
        );
        for nothing in ["", "/nonexistent/program", "no-such-program-of-any-name"] {
            assert!(matches!(
                program(&[nothing]),
                Err(EmulatorError::NotFound { .. })
            ));
        }
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn commas_in_paths_do_not_end_an_option() {
        assert_eq!(doubled_commas(OsStr::new("/a,b/c")), "/a,,b/c");
    }

    /// The program shares its memory with the plugin, so the positions may have any value.
    #[test]
    fn places_that_cannot_be_are_refused() {
        let ring = memfd_create("superhue-test", MemfdFlags::CLOEXEC);
        let ring = File::from(ring.unwrap_or_else(|e| panic!("{e}")));
        ring.set_len(HEAD + ROOM * 8)
            .unwrap_or_else(|e| panic!("{e}"));
        let child = Command::new("true").spawn();
        let mut running = EmulatedProgram {
            child: child.unwrap_or_else(|e| panic!("{e}")),
            ring,
            taken: 0,
            ended: None,
        };
        let written = |running: &EmulatedProgram, places: u64| {
            running
                .tell(WRITTEN, places)
                .unwrap_or_else(|e| panic!("{e}"));
        };
        written(&running, ROOM);
        // All words that there is room for, in two reads.
        for wanted in [ROOM - 1, 1] {
            let words = running.words(ROOM - 1).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(words.map(|words| words.len() as u64), Some(wanted));
        }
        for places in [ROOM - 1, 0, 2 * ROOM + 1, u64::MAX] {
            written(&running, places);
            let error = running.words(ROOM);
            assert!(
                matches!(error, Err(EmulatorError::Overwritten { written, .. }) if written == places),
                "{error:?}"
            );
        }
    }
}
