//! Reads the configuration. Refuses files that users other than root (or the daemon's own user) could have written.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use superhue_state::{Folder, StateError};
use superhue_sys::user::{group_number, user_number};

use crate::config::{self, Lookups, Problem, Settings, Source};

/// Default folder of the configuration.
pub const DEFAULT_FOLDER: &str = "/etc/superhue";

/// The file of the first rules, and the folder of the following ones, by name.
const MAIN: &str = "superhue.toml";
const MORE: &str = "conf.d";

/// Attempts to look users up again at the start of the daemon, and the time between two.
const ATTEMPTS: u32 = 30;
const APART: Duration = Duration::from_secs(1);

/// Maximum number of files of `conf.d`, and of bytes of each.
const MOST_FILES: usize = 1000;
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Reads and parses the configuration in `folder`: `superhue.toml`, then `conf.d/*.toml` in the order of their names.
///
/// # Errors
/// The problems; then no setting is in force.
pub fn load(folder: &Path) -> Result<Settings, Vec<Problem>> {
    load_noting(folder, &Cell::new(false))
}

/// Does the same at the start of the daemon. Retries a directory of users that does not answer yet for half a minute.
///
/// # Errors
/// The problems, and true if users or groups could not be looked up.
pub(crate) fn load_at_start(folder: &Path) -> Result<Settings, (Vec<Problem>, bool)> {
    let mut attempts = 0;
    loop {
        let is_unanswered = Cell::new(false);
        let loaded = load_noting(folder, &is_unanswered);
        match loaded {
            Err(_) if is_unanswered.get() && attempts < ATTEMPTS => {
                attempts += 1;
                std::thread::sleep(APART);
            }
            loaded => return loaded.map_err(|problems| (problems, is_unanswered.get())),
        }
    }
}

/// Notes whether a look-up of a user or group failed.
fn load_noting(folder: &Path, is_unanswered: &Cell<bool>) -> Result<Settings, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut sources = Vec::new();
    for path in files(folder).map_err(|problem| vec![problem])? {
        match read(&path) {
            Ok(source) => sources.push(source),
            Err(problem) => problems.push(problem),
        }
    }
    let found = |answer: Result<Option<u32>, Errno>| match answer {
        Ok(number) => Ok(number),
        // A name that cannot be.
        Err(Errno::INVAL) => Ok(None),
        Err(errno) => {
            is_unanswered.set(true);
            Err(errno.to_string())
        }
    };
    let lookups = Lookups {
        user_number: &|name| found(user_number(name)),
        group_number: &|name| found(group_number(name)),
        variable: &|name| std::env::var(name).ok(),
    };
    match config::parse(&sources, &lookups) {
        Ok(settings) if problems.is_empty() => Ok(settings),
        Ok(_) => Err(problems),
        Err(more) => {
            problems.extend(more);
            Err(problems)
        }
    }
}

/// Returns the files to read, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Problem> {
    let mut found = vec![folder.join(MAIN)];
    let more = folder.join(MORE);
    let listed = match more.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(problem(&more, error)),
        Ok(real) => Folder::open(&real).map_err(|error| problem(&more, error)),
    };
    let Some(listed) = listed? else {
        return Ok(found);
    };
    let names = listed.names().map_err(|error| problem(&more, error))?;
    let names = names.into_iter().filter(|name| {
        let name = name.to_string_lossy();
        name.ends_with(".toml") && !name.starts_with('.')
    });
    found.extend(names.map(|name| more.join(name)));
    if found.len() > MOST_FILES {
        let text = format!("it has more than {MOST_FILES} files: put several rules into one");
        return Err(problem(&more, text));
    }
    Ok(found)
}

/// Reads one file. Follows links, and checks their targets: the folder and the file.
fn read(path: &Path) -> Result<Source, Problem> {
    let wrong = |text: &dyn std::fmt::Display| problem(path, text);
    let real = path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            wrong(&"there is no such file: `superhue daemon --help` shows what to write")
        }
        _ => wrong(&error),
    })?;
    let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
        return Err(wrong(&"it is no file"));
    };
    // A link to it masks a file of a package: conf.d/x.toml -> /dev/null.
    if real == Path::new("/dev/null") {
        return Ok(source(path, String::new()));
    }
    let contents = || -> Result<Option<Vec<u8>>, StateError> {
        let Some(folder) = Folder::open(parent)? else {
            return Ok(None);
        };
        let file = folder.open_file(name)?;
        let read = file.map(|file| folder.read(name, &file, MAX_FILE_BYTES));
        read.transpose()
    };
    let bytes = contents().map_err(|error| wrong(&error))?;
    let bytes = bytes.ok_or_else(|| wrong(&"it was removed while it was read"))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(source(path, text)),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let before = error.as_bytes().get(..valid).unwrap_or_default();
            let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
            let from = before.iter().rposition(|&byte| byte == b'\n');
            let from = from.map_or(0, |at| at + 1);
            let rest = String::from_utf8_lossy(before.get(from..).unwrap_or_default());
            Err(Problem {
                at: Some((line, rest.chars().count() + 1)),
                ..wrong(&"this is no UTF-8, which TOML is written in")
            })
        }
    }
}

fn source(path: &Path, text: String) -> Source {
    let name = path.display().to_string();
    Source { name, text }
}

fn problem(path: &Path, text: impl std::fmt::Display) -> Problem {
    Problem {
        file: path.display().to_string(),
        at: None,
        text: text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const RULE: &str = "[[rule]]\nname = \"NAME\"\nany = true\n";

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(MORE)).unwrap();
        write(folder.path(), MAIN, &RULE.replace("NAME", "main"));
        folder
    }

    fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        mode(&path, 0o644);
        path
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let settings = load(folder).unwrap();
        settings
            .rules
            .iter()
            .map(|rule| rule.name.to_string())
            .collect()
    }

    fn refused(folder: &Path) -> String {
        let told: Vec<_> = load(folder).unwrap_err();
        let told: Vec<_> = told.iter().map(ToString::to_string).collect();
        told.join("\n")
    }

    #[test]
    fn files_are_read_in_the_order_of_their_names() {
        let folder = folder();
        let at = folder.path();
        for name in ["20-b", "10-a", "9-c"] {
            let text = RULE.replace("NAME", name);
            write(at, &format!("{MORE}/{name}.toml"), &text);
        }
        for other in ["x.toml.dpkg-old", ".hidden.toml", "README"] {
            write(at, &format!("{MORE}/{other}"), "nonsense");
        }
        symlink("/dev/null", at.join(MORE).join("masked.toml")).unwrap();
        assert_eq!(names(at), ["main", "10-a", "20-b", "9-c"]);
        fs::remove_dir_all(at.join(MORE)).unwrap();
        assert_eq!(names(at), ["main"]);
        fs::remove_file(at.join(MAIN)).unwrap();
        assert!(refused(at).contains("superhue.toml: there is no such file"));
    }

    #[test]
    fn links_are_followed_and_loops_are_told() {
        let folder = folder();
        let at = folder.path();
        let elsewhere = write(at, "elsewhere", &RULE.replace("NAME", "linked"));
        symlink(elsewhere, at.join(MORE).join("a.toml")).unwrap();
        assert_eq!(names(at), ["main", "linked"]);
        let itself = at.join(MORE).join("loop.toml");
        symlink(&itself, &itself).unwrap();
        let told = refused(at);
        assert!(
            told.contains("loop.toml: ") && told.contains("symbolic link"),
            "{told}"
        );
        fs::remove_file(itself).unwrap();
        fs::remove_dir_all(at.join(MORE)).unwrap();
        symlink(at.join(MORE), at.join(MORE)).unwrap();
        let told = refused(at);
        assert!(
            told.contains("conf.d: ") && told.contains("symbolic link"),
            "{told}"
        );
    }

    #[test]
    fn what_others_could_have_written_is_refused() {
        let folder = folder();
        let at = folder.path();
        mode(&at.join(MAIN), 0o666);
        assert!(refused(at).contains("others may write"), "{}", refused(at));
        mode(&at.join(MAIN), 0o644);
        mode(&at.join(MORE), 0o777);
        assert!(refused(at).contains("others may write"), "{}", refused(at));
        mode(&at.join(MORE), 0o755);
        assert_eq!(names(at), ["main"]);
    }

    #[test]
    fn what_is_no_file_of_text_is_refused_with_its_name() {
        let folder = folder();
        let at = folder.path();
        let fifo = at.join(MORE).join("fifo.toml");
        let private = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            private,
            0,
        )
        .unwrap();
        fs::create_dir(at.join(MORE).join("folder.toml")).unwrap();
        symlink("nowhere", at.join(MORE).join("gone.toml")).unwrap();
        let large = write(at, "conf.d/large.toml", "");
        fs::File::options()
            .write(true)
            .open(large)
            .unwrap()
            .set_len(MAX_FILE_BYTES + 1)
            .unwrap();
        fs::write(at.join(MAIN), b"# fine\n# \xc3\xbc \xff\n").unwrap();
        let told = refused(at);
        for expected in [
            "superhue.toml:2:5: this is no UTF-8",
            "fifo.toml: ",
            "folder.toml: ",
            "gone.toml: there is no such file",
            "large.toml: ",
        ] {
            assert!(told.contains(expected), "{expected}: {told}");
        }
    }

    #[test]
    fn an_unreadable_file_refuses_all() {
        if superhue_testing::is_root() {
            // Root may read everything. A thread without that capability reads only what the file permissions allow.
            return unreadable_for_the_unprivileged();
        }
        let folder = folder();
        let path = write(folder.path(), "conf.d/secret.toml", "");
        mode(&path, 0o000);
        assert!(refused(folder.path()).contains("secret.toml: "));
    }

    fn unreadable_for_the_unprivileged() {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let folder = folder();
        let path = write(folder.path(), "conf.d/secret.toml", "");
        mode(&path, 0o000);
        let at = folder.path().to_owned();
        let told = std::thread::spawn(move || {
            let mut sets = capabilities(None).unwrap();
            sets.effective = CapabilitySet::empty();
            set_capabilities(None, sets).unwrap();
            refused(&at)
        });
        let told = told.join().unwrap();
        assert!(
            told.contains("secret.toml: ") && told.contains("ermission"),
            "{told}"
        );
    }
}
