//! One descriptor, read from guest memory once and decoded into locals.

use guestmem::GuestSlice;

use crate::Soon;

/// The buffer goes on in another descriptor.
pub(crate) const NEXT: u16 = 1;
/// The device may write this buffer, and not read it.
pub(crate) const WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub(crate) const INDIRECT: u16 = 4;
/// Packed: the driver's mark, compared with the wrap counter.
pub(crate) const AVAIL: u16 = 1 << 7;
/// Packed: the device's mark, compared with the wrap counter.
pub(crate) const USED: u16 = 1 << 15;

/// Bytes of one descriptor, in a ring and in an indirect table alike.
pub(crate) const DESC_SIZE: usize = 16;

/// A snapshot of one descriptor: what is checked is what is used, whatever the guest does to the
/// ring meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    /// Split: `next`. Packed: the buffer id.
    pub(crate) tag: u16,
}

impl Descriptor {
    /// From the two halves of a `struct virtq_desc` (virtio 1.3, 2.7.5).
    #[inline]
    pub(crate) fn split([addr, rest]: [u64; 2]) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 32) as u16, tag: (rest >> 48) as u16 }
    }

    /// From the two halves of a `struct pvirtq_desc` (virtio 1.3, 2.8.13).
    #[inline]
    pub(crate) fn packed([addr, rest]: [u64; 2]) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 48) as u16, tag: (rest >> 32) as u16 }
    }

    /// See [`crate::Queue::peek`].
    #[inline(always)]
    pub(crate) fn soon(&self) -> Soon {
        Soon { addr: self.addr, len: self.len, indirect: self.has(INDIRECT) }
    }

    #[inline]
    pub(crate) fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }
}

/// The halves of entry `index` of an indirect table, read once; the table may have any alignment.
#[inline]
pub(crate) fn table_entry(table: &GuestSlice<'_>, index: u32) -> [u64; 2] {
    let mut raw = [0u8; DESC_SIZE];
    table.skip(index as usize * DESC_SIZE).copy_to(&mut raw);
    let raw = u128::from_le_bytes(raw);
    [raw as u64, (raw >> 64) as u64]
}
