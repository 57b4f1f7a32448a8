//! Functions that the tests of `process` share.

use std::fs;
use std::path::{Path, PathBuf};

use superhue_procfs::Roots;

/// Returns the directory of a recorded tree.
pub(crate) fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/processes")
        .join(name)
}

/// Returns the roots of a recorded tree.
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
