//! What a pop gives: the checked buffers of one descriptor chain.

use std::mem::ManuallyDrop;

use arrayvec::ArrayVec;
use guestmem::{GuestMemory, GuestSlice};

use crate::GuestFault;
use crate::desc::{Descriptor, WRITE};

/// The most buffers one chain may have, whatever the queue size.
pub const MAX_SEGMENTS: usize = 1024;

/// The buffers of one descriptor chain, every one of them checked against the memory table.
///
/// A chain is scratch space: make one, pop into it again and again. [`Chain::new`] allocates and
/// clears nothing (its room for [`MAX_SEGMENTS`] buffers, 16 KiB, is left uninitialised), so one
/// per burst on the stack costs two stores.
pub struct Chain<'m> {
    /// What the driver knows the chain by: goes into [`Used::id`].
    pub id: u16,
    /// Ring descriptors the chain occupies, at least 1: goes into [`Used::descs`].
    pub descs: u16,
    /// How many of `segments` are device-readable; they come first.
    readable: u16,
    readable_len: u32,
    writable_len: u32,
    /// Slices have nothing to drop; without a destructor a chain's borrow of the memory ends with
    /// its last use.
    segments: ManuallyDrop<ArrayVec<GuestSlice<'m>, MAX_SEGMENTS>>,
}

impl Default for Chain<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'m> Chain<'m> {
    /// An empty chain.
    #[inline]
    pub fn new() -> Self {
        Self {
            id: 0,
            descs: 0,
            readable: 0,
            readable_len: 0,
            writable_len: 0,
            segments: ManuallyDrop::new(ArrayVec::new()),
        }
    }

    /// The device-readable buffers, in order.
    #[inline]
    pub fn readable(&self) -> &[GuestSlice<'m>] {
        self.segments.get(..usize::from(self.readable)).unwrap_or_default()
    }

    /// The device-writable buffers, in order.
    #[inline]
    pub fn writable(&self) -> &[GuestSlice<'m>] {
        self.segments.get(usize::from(self.readable)..).unwrap_or_default()
    }

    /// Bytes in [`Chain::readable`].
    #[inline]
    pub fn readable_len(&self) -> u32 {
        self.readable_len
    }

    /// Bytes in [`Chain::writable`].
    #[inline]
    pub fn writable_len(&self) -> u32 {
        self.writable_len
    }

    /// The record that gives this chain back with `len` bytes written into it.
    #[inline]
    pub fn used(&self, len: u32) -> Used {
        Used { id: self.id, descs: self.descs, len }
    }

    /// Becomes the chain of one direct descriptor: what nearly every frame is.
    #[inline]
    pub(crate) fn set_one(
        &mut self,
        buffer: GuestSlice<'m>,
        id: u16,
        writable: bool,
    ) -> Result<(), GuestFault> {
        let len = buffer.len() as u32;
        self.id = id;
        self.descs = 1;
        self.readable = u16::from(!writable);
        self.readable_len = if writable { 0 } else { len };
        self.writable_len = if writable { len } else { 0 };
        self.segments.clear();
        self.push_segment(buffer)
    }

    /// Forgets the buffers of the pop before.
    pub(crate) fn clear(&mut self) {
        self.descs = 0;
        self.readable = 0;
        self.readable_len = 0;
        self.writable_len = 0;
        self.segments.clear();
    }

    /// Adds the buffer of one more descriptor.
    pub(crate) fn push(
        &mut self,
        mem: &'m GuestMemory,
        desc: &Descriptor,
    ) -> Result<(), GuestFault> {
        let slice = buffer(mem, desc)?;
        // One sum for both kinds: a chain is limited to 2^32 bytes in all (2.7.5.2).
        let before = self.readable_len + self.writable_len;
        if before.checked_add(desc.len).is_none() {
            return Err(GuestFault::ChainTooLarge);
        }
        if desc.has(WRITE) {
            self.writable_len += desc.len;
        } else if self.writable_len != 0 {
            return Err(GuestFault::ReadableAfterWritable);
        } else {
            self.readable_len += desc.len;
            self.readable += 1;
        }
        self.push_segment(slice)
    }

    #[inline]
    fn push_segment(&mut self, slice: GuestSlice<'m>) -> Result<(), GuestFault> {
        self.segments.try_push(slice).map_err(|_| GuestFault::TooManySegments)
    }
}

/// The checked buffer of one direct descriptor.
#[inline(always)]
pub(crate) fn buffer<'m>(
    mem: &'m GuestMemory,
    desc: &Descriptor,
) -> Result<GuestSlice<'m>, GuestFault> {
    match mem.slice(desc.addr, desc.len) {
        Some(slice) if desc.len != 0 => Ok(slice),
        _ => Err(bad_buffer(desc.addr, desc.len)),
    }
}

#[cold]
fn bad_buffer(addr: u64, len: u32) -> GuestFault {
    if len == 0 { GuestFault::ZeroLength } else { GuestFault::BufferOutside { addr, len } }
}

/// A chain given back to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// [`Chain::id`].
    pub id: u16,
    /// [`Chain::descs`].
    pub descs: u16,
    /// Bytes written into the chain, from the start of its first writable buffer.
    pub len: u32,
}
