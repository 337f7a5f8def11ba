//! Images in memory, mapped.
//!
//! A file on tmpfs is memory. To copy from it and to it takes less than half of the time of preadv(2) and
//! pwritev(2), which look up each page (docs/performance.md).
//!
//! **Only pages that are there** are used: a look at one that is not would make it, so that a sparse image would
//! grow by being read, and could fail for want of room. All others are for the system calls. The kernel is asked once
//! for each few pages which of them are there, and what is written is there from then on. Nobody else has to tell when
//! he takes pages away: that one is made again is all that comes of it.
//!
//! **Failure.** If a page cannot be had after all, as the file was cut or there is no room, zeroes are in its place,
//! here and nowhere else ([`guestmem::install_fault_handler`]). The mapping is not used any more then, and the
//! request is made by a system call, which says what is wrong.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use guestmem::{Access, GuestMemory, GuestSlice, RegionFile, RegionSpec, Segments};
use rustix::fs::{OFlags, fcntl_getfl};

const PAGE: u64 = 4096;
/// Pages whose bits are a word.
const PAGES: u64 = u64::BITS as u64;

/// What is known of pages. Of a large sparse image it takes memory for what was looked at only.
#[derive(Debug)]
struct Known {
    /// A bit for each that is there.
    there: Vec<u64>,
    /// A bit for each word of these about which the kernel was asked.
    asked: Vec<u64>,
}

/// A file, from its beginning to the last whole page that it had when it was mapped. It belongs to one worker: no
/// other thread meets the zeroes.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: Arc<GuestMemory>,
    /// In bytes.
    size: u64,
    known: RefCell<Known>,
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
        let memory = Arc::new(GuestMemory::map(&[(spec, file)]).ok()?);
        let words = (size / PAGE).div_ceil(PAGES);
        let (there, asked) = (vec![0; words as usize], vec![0; words.div_ceil(PAGES) as usize]);
        Some(Mapped { memory, size, known: RefCell::new(Known { there, asked }) })
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

    /// These bytes, for the kernel to be written, if all of their pages are there. The last one is looked at: the kernel
    /// would stop where a file was cut, in the middle of what it sends.
    pub(crate) fn segments(&self, offset: u64, len: u64) -> Option<Segments> {
        let slice = self.slice(offset, len)?;
        slice.skip(slice.len().saturating_sub(1)).copy_to(&mut [0]);
        if self.memory.faulted() {
            return None;
        }
        Segments::of(&self.memory, std::iter::once(slice))
    }

    /// Where these bytes are, if all of their pages are there.
    fn slice(&self, offset: u64, len: u64) -> Option<GuestSlice<'_>> {
        let slice = self.memory.slice(offset, u32::try_from(len).ok()?)?;
        let there = &self.known.borrow().there;
        let all = pages(offset, len)
            .all(|(at, bits)| there.get(at).is_some_and(|word| word & bits == bits));
        (all && !self.memory.faulted()).then_some(slice)
    }

    /// A system call has moved these bytes.
    pub(crate) fn learn(&self, access: Access, offset: u64, len: u64) {
        let Known { there, asked } = &mut *self.known.borrow_mut();
        for (at, bits) in pages(offset, len) {
            let (Some(there), Some(asked)) = (there.get_mut(at), asked.get_mut(at / 64)) else {
                return;
            };
            if access == Access::Write {
                *there |= bits;
            }
            let bit = 1 << (at % 64);
            if *asked & bit == 0 {
                *asked |= bit;
                *there |= self.ask(at as u64);
            }
        }
    }

    /// Which pages of a word are there.
    fn ask(&self, at: u64) -> u64 {
        let start = at * PAGES * PAGE;
        let len = self.size.saturating_sub(start).min(PAGES * PAGE);
        let Some(slice) = self.memory.slice(start, len as u32) else { return 0 };
        let there = slice.resident();
        if u64::from(there.count_ones()) == len / PAGE {
            slice.enter();
        }
        there
    }

    /// Pages of these bytes may be gone.
    pub(crate) fn forget(&self, bytes: Range<u64>) {
        let there = &mut self.known.borrow_mut().there;
        for (at, bits) in pages(bytes.start, bytes.end.min(self.size).saturating_sub(bytes.start)) {
            if let Some(word) = there.get_mut(at) {
                *word &= !bits;
            }
        }
    }
}

/// The pages of some bytes: words, and bits in each.
fn pages(offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
    let first = offset / PAGE;
    let end = if len == 0 { first } else { (offset + len).div_ceil(PAGE) };
    (first / PAGES..end.div_ceil(PAGES)).map(move |word| {
        let from = first.max(word * PAGES) % PAGES;
        let to = end.min((word + 1) * PAGES) - word * PAGES;
        (word as usize, u64::MAX >> (PAGES - to) & u64::MAX << from)
    })
}

#[cfg(test)]
mod tests;
