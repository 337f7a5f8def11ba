//! A device that does nothing: whatever is made available is used at once, no frame is read or
//! written. What the generator reaches with it is the generator's own limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guestmem::{GuestMemory, RingArea};
use testkit::driver::{DriverError, DriverQueue, flags};
use testkit::frontend::{QueueFds, SharedMemory};

use super::GeneratorError;
use super::buffers::HEADER;
use super::card::{Card, Layout};
use super::ring::{Ring, area};
use super::traffic::{Traffic, TrafficSpec, frames_of, source};

/// Most frames in one turn.
const BURST: u16 = 32;

/// The device side of one queue.
struct NullQueue {
    packed: bool,
    desc: RingArea,
    driver: RingArea,
    device: RingArea,
    size: u16,
    /// Entries used so far, modulo 2^16 (split) or as slot (packed).
    at: u16,
    /// Packed: the wrap counter.
    wrap: bool,
    /// Bytes that are said to have been written to each.
    written: u32,
}

impl NullQueue {
    fn new(mem: &Arc<GuestMemory>, queue: &DriverQueue, written: u32) -> Result<Self, DriverError> {
        let (spec, at) = (queue.spec(), queue.addresses());
        let n = u32::from(spec.size);
        let device = area(mem, at.device, 6 + 8 * n, 4)?;
        // No kicks: this thread always looks.
        device.store_u32(0, if spec.packed { 1 << 16 } else { 1 });
        Ok(NullQueue {
            packed: spec.packed,
            desc: area(mem, at.desc, 16 * n, 16)?,
            driver: area(mem, at.driver, 6 + 2 * n, 2)?,
            device,
            size: spec.size,
            at: 0,
            wrap: true,
            written,
        })
    }

    /// Entries that are available, at most a burst.
    fn available(&self) -> u16 {
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

    /// Marks the next `count` entries used.
    fn complete(&mut self, count: u16) {
        for _ in 0..count {
            if self.packed {
                let marks = if self.wrap { flags::AVAIL | flags::USED } else { 0 };
                let rest =
                    u64::from(self.written) | u64::from(self.at) << 32 | u64::from(marks) << 48;
                self.desc.store_u64_release(16 * usize::from(self.at) + 8, rest);
                self.at += 1;
                if self.at == self.size {
                    (self.at, self.wrap) = (0, !self.wrap);
                }
            } else {
                let slot = self.at & (self.size - 1);
                let place = 4 + 8 * usize::from(slot);
                self.device.store_u32(place, slot.into());
                self.device.store_u32(place + 4, self.written);
                self.at = self.at.wrapping_add(1);
            }
        }
        if !self.packed && count > 0 {
            self.device.store_u16_release(2, self.at);
        }
    }
}

/// The device of all cards.
pub struct NullDevice {
    /// A TX queue, the RX queue at the other end of its path, turns without a full burst.
    paths: Vec<(NullQueue, NullQueue, u32)>,
    /// Single frames are used at once, rather than bursts.
    pub eager: bool,
}

impl NullDevice {
    /// Traffic whose cards are all connected to a device that does nothing.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn traffic<R: Ring>(
        cards: usize,
        spec: &TrafficSpec,
        memory: &SharedMemory,
    ) -> Result<(NullDevice, Traffic<R>), GeneratorError> {
        let mut layout = Layout::new(memory);
        let (mut made, mut queues): (Vec<Card<R>>, Vec<Vec<Option<NullQueue>>>) =
            (Vec::new(), Vec::new());
        for index in 0..cards {
            let source = source(index, spec, &made)?;
            let mut mine = Vec::new();
            let mem = memory.guest();
            made.push(Card::lay_out(
                &spec.card,
                mem,
                &mut layout,
                spec.size,
                &source,
                |queue, index| {
                    let written = if index % 2 == 0 { HEADER + spec.size } else { 0 };
                    mine.push(Some(NullQueue::new(mem, queue, written)?));
                    let failed = |_| GeneratorError::Pairing;
                    let event = || sys::EventFd::new().map_err(failed);
                    Ok(QueueFds { kick: event()?, call: event()?, err: event()? })
                },
            )?);
            queues.push(mine);
        }
        let mut paths = Vec::new();
        for index in 0..cards {
            for pair in 0..usize::from(spec.card.queues) {
                let mut take =
                    |card: usize, queue: usize| queues.get_mut(card)?.get_mut(queue)?.take();
                if let (Some(tx), Some(rx)) = (take(index, 2 * pair + 1), take(index ^ 1, 2 * pair))
                {
                    paths.push((tx, rx, 0));
                }
            }
        }
        for (index, card) in made.iter().enumerate() {
            card.prefill(memory.guest(), &frames_of(index ^ 1, spec));
        }
        Ok((NullDevice { paths, eager: false }, Traffic::over(made, spec, memory)?))
    }

    /// Uses everything at once, until told to stop.
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.turn();
        }
    }

    /// One turn of all queues.
    pub fn turn(&mut self) {
        for (tx, rx, waited) in &mut self.paths {
            let count = tx.available().min(rx.available());
            // In bursts, as a switch under load does.
            *waited += 1;
            if self.eager || count == BURST || *waited > 16 {
                *waited = 0;
                tx.complete(count);
                rx.complete(count);
            }
        }
    }
}
