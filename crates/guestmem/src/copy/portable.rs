//! Copies for processors without a routine of their own: volatile accesses of 16 bytes and of one
//! byte.

#![expect(unsafe_code)]
// UNSAFETY: volatile accesses through raw pointers; the caller answers for their ranges.

use std::ptr::{read_volatile, write_volatile};

/// Sixteen bytes at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Chunk([u64; 2]);

/// Copies `len` bytes forward. Where the ranges overlap, some mixture of old and new bytes is the
/// result.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes. Both may change meanwhile.
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let whole = len & !(size_of::<Chunk>() - 1);
    let mut at = 0;
    while at < whole {
        // SAFETY: at + 16 <= len; Chunk has an alignment of one.
        unsafe {
            write_volatile(dst.add(at).cast::<Chunk>(), read_volatile(src.add(at).cast::<Chunk>()));
        };
        at += size_of::<Chunk>();
    }
    while at < len {
        // SAFETY: at < len.
        unsafe { write_volatile(dst.add(at), read_volatile(src.add(at))) };
        at += 1;
    }
}
