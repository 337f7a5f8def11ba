//! Requests of a disk in chains of any shape: see `fuzzing::disk`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::disk::run(data));
