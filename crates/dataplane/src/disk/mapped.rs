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

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use guestmem::{Access, GuestMemory, GuestSlice, RegionFile, RegionSpec, Segments};
use rustix::fs::{OFlags, fcntl_getfl};

const PAGE: u64 = 4096;
/// Pages of a word.
const PAGES: u64 = u64::BITS as u64;

/// What is known of some pages.
#[derive(Clone, Debug, Default)]
struct Word {
    /// A bit for each that is there.
    there: Cell<u64>,
    /// The kernel was asked.
    asked: Cell<bool>,
}

/// A file, from its beginning to the last whole page that it had when it was mapped. It belongs to one worker: no
/// other thread meets the zeroes.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: Arc<GuestMemory>,
    /// Of so many pages each.
    words: Vec<Word>,
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
        let words = vec![Word::default(); (size / PAGE).div_ceil(PAGES) as usize];
        Some(Mapped { memory: Arc::new(memory), words })
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
        let is_there = |word: &Word, bits| word.there.get() & bits == bits;
        let there = pages(offset, len)
            .all(|(at, bits)| self.words.get(at).is_some_and(|word| is_there(word, bits)));
        (there && !self.memory.faulted()).then_some(slice)
    }

    /// A system call has moved these bytes.
    pub(crate) fn learn(&self, access: Access, offset: u64, len: u64) {
        for (at, bits) in pages(offset, len) {
            let Some(word) = self.words.get(at) else { return };
            let mut there = word.there.get();
            if access == Access::Write {
                there |= bits;
            }
            if !word.asked.replace(true) {
                there |= self.ask(at as u64);
            }
            word.there.set(there);
        }
    }

    /// Which pages of a word are there.
    fn ask(&self, at: u64) -> u64 {
        let start = at * PAGES * PAGE;
        let end = self.memory.regions().map(|region| region.size).sum::<u64>();
        let len = end.saturating_sub(start).min(PAGES * PAGE);
        let Some(slice) = self.memory.slice(start, len as u32) else { return 0 };
        let there = slice.resident();
        if there.count_ones() as u64 == len / PAGE {
            slice.enter();
        }
        there
    }

    /// Pages of these bytes may be gone.
    pub(crate) fn forget(&self, bytes: Range<u64>) {
        let end = bytes.end.min(self.words.len() as u64 * PAGES * PAGE);
        for (at, bits) in pages(bytes.start, end.saturating_sub(bytes.start)) {
            if let Some(word) = self.words.get(at) {
                word.there.set(word.there.get() & !bits);
            }
        }
    }
}

/// The pages of some bytes, at least one: words, and bits in each.
fn pages(offset: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
    let (first, end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
    (first / PAGES..end.div_ceil(PAGES)).map(move |word| {
        let from = first.max(word * PAGES) % PAGES;
        let to = end.min((word + 1) * PAGES) - word * PAGES;
        (word as usize, u64::MAX >> (PAGES - to) & u64::MAX << from)
    })
}

#[cfg(test)]
mod tests;
