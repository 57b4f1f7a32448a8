//! Functions that the tests of `process` share.

use std::fs;
use std::ops::Deref;
use std::path::Path;

use superhue_procfs::Roots;
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
