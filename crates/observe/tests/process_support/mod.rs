//! What the tests of `observe::process` share.

#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(
    clippy::print_stdout,
    reason = "what is skipped is said on standard output"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs};

use superhue_observe::Roots;

/// The directory of a recorded tree.
pub(crate) fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/processes")
        .join(name)
}

/// The roots of a recorded tree.
pub(crate) fn fixture(name: &str) -> Roots {
    let path = fixture_path(name);
    assert!(path.is_dir(), "no fixture {}", path.display());
    Roots::under(&path)
}

/// Copies a tree without the files that `leave_out` names.
pub(crate) fn copy_without(from: &Path, to: &Path, leave_out: &str) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_without(&entry.path(), &target, leave_out);
        } else if entry.file_name() != leave_out {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Says that a part of a test cannot run here; fails when `SUPERHUE_REQUIRE` lists `name`.
pub(crate) fn skip(name: &str, reason: &str) {
    let required = env::var("SUPERHUE_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|required| required == name),
        "{name} is required and not possible: {reason}"
    );
    println!("SKIPPED {name}: {reason}");
}

/// A child process that is killed and waited for at the end of the test.
pub(crate) struct Scoped(pub(crate) Child);

impl Scoped {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Scoped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
