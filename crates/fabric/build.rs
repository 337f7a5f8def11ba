//! Compiles the shim against the libfabric that is installed. If none is, the crate is built without.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(has_libfabric)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/shim.c");
    if std::env::var_os("CARGO_FEATURE_LIBFABRIC").is_none() {
        return;
    }
    let found =
        pkg_config::Config::new().atleast_version("1.17").cargo_metadata(false).probe("libfabric");
    let library = match found {
        Ok(library) => library,
        Err(error) => {
            // Looked for again when something has been installed.
            for place in places() {
                println!("cargo::rerun-if-changed={place}");
            }
            let why = error.to_string();
            let why = why.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            println!(
                "cargo::warning=built without libfabric ({why}): `fabric` will not move anything. \
                 Debian: apt-get install libfabric-dev pkg-config"
            );
            return;
        }
    };
    cc::Build::new()
        .file("src/shim.c")
        .includes(&library.include_paths)
        .std("gnu11")
        .warnings(true)
        .extra_warnings(true)
        .compile("fabric_shim");
    // The library itself is loaded when it is first used.
    println!("cargo::rustc-cfg=has_libfabric");
}

/// Directories in which the library's description would appear.
fn places() -> Vec<String> {
    let listed = std::process::Command::new("pkg-config")
        .args(["--variable", "pc_path", "pkg-config"])
        .output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let listed = listed.unwrap_or_default();
    let places = listed.trim().split(':').filter(|place| std::path::Path::new(place).is_dir());
    places.map(str::to_owned).collect()
}
