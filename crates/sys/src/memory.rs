//! Memory that can be sent to another process.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// A memfd of `size` bytes, all zero, whose size can never change again (sealed against shrinking
/// and growing).
///
/// With `hugepages`, in pages of 2 MiB: `size` must be a multiple of that. Whether there are enough
/// huge pages shows when it is mapped.
///
/// # Errors
/// What memfd_create(2) and ftruncate(2) report.
pub fn memfd(name: &str, size: u64, hugepages: bool) -> io::Result<OwnedFd> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if hugepages {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    let fd = memfd_create(name, flags)?;
    ftruncate(&fd, size)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

#[cfg(test)]
mod tests;
