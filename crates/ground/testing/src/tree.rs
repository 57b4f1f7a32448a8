//! Recorded trees of `/proc` and `/sys`, each in one file below `crates/ground/procfs/fixtures`. The README there describes the format.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// File or symbolic link of a recorded tree.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'a> {
    /// Path below the root of the tree.
    path: &'a str,
    /// Target of a symbolic link; a file has none.
    target: Option<&'a str>,
    /// Content of a file.
    text: String,
    /// True if the last line of a file has no end.
    is_unended: bool,
}

impl<'a> Entry<'a> {
    /// Returns an entry without content if the line is a head, or `None` for a line of content.
    fn from_head(line: &'a str) -> Option<Self> {
        let (mark, rest) = line.trim_end_matches('\n').split_at_checked(3)?;
        let (path, target) = match mark {
            "== " | "=- " => (rest, None),
            "=> " => {
                let (path, target) = rest.split_once(' ').unwrap();
                (path, Some(target))
            }
            _ => return None,
        };
        Some(Self {
            path,
            target,
            text: String::new(),
            is_unended: mark == "=- ",
        })
    }
}

/// Returns the entries of a tree, in the order of the text.
fn entries(tree: &str) -> Vec<Entry<'_>> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for line in tree.split_inclusive('\n') {
        match Entry::from_head(line) {
            Some(entry) => entries.push(entry),
            None => entries.last_mut().unwrap().text.push_str(line),
        }
    }
    for entry in entries.iter_mut().filter(|entry| entry.is_unended) {
        entry.text.pop();
    }
    entries
}

/// Returns the text of a recorded tree, e.g. of `machines/arm64`.
#[track_caller]
fn read(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../procfs/fixtures");
    let path = folder.join(format!("{name}.tree"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Writes the files and links of a recorded tree, e.g. of `machines/arm64`, below the folder `to`.
///
/// # Panics
/// If no such tree is recorded, or a file cannot be written.
#[track_caller]
pub fn unpack_tree(name: &str, to: &Path) {
    for entry in entries(&read(name)) {
        let path = to.join(entry.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry.target {
            Some(target) => symlink(target, path).unwrap(),
            None => fs::write(path, entry.text).unwrap(),
        }
    }
}

/// Returns the content of one file of a recorded tree, e.g. of `proc/700/stat` in `processes/linux-6.18`.
///
/// # Panics
/// If no such file is recorded.
#[must_use]
#[track_caller]
pub fn recorded_file(name: &str, path: &str) -> String {
    let text = read(name);
    let found = entries(&text).into_iter().find(|entry| entry.path == path);
    found.unwrap_or_else(|| panic!("{name} has no {path}")).text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_files_with_and_without_a_last_end_of_line_and_links() {
        let tree = "== a/two\n1\n\n=- a/list\n7 8 \n== empty\n=> pid pid:[4]\n== last\n == \n";
        let file = |path, text: &str| Entry {
            path,
            target: None,
            text: text.to_owned(),
            is_unended: path == "a/list",
        };
        let link = Entry {
            target: Some("pid:[4]"),
            ..file("pid", "")
        };
        assert_eq!(
            entries(tree),
            [
                file("a/two", "1\n\n"),
                file("a/list", "7 8 "),
                file("empty", ""),
                link,
                file("last", " == \n"),
            ]
        );
    }

    #[test]
    fn a_file_of_a_tree_is_found_by_its_path() {
        let stat = recorded_file("processes/linux-6.18", "proc/701/stat");
        assert!(stat.starts_with("701 (a) R 1 (b) S 700 "), "{stat}");
        let list = recorded_file("processes/linux-6.18", "proc/703/task/704/children");
        assert_eq!(list, "705 ");
    }
}
