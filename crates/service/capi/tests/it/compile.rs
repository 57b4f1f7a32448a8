//! Builds C programs against libsuperhue as it is now.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use superhue_testing::skip;

const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../include");
const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");

/// Returns the folder of the library, built now: cargo builds no cdylib for tests.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // TARGET/PROFILE/deps/test
        let test = std::env::current_exe().unwrap();
        let folder = test.ancestors().nth(2).unwrap();
        let profile = match folder.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            profile => profile,
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--quiet", "--package", "superhue-capi"])
            .args(["--profile", profile, "--target-dir"])
            .arg(folder.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success(), "cannot build libsuperhue");
        // Programs load it under the name that `make install` gives it.
        let linked = std::os::unix::fs::symlink("libsuperhue.so", folder.join("libsuperhue.so.1"));
        if let Err(error) = linked {
            assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
        }
        folder.to_owned()
    })
}

/// Compiles a program of this folder; false if there is no compiler.
pub(crate) fn compile(compiler: &[&str], source: &str, output: &Path) -> bool {
    let library = library();
    let result = Command::new(compiler[0])
        .args(&compiler[1..])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", INCLUDE])
        .arg(Path::new(TESTS).join(source))
        .arg("-o")
        .arg(output)
        .arg("-L")
        .arg(library)
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .args(["-lsuperhue", "-pthread"])
        .output();
    match result {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{source}: {said}");
            true
        }
        Err(error) => {
            skip(compiler[0], &error.to_string());
            false
        }
    }
}
