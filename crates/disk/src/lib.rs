//! Virtio-blk (virtio 1.3, section 5.2): what a guest asks of a disk, as operations on an image.
//!
//! **Purpose.** [`request`] turns a chain of checked buffers into an [`Operation`] on an image and
//! names the guest memory it reads or fills; [`config`] is the configuration space and the features;
//! [`qos`] says when an operation may start; [`counters`] is what is counted. An engine pops a
//! chain, parses it, asks for admission, carries the operation out, and writes its [`Status`] with
//! [`Completion::finish`].
//!
//! **Owner and threads.** No thread, clock or file descriptor is here: bytes and times go in,
//! decisions come out. Everything but [`counters`], which others read, belongs to the worker that
//! serves the queue or to the control thread (`&mut`).
//!
//! **Failure.** A request that makes no sense is refused under a name ([`Refusal`]) and costs its
//! guest one completion with an error. Nothing a guest writes is read twice, and no size it names
//! is believed before it was compared with what is there.

pub mod config;
pub mod counters;
pub mod qos;
pub mod request;

pub use config::{Config, DiskSpec};
pub use request::{Command, Completion, Operation, Parsed, Refusal, Status, parse};

/// The unit of all positions and lengths of the protocol, in bytes, whatever the block size.
pub const SECTOR: u64 = 512;
