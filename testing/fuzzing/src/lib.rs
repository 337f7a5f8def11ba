//! The bodies of the fuzz targets, so that `cargo test` replays their corpora.
//!
//! Each target is one function of bytes that returns if all is well and panics if not. cargo-fuzz
//! calls it from `fuzz/fuzz_targets/`, the tests of this crate call it with every file under
//! `fuzz/corpus/`.

mod bytes;
pub mod channel;
pub mod disk;
pub mod frame;
pub mod rings;
pub mod session;
pub mod store;
