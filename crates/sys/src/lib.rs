//! Thin safe wrappers over Linux, where rustix has none or where a name says more than a call.
//!
//! **Purpose.** [`EventFd`] (kicks and interrupts of virtqueues), [`scm`] (bytes with descriptors
//! over Unix sockets), [`tap`] (TAP devices in any network namespace), [`affinity`] (which CPUs a
//! worker may use), [`numa`] (which of them are near which memory), [`priority`] (a thread before
//! all others), [`rseq`] (which a thread may do without), [`clock`] (the processor's own), [`issue`] (what a core's other thread leaves of it), [`bpf`]
//! (programs on an interface), [`wakeup`] (of a CPU), [`uring`] (files read and written while a thread goes on), [`memfd`],
//! [`prefer_huge_pages`], [`prefetch`] (cache lines), [`Quad`] (keys compared at once), [`ofd`] (locks of files) and [`Words`] (numbers
//! in a mapped file).
//!
//! **Owner.** Whoever creates one of these owns it; descriptors are closed when dropped and never
//! inherited by a child.
//!
//! **Threads.** No state of its own, no locks. Creating a TAP device in a namespace uses a thread
//! that ends before the call returns. Nothing here blocks, unless it says so.
//!
//! **Failure.** What the kernel refuses comes back as an error that says what was tried.

pub mod affinity;
pub mod bpf;
pub mod clock;
mod eventfd;
pub mod issue;
mod memory;
pub mod numa;
pub mod ofd;
pub mod prefetch;
pub mod priority;
mod quad;
pub mod rseq;
pub mod scm;
pub mod tap;
pub mod uring;
pub mod wakeup;
mod words;

pub use eventfd::EventFd;
pub use memory::{memfd, prefer_huge_pages};
pub use quad::Quad;
pub use words::Words;
