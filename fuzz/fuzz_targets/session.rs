//! A vhost-user front end that lies: see `fuzzing::session`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::session::run(data));
