//! Devices that complete in any order and are killed between any two of their stores.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use testkit::driver::{self, Buffer, DriverQueue, RingSpec, Shape};

use super::*;
use crate::journal::fuse;

const RING: u64 = 0x10_0000;
const DATA: u64 = RING + (1 << 20);
const SIZE: u64 = 4 << 20;
/// Where regions are, in a memory of their own.
const REGION: u64 = 0x1000;

struct World {
    mem: Arc<GuestMemory>,
    shared: Arc<GuestMemory>,
    driver: DriverQueue,
    device: TrackedQueue,
    /// What the device has popped, oldest first: serial number and ticket.
    popped: Vec<(u64, Ticket)>,
    /// Serial numbers of what the driver added, by token; and of what it exposed.
    added: BTreeMap<u16, u64>,
    /// Times each request was submitted.
    submitted: BTreeMap<u64, u32>,
    collected: BTreeSet<u64>,
    serial: u64,
}

fn area(shared: &Arc<GuestMemory>, packed: bool, size: u16) -> Option<RegionArea> {
    RegionArea::new(Arc::clone(shared), REGION, region_bytes(packed, size))
}

fn config(driver: &DriverQueue) -> QueueConfig {
    let (spec, at) = (driver.spec(), driver.addresses());
    QueueConfig {
        size: spec.size,
        packed: spec.packed,
        event_idx: false,
        indirect: true,
        in_order: false,
        desc: at.desc,
        avail: at.driver,
        used: at.device,
        base: driver.base(),
    }
}

impl World {
    fn new(packed: bool, size: u16, start: u16) -> World {
        let start = if packed { (start & 0x8000) | ((start & 0x7fff) % size) } else { start };
        let spec = RingSpec { start, table_len: 4, ..RingSpec::new(packed, size, RING) };
        let mem = driver::memory(&[(RING, SIZE)]).unwrap();
        let shared = driver::memory(&[(REGION, 1 << 20)]).unwrap();
        let driver = DriverQueue::new(&mem, &spec).unwrap();
        let region = area(&shared, packed, size);
        let device = TrackedQueue::new(&mem, &config(&driver), region).unwrap();
        let (popped, added, submitted, collected) = Default::default();
        World { mem, shared, driver, device, popped, added, submitted, collected, serial: 0 }
    }

    fn plain(packed: bool) -> World {
        World::new(packed, 8, if packed { 0x8000 } else { 0 })
    }

    /// A successor; what it was to have in flight is known by its first pops.
    fn succeed(&mut self) -> Result<(), GuestFault> {
        let spec = self.driver.spec();
        let region = area(&self.shared, spec.packed, spec.size);
        self.device = TrackedQueue::new(&self.mem, &config(&self.driver), region)?;
        Ok(())
    }

    /// Adds a request of so many buffers, its serial number in the first of them.
    fn add(&mut self, buffers: u8, indirect: bool) {
        let gpa = |n: u64| DATA + (self.serial % 4096) * 512 + n * 64;
        driver::write(&self.mem, gpa(0), &self.serial.to_le_bytes());
        let all: Vec<_> = (0..buffers).map(|n| Buffer { gpa: gpa(n.into()), len: 64 }).collect();
        let shape = if indirect { Shape::Indirect } else { Shape::Direct };
        if let Some(token) = self.driver.add(&all, &[], shape) {
            self.added.insert(token, self.serial);
            self.serial += 1;
        }
        self.driver.expose();
    }

    fn pop(&mut self) -> bool {
        let mut chain = Chain::new();
        let ticket = self.device.pop(&self.mem, &mut chain).expect("the driver is honest");
        let Some(ticket) = ticket else { return false };
        let mut serial = [0; 8];
        chain.readable()[0].copy_to(&mut serial);
        self.popped.push((u64::from_le_bytes(serial), ticket));
        true
    }

    /// The device's work: pops, then completes some in any order, and publishes now and then.
    fn serve(&mut self, pops: u8, completes: &[(u8, bool)]) {
        for _ in 0..pops {
            if !self.pop() {
                break;
            }
        }
        for &(which, publish) in completes {
            if self.popped.is_empty() {
                break;
            }
            let which = usize::from(which) % self.popped.len();
            let (serial, ticket) = self.popped.swap_remove(which);
            self.device.complete(ticket, (serial % 60) as u32);
            if publish {
                self.device.publish();
            }
        }
    }

    /// Nothing the driver gets back was not there, or twice.
    fn collect(&mut self) {
        while let Some(done) = self.driver.collect().expect("a buffer the device had") {
            let serial = self.added.remove(&done.token).expect("an outstanding one");
            assert!(self.collected.insert(serial), "completed twice");
            assert_eq!(u64::from(done.len), serial % 60);
        }
    }

    /// The end of a device and the beginning of the next, which has to submit exactly what the
    /// driver still waits for: first, in the order in which it was made available, what its
    /// predecessor had popped.
    fn die(&mut self) {
        fuse::set(None);
        self.popped.clear();
        self.collect();
        self.succeed().expect("what a device leaves is sound");
        let again = self.device.in_flight();
        while self.pop() {}
        let found: Vec<u64> = self.popped.iter().map(|(serial, _)| *serial).collect();
        let mut waiting: Vec<u64> = self.added.values().copied().collect();
        waiting.sort_unstable();
        let sorted = {
            let mut sorted = found.clone();
            sorted.sort_unstable();
            sorted
        };
        assert_eq!(sorted, waiting, "lost, or submitted without need");
        // Both parts are in the order of the driver, whose serial numbers go up.
        assert!(found[..again.into()].is_sorted() && found[again.into()..].is_sorted());
        assert_eq!(usize::from(self.device.in_flight()), found.len());
        for serial in found {
            *self.submitted.entry(serial).or_default() += 1;
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Add(u8, bool),
    Collect,
    Serve(u8, Vec<(u8, bool)>),
    /// The device's end comes after so many stores of this; then so many chains are added.
    Kill(u8, Vec<(u8, bool)>, u16, Vec<(u8, bool)>),
    /// So does that of its successor, in the middle of its start.
    KillTwice(u16),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let chain = || (1u8..4, any::<bool>());
    let completes = || prop::collection::vec((any::<u8>(), any::<bool>()), 0..12);
    let op = prop_oneof![
        12 => chain().prop_map(|(n, indirect)| Op::Add(n, indirect)),
        3 => Just(Op::Collect),
        6 => (0u8..10, completes()).prop_map(|(pops, done)| Op::Serve(pops, done)),
        4 => (0u8..10, completes(), 0u16..120, prop::collection::vec(chain(), 0..5))
            .prop_map(|(pops, done, after, more)| Op::Kill(pops, done, after, more)),
        1 => (0u16..40).prop_map(Op::KillTwice),
    ];
    prop::collection::vec(op, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Wherever a device dies, no request is lost, none is shown twice, and those in flight are
    /// submitted again in their order.
    #[test]
    fn a_kill_loses_nothing_and_repeats_nothing_the_driver_saw(
        packed in any::<bool>(),
        exponent in 1u32..5,
        start in any::<u16>(),
        ops in ops(),
    ) {
        let mut world = World::new(packed, 1 << exponent, start);
        for op in ops {
            match op {
                Op::Add(buffers, indirect) => world.add(buffers, indirect),
                Op::Collect => world.collect(),
                Op::Serve(pops, done) => world.serve(pops, &done),
                Op::Kill(pops, done, after, more) => {
                    fuse::set(Some(after.into()));
                    world.serve(pops, &done);
                    fuse::set(None);
                    world.collect();
                    for (buffers, indirect) in more {
                        world.add(buffers, indirect);
                    }
                    world.die();
                }
                Op::KillTwice(after) => {
                    fuse::set(Some(after.into()));
                    world.succeed().expect("what a device leaves is sound");
                    fuse::set(None);
                    world.die();
                }
            }
        }
        world.die();
        while !world.popped.is_empty() {
            world.serve(0, &[(7, true)]);
        }
        world.collect();
        prop_assert!(world.added.is_empty());
        prop_assert_eq!(world.collected.len() as u64, world.serial);
        prop_assert_eq!(world.device.in_flight(), 0);
    }

    /// Whatever is in a region, its device starts or names the fault, and serves within its memory.
    #[test]
    fn a_region_of_lies_does_no_harm(
        packed in any::<bool>(),
        served in 0u8..6,
        lies in prop::collection::vec((0usize..40, any::<u64>(), 0u32..64), 1..6),
        whole in any::<bool>(),
    ) {
        let mut world = World::plain(packed);
        for _ in 0..6 {
            world.add(1, false);
        }
        world.serve(6, &vec![(1, true); served.into()]);
        let region = area(&world.shared, packed, 8).unwrap();
        for (index, value, shift) in lies {
            let at = index * 8 % region.len();
            let small = region.load_u64(at) ^ (value & 0xf) << shift;
            region.store_u64(at, if whole { value } else { small });
        }
        world.popped.clear();
        match world.succeed() {
            Err(fault) => prop_assert_eq!(fault, GuestFault::InflightRegion),
            Ok(()) => {
                let mut chain = Chain::new();
                let mut tickets = Vec::new();
                for _ in 0..20 {
                    match world.device.pop(&world.mem, &mut chain) {
                        Ok(Some(ticket)) => tickets.push(ticket),
                        Ok(None) | Err(_) => break,
                    }
                }
                prop_assert!(tickets.len() <= 8);
                for ticket in tickets {
                    world.device.complete(ticket, 0);
                }
                world.device.publish();
            }
        }
    }
}

/// The bytes of a region after this: three requests popped, the second completed.
fn golden(packed: bool) -> Vec<u8> {
    let mut world = World::plain(packed);
    for _ in 0..3 {
        world.add(1, false);
    }
    world.serve(3, &[]);
    let (_, ticket) = world.popped.remove(1);
    world.device.complete(ticket, 5);
    world.device.publish();
    driver::read(&world.shared, REGION, region_bytes(packed, 8)).unwrap()
}

#[test]
fn a_split_region_is_that_of_the_specification() {
    assert_eq!([1, 2, 256].map(|size| region_bytes(false, size)), [64, 64, 4160]);
    let bytes = golden(false);
    #[rustfmt::skip]
    let header = [
        0, 0, 0, 0, 0, 0, 0, 0, // features
        1, 0,                   // version
        8, 0,                   // desc_num
    ];
    assert_eq!(bytes[..12], header);
    // The driver's heads, in the order in which they were made available.
    let heads: Vec<usize> = (0..8).filter(|head| bytes[16 + 16 * head] == 1).collect();
    assert_eq!(heads.len(), 2, "in flight");
    let counter =
        |head: usize| u64::from_le_bytes(bytes[24 + 16 * head..][..8].try_into().unwrap());
    let mut counters: Vec<u64> = heads.iter().map(|head| counter(*head)).collect();
    counters.sort_unstable();
    assert_eq!(counters, [0, 2]);
    let last_batch_head = u16::from_le_bytes([bytes[12], bytes[13]]).into();
    assert_eq!(counter(last_batch_head), 1);
    assert_eq!(bytes[16 + 16 * last_batch_head], 0);
    assert_eq!(bytes[14..16], [1, 0], "used_idx");
    assert!((0..8).all(|head| bytes[17 + 16 * head..][..5] == [0; 5]), "padding");
}

#[test]
fn a_packed_region_is_that_of_the_specification() {
    assert_eq!([1, 2, 256].map(|size| region_bytes(true, size)), [64, 128, 8256]);
    let bytes = golden(true);
    #[rustfmt::skip]
    let header = [
        0, 0, 0, 0, 0, 0, 0, 0, // features
        1, 0,                   // version
        8, 0,                   // desc_num
        1, 0,                   // free_head: the entry of the second request
        1, 0,                   // old_free_head
        1, 0,                   // used_idx
        1, 0,                   // old_used_idx
        1,                      // used_wrap_counter
        1,                      // old_used_wrap_counter
        0, 0, 0, 0, 0, 0, 0,    // padding
        0, 0, 0,                // what aligns the entries
    ];
    assert_eq!(bytes[..32], header);
    let mut world = World::plain(true);
    for _ in 0..3 {
        world.add(1, false);
    }
    for (entry, inflight, next, num) in [(0, 1, 1, 1), (1, 0, 3, 0), (2, 1, 3, 1), (3, 0, 4, 0)] {
        let row = &bytes[32 + 32 * entry..][..32];
        assert_eq!(row[..8], [inflight, 0, next, 0, entry as u8, 0, num, 0], "entry {entry}");
        if entry < 3 {
            let desc = world.driver.raw().desc(entry as u16);
            assert_eq!(row[8..16], (entry as u64).to_le_bytes(), "counter");
            assert_eq!(row[16..18], desc.tag.to_le_bytes(), "id");
            assert_eq!(row[18..20], desc.flags.to_le_bytes(), "flags");
            assert_eq!(row[20..24], 64u32.to_le_bytes(), "len");
            assert_eq!(row[24..32], desc.addr.to_le_bytes(), "addr");
        }
    }
}

#[test]
fn a_region_of_another_ring_is_refused() {
    for packed in [false, true] {
        let mut world = World::plain(packed);
        let region = area(&world.shared, packed, 8).unwrap();
        let sound = region.load_u64(HEADER);
        for header in [sound ^ 3, sound ^ 1 << 16] {
            region.store_u64(HEADER, header);
            assert_eq!(world.succeed(), Err(GuestFault::InflightRegion));
        }
        region.store_u64(HEADER, sound);
        region.store_u64(FEATURES, 1);
        assert_eq!(world.succeed(), Err(GuestFault::InflightRegion));
        region.store_u64(FEATURES, 0);
        assert_eq!(world.succeed(), Ok(()));
        let short = RegionArea::new(Arc::clone(&world.shared), REGION, 64);
        let made = TrackedQueue::new(&world.mem, &config(&world.driver), short).err();
        assert_eq!(made, Some(GuestFault::InflightRegion));
    }
}
