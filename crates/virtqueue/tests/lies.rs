//! A table of lies at ring level: each is named, none moves the queue, none panics.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::{DATA, RING, SIZE, START, World, config};
use testkit::driver::{self, DriverQueue, Raw, RawDesc, RingSpec, flags};
use virtqueue::{Chain, GuestFault, Queue, QueueConfig, RegionArea, TrackedQueue, region_bytes};

use flags::{AVAIL, INDIRECT, NEXT, USED, WRITE};

const N: u16 = 8;
/// Where the tables of lies are.
const TABLE: u64 = DATA + (1 << 20);
const END: u64 = START + SIZE;

fn desc(addr: u64, len: u32, flags: u16, tag: u16) -> RawDesc {
    RawDesc { addr, len, flags, tag }
}

fn good(flags: u16, tag: u16) -> RawDesc {
    desc(DATA, 64, flags, tag)
}

/// Puts descriptors in place from slot 0 and makes the first of them available.
fn offer(raw: &Raw, packed: bool, descs: &[RawDesc]) {
    for (slot, one) in descs.iter().enumerate() {
        let mark = if packed { AVAIL } else { 0 };
        raw.set_desc(slot as u16, &RawDesc { flags: one.flags | mark, ..*one });
    }
    if !packed {
        raw.set_avail_entry(0, 0);
        raw.set_avail_idx(1);
    }
}

/// Offers one indirect descriptor and what is in its table.
fn offer_table(world: &World, packed: bool, table: &[RawDesc]) {
    for (at, one) in (TABLE..).step_by(16).zip(table) {
        let halves = if packed { one.packed() } else { one.split() };
        assert!(driver::write(&world.mem, at, &halves.map(u64::to_le_bytes).concat()));
    }
    offer(world.driver.raw(), packed, &[desc(TABLE, 16 * table.len() as u32, INDIRECT, 0)]);
}

type Lie = (&'static str, &'static str, fn(&World));

/// (what the guest does, the name it gets, how it does it)
const SPLIT: &[Lie] = &[
    ("avail index one too far", "avail-index", |w| w.driver.raw().set_avail_idx(N + 1)),
    ("avail index backwards", "avail-index", |w| w.driver.raw().set_avail_idx(0xffff)),
    ("head just outside", "head-index", |w| {
        w.driver.raw().set_avail_entry(0, N);
        w.driver.raw().set_avail_idx(1);
    }),
    ("head far outside", "head-index", |w| {
        w.driver.raw().set_avail_entry(0, 0xffff);
        w.driver.raw().set_avail_idx(1);
    }),
    ("next just outside", "next-index", |w| offer(w.driver.raw(), false, &[good(NEXT, N)])),
    ("next far outside", "next-index", |w| offer(w.driver.raw(), false, &[good(NEXT, 0xffff)])),
    ("a loop of one", "chain-too-long", |w| offer(w.driver.raw(), false, &[good(NEXT, 0)])),
    ("a loop of two", "chain-too-long", |w| {
        offer(w.driver.raw(), false, &[good(NEXT, 1), good(NEXT, 0)]);
    }),
    ("a loop behind the last", "chain-too-long", |w| {
        let all: Vec<_> = (1..=N).map(|next| good(NEXT, next % N)).collect();
        offer(w.driver.raw(), false, &all);
    }),
    ("indirect in an indirect table", "indirect-nested", |w| {
        offer_table(w, false, &[good(NEXT, 1), desc(TABLE, 16, INDIRECT, 0)]);
    }),
    ("next outside the table", "indirect-next-index", |w| {
        offer_table(w, false, &[good(NEXT, 1), good(NEXT, 2)]);
    }),
    ("a loop in the table", "chain-too-long", |w| {
        offer_table(w, false, &[good(NEXT, 1), good(NEXT, 0)]);
    }),
    ("a chain that goes on in a table with what it must not", "readable-after-writable", |w| {
        offer_table(w, false, &[good(0, 0)]);
        let raw = w.driver.raw();
        offer(raw, false, &[good(NEXT | WRITE, 1), desc(TABLE, 16, INDIRECT, 0)]);
    }),
];

const PACKED: &[Lie] = &[
    ("a chain once around the ring", "chain-too-long", |w| {
        offer(w.driver.raw(), true, &[good(NEXT, 0); N as usize]);
    }),
    ("a chain into what was not made available", "not-available", |w| {
        offer(w.driver.raw(), true, &[good(NEXT, 0)]);
    }),
    ("a chain into the lap before", "not-available", |w| {
        offer(w.driver.raw(), true, &[good(NEXT, 0), good(USED, 0)]);
    }),
    ("indirect behind direct", "indirect-in-chain", |w| {
        offer(w.driver.raw(), true, &[good(NEXT, 0), desc(TABLE, 16, INDIRECT, 0)]);
    }),
];

/// Lies that both formats can tell.
const BOTH: &[Lie] = &[
    ("no bytes to read", "zero-length", |w| one(w, desc(DATA, 0, 0, 0))),
    ("no bytes to write", "zero-length", |w| one(w, desc(DATA, 0, WRITE, 0))),
    ("a buffer before memory", "buffer-outside", |w| one(w, desc(START - 1, 64, 0, 0))),
    ("a buffer behind memory", "buffer-outside", |w| one(w, desc(END, 1, 0, 0))),
    ("a buffer over the end", "buffer-outside", |w| one(w, desc(END - 63, 64, WRITE, 0))),
    ("a buffer around the address space", "buffer-outside", |w| {
        one(w, desc(u64::MAX - 15, 64, 0, 0));
    }),
    ("the longest buffer", "buffer-outside", |w| one(w, desc(DATA, u32::MAX, 0, 0))),
    ("a bad follower", "buffer-outside", |w| {
        offer(w.driver.raw(), packed(w), &[good(NEXT, 1), desc(0, 1, 0, 0)]);
    }),
    ("an empty follower", "zero-length", |w| {
        offer(w.driver.raw(), packed(w), &[good(NEXT, 1), desc(DATA, 0, WRITE, 0)]);
    }),
    ("readable behind writable", "readable-after-writable", |w| {
        offer(w.driver.raw(), packed(w), &[good(NEXT | WRITE, 1), good(0, 0)]);
    }),
    ("indirect and next", "indirect-with-next", |w| {
        one(w, desc(TABLE, 16, INDIRECT | NEXT, 1));
    }),
    ("a table of no bytes", "indirect-length", |w| one(w, desc(TABLE, 0, INDIRECT, 0))),
    ("a table of one and a half", "indirect-length", |w| one(w, desc(TABLE, 24, INDIRECT, 0))),
    ("a table behind memory", "indirect-outside", |w| one(w, desc(END, 16, INDIRECT, 0))),
    ("a table over the end", "indirect-outside", |w| one(w, desc(END - 16, 32, INDIRECT, 0))),
    ("a table around the address space", "indirect-outside", |w| {
        one(w, desc(u64::MAX - 15, 32, INDIRECT, 0));
    }),
    ("the longest table", "indirect-outside", |w| {
        one(w, desc(TABLE, u32::MAX - 15, INDIRECT, 0));
    }),
    ("an empty buffer in a table", "zero-length", |w| {
        offer_table(w, packed(w), &[good(NEXT, 1), desc(DATA, 0, 0, 0)]);
    }),
    ("a bad buffer in a table", "buffer-outside", |w| {
        offer_table(w, packed(w), &[good(NEXT, 1), desc(END, 1, 0, 0)]);
    }),
    ("readable behind writable in a table", "readable-after-writable", |w| {
        offer_table(w, packed(w), &[good(NEXT | WRITE, 1), good(0, 0)]);
    }),
    ("1025 buffers in a table", "too-many-segments", |w| {
        let all: Vec<_> = (1..1026).map(|next| good(NEXT, next)).collect();
        offer_table(w, packed(w), &all);
    }),
];

fn packed(world: &World) -> bool {
    world.driver.spec().packed
}

fn one(world: &World, desc: RawDesc) {
    offer(world.driver.raw(), packed(world), &[desc]);
}

/// Pops twice; both must find the same fault and move nothing.
fn provoke(world: &mut World) -> GuestFault {
    let World { mem, device, .. } = world;
    let before = (device.position(), device.base());
    let mut chain = Chain::new();
    let fault = device.pop(mem, &mut chain).expect_err("the guest lies");
    assert_eq!(device.pop(mem, &mut chain).expect_err("still"), fault);
    assert_eq!((device.position(), device.base()), before);
    assert!(!fault.to_string().is_empty());
    fault
}

fn setup_fault(change: impl FnOnce(&mut QueueConfig), packed: bool) -> &'static str {
    let world = World::plain(packed, N);
    let mut cfg = config(&world.driver);
    change(&mut cfg);
    let fault = Queue::new(&world.mem, &cfg).err().expect("a lie in the set-up");
    assert!(!fault.to_string().is_empty());
    fault.name()
}

/// A chain of direct descriptors through a ring of 2048 is stopped at 1024 buffers.
fn long_direct_chain(packed: bool) -> &'static str {
    let mut world = World::plain(packed, 2048);
    let all: Vec<_> = (1..=2048u16).map(|next| good(NEXT, next % 2048)).collect();
    offer(world.driver.raw(), packed, &all);
    provoke(&mut world).name()
}

/// Two buffers of 3 GiB, each of them fine.
fn large_chain(packed: bool) -> &'static str {
    let mem = driver::memory(&[(START, 3 << 30)]).unwrap();
    let driver = DriverQueue::new(&mem, &RingSpec::new(packed, N, RING)).unwrap();
    let device = Queue::new(&mem, &config(&driver)).unwrap();
    let half = |flags, tag| desc(START, 3 << 30, flags, tag);
    offer(driver.raw(), packed, &[half(NEXT, 1), half(WRITE, 0)]);
    provoke(&mut World { mem, driver, device }).name()
}

/// The driver hands the device a slot that the device has already.
fn overrun() -> &'static str {
    let mut world = World::plain(true, 2);
    offer(world.driver.raw(), true, &[good(0, 0), good(0, 1)]);
    let mut chain = Chain::new();
    for _ in 0..2 {
        assert!(world.device.pop(&world.mem, &mut chain).unwrap());
    }
    world.driver.raw().set_desc_flags(0, USED);
    provoke(&mut world).name()
}

/// A chain that goes on in slots the device has already.
fn chain_over_the_used_cursor() -> &'static str {
    let mut world = World::plain(true, 4);
    offer(world.driver.raw(), true, &[good(0, 0), good(NEXT, 1), good(NEXT, 1), good(NEXT, 1)]);
    let mut chain = Chain::new();
    assert!(world.device.pop(&world.mem, &mut chain).unwrap());
    world.driver.raw().set_desc_flags(0, USED);
    provoke(&mut world).name()
}

/// The same head twice, the first one still in flight.
fn head_twice() -> &'static str {
    let world = World::plain(false, N);
    offer(world.driver.raw(), false, &[good(0, 0)]);
    let mut device = TrackedQueue::new(&world.mem, &config(&world.driver), None).unwrap();
    let mut chain = Chain::new();
    let _ticket = device.pop(&world.mem, &mut chain).unwrap().expect("the first");
    world.driver.raw().set_avail_entry(1, 0);
    world.driver.raw().set_avail_idx(2);
    let fault = device.pop(&world.mem, &mut chain).expect_err("a lie");
    assert_eq!(device.pop(&world.mem, &mut chain), Err(fault), "nothing moved");
    assert_eq!(device.in_flight(), 1);
    fault.name()
}

/// More in flight than the driver made available.
fn too_much_in_flight(packed: bool) -> &'static str {
    let world = World::plain(packed, N);
    let shared = driver::memory(&[(0, 4096)]).unwrap();
    let region = || RegionArea::new(Arc::clone(&shared), 0, region_bytes(packed, N));
    let start = || TrackedQueue::new(&world.mem, &config(&world.driver), region());
    start().expect("a new region");
    region().unwrap().store_u64(if packed { 32 } else { 16 }, 1);
    if packed {
        region().unwrap().store_u64(8, 1 | u64::from(N) << 16 | 1 << 32 | 1 << 48);
    }
    start().err().expect("a lie").name()
}

#[test]
fn every_lie_is_called_by_its_name() {
    let mut seen = BTreeSet::new();
    for packed in [false, true] {
        let own = if packed { PACKED } else { SPLIT };
        for &(what, name, tell) in own.iter().chain(BOTH) {
            let mut world = World::plain(packed, N);
            tell(&world);
            assert_eq!(provoke(&mut world).name(), name, "{what}, packed: {packed}");
            seen.insert(name);
        }
        let mut world = World::new(&RingSpec::new(packed, N, RING));
        one(&world, desc(TABLE, 16, INDIRECT, 0));
        let unasked = provoke(&mut world).name();
        assert_eq!(unasked, "indirect-not-negotiated");
        assert_eq!(long_direct_chain(packed), "too-many-segments");
        assert_eq!(large_chain(packed), "chain-too-large");

        let setup = |change: fn(&mut QueueConfig)| setup_fault(change, packed);
        assert_eq!(setup(|c| c.size = 0), "queue-size");
        assert_eq!(setup(|c| c.size = 32769), "queue-size");
        assert_eq!(setup(|c| c.size = u16::MAX), "queue-size");
        assert_eq!(setup(|c| c.desc = END - 16), "descriptor-area");
        assert_eq!(setup(|c| c.desc += 8), "descriptor-area");
        assert_eq!(setup(|c| c.avail = START - 4), "driver-area");
        assert_eq!(setup(|c| c.avail += 1), "driver-area");
        assert_eq!(setup(|c| c.used = END), "device-area");
        assert_eq!(setup(|c| c.used += 2), "device-area");
        assert_eq!(setup(|c| c.used = u64::MAX - 3), "device-area");
        seen.extend(["indirect-not-negotiated", "chain-too-large", "queue-size"]);
        seen.extend(["descriptor-area", "driver-area", "device-area"]);
    }
    assert_eq!(setup_fault(|c| c.size = 3, false), "queue-size");
    assert_eq!(setup_fault(|c| c.base = 0x8000 | u32::from(N), true), "base");
    assert_eq!(setup_fault(|c| c.base = u32::from(N) << 16, true), "base");
    assert_eq!(overrun(), "ring-overrun");
    assert_eq!(chain_over_the_used_cursor(), "chain-too-long");
    assert_eq!(head_twice(), "head-in-use");
    assert_eq!([false, true].map(too_much_in_flight), ["inflight-region"; 2]);
    seen.extend(["base", "ring-overrun", "head-in-use", "inflight-region"]);
    assert_eq!(seen, BTreeSet::from(GuestFault::NAMES), "each name has its lie");
}

/// What the specification tells a device to ignore is not a lie.
#[test]
fn reserved_bits_are_ignored() {
    // WRITE on the descriptor that refers to a table (2.7.5.3.2, 2.8.7), and unknown flags.
    for packed in [false, true] {
        let mut world = World::plain(packed, N);
        offer_table(&world, packed, &[good(0x4008, 0)]);
        one(&world, desc(TABLE, 16, INDIRECT | WRITE | 0x1000, 0));
        let mut chain = Chain::new();
        assert!(world.device.pop(&world.mem, &mut chain).unwrap());
        assert_eq!((chain.readable_len(), chain.writable_len()), (64, 0));
    }
    // In a packed ring's table only WRITE means anything (2.8.7), and an id may be any number.
    let mut world = World::plain(true, N);
    offer_table(&world, true, &[good(INDIRECT | NEXT, 7), good(WRITE | USED, 9)]);
    one(&world, desc(TABLE, 32, INDIRECT, 0xfffe));
    let mut chain = Chain::new();
    assert!(world.device.pop(&world.mem, &mut chain).unwrap());
    assert_eq!((chain.id, chain.descs), (0xfffe, 1));
    assert_eq!((chain.readable_len(), chain.writable_len()), (64, 64));
}

/// A queue that met a lie is as good as new once the ring is put right and made anew; the memory
/// and the other queues in it never noticed.
#[test]
fn a_lie_breaks_its_own_queue_only() {
    let mem = driver::memory(&[(START, SIZE)]).unwrap();
    let queue = |gpa| {
        let driver = DriverQueue::new(&mem, &RingSpec::new(false, N, gpa)).unwrap();
        let device = Queue::new(&mem, &config(&driver)).unwrap();
        World { mem: Arc::clone(&mem), driver, device }
    };
    let (mut liar, mut honest) = (queue(RING), queue(RING + 8192));
    liar.driver.raw().set_avail_idx(77);
    provoke(&mut liar);
    honest.driver.add(&[common::buffer(0, 10)], &[], driver::Shape::Direct).unwrap();
    honest.driver.expose();
    let mut chain = Chain::new();
    assert!(honest.device.pop(&mem, &mut chain).unwrap());
    assert_eq!(chain.readable_len(), 10);
}

/// DPDK's driver leaves WRITE set on the first entry of the tables it transmits by.
#[test]
fn write_in_a_table_means_nothing_where_the_device_only_reads() {
    let table = [good(WRITE, 0), good(0, 0)];
    for read_only in [false, true] {
        let mut world = World::plain(true, N);
        offer_table(&world, true, &table);
        if read_only {
            let cfg = config(&world.driver);
            world.device = Queue::new(&world.mem, &cfg).unwrap().read_only();
        }
        let mut chain = Chain::new();
        let popped = world.device.pop(&world.mem, &mut chain);
        if read_only {
            assert_eq!(popped, Ok(true));
            assert_eq!((chain.readable_len(), chain.writable_len()), (128, 0));
        } else {
            assert_eq!(popped, Err(GuestFault::ReadableAfterWritable));
        }
    }
}
