//! Requests to a command's own memory allocator for huge pages at the page fault, by a variable of its environment.
//!
//! A page fault makes a huge page only where a mapping spans 2 MiB and, under the system mode `madvise`, only where the program requests it. Heaps
//! grow in small steps, so neither holds for them. Several allocators request huge pages if a variable is set:
//!
//! | allocator       | recognized by                                        | variable                                    |
//! |-----------------|------------------------------------------------------|---------------------------------------------|
//! | glibc from 2.35 | the versions that the program's loader defines       | `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`     |
//! | jemalloc        | a library, or the name of the variable in its data   | `MALLOC_CONF=thp:always`, or with a prefix  |
//! | mimalloc        | a library                                            | `MIMALLOC_LARGE_OS_PAGES=1`                 |
//! | JVM             | a library of its launcher                            | `JDK_JAVA_OPTIONS=-XX:+UseTransparentHugePages` |
//!
//! tcmalloc is recognized too, and gets no request: it has no such variable. Programs are recognized by what they link ([`program`]), never by name.
//!
//! Sources: glibc's manual, "Memory Allocation Tunables"; jemalloc(3), `opt.thp`; mimalloc's readme, "Environment Options"; java(1).

mod path;
mod program;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::Serialize;
use superhue_procfs::system::ThpSettings;
use superhue_procfs::system::hugetlb::read_hugetlb_pools;
use superhue_procfs::system::thp::ThpMode;
use superhue_procfs::{ReadError, Roots};

use crate::dropped::dropped_variables;
use program::unreadable;

pub use program::{Allocator, ProgramError};

/// Treatment of a command's own allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AllocatorAdvice {
    /// The command's environment stays as it is.
    #[default]
    Leave,
    /// The command's environment gets the variable that asks the allocator for huge pages.
    Ask,
}

/// A variable that asks an allocator for huge pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllocatorRequest {
    /// The allocator.
    pub allocator: Allocator,
    /// Name of the variable.
    pub variable: String,
    /// Value of the variable.
    pub value: &'static str,
}

/// Result of a request, for the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllocatorReport {
    /// The variable that the command's environment got; `None` where it got none.
    pub asked: Option<AllocatorRequest>,
    /// Reason why it got none.
    pub not_asked_because: Option<String>,
}

/// Reason why an allocator gets no request.
#[derive(Debug, thiserror::Error)]
pub enum NoRequest {
    /// The policy switches huge pages off for the command.
    #[error("the policy `never` switches huge pages off")]
    SwitchedOff,
    /// A request has an effect only under the mode `madvise`.
    #[error("the system-wide mode is `{}`, under which a program's request has no effect", mode_name(.0))]
    Mode(Option<ThpMode>),
    /// The allocator's memory would come from the pool of reserved huge pages.
    #[error("mimalloc would take huge pages from the pool that is reserved here (vm.nr_hugepages)")]
    Pool,
    /// This variable, or another one for the same thing, has a value already.
    #[error("its environment has {0} already")]
    AlreadySet(String),
    /// An argument decides about large pages.
    #[error("its argument {0} decides about large pages")]
    Argument(String),
    /// A dry run changes nothing.
    #[error("a dry run changes nothing")]
    DryRun,
    /// The process sees other files (another mount namespace), its loader among them.
    #[error("it sees other files than superhue, as in a container")]
    OtherFiles,
    /// The allocator has no such variable.
    #[error("its allocator, {0}, has no variable that asks for huge pages")]
    NoVariable(Allocator),
    /// The program cannot take a request.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

fn mode_name(mode: &Option<ThpMode>) -> String {
    mode.map_or_else(|| "not readable".to_owned(), |mode| mode.to_string())
}

impl AllocatorRequest {
    /// Returns the variable that asks `allocator`; `None` where it has none.
    #[must_use]
    pub fn of(allocator: Allocator) -> Option<Self> {
        let (variable, value) = match &allocator {
            Allocator::Glibc => ("GLIBC_TUNABLES".to_owned(), "glibc.malloc.hugetlb=1"),
            Allocator::Jemalloc { prefix } => (format!("{prefix}MALLOC_CONF"), "thp:always"),
            // The name that all versions know; newer ones have another one, too.
            Allocator::Mimalloc => ("MIMALLOC_LARGE_OS_PAGES".to_owned(), "1"),
            Allocator::Jvm => (
                "JDK_JAVA_OPTIONS".to_owned(),
                "-XX:+UseTransparentHugePages",
            ),
            Allocator::Tcmalloc => return None,
        };
        Some(Self {
            allocator,
            variable,
            value,
        })
    }

    /// Returns the variable for a command, which starts with this process's environment and `added`.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn for_command(
        roots: &Roots,
        command: &[OsString],
        added: &[(OsString, OsString)],
    ) -> Result<Self, NoRequest> {
        let (name, arguments) = match command {
            [name, arguments @ ..] => (name.as_os_str(), arguments),
            [] => (OsStr::new(""), command),
        };
        check_mode(roots)?;
        let variable = |name: &str| value_of(name, added);
        let program = path::find(name, variable("PATH").as_deref())?;
        let preloaded = variable("LD_PRELOAD").unwrap_or_default();
        let request =
            Self::for_program(roots, &program, &preloaded, |name| variable(name).is_some())?;
        request.unless_decided(arguments)
    }

    /// Returns the variable for a process, were it started anew with the environment and arguments of its start.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn for_process(roots: &Roots, pid: u32) -> Result<Self, NoRequest> {
        check_mode(roots)?;
        let program = roots.of_process(pid, "exe");
        let mounts = |path: &Path| std::fs::read_link(path).map_err(|why| unreadable(path, why));
        // Its loader has this path only for processes that see the same files.
        let own = roots.proc.join("self/ns/mnt");
        if mounts(&roots.of_process(pid, "ns/mnt"))? != mounts(&own)? {
            return Err(NoRequest::OtherFiles);
        }
        let words = |name: &str| -> Result<Vec<OsString>, NoRequest> {
            let path = roots.of_process(pid, name);
            let text = std::fs::read(&path).map_err(|why| unreadable(&path, why))?;
            let words = text.split(|byte| *byte == 0);
            Ok(words
                .map(|word| OsStr::from_bytes(word).to_owned())
                .collect())
        };
        let environment = words("environ")?;
        let value = |name: &str| {
            let mut pairs = environment.iter().map(|pair| pair.as_bytes());
            pairs.find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        let preloaded = OsStr::from_bytes(value("LD_PRELOAD").unwrap_or_default());
        let is_set = |name: &str| value(name).is_some();
        let request = Self::for_program(roots, &program, preloaded, is_set)?;
        request.unless_decided(&words("cmdline")?)
    }

    fn for_program(
        roots: &Roots,
        program: &Path,
        preloaded: &OsStr,
        is_set: impl Fn(&str) -> bool,
    ) -> Result<Self, NoRequest> {
        let allocator = program::allocator_of(program, preloaded)?;
        let request =
            Self::of(allocator.clone()).ok_or_else(|| NoRequest::NoVariable(allocator.clone()))?;
        let names = request.other_names().iter().copied();
        let mut names = std::iter::once(request.variable.as_str()).chain(names);
        if let Some(name) = names.find(|name| is_set(name)) {
            return Err(NoRequest::AlreadySet(name.to_owned()));
        }
        if allocator == Allocator::Mimalloc && may_have_pool(roots) {
            return Err(NoRequest::Pool);
        }
        Ok(request)
    }

    /// Returns the names of other variables by which a user decides the same.
    const fn other_names(&self) -> &'static [&'static str] {
        match self.allocator {
            // The JVM reads these before and after its command line, to which `JDK_JAVA_OPTIONS` belongs.
            Allocator::Jvm => &["JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"],
            // The name in mimalloc 2 and later.
            Allocator::Mimalloc => &["MIMALLOC_ALLOW_LARGE_OS_PAGES"],
            _ => &[],
        }
    }

    /// Returns the request, unless the user decides by an argument.
    fn unless_decided(self, arguments: &[OsString]) -> Result<Self, NoRequest> {
        match self.argument_against(arguments) {
            Some(argument) => Err(NoRequest::Argument(argument)),
            None => Ok(self),
        }
    }

    /// Returns an argument by which the user decides about large pages: transparent ones exclude those of a pool.
    fn argument_against(&self, arguments: &[OsString]) -> Option<String> {
        if !matches!(self.allocator, Allocator::Jvm) {
            return None;
        }
        let words = ["LargePages", "HugePages", "HugeTLBFS"];
        let mut arguments = arguments.iter().map(|argument| argument.to_string_lossy());
        let argument = arguments.find(|argument| {
            argument.starts_with("-XX:") && words.iter().any(|word| argument.contains(word))
        })?;
        Some(argument.into_owned())
    }

    /// Returns the variable as an environment has it.
    pub(crate) fn pair(&self) -> (OsString, OsString) {
        (self.variable.clone().into(), self.value.into())
    }
}

impl fmt::Display for AllocatorRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.variable, self.value)
    }
}

impl AllocatorReport {
    pub(crate) fn new(result: &Result<AllocatorRequest, NoRequest>) -> Self {
        Self {
            asked: result.as_ref().ok().cloned(),
            not_asked_because: result.as_ref().err().map(ToString::to_string),
        }
    }

    /// Returns the report for people, a line.
    pub(crate) fn line(&self) -> String {
        match (&self.asked, &self.not_asked_because) {
            (Some(request), _) => format!(
                "the command's environment got {request}, which asks {} for huge pages",
                request.allocator
            ),
            (None, Some(why)) => format!("the command's allocator was not asked: {why}"),
            (None, None) => "the command's allocator was not asked".to_owned(),
        }
    }
}

/// Returns an error unless programs can request huge pages.
fn check_mode(roots: &Roots) -> Result<(), NoRequest> {
    match ThpSettings::read_huge_page_mode(roots) {
        Some(ThpMode::Madvise) => Ok(()),
        mode => Err(NoRequest::Mode(mode)),
    }
}

/// Returns true unless no page can come from a pool of hugetlbfs, which mimalloc tries first.
fn may_have_pool(roots: &Roots) -> bool {
    match read_hugetlb_pools(roots) {
        Ok(pools) => pools
            .iter()
            .any(|pool| pool.pages != Some(0) || pool.overcommit != Some(0)),
        Err(ReadError::Missing { .. }) => false,
        Err(_) => true,
    }
}

/// Returns the value that a variable will have for a command.
fn value_of(name: &str, added: &[(OsString, OsString)]) -> Option<OsString> {
    let own = added.iter().rev().find(|(key, _)| key == name);
    let dropped = || dropped_variables().into_iter().find(|(key, _)| key == name);
    own.map(|(_, value)| value.clone())
        .or_else(|| dropped().map(|(_, value)| value))
        .or_else(|| std::env::var_os(name))
}

#[cfg(test)]
mod tests;
