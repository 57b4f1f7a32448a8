//! Functions that the tests of `process` share.

use std::fs;
use std::ops::Deref;
use std::path::Path;

use superhue_model::ProcessId;
use superhue_procfs::process::{PageScanner, check_view, view};
use superhue_procfs::{ReadError, Roots};
use superhue_testing::unpack_tree;
use tempfile::TempDir;

/// Roots of a recorded tree in a temporary folder, which dropping this removes.
pub(crate) struct Fixture {
    folder: TempDir,
    roots: Roots,
}

impl Fixture {
    /// Returns the folder of the tree.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Deref for Fixture {
    type Target = Roots;

    fn deref(&self) -> &Roots {
        &self.roots
    }
}

/// Unpacks a recorded tree.
pub(crate) fn fixture(name: &str) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    unpack_tree(&format!("processes/{name}"), folder.path());
    let roots = Roots::under(folder.path());
    Fixture { folder, roots }
}

/// Unpacks a tree without the files of one name.
pub(crate) fn fixture_without(name: &str, left_out: &str) -> Fixture {
    let tree = fixture(name);
    remove_named(tree.path(), left_out);
    tree
}

/// Removes the files of one name below a folder.
fn remove_named(folder: &Path, name: &str) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            remove_named(&entry.path(), name);
        } else if entry.file_name() == name {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// Returns the reason why a process cannot be viewed, which the check must give too.
pub(crate) fn why_unseen(roots: &Roots, id: ProcessId) -> ReadError {
    let why = view(roots, &mut PageScanner::new(), id).unwrap_err();
    let checked = check_view(roots, &mut PageScanner::new(), id).unwrap_err();
    assert_eq!(checked.to_string(), why.to_string());
    why
}
