//! Disks as their guests find them: data, order, limits, errors, ends of all kinds, and lies.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[path = "../common/mod.rs"]
mod common;
mod data;
mod depth;
mod ends;
mod full;
mod idle;
mod images;
mod lies;
mod limits;
mod rig;
mod rules;
