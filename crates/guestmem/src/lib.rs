//! The memory of one guest, mapped once and reached only through checked copies and single ring
//! accesses.
//!
//! **Purpose.** A vhost-user front end hands over a table of memory regions, each a piece of a
//! file. [`GuestMemory::map`] validates the table and maps it into one reserved stretch of address
//! space, so that a guest physical address (GPA) becomes a pointer by one addition.
//! [`GuestMemory::slice`] is the one place where an address from a guest is checked; what it
//! returns, a [`GuestSlice`], can only be copied from and to. Rings are read and written through
//! [`RingArea`] and [`RingEntries`]; [`Segments`] are pieces that an operation goes on with after the borrow has ended.
//! Guest memory is never a Rust reference: the guest changes it whenever it likes,
//! and the compiler is told nothing about it (copies are assembly, ring accesses are atomic).
//!
//! **Owner.** A vhost-user session maps the table and shares it as `Arc<GuestMemory>` with the
//! workers that serve its queues. It is immutable; a changed table is a new `GuestMemory`. The last
//! `Arc` to go unmaps it.
//!
//! **Threads.** Everything here may be called from any thread. Nothing but [`GuestMemory::map`] and
//! dropping it allocates, locks or calls the kernel.
//!
//! **Failure.** A table that makes no sense is a [`MapError`]. An address outside the table is
//! `None`. Memory that vanishes while mapped (a front end truncates its file, a huge page cannot be
//! had) is caught by a signal handler that puts zeroes in its place and marks the session
//! ([`GuestMemory::faulted`]); copies and ring accesses go on as if nothing had happened, and the
//! worker stops the session at its next look at the mark. See [`install_fault_handler`].

// A guest's memory does not fit into a smaller address space.
const _: () = assert!(usize::BITS == 64);

mod copy;
mod fault;
mod hint;
mod memory;
mod region;
mod ring;
mod segments;
mod slice;
mod socket;

pub use fault::install_fault_handler;
pub use hint::Hint;
pub use memory::GuestMemory;
pub use region::{MapError, RegionFile, RegionSpec};
pub use ring::{RingArea, RingEntries};
pub use segments::{Access, Segments, Transfer};
pub use slice::{GuestSlice, write_vectored};
pub use socket::{Part, lend, receive, send, take};

/// What `examples/copy.rs` compares.
#[doc(hidden)]
pub use copy::{Routine as CopyRoutine, routines as copy_routines};
