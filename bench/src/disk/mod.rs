//! Disks: requests of a client to vhost-user-blk back ends, and what they cost.
//!
//! **Purpose.** The same client ([`blkclient`], not our front end) drives hayate's disks and
//! qemu-storage-daemon's export, in turns, on the same two CPUs; fio with io_uring on the bare file is
//! the limit. On a file system in memory it is the software that is measured, on a real one also what
//! lies under it ([`Medium`]).
//!
//! In one table the client is fio in a QEMU guest (`guest`).
//!
//! **Owner and threads.** [`Run`] starts the back ends ([`sut`]), each on the switch's CPU, and keeps
//! them for all rounds. A turn has a thread of its own on the guests' CPU: it makes the load ([`load`])
//! and takes the windows ([`window`]).
//!
//! **Failure.** A system that cannot do something is noted in the report, as is one that does not read
//! back what it was given: nothing of it is measured then.

pub mod cell;
pub mod client;
pub mod files;
pub mod fio;
mod gfarm;
pub(crate) mod guest;
mod hayate;
pub mod load;
mod mounts;
pub(crate) mod promises;
pub mod report;
pub mod run;
pub mod sut;
pub mod window;

pub use cell::{Access, Cell, Job, Medium, Table};
pub use report::Disks;
pub use run::Run;
pub use sut::System;
