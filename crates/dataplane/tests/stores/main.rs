//! Disks whose images are in a store, over every way in which a connection can end.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;
mod data;
mod fabrics;
mod faults;
mod fence;
mod places;
mod relay;
mod rig;
mod strangers;
