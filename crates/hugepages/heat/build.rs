//! Compiles the BPF program of the heat tracker `ptwalk` and generates its Rust side.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "ptwalk")]
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        ptwalk::build();
    }
}

#[cfg(feature = "ptwalk")]
mod ptwalk {
    use std::path::PathBuf;
    use std::process::{Command, Stdio, exit};

    use libbpf_cargo::SkeletonBuilder;

    const SOURCE: &str = "bpf/ptwalk.bpf.c";

    pub(super) fn build() {
        println!("cargo::rerun-if-changed=bpf");
        println!("cargo::rerun-if-env-changed=CLANG");
        let clang = std::env::var_os("CLANG").unwrap_or_else(|| "clang".into());
        let asked = Command::new(&clang)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !asked.is_ok_and(|status| status.success()) {
            fail(&format!(
                "`{}` does not run: the heat tracker `ptwalk` is a BPF program and needs clang 14 or \
                 later. Install it (scripts/setup build; Debian: clang), name it in the variable CLANG, \
                 or build without the tracker: --no-default-features",
                clang.display()
            ));
        }
        let Some(out) = std::env::var_os("OUT_DIR") else {
            fail("OUT_DIR is not set: build with cargo");
        };
        let built = SkeletonBuilder::new()
            .source(SOURCE)
            .clang(&clang)
            .clang_args(["-Wall", "-Werror"])
            .build_and_generate(PathBuf::from(out).join("ptwalk.skel.rs"));
        if let Err(error) = built {
            fail(&format!("{SOURCE} cannot be built: {error:#}"));
        }
    }

    fn fail(why: &str) -> ! {
        println!("cargo::error={}", why.replace('\n', " "));
        exit(1);
    }
}
