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
