//! Connections between a store and those who use its images: frames out, frames in.
//!
//! **Purpose.** A [`Wire`] is a stream, a TCP socket or TLS on one ([`Pipe`]), on which data follows its
//! requests and replies; an [`Rma`] is a connection over a fabric, on which frames are messages and the
//! store moves data from and to the client's memory. What frames mean is for `remote` to say. Workers of
//! the data plane have both sides of such connections, and `storeclient` has the client's.
//!
//! **Owner and threads.** A connection belongs to one thread at a time, and waits for nothing: its owner
//! polls it, or sleeps on its descriptor. Data goes straight between the connection and memory that is
//! mapped as a guest's is ([`memory`] for a program's own).
//!
//! **Failure.** A [`WireError`] ends the connection. Memory that has vanished is one of its own.

mod conduit;
mod pipe;
pub mod rma;
mod wire;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use guestmem::{GuestMemory, RegionFile, RegionSpec};
use rustix::net::sockopt;

pub use conduit::Conduit;
pub use pipe::Pipe;
pub use rma::{INLINE, Rma};
pub use wire::{Held, LARGE, Wire, WireError};

/// A peer whose machine is gone is given up after so long without a sign of it.
const DEAD: Duration = Duration::from_secs(20);
/// Signs that are asked for meanwhile.
const PROBES: u32 = 3;

/// Has the kernel look after a TCP connection: nothing is held back, and one whose peer is gone ends.
///
/// # Errors
/// What the kernel says.
pub fn look_after(socket: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, DEAD / (PROBES + 1))?;
    sockopt::set_tcp_keepintvl(&socket, DEAD / (PROBES + 1))?;
    sockopt::set_tcp_keepcnt(&socket, PROBES)?;
    sockopt::set_tcp_user_timeout(&socket, DEAD.as_millis() as u32)?;
    Ok(())
}

/// So many bytes of this program's memory, mapped as if it were a guest's, from address 0 on; and its
/// file, for others to map it too. The kernel gives as much as is used.
///
/// # Errors
/// There is none.
pub fn memory(name: &str, size: u64) -> io::Result<(OwnedFd, Arc<GuestMemory>)> {
    let file = sys::memfd(name, size, false)?;
    let spec = RegionSpec { guest_addr: 0, size, user_addr: 0, mmap_offset: 0 };
    let memory = GuestMemory::map(&[(spec, RegionFile::from(file.try_clone()?))]);
    Ok((file, Arc::new(memory.map_err(io::Error::other)?)))
}

/// Which start of this machine it is.
///
/// # Errors
/// The kernel does not say.
pub fn boot() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
