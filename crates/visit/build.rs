//! Compiles the code that runs inside programs to a flat image.

use std::env;
use std::path::PathBuf;
use std::process::Command;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    println!("cargo::rerun-if-changed=inside");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?).join("inside.bin");
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" {
        // Nobody is visited on other processors.
        std::fs::write(out, [])?;
        return Ok(());
    }
    let compiler = cc::Build::new().get_compiler();
    // Optimized always: without, the compiler keeps too much on the small stack.
    let status = Command::new(compiler.path())
        .args([
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
            "-ffreestanding",
        ])
        .args([
            "-mgeneral-regs-only",
            "-fno-stack-protector",
            "-fcf-protection=none",
        ])
        .args(["-fno-asynchronous-unwind-tables", "-fno-jump-tables"])
        .args(["-fno-tree-loop-distribute-patterns", "-nostdlib", "-static"])
        .args([
            "-Wl,-e,entry",
            "-Wl,--build-id=none",
            "-Wl,--oformat=binary",
        ])
        .args(["-Wl,-T,inside/inside.lds", "-o"])
        .arg(&out)
        .arg("inside/inside.c")
        .status()?;
    if !status.success() {
        return Err(format!("{} inside/inside.c: {status}", compiler.path().display()).into());
    }
    let length = std::fs::metadata(&out)?.len();
    if length == 0 || length > 4096 {
        return Err(format!("inside.c became {length} bytes; it must fit into one page").into());
    }
    Ok(())
}
