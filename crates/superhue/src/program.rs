//! What kind of program a command names: whether an agent can be loaded into it.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use superhue_mailbox::{NotLoadable, agent_loads_into};

/// What kind of executable it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramKind {
    /// Dynamically linked against glibc: an agent can be loaded.
    Dynamic,
    /// Without a dynamic loader.
    Static,
    /// Set-user-ID or set-group-ID: the loader ignores preloads, and Superhue keeps out.
    Setuid,
    /// For another machine or another C library.
    Foreign,
    /// Neither an ELF program nor a script, or not readable.
    Unknown,
}

impl ProgramKind {
    /// Why no agent can be loaded; `None` if one can.
    #[must_use]
    pub const fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::Dynamic => None,
            Self::Static => Some("it is statically linked"),
            Self::Setuid => Some("it is set-user-ID or set-group-ID"),
            Self::Foreign => Some("it is built for another machine or C library"),
            Self::Unknown => Some("it is not a program file that superhue can read"),
        }
    }
}

/// An executable file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// Its kind; for a script its interpreter's.
    pub kind: ProgramKind,
}

impl Program {
    /// The program that executing `name` would start, if there is one.
    #[must_use]
    pub fn find(name: &OsStr) -> Option<Self> {
        let path = if name.as_bytes().contains(&b'/') {
            PathBuf::from(name)
        } else {
            env::split_paths(&env::var_os("PATH")?)
                .map(|folder| folder.join(name))
                .find(|path| is_executable(path))?
        };
        Some(Self {
            kind: kind_of(&path, 0),
            path,
        })
    }

    /// The program at `path`, judged.
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Self {
            kind: kind_of(&path, 0),
            path,
        }
    }
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
}

fn kind_of(path: &Path, depth: u32) -> ProgramKind {
    const PRIVILEGED: u32 = 0o6000;
    // The kernel follows scripts interpreted by scripts four deep (fs/exec.c).
    let Ok(file) = File::open(path) else {
        return ProgramKind::Unknown;
    };
    let is_plain = file.metadata().is_ok_and(|file| file.is_file());
    if !is_plain || depth > 4 {
        return ProgramKind::Unknown;
    }
    if file
        .metadata()
        .is_ok_and(|file| file.mode() & PRIVILEGED != 0)
    {
        return ProgramKind::Setuid;
    }
    let mut head = Vec::with_capacity(4096);
    if file.take(4096).read_to_end(&mut head).is_err() {
        return ProgramKind::Unknown;
    }
    match agent_loads_into(&head) {
        Ok(None) => ProgramKind::Dynamic,
        Ok(Some(interpreter)) => kind_of(Path::new(OsStr::from_bytes(interpreter)), depth + 1),
        Err(NotLoadable::Static) => ProgramKind::Static,
        Err(NotLoadable::OtherMachine | NotLoadable::OtherLoader) => ProgramKind::Foreign,
        Err(NotLoadable::Unknown) => ProgramKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_are_found_and_judged() {
        let shell = Program::find(OsStr::new("sh")).unwrap();
        assert_eq!(shell.kind, ProgramKind::Dynamic);
        assert!(Program::find(OsStr::new("there-is-no-such-program")).is_none());
        assert_eq!(
            Program::at("/etc/hostname".into()).kind,
            ProgramKind::Unknown
        );
        assert_eq!(Program::at("/".into()).kind, ProgramKind::Unknown);

        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        assert_eq!(Program::at(script.clone()).kind, ProgramKind::Dynamic);
        fs::set_permissions(&script, fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(Program::at(script.clone()).kind, ProgramKind::Setuid);
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(Program::at(script).kind, ProgramKind::Unknown);
    }
}
