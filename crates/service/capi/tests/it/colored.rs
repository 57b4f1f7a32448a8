//! A C program built against `include/superhue.h` and libsuperhue, with made-up colors.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use superhue_testing::skip;

use crate::compile::compile;

/// Exit status of the program on a machine that cannot run the test.
const CANNOT: i32 = 77;

/// The application, built once; `None` where there is no compiler.
fn application() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("colored");
        compile(&["cc", "-std=gnu11", "-g"], "colored.c", &path).then_some((folder, path))
    });
    built.as_ref().map(|(_, path)| path.as_path())
}

fn does(role: &str) {
    let Some(application) = application() else {
        return;
    };
    if !cfg!(debug_assertions) {
        return skip("made-up-colors", "a released library has none");
    }
    let ran = Command::new(application)
        .arg(role)
        .env("SUPERHUE_TEST_COLORS", "1")
        .output()
        .unwrap();
    if ran.status.code() == Some(CANNOT) {
        return skip(
            "made-up-colors",
            String::from_utf8_lossy(&ran.stdout).trim(),
        );
    }
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{role}: {}: {said}", ran.status);
}

#[test]
fn memory_has_its_colors_and_is_zeroed() {
    does("memory");
}

#[test]
fn nonsense_is_refused_with_the_reason() {
    does("nonsense");
}

#[test]
fn memory_one_has_is_placed() {
    does("place");
}

#[test]
fn threads_and_forks_are_no_danger() {
    does("threads");
}

#[test]
fn a_fork_handler_may_wait_for_a_thread_that_allocates() {
    does("fork_handlers");
}

#[test]
fn private_memory_stays_with_the_parent() {
    does("private");
}

#[test]
fn locking_too_much_is_an_error() {
    does("locked");
}
