//! Checked pieces of guest memory: all one can do with them is copy.

#![expect(unsafe_code)]
// UNSAFETY: copies from and to raw pointers, which only `GuestMemory::slice` makes.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::copy::{self, word};
use crate::memory::GuestMemory;
use crate::region::BASE_PAGE;

/// A piece of guest memory that was checked against the table, at most 4 GiB - 1 long.
///
/// The guest may change its bytes at any moment, so two copies of the same piece may differ:
/// whoever checks something must go on using the copy that was checked.
#[derive(Clone, Copy, Debug)]
pub struct GuestSlice<'m> {
    pub(crate) ptr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) memory: PhantomData<&'m GuestMemory>,
}

// SAFETY: behaves like `&GuestMemory`, which is Send because GuestMemory is Sync; all accesses may
// race.
unsafe impl Send for GuestSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for GuestSlice<'_> {}

impl<'m> GuestSlice<'m> {
    /// No bytes.
    pub const EMPTY: Self = Self { ptr: NonNull::dangling(), len: 0, memory: PhantomData };

    /// Length in bytes.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is nothing in it.
    #[inline(always)]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `n` bytes and the rest. `n` beyond the end counts as the end.
    #[inline(always)]
    #[must_use]
    pub fn split_at(self, n: usize) -> (GuestSlice<'m>, GuestSlice<'m>) {
        (self.take(n), self.skip(n))
    }

    /// Without the first `n` bytes. `n` beyond the end counts as the end.
    #[inline(always)]
    #[must_use]
    pub fn skip(self, n: usize) -> GuestSlice<'m> {
        let n = n.min(self.len());
        // SAFETY: n <= len, so the pointer stays inside the piece or just behind it.
        let ptr = unsafe { self.ptr.add(n) };
        GuestSlice { ptr, len: self.len - n as u32, memory: PhantomData }
    }

    /// The first `n` bytes. `n` beyond the end counts as the end.
    #[inline(always)]
    #[must_use]
    pub fn take(self, n: usize) -> GuestSlice<'m> {
        GuestSlice { len: n.min(self.len()) as u32, ..self }
    }

    /// Copies guest memory into `dst`: as many bytes as the shorter of the two has. Returns that
    /// number.
    #[inline(always)]
    pub fn copy_to(&self, dst: &mut [u8]) -> usize {
        let len = self.len().min(dst.len());
        // SAFETY: both are at least len bytes long; guest memory cannot vanish (fault handler)
        // while 'm lives.
        unsafe { copy::copy(dst.as_mut_ptr(), self.ptr.as_ptr(), len) };
        len
    }

    /// Copies `src` into guest memory: as many bytes as the shorter of the two has. Returns that
    /// number.
    #[inline(always)]
    pub fn copy_from(&self, src: &[u8]) -> usize {
        let len = self.len().min(src.len());
        // SAFETY: as in copy_to.
        unsafe { copy::copy(self.ptr.as_ptr(), src.as_ptr(), len) };
        len
    }

    /// Copies the first bytes into a local block that is read again soon, in a way that makes that
    /// reading fast: as many as there are, at most 128. Returns that number; what is behind them in
    /// the block is undefined.
    #[inline(always)]
    pub fn copy_to_block(&self, block: &mut [u8; 128]) -> usize {
        let len = self.len().min(block.len());
        // SAFETY: both are at least len bytes long; guest memory as in copy_to.
        unsafe { copy::block::load(block, self.ptr.as_ptr(), len) };
        len
    }

    /// Copies the first `n` bytes of a block (see [`Self::copy_to_block`]) into guest memory: at
    /// most as many as fit. Returns the number copied.
    #[inline(always)]
    pub fn copy_from_block(&self, block: &[u8; 128], n: usize) -> usize {
        let len = self.len().min(n).min(block.len());
        // SAFETY: as in copy_to_block.
        unsafe { copy::block::store(self.ptr.as_ptr(), block, len) };
        len
    }

    /// The first `N` bytes, 10, 12 or 18, loaded into registers, each byte once; `None` if there are
    /// fewer.
    #[inline(always)]
    #[must_use]
    pub fn load<const N: usize>(&self) -> Option<[u8; N]> {
        self.words::<N>()?.map(u64::to_le_bytes).as_flattened().first_chunk().copied()
    }

    /// The first `N` bytes, 10 or 12, as a little-endian number, in the same way.
    #[inline(always)]
    #[must_use]
    pub fn load_word<const N: usize>(&self) -> Option<u128> {
        const { assert!(N == 10 || N == 12) };
        let [low, high, _] = self.words::<N>()?;
        Some(u128::from(high) << 64 | u128::from(low))
    }

    /// The same as little-endian numbers.
    #[inline(always)]
    fn words<const N: usize>(&self) -> Option<[u64; 3]> {
        const { assert!(N == 10 || N == 12 || N == 18) };
        if self.len() < N {
            return None;
        }
        let at = self.ptr.as_ptr();
        // SAFETY: N bytes are there, and the accesses lie within them.
        Some(unsafe {
            let (middle, last) = match N {
                10 => (word::load_u16(at.add(8)).into(), 0),
                12 => (word::load_u32(at.add(8)).into(), 0),
                _ => (word::load_u64(at.add(8)), word::load_u16(at.add(16)).into()),
            };
            [word::load_u64(at), middle, last]
        })
    }

    /// Stores `N` bytes, 10 or 12, at the front; false, and nothing done, if they do not fit.
    #[inline(always)]
    pub fn store<const N: usize>(&self, bytes: [u8; N]) -> bool {
        let mut all = [0; 16];
        all[..N].copy_from_slice(&bytes);
        self.store_word::<N>(u128::from_le_bytes(all))
    }

    /// The same of the first `N` bytes of a little-endian number.
    #[inline(always)]
    pub fn store_word<const N: usize>(&self, word: u128) -> bool {
        const { assert!(N == 10 || N == 12) };
        if self.len() < N {
            return false;
        }
        let (low, high) = (word as u64, (word >> 64) as u32);
        let at = self.ptr.as_ptr();
        // SAFETY: as in load.
        unsafe {
            word::store_u64(at, low);
            if N == 12 {
                word::store_u32(at.add(8), high);
            } else {
                word::store_u16(at.add(8), high as u16);
            }
        }
        true
    }

    /// Like [`Self::store_word`], but leaves bytes alone that are as they should be: the cache line then
    /// stays shared with the guest's CPU, which reads it without fetching it from here.
    #[inline(always)]
    pub fn store_changed<const N: usize>(&self, word: u128) -> bool {
        let high = (word >> 64) as u64 & if N == 12 { 0xffff_ffff } else { 0xffff };
        // Compared in registers: arrays would be stored in words and loaded in one piece.
        let same = |[a, b, _]: [u64; 3]| (a ^ word as u64) | (b ^ high) == 0;
        self.words::<N>().is_some_and(same) || self.store_word::<N>(word)
    }

    /// Whether it begins a cache line of 64 bytes.
    #[inline(always)]
    #[must_use]
    pub fn begins_line(&self) -> bool {
        (self.ptr.as_ptr() as usize).is_multiple_of(64)
    }

    /// Copies guest memory into guest memory, of the same or another guest: as many bytes as the
    /// shorter of the two has. Returns that number. Where the two overlap, some mixture of old and
    /// new bytes is the result.
    #[inline(always)]
    pub fn copy_to_guest(&self, dst: GuestSlice<'_>) -> usize {
        let len = self.len().min(dst.len());
        // SAFETY: as in copy_to; the copy makes no assumption about overlap.
        unsafe { copy::copy(dst.ptr.as_ptr(), self.ptr.as_ptr(), len) };
        len
    }
}

impl GuestSlice<'_> {
    /// [`Self::copy_to_guest`] to what nobody looks at soon.
    pub(crate) fn copy_out(&self, dst: GuestSlice<'_>) -> usize {
        let len = self.len().min(dst.len());
        // SAFETY: as in copy_to_guest.
        unsafe { copy::copy_out(dst.ptr.as_ptr(), self.ptr.as_ptr(), len) };
        len
    }

    /// [`Self::copy_to_guest`] of what nobody looks at soon.
    pub(crate) fn copy_in(&self, dst: GuestSlice<'_>) -> usize {
        let len = self.len().min(dst.len());
        // SAFETY: as in copy_to_guest.
        unsafe { copy::copy_in(dst.ptr.as_ptr(), self.ptr.as_ptr(), len) };
        len
    }

    /// Which of its first 64 pages of 4 KiB are in memory, a bit for each, as far as the kernel says (mincore(2)): it
    /// does not for files that this process may neither write nor owns.
    #[must_use]
    pub fn resident(&self) -> u64 {
        const PAGE: usize = BASE_PAGE as usize;
        let start = self.ptr.addr().get() & !(PAGE - 1);
        let end = self.ptr.addr().get() + self.len();
        let mut told = [0u8; 64];
        let pages = (end - start).div_ceil(PAGE).min(told.len());
        let first = self.ptr.as_ptr().map_addr(|_| start).cast();
        // SAFETY: mincore(2) looks at no memory, and writes a byte for each page, of which there is room for as many.
        if unsafe { libc::mincore(first, pages * PAGE, told.as_mut_ptr()) } != 0 {
            return 0;
        }
        told.iter().rev().fold(0, |bits, page| bits << 1 | u64::from(page & 1))
    }

    /// Has all of its pages entered into the page table of this process at once, where the first access to each would
    /// be a fault (`MADV_POPULATE_READ` of madvise(2)). Pages that are not there are made.
    pub fn enter(&self) {
        const PAGE: usize = BASE_PAGE as usize;
        let start = self.ptr.addr().get() & !(PAGE - 1);
        let len = self.ptr.addr().get() + self.len() - start;
        let first = self.ptr.as_ptr().map_addr(|_| start).cast();
        // SAFETY: what is in the pages stays. A kernel that refuses changes nothing.
        unsafe { libc::madvise(first, len, libc::MADV_POPULATE_READ) };
    }
}

/// Most pieces one write may have (`UIO_MAXIOV`).
const MAX_PIECES: usize = 1024;

/// Writes `head` and then `body` to `fd` in one system call, straight from guest memory: one frame
/// to a TAP device.
///
/// Returns the number of bytes written. The bytes in `body` are read by the kernel, not through a
/// checked copy.
///
/// # Errors
/// What writev(2) reports; `EFAULT` when guest memory has vanished; `EMSGSIZE` for more than 1024
/// non-empty pieces.
pub fn write_vectored(
    fd: BorrowedFd<'_>,
    head: &[&[u8]],
    body: &[GuestSlice<'_>],
) -> io::Result<usize> {
    let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_PIECES];
    let mut count = 0;
    let all = head
        .iter()
        .map(|part| (part.as_ptr().cast_mut(), part.len()))
        .chain(body.iter().map(|slice| (slice.ptr.as_ptr(), slice.len())));
    for (ptr, len) in all.filter(|&(_, len)| len > 0) {
        let Some(piece) = pieces.get_mut(count) else {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        };
        piece.write(libc::iovec { iov_base: ptr.cast(), iov_len: len });
        count += 1;
    }
    // SAFETY: the first `count` pieces are initialised; each names a live slice or checked guest
    // memory, and writev only reads from it.
    let written =
        unsafe { libc::writev(fd.as_raw_fd(), pieces.as_ptr().cast(), count as libc::c_int) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests;
