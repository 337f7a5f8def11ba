//! A ring with both its ends, in one process.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;

use guestmem::{GuestMemory, GuestSlice};
use testkit::driver::{self, Buffer, DriverQueue, RingSpec};
use virtqueue::{Chain, Queue, QueueConfig};

/// Where guest memory starts, where the ring is, and where buffers are.
pub(crate) const START: u64 = 0x10_0000;
pub(crate) const RING: u64 = START;
pub(crate) const DATA: u64 = START + (4 << 20);
/// Bytes of guest memory.
pub(crate) const SIZE: u64 = 8 << 20;

/// A driver, a device and their memory.
pub(crate) struct World {
    pub(crate) mem: Arc<GuestMemory>,
    pub(crate) driver: DriverQueue,
    pub(crate) device: Queue,
}

/// The device's view of a ring a driver laid out.
pub(crate) fn config(driver: &DriverQueue) -> QueueConfig {
    let (spec, at) = (driver.spec(), driver.addresses());
    QueueConfig {
        size: spec.size,
        packed: spec.packed,
        event_idx: spec.event_idx,
        indirect: spec.table_len != 0,
        in_order: spec.in_order,
        desc: at.desc,
        avail: at.driver,
        used: at.device,
        base: driver.base(),
    }
}

impl World {
    pub(crate) fn new(spec: &RingSpec) -> World {
        let mem = driver::memory(&[(START, SIZE)]).unwrap();
        let driver = DriverQueue::new(&mem, spec).unwrap();
        let device = Queue::new(&mem, &config(&driver)).unwrap();
        World { mem, driver, device }
    }

    /// A ring of either format with indirect tables allowed and nothing else.
    pub(crate) fn plain(packed: bool, size: u16) -> World {
        World::new(&RingSpec { table_len: 64, ..RingSpec::new(packed, size, RING) })
    }
}

/// `len` bytes of buffer number `n`.
pub(crate) fn buffer(n: u64, len: u32) -> Buffer {
    Buffer { gpa: DATA + n * 4096, len }
}

/// All bytes of some buffers.
pub(crate) fn bytes(slices: &[GuestSlice<'_>]) -> Vec<u8> {
    let mut all = Vec::new();
    for slice in slices {
        let mut part = vec![0; slice.len()];
        slice.copy_to(&mut part);
        all.extend(part);
    }
    all
}

/// Fills writable buffers from the front; how much went in.
pub(crate) fn fill(chain: &Chain<'_>, mut data: &[u8]) -> u32 {
    let mut total = 0;
    for slice in chain.writable() {
        let n = slice.copy_from(data);
        data = &data[n..];
        total += n as u32;
    }
    total
}
