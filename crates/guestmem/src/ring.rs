//! Virtqueue rings in guest memory: single little-endian accesses, checked against the area.

#![expect(unsafe_code)]
// UNSAFETY: atomic accesses through a raw pointer into guest memory; every one is checked for
// bounds and alignment first.

mod entries;

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::memory::GuestMemory;
use crate::slice::GuestSlice;

pub use entries::RingEntries;

/// One part of a virtqueue (descriptor table, available ring, used ring, event structure) in guest
/// memory.
///
/// Offsets are in bytes from its start. Every access is one atomic load or store of the size its
/// name says, of the little-endian number in the ring (virtio 1.3, 2.7 and 2.8); what is not
/// `acquire` or `release` is relaxed. An access that is outside the area or not aligned to its own
/// size is a mistake of the caller: it fails a debug assertion, otherwise loads give 0 and stores
/// do nothing.
///
/// `ALIGN` is what its start is aligned to, in the guest and on this host: a power of two, as the
/// specification demands it for this part. Of accesses no larger than that only the offset is left to
/// be checked, and that not at run time where it is a multiple of so much.
///
/// Keeps the memory mapped as long as it lives.
#[derive(Debug)]
pub struct RingArea<const ALIGN: usize> {
    ptr: NonNull<u8>,
    len: usize,
    memory: Arc<GuestMemory>,
}

// SAFETY: the pointer is into memory that `memory` keeps mapped; all accesses are atomic.
unsafe impl<const ALIGN: usize> Send for RingArea<ALIGN> {}
// SAFETY: as above.
unsafe impl<const ALIGN: usize> Sync for RingArea<ALIGN> {}

impl<const ALIGN: usize> RingArea<ALIGN> {
    /// The `len` bytes at `gpa`, if they are all in guest memory and aligned.
    #[must_use]
    pub fn new(memory: Arc<GuestMemory>, gpa: u64, len: u32) -> Option<Self> {
        const { assert!(ALIGN.is_power_of_two()) };
        let slice = memory.slice(gpa, len)?;
        let (ptr, len) = (slice.ptr, slice.len());
        // A region may lie in the guest otherwise than on this host.
        let aligned = gpa.is_multiple_of(ALIGN as u64) && ptr.addr().get().is_multiple_of(ALIGN);
        aligned.then_some(Self { ptr, len, memory })
    }

    /// The bytes from `off` on, at most all.
    #[inline(always)]
    #[must_use]
    pub fn slice(&self, off: usize) -> GuestSlice<'_> {
        GuestSlice { ptr: self.ptr, len: self.len as u32, memory: PhantomData }.skip(off)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory it is in.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// The address of `N` bytes at `off`, if they are inside and aligned to `A`.
    #[inline(always)]
    fn at<const N: usize, const A: usize>(&self, off: usize) -> Option<*mut u8> {
        let inside = off.checked_add(N).is_some_and(|end| end <= self.len);
        if inside {
            // SAFETY: off + N <= len, all of which is mapped.
            let ptr = unsafe { self.ptr.add(off) };
            // The start is aligned.
            let place = if A <= ALIGN { off } else { ptr.addr().get() };
            if place.is_multiple_of(A) {
                return Some(ptr.as_ptr());
            }
        }
        debug_assert!(false, "ring access of {N} bytes at {off} of {}", self.len);
        None
    }
}

macro_rules! loads {
    ($($name:ident: $int:ty, $atomic:ty, $order:ident;)*) => {
        impl<const ALIGN: usize> RingArea<ALIGN> {$(
            #[doc = concat!("Loads a ", stringify!($int), " at `off` (", stringify!($order), ").")]
            #[inline(always)]
            #[must_use]
            pub fn $name(&self, off: usize) -> $int {
                const SIZE: usize = size_of::<$int>();
                let Some(ptr) = self.at::<SIZE, SIZE>(off) else { return 0 };
                // SAFETY: in bounds, aligned and mapped as long as `self.memory` lives.
                let place = unsafe { <$atomic>::from_ptr(ptr.cast()) };
                <$int>::from_le(place.load(Ordering::$order))
            }
        )*}
    };
}

macro_rules! stores {
    ($($name:ident: $int:ty, $atomic:ty, $order:ident;)*) => {
        impl<const ALIGN: usize> RingArea<ALIGN> {$(
            #[doc = concat!("Stores a ", stringify!($int), " at `off` (", stringify!($order), ").")]
            #[inline(always)]
            pub fn $name(&self, off: usize, value: $int) {
                const SIZE: usize = size_of::<$int>();
                let Some(ptr) = self.at::<SIZE, SIZE>(off) else { return };
                // SAFETY: in bounds, aligned and mapped as long as `self.memory` lives.
                let place = unsafe { <$atomic>::from_ptr(ptr.cast()) };
                place.store(value.to_le(), Ordering::$order);
            }
        )*}
    };
}

loads! {
    load_u16: u16, AtomicU16, Relaxed;
    load_u16_acquire: u16, AtomicU16, Acquire;
    load_u32: u32, AtomicU32, Relaxed;
    load_u32_acquire: u32, AtomicU32, Acquire;
    load_u64: u64, AtomicU64, Relaxed;
    load_u64_acquire: u64, AtomicU64, Acquire;
}

stores! {
    store_u16: u16, AtomicU16, Relaxed;
    store_u16_release: u16, AtomicU16, Release;
    store_u32: u32, AtomicU32, Relaxed;
    store_u32_release: u32, AtomicU32, Release;
    store_u64: u64, AtomicU64, Relaxed;
    store_u64_release: u64, AtomicU64, Release;
}

impl<const ALIGN: usize> RingArea<ALIGN> {
    /// Loads the 16 bytes of a descriptor at `off`, which must be a multiple of 8 from an aligned
    /// start: two relaxed loads, each field in one of them (address; length, then flags and next or
    /// id and flags).
    #[inline(always)]
    #[must_use]
    pub fn load_desc(&self, off: usize) -> [u64; 2] {
        self.desc(off)
            .map_or([0; 2], |halves| halves.map(|half| u64::from_le(half.load(Ordering::Relaxed))))
    }

    /// The same, the second half first (acquire), in which a packed ring says whether the first one counts.
    #[inline(always)]
    #[must_use]
    pub fn load_desc_acquire(&self, off: usize) -> [u64; 2] {
        self.desc(off).map_or([0; 2], |[first, second]| {
            let second = u64::from_le(second.load(Ordering::Acquire));
            [u64::from_le(first.load(Ordering::Relaxed)), second]
        })
    }

    /// As [`RingArea::load_desc`], the descriptor at `off` and those behind it: `count`, as far as they are
    /// inside.
    #[inline(always)]
    pub fn load_descs(&self, off: usize, count: usize) -> impl Iterator<Item = [u64; 2]> {
        let inside = self.len.saturating_sub(off) / 16;
        let descs: &[[AtomicU64; 2]] = match self.at::<0, 8>(off) {
            // SAFETY: so many times 16 bytes are in bounds, aligned to 8 and mapped as long as
            // `self.memory` lives.
            Some(ptr) => unsafe { slice::from_raw_parts(ptr.cast(), count.min(inside)) },
            None => &[],
        };
        descs.iter().map(|[first, second]| {
            [first, second].map(|half| u64::from_le(half.load(Ordering::Relaxed)))
        })
    }

    /// The halves of the descriptor at `off`.
    #[inline(always)]
    fn desc(&self, off: usize) -> Option<[&AtomicU64; 2]> {
        let ptr = self.at::<16, 8>(off)?;
        // SAFETY: 16 bytes in bounds, aligned to 8 and mapped as long as `self.memory` lives.
        Some(unsafe { [AtomicU64::from_ptr(ptr.cast()), AtomicU64::from_ptr(ptr.add(8).cast())] })
    }
}

#[cfg(test)]
mod tests;
