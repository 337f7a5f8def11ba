//! An agent on a guest channel that says anything: see `fuzzing::channel`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::channel::run(data));
