//! Every input under `fuzz/corpus/` once through its target.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::fs;
use std::path::Path;

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for file in fs::read_dir(&folder).expect("a corpus for each target") {
        let path = file.unwrap().path();
        let data = fs::read(&path).unwrap();
        if let Err(panic) = std::panic::catch_unwind(|| run(&data)) {
            eprintln!("input: {}", path.display());
            std::panic::resume_unwind(panic);
        }
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}

#[test]
fn virtqueue() {
    replay("virtqueue", fuzzing::rings::run);
}

#[test]
fn channel() {
    replay("channel", fuzzing::channel::run);
}

#[test]
fn session() {
    replay("session", fuzzing::session::run);
}

#[test]
fn disk_request() {
    replay("disk_request", fuzzing::disk::run);
}

#[test]
fn frame() {
    replay("frame", fuzzing::frame::run);
}

#[test]
fn store() {
    replay("store", fuzzing::store::run);
}
