//! The generator's rings against the device side of the product: every frame once, in order,
//! through many turns of the ring.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use bench::generator::buffers::Buffers;
use bench::generator::{Packed, Ring, RingFault, Split};
use guestmem::GuestMemory;
use proptest::prelude::*;
use testkit::driver::{DriverQueue, RingSpec, memory};
use virtqueue::{Chain, Queue, QueueConfig, Used};

const START: u64 = 1 << 20;
const DATA: u64 = START + (1 << 20);
const LEN: u32 = 100;

struct World<R> {
    mem: Arc<GuestMemory>,
    driver: R,
    device: Queue,
    /// Frames the device has, in order: what it will say of each.
    held: Vec<Used>,
    /// Numbers of frames published, taken by the device, and reaped.
    published: u64,
    taken: u64,
    reaped: u64,
    buffers: Buffers,
}

fn world<R: Ring>(packed: bool, size: u16, writable: bool) -> World<R> {
    let mem = memory(&[(START, 8 << 20)]).unwrap();
    let spec = RingSpec { in_order: packed, ..RingSpec::new(packed, size, START) };
    let queue = DriverQueue::new(&mem, &spec).unwrap();
    let buffers = Buffers::new(DATA, size.into(), LEN, writable);
    let driver = R::new(&mem, &spec, buffers).unwrap();
    let at = queue.addresses();
    let config = QueueConfig {
        size,
        packed,
        event_idx: false,
        indirect: false,
        in_order: packed,
        desc: at.desc,
        avail: at.driver,
        used: at.device,
        base: queue.base(),
    };
    let device = Queue::new(&mem, &config).unwrap();
    World { mem, driver, device, held: Vec::new(), published: 0, taken: 0, reaped: 0, buffers }
}

impl<R: Ring> World<R> {
    fn publish(&mut self, most: u16) {
        let count = most.min(self.driver.free());
        self.driver.publish(count);
        self.published += u64::from(count);
    }

    /// The device takes some, and checks which frames they are.
    fn take(&mut self, most: u16) {
        let mut chain = Chain::default();
        for _ in 0..most {
            if !self.device.pop(&self.mem, &mut chain).unwrap() {
                break;
            }
            let number = self.taken;
            self.taken += 1;
            let index = (number % u64::from(self.buffers.count)) as u32;
            let place = self.mem.slice(self.buffers.address(index), LEN).unwrap();
            let pieces = if self.buffers.writable { chain.writable() } else { chain.readable() };
            assert_eq!(pieces.len(), 1);
            // The same place: what is written there is read here.
            place.copy_from(&number.to_le_bytes());
            let mut bytes = [0; 8];
            pieces[0].copy_to(&mut bytes);
            assert_eq!(u64::from_le_bytes(bytes), number, "another buffer");
            assert_eq!(pieces[0].len(), LEN as usize);
            self.held.push(chain.used((number % u64::from(LEN)) as u32));
        }
    }

    /// The device gives the oldest back.
    fn complete(&mut self, most: u16) {
        let count = usize::from(most).min(self.held.len());
        for used in self.held.drain(..count) {
            self.device.complete(&[used]);
        }
        self.device.publish();
    }

    /// The driver takes them back, and checks that it is all of them, in order.
    fn reap(&mut self, most: u16) -> u16 {
        let mut next = self.reaped;
        let size = u64::from(self.driver.free()) + (self.published - self.reaped);
        let count = self.driver.reap(most, |slot, len| {
            assert_eq!(u64::from(slot), next % size, "entry");
            assert_eq!(len, (next % u64::from(LEN)) as u32, "length");
            next += 1;
        });
        assert_eq!(next - self.reaped, u64::from(count));
        self.reaped = next;
        assert_eq!(self.driver.fault(), None);
        count
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Publish(u16),
    Take(u16),
    Complete(u16),
    Reap(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..4, 1_u16..12).prop_map(|(what, count)| match what {
        0 => Step::Publish(count),
        1 => Step::Take(count),
        2 => Step::Complete(count),
        _ => Step::Reap(count),
    });
    proptest::collection::vec(step, 1..200)
}

fn play<R: Ring>(packed: bool, size: u16, writable: bool, steps: &[Step]) {
    let mut world = world::<R>(packed, size, writable);
    for step in steps {
        match *step {
            Step::Publish(count) => world.publish(count),
            Step::Take(count) => world.take(count),
            Step::Complete(count) => world.complete(count),
            Step::Reap(count) => drop(world.reap(count)),
        }
    }
    // Everything comes back, once.
    world.take(size);
    world.complete(size);
    while world.reap(u16::MAX) > 0 {}
    assert_eq!(world.published, world.reaped);
    assert_eq!(world.driver.free(), size);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn split_rings_lose_and_repeat_nothing(steps in steps(), writable: bool) {
        play::<Split>(false, 8, writable, &steps);
    }

    #[test]
    fn packed_rings_lose_and_repeat_nothing(
        steps in steps(), writable: bool, size in 5_u16..9
    ) {
        play::<Packed>(true, size, writable, &steps);
    }
}

/// The split indices pass 65535.
#[test]
fn indices_wrap_around() {
    let mut world = world::<Split>(false, 256, false);
    while world.reaped < 70_000 {
        world.publish(200);
        world.take(200);
        world.complete(200);
        world.reap(200);
    }
    assert_eq!(world.published, world.reaped);
}

#[test]
fn used_looks_ahead() {
    fn check<R: Ring>(packed: bool) {
        let mut world = world::<R>(packed, 8, true);
        world.publish(8);
        assert!(!world.driver.used(0));
        world.take(3);
        world.complete(3);
        assert!(world.driver.used(0) && world.driver.used(2) && !world.driver.used(3));
        assert_eq!(world.reap(8), 3);
        assert!(!world.driver.used(0));
    }
    check::<Split>(false);
    check::<Packed>(true);
}

/// With in-order, one used descriptor may stand for several.
#[test]
fn one_used_descriptor_for_a_batch() {
    let mut world = world::<Packed>(true, 8, false);
    world.publish(6);
    let spec = RingSpec { in_order: true, ..RingSpec::new(true, 8, START) };
    let flags = (1_u64 << 7 | 1 << 15) << 48;
    let place = world.mem.slice(spec.addresses().desc + 8, 8).unwrap();
    // In the first slot, the id of the fourth buffer.
    place.copy_from(&(flags | 3 << 32).to_le_bytes());
    let mut slots = Vec::new();
    assert_eq!(world.driver.reap(64, |slot, _| slots.push(slot)), 4);
    assert_eq!(slots, [0, 1, 2, 3]);
    assert_eq!(world.driver.fault(), None);
}

#[test]
fn a_device_out_of_order_is_found_out() {
    let mut split = world::<Split>(false, 8, true);
    split.publish(4);
    let at = RingSpec::new(false, 8, START).addresses();
    // used.idx 1, ring[0].id 2
    split.mem.slice(at.device, 12).unwrap().copy_from(&[0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(split.driver.reap(64, |_, _| ()), 0);
    assert_eq!(split.driver.fault(), Some(RingFault::OutOfOrder { got: 2, expected: 0 }));
    split.mem.slice(at.device, 4).unwrap().copy_from(&[0, 0, 9, 0]);
    assert_eq!(split.driver.reap(64, |_, _| ()), 0);
    assert_eq!(split.driver.fault(), Some(RingFault::TooMany { count: 9, outstanding: 4 }));

    let mut packed = world::<Packed>(true, 8, true);
    packed.publish(4);
    let at = RingSpec::new(true, 8, START).addresses();
    let flags = (1_u64 << 7 | 1 << 15) << 48;
    // The seventh buffer, of which there are four.
    packed.mem.slice(at.desc + 8, 8).unwrap().copy_from(&(flags | 6 << 32).to_le_bytes());
    assert_eq!(packed.driver.reap(64, |_, _| ()), 0);
    assert_eq!(packed.driver.fault(), Some(RingFault::TooMany { count: 7, outstanding: 4 }));
}
