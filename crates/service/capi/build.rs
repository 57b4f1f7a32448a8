//! Gives libsuperhue its soname.

/// The version of the C interface: changes when programs have to be rebuilt. `make install` names
/// the library by it.
const SOVERSION: u32 = 1;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsuperhue.so.{SOVERSION}");
}
