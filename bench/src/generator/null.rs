//! A device that does nothing: whatever is made available is used at once, no frame is read or
//! written. What the generator reaches with it is the generator's own limit.

use std::sync::atomic::{AtomicBool, Ordering};

use testkit::frontend::SharedMemory;

use super::GeneratorError;
use super::buffers::HEADER;
use super::device::{BURST, DeviceQueue, cards};
use super::ring::Ring;
use super::traffic::{Traffic, TrafficSpec, frames_of};

/// A TX queue, and the RX queue at the other end.
struct Path {
    tx: DeviceQueue,
    rx: DeviceQueue,
    /// Turns without a full burst.
    waited: u32,
}

/// The device of all cards.
pub struct NullDevice {
    paths: Vec<Path>,
    /// Bytes said to have been written to each receive buffer.
    written: u32,
    /// Single frames are used at once, rather than bursts.
    pub eager: bool,
}

impl NullDevice {
    /// Traffic whose cards are all connected to a device that does nothing.
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn traffic<R: Ring>(
        count: usize,
        spec: &TrafficSpec,
        memory: &SharedMemory,
    ) -> Result<(NullDevice, Traffic<R>), GeneratorError> {
        let (made, queues) = cards::<R>(count, spec, memory)?;
        let mut queues: Vec<Vec<Option<DeviceQueue>>> =
            queues.into_iter().map(|card| card.into_iter().map(Some).collect()).collect();
        let mut paths = Vec::new();
        for index in 0..count {
            for pair in 0..usize::from(spec.card.queues) {
                let mut take =
                    |card: usize, queue: usize| queues.get_mut(card)?.get_mut(queue)?.take();
                if let (Some(tx), Some(rx)) = (take(index, 2 * pair + 1), take(index ^ 1, 2 * pair))
                {
                    paths.push(Path { tx, rx, waited: 0 });
                }
            }
        }
        for (index, card) in made.iter().enumerate() {
            card.prefill(memory.guest(), &frames_of(index ^ 1, spec));
        }
        let device = NullDevice { paths, written: HEADER + spec.size, eager: false };
        Ok((device, Traffic::over(made, spec, memory)?))
    }

    /// Uses everything at once, until told to stop.
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.turn();
        }
    }

    /// One turn of all queues.
    pub fn turn(&mut self) {
        for Path { tx, rx, waited } in &mut self.paths {
            let count = tx.available().min(rx.available());
            // In bursts, as a switch under load does.
            *waited += 1;
            if self.eager || count == BURST || *waited > 16 {
                *waited = 0;
                tx.complete(count, 0);
                rx.complete(count, self.written);
            }
        }
    }
}
