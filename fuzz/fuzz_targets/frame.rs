//! Frames and rules of any kind: see `fuzzing::frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::frame::run(data));
