//! Compiles the shims against the headers of the engines that are installed. Without them the crate is
//! built without those engines, and says so when it is asked for one.

use std::env::var_os;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let ceph = Engine {
        feature: "CEPH",
        cfg: "has_ceph",
        dir: "src/ceph",
        what: "Ceph: librbd, librados",
        packages: "librbd-dev librados-dev",
    };
    let gfarm = Engine {
        feature: "GFARM",
        cfg: "has_gfarm",
        dir: "src/gfarm",
        what: "Gfarm: libgfarm",
        packages: "libgfarm-dev",
    };
    for engine in [ceph, gfarm] {
        engine.build();
    }
}

struct Engine {
    feature: &'static str,
    cfg: &'static str,
    /// Where its shim is, and a file that has the same headers only.
    dir: &'static str,
    what: &'static str,
    /// Debian's, with the headers.
    packages: &'static str,
}

impl Engine {
    fn build(&self) {
        let Engine { feature, cfg, dir, what, packages } = self;
        println!("cargo::rustc-check-cfg=cfg({cfg})");
        let (shim, headers) = (format!("{dir}/shim.c"), format!("{dir}/headers.h"));
        println!("cargo::rerun-if-changed={shim}");
        println!("cargo::rerun-if-changed={headers}");
        if var_os(format!("CARGO_FEATURE_{feature}")).is_none() {
            return;
        }
        // Nothing is said of a header that is missing.
        let mut probe = cc::Build::new();
        let there = probe.cargo_warnings(false).file(&headers).flag("-xc").try_expand().is_ok();
        if !there {
            // Looked for again when something has been installed.
            println!("cargo::rerun-if-changed=/usr/include");
            println!(
                "cargo::warning=built without {what}: its headers are not there. \
                 Debian: apt-get install {packages}"
            );
            return;
        }
        cc::Build::new()
            .file(&shim)
            .std("gnu11")
            .warnings(true)
            .extra_warnings(true)
            .compile(&format!("{cfg}_shim"));
        // The libraries themselves are loaded when they are first used.
        println!("cargo::rustc-cfg={cfg}");
    }
}
