//! Images in memory, mapped.
//!
//! A file on tmpfs is memory. To copy from it and to it takes less than half of the time of preadv(2) and
//! pwritev(2), which look up each page (docs/performance.md).
//!
//! **Only pages that are there** are used: a look at one that is not would make it, so that a sparse image would
//! grow by being read, and could fail for want of room. All others are for the system calls, from which it is
//! learned that the pages are there then. Nobody else has to tell when he takes pages away: that one is made again
//! is all that comes of it.
//!
//! **Failure.** If a page cannot be had after all, as the file was cut or there is no room, zeroes are in its place,
//! here and nowhere else ([`guestmem::install_fault_handler`]). The mapping is not used any more then, and the
//! request is made by a system call, which says what is wrong.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use guestmem::{Access, GuestMemory, GuestSlice, RegionFile, RegionSpec, Segments};
use rustix::fs::{OFlags, fcntl_getfl};

const PAGE: u64 = 4096;

/// A file, from its beginning to the last whole page that it had when it was mapped. It belongs to one worker: no
/// other thread meets the zeroes.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: Arc<GuestMemory>,
    /// A bit for each page that is there.
    there: Vec<Cell<u64>>,
}

impl Mapped {
    /// Maps a file in memory; `None`: it has no page, is not to be written, or cannot be mapped.
    pub(crate) fn of(file: &File) -> Option<Mapped> {
        if fcntl_getfl(file).ok()? & OFlags::ACCMODE != OFlags::RDWR {
            return None;
        }
        let size = file.metadata().ok()?.len() / PAGE * PAGE;
        let spec = RegionSpec { guest_addr: 0, size, user_addr: 0, mmap_offset: 0 };
        let file = RegionFile::from(rustix::io::dup(file).ok()?);
        let memory = GuestMemory::map(&[(spec, file)]).ok()?;
        let there = vec![Cell::new(0); (size / PAGE).div_ceil(64) as usize];
        Some(Mapped { memory: Arc::new(memory), there })
    }

    /// Moves all bytes of a request; `None`: that is for a system call.
    ///
    /// # Errors
    /// `EFAULT`: the guest's memory has vanished.
    pub(crate) fn transfer(
        &self,
        access: Access,
        offset: u64,
        segments: &Segments,
    ) -> Option<io::Result<u64>> {
        let moved = segments.exchange(access, self.slice(offset, segments.len())?);
        if segments.memory().faulted() {
            return Some(Err(rustix::io::Errno::FAULT.into()));
        }
        (!self.memory.faulted()).then_some(Ok(moved))
    }

    /// These bytes, for the kernel to be written, if all of their pages are there.
    pub(crate) fn segments(&self, offset: u64, len: u64) -> Option<Segments> {
        Segments::of(&self.memory, std::iter::once(self.slice(offset, len)?))
    }

    /// Where these bytes are, if all of their pages are there.
    fn slice(&self, offset: u64, len: u64) -> Option<GuestSlice<'_>> {
        let slice = self.memory.slice(offset, u32::try_from(len).ok()?)?;
        let is_there = |there: &Cell<u64>, bits| there.get() & bits == bits;
        let there = pages(offset, len)
            .all(|(word, bits)| self.there.get(word).is_some_and(|there| is_there(there, bits)));
        (there && !self.memory.faulted()).then_some(slice)
    }

    /// A system call has moved these bytes.
    pub(crate) fn learn(&self, access: Access, offset: u64, len: u64) {
        let slice = u32::try_from(len).ok().and_then(|len| self.memory.slice(offset, len));
        // What was read may have been a hole.
        if slice.is_some_and(|slice| access == Access::Write || slice.is_resident()) {
            for (word, bits) in pages(offset, len) {
                if let Some(there) = self.there.get(word) {
                    there.set(there.get() | bits);
                }
            }
        }
    }

    /// Pages of these bytes may be gone.
    pub(crate) fn forget(&self, bytes: Range<u64>) {
        let end = bytes.end.min(self.there.len() as u64 * 64 * PAGE);
        for (word, bits) in pages(bytes.start, end.saturating_sub(bytes.start)) {
            if let Some(there) = self.there.get(word) {
                there.set(there.get() & !bits);
            }
        }
    }
}

/// The pages of some bytes, at least one: words, and bits in each.
fn pages(offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
    let (first, end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
    (first / 64..end.div_ceil(64)).map(move |word| {
        let (from, to) = (first.max(word * 64) % 64, end.min(word * 64 + 64) - word * 64);
        (word as usize, u64::MAX >> (64 - to) & u64::MAX << from)
    })
}

#[cfg(test)]
mod tests;
