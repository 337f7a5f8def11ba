//! Rows of entries whose number is a power of two, as in a split virtqueue.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::RingArea;
use crate::memory::GuestMemory;

/// A part of a virtqueue that is a row of entries of `STRIDE` bytes each behind `HEAD` bytes: as many as a
/// power of two. Numbers are taken modulo that, so that all are inside and none has to be checked.
#[derive(Debug)]
pub struct RingEntries<const HEAD: usize, const STRIDE: usize, const ALIGN: usize> {
    area: RingArea<ALIGN>,
    /// How many entries there are, less one.
    mask: u16,
}

impl<const HEAD: usize, const STRIDE: usize, const ALIGN: usize> RingEntries<HEAD, STRIDE, ALIGN> {
    /// Those at `gpa`, and `tail` bytes behind them; `None` if they are not all in guest memory and
    /// aligned, or their number is no power of two.
    #[must_use]
    pub fn new(memory: Arc<GuestMemory>, gpa: u64, entries: u16, tail: u32) -> Option<Self> {
        const { assert!(HEAD.is_multiple_of(ALIGN) && STRIDE.is_multiple_of(ALIGN)) };
        const { assert!(HEAD <= 64 && STRIDE <= 64) };
        if !entries.is_power_of_two() {
            return None;
        }
        // At most 64 + 2^15 * 64 before the tail.
        let len = (HEAD + STRIDE * usize::from(entries)) as u32;
        let area = RingArea::new(memory, gpa, len.checked_add(tail)?)?;
        Some(Self { area, mask: entries - 1 })
    }

    /// All of it, with what is in front of the entries and behind them.
    #[inline(always)]
    #[must_use]
    pub fn area(&self) -> &RingArea<ALIGN> {
        &self.area
    }

    /// The address of an entry that has `N` bytes aligned to `N` at `AT`.
    #[inline(always)]
    fn place<const AT: usize, const N: usize>(&self, n: u16) -> NonNull<u8> {
        const { assert!(AT + N <= STRIDE && N <= ALIGN && AT.is_multiple_of(N)) };
        let offset = HEAD + usize::from(n & self.mask) * STRIDE + AT;
        // SAFETY: the area has HEAD + (mask + 1) * STRIDE bytes at least, all of which are mapped.
        unsafe { self.area.ptr.add(offset) }
    }

    /// Loads the number that an entry is.
    #[inline(always)]
    #[must_use]
    pub fn load_u16(&self, n: u16) -> u16 {
        let place = self.place::<0, 2>(n).cast();
        // SAFETY: 2 bytes, aligned and mapped as long as the area lives.
        u16::from_le(unsafe { AtomicU16::from_ptr(place.as_ptr()) }.load(Ordering::Relaxed))
    }

    /// Stores both numbers that an entry consists of, one by one.
    #[inline(always)]
    pub fn store_u32s(&self, n: u16, first: u32, second: u32) {
        let (place, next) = (self.place::<0, 4>(n).cast(), self.place::<4, 4>(n).cast());
        // SAFETY: 4 bytes each, aligned and mapped as long as the area lives.
        unsafe {
            AtomicU32::from_ptr(place.as_ptr()).store(first.to_le(), Ordering::Relaxed);
            AtomicU32::from_ptr(next.as_ptr()).store(second.to_le(), Ordering::Relaxed);
        }
    }

    /// Loads a descriptor, as [`RingArea::load_desc`].
    #[inline(always)]
    #[must_use]
    pub fn load_desc(&self, n: u16) -> [u64; 2] {
        let halves = [self.place::<0, 8>(n).cast(), self.place::<8, 8>(n).cast()];
        halves.map(|half| {
            // SAFETY: 8 bytes, aligned and mapped as long as the area lives.
            u64::from_le(unsafe { AtomicU64::from_ptr(half.as_ptr()) }.load(Ordering::Relaxed))
        })
    }

    /// Has the cache line of an entry fetched, to be written.
    #[inline(always)]
    pub fn prefetch_write(&self, n: u16) {
        sys::prefetch::write(self.place::<0, 1>(n).as_ptr());
    }
}

#[cfg(test)]
mod tests;
