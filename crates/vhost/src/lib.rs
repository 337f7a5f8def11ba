//! vhost-user back end: what a virtual machine's front end (QEMU, DPDK's virtio-user, Cloud Hypervisor) says on its
//! socket, turned into starts and stops of virtqueues.
//!
//! Two halves that know nothing of each other's trouble:
//!
//! * [`Session`] is one connection as a state machine: bytes and descriptors in, [`Action`]s out.  It does no I/O, reads
//!   no clock and owns no thread, so every message order there is can be played to it in a test.
//! * [`socket`] is the runtime around it: one tokio task per port that listens or connects, reads what the session asks
//!   for, carries its actions out on a [`Device`] and goes on to the next front end when this one is gone.
//!
//! **Owner.** The task of a port owns its session and its device.  **Threads.** Everything here runs on that task; the
//! data plane's workers are reached only through the [`Device`].  **Failure.** Whatever a front end sends ends in a named
//! [`SessionFault`]: refused (the front end is told and the session goes on) or the end of this one session.  The port
//! waits for the next one.  Errors of the host itself (a path that cannot be bound) are [`socket::SocketError`].
//!
//! The protocol is QEMU's `docs/interop/vhost-user.rst`; message numbers and feature bits come from rust-vmm's `vhost`.

pub mod device;
mod fault;
mod message;
pub mod session;
pub mod socket;

pub use device::{ConfigRefused, Device, DeviceFault, DeviceSpec, QueueSetup, SessionEnd};
pub use fault::SessionFault;
pub use session::{Action, Session};
