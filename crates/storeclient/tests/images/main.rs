//! Images of a real store, read and written by threads, over connections that are cut.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod bytes;
mod certs;
mod faults;
#[path = "../../../dataplane/tests/stores/relay.rs"]
#[allow(dead_code, reason = "stores are not exchanged here")]
mod relay;
mod rig;
mod transports;
