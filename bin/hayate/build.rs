//! Where libraries of hayate's own are, seen from the program: an installed one has `/usr/local/bin/hayate` and
//! `/usr/local/lib/hayate`, one that was just built `target/release/hayate` and `target/lib/hayate`. They are loaded at run
//! time, before the system's. What tests run is built otherwise, and has the system's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo::rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../lib/hayate");
    }
}
