//! A store or its client that says anything: see `fuzzing::store`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::store::run(data));
