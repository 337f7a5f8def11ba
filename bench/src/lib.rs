//! Measurements of hayate beside other switches: `hayate bench`.
//!
//! **Purpose.** Drives hayate and its peers with one [`generator`] on the same two CPUs, in turns,
//! and reports each as a ratio to hayate. On machines whose CPUs move about, an absolute number is
//! worth nothing: windows are tagged with the distance of the CPUs ([`place`]) and with what the
//! scheduler did ([`sched`]), and only like ones are compared ([`report`]).
//!
//! **Owner and threads.** [`run()`] does everything: its thread starts and ends the switches
//! ([`sut`]); generator, probe and idle device have threads of their own, pinned. Disks and pods have
//! parts of their own ([`disk`], [`vf`]).
//!
//! **Failure.** What makes all figures impossible is a [`BenchError`]. A switch that cannot do one
//! cell is noted in the report. Processes, huge pages and temporary files go with what made them,
//! also on Ctrl-C.

pub mod aim;
pub mod cell;
pub mod disk;
pub mod generator;
pub mod hugepages;
pub mod options;
pub mod place;
pub mod report;
pub mod run;
pub mod sched;
pub mod stats;
pub mod sut;
pub mod vf;
pub mod wake;
pub mod window;

pub use options::Options;
pub use run::{BenchError, run};
