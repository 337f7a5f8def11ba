//! The split ring (virtio 1.3, 2.7), driver side, descriptor table and avail ring static.

use std::sync::Arc;

use guestmem::{GuestMemory, RingArea};
use testkit::driver::{DriverError, RingSpec, flags};

use super::buffers::Buffers;
use super::ring::{Ring, RingFault, area};

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`.
const NO_EVENT: u16 = 1;

/// A split queue. Entry `s` of the avail ring is descriptor `s`, for ever.
pub struct Split {
    /// Kept mapped; written once.
    _desc: RingArea<16>,
    driver: RingArea<2>,
    device: RingArea<4>,
    size: u16,
    avail_idx: u16,
    used_idx: u16,
    buffers: Buffers,
    fault: Option<RingFault>,
}

impl Ring for Split {
    fn new(mem: &Arc<GuestMemory>, spec: &RingSpec, buffers: Buffers) -> Result<Self, DriverError> {
        let (size, at) = (spec.size, spec.addresses());
        let n = u32::from(size);
        let desc = area(mem, at.desc, 16 * n)?;
        let driver = area(mem, at.driver, 6 + 2 * n)?;
        let device = area(mem, at.device, 6 + 8 * n)?;
        let write = if buffers.writable { flags::WRITE } else { 0 };
        for slot in 0..size {
            let entry = usize::from(slot);
            desc.store_u64(16 * entry, buffers.address(slot.into()));
            desc.store_u64(16 * entry + 8, u64::from(buffers.len) | u64::from(write) << 32);
            driver.store_u16(4 + 2 * entry, slot);
        }
        driver.store_u16(0, NO_EVENT);
        driver.store_u16(2, 0);
        device.store_u32(0, 0);
        let (avail_idx, used_idx) = (0, 0);
        Ok(Split { _desc: desc, driver, device, size, avail_idx, used_idx, buffers, fault: None })
    }

    #[inline(always)]
    fn used(&self, ahead: u16) -> bool {
        self.device.load_u16_acquire(2).wrapping_sub(self.used_idx) > ahead
    }

    #[inline(always)]
    fn reap(&mut self, max: u16, mut each: impl FnMut(u16, u32)) -> u16 {
        let count = self.device.load_u16_acquire(2).wrapping_sub(self.used_idx);
        let outstanding = self.avail_idx.wrapping_sub(self.used_idx);
        if count > outstanding {
            self.fault = Some(RingFault::TooMany { count, outstanding });
            return 0;
        }
        let count = count.min(max);
        for step in 0..count {
            let slot = self.used_idx.wrapping_add(step) & (self.size - 1);
            let at = 4 + 8 * usize::from(slot);
            let (id, len) = (self.device.load_u32(at), self.device.load_u32(at + 4));
            if id != u32::from(slot) {
                self.fault = Some(RingFault::OutOfOrder { got: id, expected: slot });
                return 0;
            }
            each(slot, len);
        }
        self.used_idx = self.used_idx.wrapping_add(count);
        count
    }

    #[inline(always)]
    fn publish(&mut self, count: u16) {
        debug_assert!(count <= self.free());
        self.avail_idx = self.avail_idx.wrapping_add(count);
        self.driver.store_u16_release(2, self.avail_idx);
    }

    fn position(&self) -> (u16, u16) {
        (self.avail_idx & (self.size - 1), self.used_idx & (self.size - 1))
    }

    #[inline(always)]
    fn free(&self) -> u16 {
        self.size - self.avail_idx.wrapping_sub(self.used_idx)
    }

    #[inline(always)]
    fn upcoming(&self, ahead: u16) -> u16 {
        self.avail_idx.wrapping_add(ahead) & (self.size - 1)
    }

    #[inline(always)]
    fn wants_kick(&self) -> bool {
        self.device.load_u16(0) & NO_EVENT == 0
    }

    fn fault(&self) -> Option<RingFault> {
        self.fault
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }
}
