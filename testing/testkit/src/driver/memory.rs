//! Guest memory for tests, and plain access to it.

use std::io;
use std::sync::Arc;

use guestmem::{GuestMemory, RegionFile, RegionSpec};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Guest memory of this process only: regions of (guest physical address, bytes), zeroed.
///
/// # Errors
/// What creating or mapping the memfds reports.
pub fn memory(regions: &[(u64, u64)]) -> io::Result<Arc<GuestMemory>> {
    let mut table = Vec::new();
    for &(guest_addr, size) in regions {
        let fd = memfd_create("testkit", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, size)?;
        let spec = RegionSpec { guest_addr, size, user_addr: guest_addr, mmap_offset: 0 };
        table.push((spec, RegionFile::from(fd)));
    }
    GuestMemory::map(&table).map(Arc::new).map_err(io::Error::other)
}

/// Writes `bytes` at `gpa`; whether all of it is guest memory (otherwise nothing is written).
pub fn write(mem: &GuestMemory, gpa: u64, bytes: &[u8]) -> bool {
    let Some(slice) = mem.slice(gpa, bytes.len() as u32) else { return false };
    slice.copy_from(bytes) == bytes.len()
}

/// The `len` bytes at `gpa`, if all of it is guest memory.
pub fn read(mem: &GuestMemory, gpa: u64, len: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    mem.slice(gpa, len)?.copy_to(&mut bytes);
    Some(bytes)
}
