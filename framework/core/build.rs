//! Does nothing: Cargo wants a build script where `links` is set.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
