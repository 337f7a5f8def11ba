//! Memory: such that can be sent to another process, and the pages it is in.

#![expect(unsafe_code)]
// UNSAFETY: madvise has no safe form; the advice given here changes no contents.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

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

/// Size of a huge page, bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Asks for pages of 2 MiB for memory that was allocated and not written yet: a large table that is
/// read at random is several times as fast in them. Only a hint, for what is at least as large as
/// such a page: a kernel that has none, or was told not to, leaves it at small ones.
pub fn prefer_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    let (bytes, page) = (size_of_val(memory), page_size());
    if bytes < HUGE_PAGE {
        return;
    }
    let start = memory.as_mut_ptr().cast::<u8>();
    // The whole pages in it.
    let skip = start.align_offset(page).min(bytes);
    let whole = (bytes - skip) / page * page;
    // SAFETY: start + skip + whole lies in `memory`; the advice changes how it is mapped, not what
    // is in it.
    let _ = unsafe { madvise(start.add(skip).cast(), whole, Advice::LinuxHugepage) };
}

#[cfg(test)]
mod tests;
