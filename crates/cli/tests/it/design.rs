//! Checks the table of crates in `docs/design.md`: it must name the same dependencies between our crates as their manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

type DependencyTable = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The table of crates: `| wing/name | knows, knows | does |`.
fn told() -> DependencyTable {
    let design = fs::read_to_string(root().join("docs/design.md")).unwrap();
    let rows = design
        .lines()
        .skip_while(|line| *line != "| crate | knows | does |")
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let known = cells[2].split(", ").filter(|name| *name != "nothing");
        let name = cells[1].trim_matches('`').to_owned();
        (name, known.map(str::to_owned).collect())
    })
    .collect()
}

/// Returns our crates among the dependencies in a `Cargo.toml`, except those for tests and building.
fn listed(manifest: &str) -> BTreeSet<String> {
    let mut counts = false;
    let mut names = BTreeSet::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            counts = section == "dependencies" || section.ends_with(".dependencies");
        } else if counts {
            let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
            let name = &line[..end.unwrap_or(line.len())];
            if name == "superhue" {
                names.insert(name.to_owned());
            }
            names.extend(name.strip_prefix("superhue-").map(str::to_owned));
        }
    }
    names
}

fn folders(path: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
}

/// Returns the manifest of each crate, by its name or `wing/name`.
fn manifests() -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for path in folders(&root().join("crates")) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let manifest = path.join("Cargo.toml");
        if manifest.exists() {
            found.insert(name, manifest);
            continue;
        }
        // A wing.
        for path in folders(&path) {
            let inner = path.file_name().unwrap().to_str().unwrap();
            found.insert(format!("{name}/{inner}"), path.join("Cargo.toml"));
        }
    }
    found
}

#[test]
fn the_table_of_crates_is_what_the_crates_know() {
    let names = manifests().into_iter().map(|(name, path)| {
        let manifest = fs::read_to_string(path).unwrap();
        (name, listed(&manifest))
    });
    let real: DependencyTable = names.collect();
    let told = told();
    assert!(!told.is_empty(), "docs/design.md has no table of crates");
    let names = |all: &DependencyTable| -> BTreeSet<String> { all.keys().cloned().collect() };
    assert_eq!(names(&told), names(&real), "crates (left: docs/design.md)");
    for (name, known) in &real {
        assert_eq!(&told[name], known, "{name} knows (left: docs/design.md)");
    }
}

#[test]
fn only_what_is_needed_to_run_counts() {
    let manifest = "[package]\nname = \"superhue-x\"\n[dependencies]\nsuperhue.workspace = true\n\
                    superhue-sys = { workspace = true }\nserde.workspace = true\n\
                    [target.'cfg(unix)'.dependencies]\nsuperhue-model.workspace = true\n\
                    [dev-dependencies]\nsuperhue-testing.workspace = true\n\
                    [build-dependencies]\nsuperhue-act.workspace = true\n";
    let names: Vec<String> = listed(manifest).into_iter().collect();
    assert_eq!(names, ["model", "superhue", "sys"]);
}

/// `make crates` packs them all, which takes minutes; this checks what a new crate often lacks.
#[test]
fn crates_that_are_published_say_what_they_are_and_under_which_licence() {
    let manifests = manifests();
    assert!(manifests.len() > 10, "{manifests:?}");
    for (name, path) in manifests {
        if fs::read_to_string(&path)
            .unwrap()
            .contains("publish = false")
        {
            continue;
        }
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(path.with_file_name(file).is_file(), "{name} has no {file}");
        }
    }
}

/// Finds the files below `folder` that end in `.md`, except in build and download folders.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in folders(folder) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
            documents(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

#[test]
fn what_documents_link_to_is_there() {
    let mut all = Vec::new();
    documents(&root(), &mut all);
    let mut links = 0;
    let mut broken = Vec::new();
    for document in all {
        let text = fs::read_to_string(&document).unwrap();
        for target in text.split("](").skip(1) {
            let target = target.split([')', '#', ' ']).next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            links += 1;
            if !document.with_file_name(target).exists() {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(links > 50, "only {links} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}
