//! Rings of a guest that lies: see `fuzzing::rings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::rings::run(data));
