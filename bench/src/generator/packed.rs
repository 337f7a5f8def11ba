//! The packed ring (virtio 1.3, 2.8), driver side, one static descriptor per entry.

use std::sync::Arc;

use guestmem::{GuestMemory, RingArea};
use testkit::driver::{DriverError, RingSpec, flags};

use super::buffers::Buffers;
use super::ring::{Ring, RingFault, area};

/// Event suppression flags.
const DISABLE: u32 = 1;

/// Marks of a descriptor.
const BOTH: u16 = flags::AVAIL | flags::USED;

/// A slot and its wrap counter.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    slot: u16,
    wrap: bool,
}

impl Cursor {
    #[inline(always)]
    fn advance(&mut self, count: u16, size: u16) {
        self.slot += count;
        if self.slot >= size {
            self.slot -= size;
            self.wrap = !self.wrap;
        }
    }
}

/// A packed queue.
pub struct Packed {
    desc: RingArea<16>,
    /// Kept mapped; written once: no interrupts.
    _driver: RingArea<4>,
    device: RingArea<4>,
    size: u16,
    in_order: bool,
    avail: Cursor,
    used: Cursor,
    free: u16,
    buffers: Buffers,
    /// Length and flags of every descriptor, without id and marks.
    template: u64,
    fault: Option<RingFault>,
}

impl Ring for Packed {
    fn new(mem: &Arc<GuestMemory>, spec: &RingSpec, buffers: Buffers) -> Result<Self, DriverError> {
        let (size, at) = (spec.size, spec.addresses());
        let desc = area(mem, at.desc, 16 * u32::from(size))?;
        let driver = area(mem, at.driver, 4)?;
        let device = area(mem, at.device, 4)?;
        driver.store_u32(0, DISABLE << 16);
        device.store_u32(0, 0);
        for slot in 0..size {
            desc.store_u64(16 * usize::from(slot), buffers.address(slot.into()));
            desc.store_u64(16 * usize::from(slot) + 8, 0);
        }
        let write = if buffers.writable { flags::WRITE } else { 0 };
        Ok(Packed {
            desc,
            _driver: driver,
            device,
            size,
            in_order: spec.in_order,
            avail: Cursor { slot: 0, wrap: true },
            used: Cursor { slot: 0, wrap: true },
            free: size,
            buffers,
            template: u64::from(buffers.len) | u64::from(write) << 48,
            fault: None,
        })
    }

    #[inline(always)]
    fn used(&self, ahead: u16) -> bool {
        let mut at = self.used;
        at.advance(ahead, self.size);
        let marks = self.desc.load_u16_acquire(16 * usize::from(at.slot) + 14) & BOTH;
        marks == if at.wrap { BOTH } else { 0 } && ahead < self.size - self.free
    }

    #[inline(always)]
    fn reap(&mut self, max: u16, mut each: impl FnMut(u16, u32)) -> u16 {
        let outstanding = self.size - self.free;
        let max = max.min(outstanding);
        let mut taken = 0;
        while taken < max {
            let slot = self.used.slot;
            let rest = self.desc.load_u64_acquire(16 * usize::from(slot) + 8);
            let marks = (rest >> 48) as u16 & BOTH;
            if marks != if self.used.wrap { BOTH } else { 0 } {
                break;
            }
            let id = (rest >> 32) as u16;
            let mut count = 1;
            if id != slot {
                count = self.batch(id, outstanding - taken);
                if count == 0 {
                    break;
                }
            }
            for step in 0..count {
                let at = slot + step;
                each(if at >= self.size { at - self.size } else { at }, rest as u32);
            }
            self.used.advance(count, self.size);
            taken += count;
        }
        self.free += taken;
        taken
    }

    #[inline(always)]
    fn publish(&mut self, count: u16) {
        debug_assert!(count <= self.free);
        for _ in 0..count {
            let slot = self.avail.slot;
            let at = 16 * usize::from(slot);
            let mark = if self.avail.wrap { flags::AVAIL } else { flags::USED };
            let rest = self.template | u64::from(slot) << 32 | u64::from(mark) << 48;
            self.desc.store_u64_release(at + 8, rest);
            self.avail.advance(1, self.size);
        }
        self.free -= count;
    }

    fn position(&self) -> (u16, u16) {
        (self.avail.slot, self.used.slot)
    }

    fn free(&self) -> u16 {
        self.free
    }

    #[inline(always)]
    fn upcoming(&self, ahead: u16) -> u16 {
        let mut at = self.avail;
        at.advance(ahead, self.size);
        at.slot
    }

    #[inline(always)]
    fn wants_kick(&self) -> bool {
        // Without event-idx there is nothing between yes and no.
        self.device.load_u32(0) >> 16 & 3 != DISABLE
    }

    fn fault(&self) -> Option<RingFault> {
        self.fault
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }
}

impl Packed {
    /// How many buffers a used descriptor with this id stands for: with `VIRTIO_F_IN_ORDER` all up
    /// to it. 0: a fault.
    #[cold]
    fn batch(&mut self, id: u16, outstanding: u16) -> u16 {
        let slot = self.used.slot;
        if !self.in_order || id >= self.size {
            self.fault = Some(RingFault::OutOfOrder { got: id.into(), expected: slot });
            return 0;
        }
        let ahead = if id >= slot { id - slot } else { id + self.size - slot };
        if ahead >= outstanding {
            self.fault = Some(RingFault::TooMany { count: ahead + 1, outstanding });
            return 0;
        }
        ahead + 1
    }
}
