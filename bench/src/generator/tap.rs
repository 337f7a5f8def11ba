//! A device whose ports are TAP interfaces: what a virtual machine has without vhost, where one
//! thread of the hypervisor carries frames between its queues and the kernel, a system call each.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guestmem::GuestMemory;
use sys::tap::TapQueue;
use testkit::frontend::SharedMemory;

use super::GeneratorError;
use super::buffers::HEADER;
use super::device::{BURST, DeviceQueue, cards};
use super::frames::MAX_SIZE;
use super::ring::Ring;
use super::traffic::{Traffic, TrafficSpec};

/// A card and its interface.
struct Port<'a> {
    tx: DeviceQueue,
    rx: DeviceQueue,
    tap: &'a TapQueue,
}

/// The device of all cards.
pub struct TapDevice<'a> {
    mem: Arc<GuestMemory>,
    ports: Vec<Port<'a>>,
    frame: Vec<u8>,
}

impl<'a> TapDevice<'a> {
    /// Traffic with a card for each interface, of one queue pair. No frame travels before the
    /// device runs; then call [`Traffic::learn`].
    ///
    /// # Errors
    /// See [`GeneratorError`].
    pub fn traffic<R: Ring>(
        taps: &'a [TapQueue],
        spec: &TrafficSpec,
        memory: &SharedMemory,
    ) -> Result<(TapDevice<'a>, Traffic<R>), GeneratorError> {
        let (made, queues) = cards::<R>(taps.len(), spec, memory)?;
        let mut ports = Vec::new();
        for (card, tap) in queues.into_iter().zip(taps) {
            let [rx, tx] =
                <[DeviceQueue; 2]>::try_from(card).map_err(|_| GeneratorError::Pairing)?;
            ports.push(Port { tx, rx, tap });
        }
        let frame = vec![0; (HEADER + MAX_SIZE) as usize];
        let device = TapDevice { mem: Arc::clone(memory.guest()), ports, frame };
        Ok((device, Traffic::over(made, spec, memory)?))
    }

    /// Carries frames until told to stop.
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let Self { mem, ports, frame } = self;
            for port in ports {
                port.send(mem, frame);
                port.receive(mem, frame);
            }
        }
    }
}

impl Port<'_> {
    fn send(&mut self, mem: &GuestMemory, frame: &mut [u8]) {
        for _ in 0..self.tx.available() {
            let (address, len) = self.tx.buffer();
            if let (Some(place), Some(frame)) =
                (mem.slice(address, len), frame.get_mut(..len as usize))
            {
                place.copy_to(frame);
                // A frame the kernel has no room for is lost.
                let _ = self.tap.write(&[IoSlice::new(frame)]);
            }
            self.tx.complete(1, 0);
        }
    }

    fn receive(&mut self, mem: &GuestMemory, frame: &mut [u8]) {
        for _ in 0..self.rx.available().min(BURST) {
            let Ok(len) = self.tap.read(frame) else { return };
            // num_buffers: the kernel does not know where frames go.
            if let Some(count) = frame.get_mut(10..HEADER as usize) {
                count.copy_from_slice(&1_u16.to_le_bytes());
            }
            let (address, room) = self.rx.buffer();
            let len = len.min(room as usize);
            if let (Some(place), Some(frame)) = (mem.slice(address, len as u32), frame.get(..len)) {
                place.copy_from(frame);
            }
            self.rx.complete(1, len as u32);
        }
    }
}
