//! Every field of a ring, to read and to write at will: how a test lies.

use std::sync::Arc;

use guestmem::{GuestMemory, RingArea};

use super::{DriverError, RingSpec};

/// Descriptor flags (virtio 1.3, 2.7.5 and 2.8.1).
pub mod flags {
    /// The chain goes on.
    pub const NEXT: u16 = 1;
    /// The device may write this buffer.
    pub const WRITE: u16 = 2;
    /// The buffer is a table of descriptors.
    pub const INDIRECT: u16 = 4;
    /// Packed: made available in this lap, if it equals the wrap counter.
    pub const AVAIL: u16 = 1 << 7;
    /// Packed: used in this lap, if it equals the wrap counter.
    pub const USED: u16 = 1 << 15;
}

/// A descriptor of either format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawDesc {
    /// Guest physical address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// See [`flags`].
    pub flags: u16,
    /// Split: next. Packed: buffer id.
    pub tag: u16,
}

impl RawDesc {
    /// As a `struct virtq_desc`, in two halves.
    pub fn split(&self) -> [u64; 2] {
        let (flags, tag) = (u64::from(self.flags), u64::from(self.tag));
        [self.addr, u64::from(self.len) | flags << 32 | tag << 48]
    }

    /// As a `struct pvirtq_desc`, in two halves.
    pub fn packed(&self) -> [u64; 2] {
        let (flags, tag) = (u64::from(self.flags), u64::from(self.tag));
        [self.addr, u64::from(self.len) | tag << 32 | flags << 48]
    }
}

/// The three parts of a ring.
///
/// Indices are taken as they are: beyond the ring, loads give 0 and stores do nothing (and debug
/// builds panic).
pub struct Raw {
    /// Descriptor table, or packed ring.
    pub desc: RingArea<16>,
    /// Avail ring, or driver event suppression.
    pub driver: RingArea<4>,
    /// Used ring, or device event suppression.
    pub device: RingArea<4>,
    size: usize,
    packed: bool,
}

impl Raw {
    pub(super) fn new(mem: &Arc<GuestMemory>, spec: &RingSpec) -> Result<Raw, DriverError> {
        let n = u32::from(spec.size);
        let at = spec.addresses();
        fn area<const ALIGN: usize>(
            mem: &Arc<GuestMemory>,
            gpa: u64,
            len: u32,
        ) -> Result<RingArea<ALIGN>, DriverError> {
            RingArea::new(Arc::clone(mem), gpa, len).ok_or(DriverError::Outside { gpa })
        }
        Ok(Raw {
            desc: area(mem, at.desc, 16 * n)?,
            driver: area(mem, at.driver, 6 + 2 * n)?,
            device: area(mem, at.device, 6 + 8 * n)?,
            size: usize::from(spec.size),
            packed: spec.packed,
        })
    }

    /// Writes descriptor `index` whole.
    #[inline]
    pub fn set_desc(&self, index: u16, desc: &RawDesc) {
        let [addr, rest] = if self.packed { desc.packed() } else { desc.split() };
        let at = 16 * usize::from(index);
        self.desc.store_u64(at, addr);
        self.desc.store_u64_release(at + 8, rest);
    }

    /// Reads descriptor `index` whole.
    #[inline]
    pub fn desc(&self, index: u16) -> RawDesc {
        let [addr, rest] = self.desc.load_desc(16 * usize::from(index));
        let (len, low, high) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
        let (flags, tag) = if self.packed { (high, low) } else { (low, high) };
        RawDesc { addr, len, flags, tag }
    }

    /// Split: `avail.flags`, 1 for no interrupts.
    #[inline]
    pub fn set_avail_flags(&self, flags: u16) {
        self.driver.store_u16(0, flags);
    }

    /// Split: `avail.idx`.
    #[inline]
    pub fn set_avail_idx(&self, index: u16) {
        self.driver.store_u16_release(2, index);
    }

    /// Split: entry `slot` of the avail ring.
    #[inline]
    pub fn set_avail_entry(&self, slot: u16, head: u16) {
        self.driver.store_u16(4 + 2 * usize::from(slot), head);
    }

    /// Split: `avail.used_event`.
    #[inline]
    pub fn set_used_event(&self, event: u16) {
        self.driver.store_u16(4 + 2 * self.size, event);
    }

    /// Split: `used.flags`, 1 for no kicks.
    #[inline]
    pub fn used_flags(&self) -> u16 {
        self.device.load_u16(0)
    }

    /// Split: `used.idx`, as the device stored it or as a lie left it.
    #[inline]
    pub fn used_idx(&self) -> u16 {
        self.device.load_u16_acquire(2)
    }

    /// Split: overwrites `used.idx`.
    pub fn set_used_idx(&self, index: u16) {
        self.device.store_u16(2, index);
    }

    /// Split: entry `slot` of the used ring, id and length.
    #[inline]
    pub fn used_entry(&self, slot: u16) -> (u32, u32) {
        let at = 4 + 8 * usize::from(slot);
        (self.device.load_u32(at), self.device.load_u32(at + 4))
    }

    /// Split: overwrites entry `slot` of the used ring.
    pub fn set_used_entry(&self, slot: u16, id: u32, len: u32) {
        let at = 4 + 8 * usize::from(slot);
        self.device.store_u32(at, id);
        self.device.store_u32(at + 4, len);
    }

    /// Split: `used.avail_event`.
    #[inline]
    pub fn avail_event(&self) -> u16 {
        self.device.load_u16(4 + 8 * self.size)
    }

    /// Packed: the flags of descriptor `index`.
    #[inline]
    pub fn desc_flags(&self, index: u16) -> u16 {
        self.desc.load_u16_acquire(16 * usize::from(index) + 14)
    }

    /// Packed: overwrites the flags of descriptor `index`, which makes it available.
    #[inline]
    pub fn set_desc_flags(&self, index: u16, flags: u16) {
        self.desc.store_u16_release(16 * usize::from(index) + 14, flags);
    }

    /// Packed: the driver event suppression, position and flags.
    #[inline]
    pub fn set_driver_event(&self, position: u16, flags: u16) {
        self.driver.store_u32(0, u32::from(flags) << 16 | u32::from(position));
    }

    /// Packed: the device event suppression, position and flags.
    #[inline]
    pub fn device_event(&self) -> (u16, u16) {
        let event = self.device.load_u32(0);
        (event as u16, (event >> 16) as u16)
    }
}
