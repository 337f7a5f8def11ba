//! Disks whose images are in a storage engine behind a store: the engines are started here, from what Debian
//! packages, each in a network namespace and a directory of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "some measure")]

#[path = "../common/mod.rs"]
mod common;

mod ceph;
mod gfarm;
mod lab;
mod measure;

/// A store says which library it lacks, and what to install, and that is all that happens.
#[test]
fn an_engine_that_is_not_there_is_said() {
    let dir = tempfile::tempdir().unwrap();
    for (library, option, place, packages) in [
        ("librados.so.2", "--rbd", "vms", "librbd-dev librados-dev"),
        ("libgfarm.so.1", "--gfarm", "/vm", "libgfarm-dev"),
    ] {
        // The loader finds this one first, and it is none.
        std::fs::write(dir.path().join(library), "").unwrap();
        let mut command = std::process::Command::new(common::HAYATE);
        command.args(["store", "serve", option, place, "--listen", "127.0.0.1:0", "--run-dir"]);
        let out = command.arg(dir.path()).env("LD_LIBRARY_PATH", dir.path()).output().unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{err}");
        assert!(err.contains(&format!("apt-get install {packages}")), "{err}");
    }
}

/// One of the places has to be said, and only one.
#[test]
fn a_store_has_one_place() {
    for (words, part) in [
        ("", "required arguments were not provided"),
        ("--dir a --rbd b", "cannot be used with"),
        ("--rbd a --gfarm b", "cannot be used with"),
        ("--dir a --ceph-user b", "cannot be used with"),
        ("--rbd a --gfarm-conf b", "cannot be used with"),
        ("--gfarm a --cache host", "cannot be used with"),
    ] {
        let args = ["store", "serve", "--listen", "127.0.0.1:0"];
        let said = common::hayate(args.into_iter().chain(words.split_whitespace()));
        said.fails(2, &[part]);
    }
}
