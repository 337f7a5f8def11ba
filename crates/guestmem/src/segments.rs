//! Pieces of guest memory that outlive a borrow: what an operation on a file reads or fills.

#![expect(unsafe_code)]
// UNSAFETY: hands addresses of guest memory to the kernel.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use smallvec::SmallVec;
use sys::uring::{IoVec, Job};

use crate::memory::GuestMemory;
use crate::slice::GuestSlice;

/// Pieces as large go from and to a file past the caches.
const PAST: usize = 64 << 10;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// From a file into guest memory.
    Read,
    /// From guest memory into a file.
    Write,
}

/// Pieces of one guest's memory, in order, which stays mapped as long as they live.
///
/// Pieces that follow each other in memory are one.
#[derive(Debug)]
pub struct Segments {
    memory: Arc<GuestMemory>,
    /// All of them checked, none of them empty; mostly there is one, for which no memory is taken.
    pieces: SmallVec<[IoVec; 1]>,
    len: u64,
}

// SAFETY: the pointers are into memory that `memory` keeps mapped and that anybody may change.
unsafe impl Send for Segments {}
// SAFETY: as above.
unsafe impl Sync for Segments {}

impl Clone for Segments {
    fn clone(&self) -> Segments {
        let (memory, pieces) = (Arc::clone(&self.memory), SmallVec::from_slice(&self.pieces));
        Segments { memory, pieces, len: self.len }
    }
}

impl Segments {
    /// No pieces yet.
    #[must_use]
    pub fn new(memory: &Arc<GuestMemory>) -> Segments {
        Segments { memory: Arc::clone(memory), pieces: SmallVec::new(), len: 0 }
    }

    /// These, if all of them are of this memory.
    #[must_use]
    pub fn of<'m>(
        memory: &'m Arc<GuestMemory>,
        slices: impl Iterator<Item = GuestSlice<'m>>,
    ) -> Option<Segments> {
        let mut segments = Segments::new(memory);
        for slice in slices {
            // Whether it is of this memory: of one of the same lifetime it may not be.
            memory.address(slice)?;
            segments.push(slice);
        }
        Some(segments)
    }

    fn push(&mut self, slice: GuestSlice<'_>) {
        if slice.is_empty() {
            return;
        }
        let (base, len) = (slice.ptr.as_ptr(), slice.len());
        self.len += len as u64;
        if let Some(last) = self.pieces.last_mut()
            && last.base.wrapping_add(last.len) == base
        {
            last.len += len;
        } else {
            self.pieces.push(IoVec { base, len });
        }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory they are in.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Whether every piece begins and ends at a multiple of `align`, a power of two.
    #[must_use]
    pub fn is_aligned(&self, align: usize) -> bool {
        let mask = align.wrapping_sub(1);
        self.pieces.iter().all(|piece| (piece.base.addr() | piece.len) & mask == 0)
    }

    /// Takes off the first `n` bytes, at most all.
    pub fn advance(&mut self, n: u64) {
        if n >= self.len {
            self.len = 0;
            self.pieces.clear();
            return;
        }
        let mut left = n;
        self.len -= left;
        if let [piece] = &mut *self.pieces {
            piece.base = piece.base.wrapping_add(n as usize);
            piece.len -= n as usize;
            return;
        }
        let gone = self.pieces.iter().take_while(|piece| {
            let whole = piece.len as u64 <= left;
            if whole {
                left -= piece.len as u64;
            }
            whole
        });
        let gone = gone.count();
        self.pieces.drain(..gone);
        if let Some(first) = self.pieces.first_mut() {
            // Less than the piece has.
            let n = left as usize;
            first.base = first.base.wrapping_add(n);
            first.len -= n;
        }
    }

    /// Copies the first bytes into `to`: as many as the shorter of the two has. Returns that number.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        self.read_at(to, 0)
    }

    /// The same from the byte `at` on.
    pub fn read_at(&self, to: &mut [u8], at: u64) -> usize {
        let mut done = 0;
        self.each_from(at, |slice| done += slice.copy_to(to.get_mut(done..).unwrap_or_default()));
        done
    }

    /// Copies `from` to the first bytes: as many as the shorter of the two has. Returns that number.
    pub fn copy_from(&self, from: &[u8]) -> usize {
        self.write_at(from, 0)
    }

    /// The same to those from the byte `at` on.
    pub fn write_at(&self, from: &[u8], at: u64) -> usize {
        let mut done = 0;
        self.each_from(at, |slice| done += slice.copy_from(from.get(done..).unwrap_or_default()));
        done
    }

    /// Calls this for each piece as [`Segments::each`], without the first bytes.
    #[inline(always)]
    fn each_from<'s>(&'s self, at: u64, mut call: impl FnMut(GuestSlice<'s>)) {
        let mut before = at;
        self.each(|slice| {
            let rest = slice.skip(usize::try_from(before).unwrap_or(usize::MAX));
            before = before.saturating_sub(slice.len() as u64);
            call(rest);
        });
    }

    /// Calls this for each piece; for one of more than 4 GiB, as adjacent buffers may be, several times.
    #[inline(always)]
    fn each<'s>(&'s self, mut call: impl FnMut(GuestSlice<'s>)) {
        const MOST: usize = u32::MAX as usize & !0xfff;
        for &IoVec { mut base, mut len } in &self.pieces {
            while let Some(ptr) = NonNull::new(base).filter(|_| len > 0) {
                let some = len.min(MOST);
                call(GuestSlice { ptr, len: some as u32, memory: PhantomData });
                base = base.wrapping_add(some);
                len -= some;
            }
        }
    }

    /// The pieces, for whoever keeps the value as long as it uses them.
    #[must_use]
    pub fn pieces(&self) -> &[IoVec] {
        &self.pieces
    }

    /// The pieces, as the kernel takes them.
    pub(crate) fn iovecs(&self) -> impl Iterator<Item = libc::iovec> + '_ {
        let one = |piece: &IoVec| libc::iovec { iov_base: piece.base.cast(), iov_len: piece.len };
        self.pieces.iter().map(one)
    }

    /// The first `n` bytes, at most all.
    #[must_use]
    pub fn first(&self, n: u64) -> Segments {
        if n >= self.len {
            return self.clone();
        }
        let (mut left, len) = (n, n);
        let mut pieces = SmallVec::new();
        for piece in &self.pieces {
            if left == 0 {
                break;
            }
            let some = left.min(piece.len as u64);
            pieces.push(IoVec { base: piece.base, len: some as usize });
            left -= some;
        }
        Segments { memory: Arc::clone(&self.memory), pieces, len }
    }

    /// So many bytes from `at` on, as far as there are.
    #[must_use]
    pub fn part(&self, at: u64, n: u64) -> Segments {
        let len = n.min(self.len.saturating_sub(at));
        if let &[IoVec { base, .. }] = &*self.pieces
            && len > 0
        {
            let piece = IoVec { base: base.wrapping_add(at as usize), len: len as usize };
            let pieces = SmallVec::from_buf([piece]);
            return Segments { memory: Arc::clone(&self.memory), pieces, len };
        }
        let mut part = self.first(at.saturating_add(n));
        part.advance(at);
        part
    }

    /// Copies to the bytes of `to` from `at` on, of this memory or another: as many as the shorter of the two has. Returns
    /// that number.
    pub fn copy_across(&self, to: &Segments, at: u64) -> u64 {
        let mut done = 0u64;
        to.each_from(at, |mut room| {
            self.each_from(done, |rest| {
                let some = rest.copy_to_guest(room);
                room = room.skip(some);
                done += some as u64;
            });
        });
        done
    }

    /// Copies from a file that is mapped, or to it: as many bytes as the shorter of the two has. Returns that
    /// number. Large pieces go past the caches: whoever moves as much looks at other things first.
    pub fn exchange(&self, access: Access, mut mapped: GuestSlice<'_>) -> u64 {
        let mut moved = 0;
        self.each(|slice| {
            let some = match access {
                Access::Read if slice.len() >= PAST => mapped.copy_in(slice),
                Access::Read => mapped.copy_to_guest(slice),
                Access::Write if slice.len() >= PAST => slice.copy_out(mapped),
                Access::Write => slice.copy_to_guest(mapped),
            };
            mapped = mapped.skip(some);
            moved += some as u64;
        });
        moved
    }

    /// Reads from or writes to a file at `offset`, in bytes, in one system call: preadv2(2),
    /// pwritev2(2). With `nowait` nothing is waited for (`RWF_NOWAIT`). The kernel accesses guest
    /// memory itself. Returns how many bytes were moved.
    ///
    /// # Errors
    /// What the kernel reports: `EFAULT` where guest memory has vanished, `EAGAIN` with `nowait`.
    pub fn transfer(
        &self,
        access: Access,
        file: BorrowedFd<'_>,
        offset: u64,
        nowait: bool,
    ) -> io::Result<u64> {
        let list = self.pieces.as_ptr().cast::<libc::iovec>();
        let count = self.pieces.len() as libc::c_int;
        let flags = if nowait { libc::RWF_NOWAIT } else { 0 };
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let fd = file.as_raw_fd();
        // SAFETY: IoVec is laid out as struct iovec; the pieces are mapped as long as this value
        // lives, and anybody may change what is in them.
        let moved = unsafe {
            match access {
                Access::Read => libc::preadv2(fd, list, count, offset, flags),
                Access::Write => libc::pwritev2(fd, list, count, offset, flags),
            }
        };
        u64::try_from(moved).map_err(|_| io::Error::last_os_error())
    }
}

/// Pieces of guest memory and a file between which bytes are moved, by a [`sys::uring::Ring`], and
/// what their owner wants to know when they have been.
#[derive(Debug)]
pub struct Transfer<T> {
    /// What is still to be moved.
    pub segments: Segments,
    /// From where, or to where.
    pub file: Arc<File>,
    /// The owner's.
    pub owner: T,
}

// SAFETY: pieces are mapped as long as the value lives, belong to the guest, and are listed on the
// heap if there are several; whoever moves the value cannot change the list.
unsafe impl<T> Job for Transfer<T> {
    fn pieces(&self) -> &[IoVec] {
        &self.segments.pieces
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests;
