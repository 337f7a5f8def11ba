//! The device side of queues, for devices that are part of this program.

use std::sync::Arc;

use guestmem::{GuestMemory, RingArea};
use testkit::driver::{DriverError, DriverQueue, flags};
use testkit::frontend::{QueueFds, SharedMemory};

use super::GeneratorError;
use super::card::{Card, Layout};
use super::ring::{Ring, area};
use super::traffic::{TrafficSpec, source};

/// Most frames in one turn.
pub(super) const BURST: u16 = 32;

/// The device side of one queue.
pub(super) struct DeviceQueue {
    packed: bool,
    desc: RingArea<16>,
    driver: RingArea<2>,
    device: RingArea<4>,
    size: u16,
    /// Entries used so far, modulo 2^16 (split) or as slot (packed).
    at: u16,
    /// Packed: the wrap counter.
    wrap: bool,
}

impl DeviceQueue {
    fn new(mem: &Arc<GuestMemory>, queue: &DriverQueue) -> Result<Self, DriverError> {
        let (spec, at) = (queue.spec(), queue.addresses());
        let n = u32::from(spec.size);
        let device = area(mem, at.device, 6 + 8 * n)?;
        // No kicks: this thread always looks.
        device.store_u32(0, if spec.packed { 1 << 16 } else { 1 });
        Ok(DeviceQueue {
            packed: spec.packed,
            desc: area(mem, at.desc, 16 * n)?,
            driver: area(mem, at.driver, 6 + 2 * n)?,
            device,
            size: spec.size,
            at: 0,
            wrap: true,
        })
    }

    /// Entries that are available, at most a burst.
    pub(super) fn available(&self) -> u16 {
        if !self.packed {
            return self.driver.load_u16_acquire(2).wrapping_sub(self.at).min(BURST);
        }
        let (mut slot, mut wrap, mut count) = (self.at, self.wrap, 0);
        while count < BURST {
            let marks = self.desc.load_u16_acquire(16 * usize::from(slot) + 14);
            let avail = marks & flags::AVAIL != 0;
            if avail != wrap || (marks & flags::USED != 0) == wrap {
                break;
            }
            count += 1;
            slot += 1;
            if slot == self.size {
                (slot, wrap) = (0, !wrap);
            }
        }
        count
    }

    /// Guest physical address and length of the next entry's buffer.
    pub(super) fn buffer(&self) -> (u64, u32) {
        let slot = if self.packed { self.at } else { self.at & (self.size - 1) };
        // Entry `s` of a split ring is descriptor `s`: see `Split`.
        let at = 16 * usize::from(slot);
        (self.desc.load_u64(at), self.desc.load_u32(at + 8))
    }

    /// Marks the next `count` entries used, with so many bytes written to each.
    pub(super) fn complete(&mut self, count: u16, written: u32) {
        for _ in 0..count {
            if self.packed {
                let marks = if self.wrap { flags::AVAIL | flags::USED } else { 0 };
                let rest = u64::from(written) | u64::from(self.at) << 32 | u64::from(marks) << 48;
                self.desc.store_u64_release(16 * usize::from(self.at) + 8, rest);
                self.at += 1;
                if self.at == self.size {
                    (self.at, self.wrap) = (0, !self.wrap);
                }
            } else {
                let slot = self.at & (self.size - 1);
                let place = 4 + 8 * usize::from(slot);
                self.device.store_u32(place, slot.into());
                self.device.store_u32(place + 4, written);
                self.at = self.at.wrapping_add(1);
            }
        }
        if !self.packed && count > 0 {
            self.device.store_u16_release(2, self.at);
        }
    }
}

/// Cards, and of each its RX and TX queues in turn.
pub(super) type Cards<R> = (Vec<Card<R>>, Vec<Vec<DeviceQueue>>);

/// Cards whose queues belong to a device here.
///
/// # Errors
/// See [`GeneratorError`].
pub(super) fn cards<R: Ring>(
    count: usize,
    spec: &TrafficSpec,
    memory: &SharedMemory,
) -> Result<Cards<R>, GeneratorError> {
    let mut layout = Layout::new(memory);
    let (mut made, mut queues): Cards<R> = (Vec::new(), Vec::new());
    for index in 0..count {
        let source = source(index, spec, &made)?;
        let (mem, mut mine) = (memory.guest(), Vec::new());
        made.push(Card::lay_out(&spec.card, mem, &mut layout, spec.size, &source, |queue, _| {
            mine.push(DeviceQueue::new(mem, queue)?);
            let event = || {
                sys::EventFd::new()
                    .map_err(|source| GeneratorError::Device { what: "an eventfd", source })
            };
            Ok(QueueFds { kick: event()?, call: event()?, err: event()? })
        })?);
        queues.push(mine);
    }
    Ok((made, queues))
}
