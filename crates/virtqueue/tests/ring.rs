//! Scenarios with known answers: what a driver and a front end see of the device side.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

mod common;

use common::{RING, World, buffer, bytes, config, fill};
use testkit::driver::{Completed, DriverQueue, RingSpec, Shape};
use virtqueue::{Chain, Next, Queue, QueueConfig, Used};

/// Adds and exposes chains of one readable buffer each.
fn send(world: &mut World, count: usize) {
    for _ in 0..count {
        world.driver.add(&[buffer(0, 60)], &[], Shape::Direct).expect("room");
    }
    world.driver.expose();
}

/// Pops that many chains, completes each of them and publishes.
fn serve(world: &mut World, count: usize) {
    for _ in 0..count {
        let mut chain = Chain::new();
        assert!(world.device.pop(&world.mem, &mut chain).unwrap());
        world.device.complete(&[chain.used(0)]);
    }
    world.device.publish();
}

fn collect_all(world: &mut World) -> usize {
    std::iter::from_fn(|| world.driver.collect().unwrap()).count()
}

fn restart(world: &mut World, base: u32) {
    let cfg = QueueConfig { base, ..config(&world.driver) };
    world.device = Queue::new(&world.mem, &cfg).unwrap();
}

/// The numbers of the buffers that are shown.
fn peeked(world: &World, ahead: u16, count: u16) -> Vec<u16> {
    let mut numbers = Vec::new();
    world.device.peek(ahead, count, |n, _| numbers.push(n));
    numbers
}

/// Buffers that are shown while others are being popped can be fetched early.
#[test]
fn what_was_shown_since_is_seen_ahead() {
    for packed in [false, true] {
        let mut world = World::plain(packed, 8);
        send(&mut world, 2);
        serve(&mut world, 1);
        send(&mut world, 3);
        assert_eq!(peeked(&world, 0, 1), [0]);
        world.device.look_ahead(4);
        assert_eq!(peeked(&world, 0, 3), [0, 1, 2]);
        assert_eq!(peeked(&world, 3, 4), [0]);
        assert_eq!(peeked(&world, 4, 1), []);
        serve(&mut world, 4);
        world.device.look_ahead(4);
        assert_eq!(peeked(&world, 0, 8), []);
        assert!(!world.device.has_available());
    }
}

/// What is seen ahead are the buffers that are popped then, also over the end of the ring and with
/// whatever number.
#[test]
fn what_is_seen_ahead_is_popped_later() {
    for packed in [false, true] {
        let mut world = World::plain(packed, 8);
        for turn in 0..20 {
            for n in 0..7 {
                world.driver.add(&[buffer(n, 60)], &[], Shape::Direct).expect("room");
            }
            world.driver.expose();
            world.device.look_ahead(8);
            let (ahead, count) = (turn % 5, turn % 9);
            let mut seen = Vec::new();
            world.device.peek(ahead, count, |n, soon| {
                assert!(!soon.indirect);
                seen.push((
                    n,
                    world.mem.slice(soon.addr, soon.len).and_then(|s| world.mem.address(s)),
                ));
            });
            let before = world.device.position();
            let mut later = Vec::new();
            while let Next::One { buffer, .. } = world.device.next(&world.mem).unwrap() {
                later.push(world.mem.address(buffer));
            }
            world.device.rewind(before);
            let first = world.device.first().map(|soon| soon.addr);
            assert_eq!(Some(first), later.first().copied());
            let expected = (0..count).zip(later.into_iter().skip(ahead.into()));
            assert_eq!(seen, expected.collect::<Vec<_>>());
            serve(&mut world, 7);
            assert_eq!(collect_all(&mut world), 7);
            assert_eq!(peeked(&world, u16::MAX, u16::MAX), []);
            assert!(world.device.first().is_none());
        }
    }
}

#[test]
fn a_chain_goes_there_and_back() {
    for packed in [false, true] {
        for shape in [Shape::Direct, Shape::Indirect, Shape::Mixed(1)] {
            if packed && shape == Shape::Mixed(1) {
                continue;
            }
            let mut world = World::plain(packed, 8);
            let (out, into) = ([buffer(0, 5), buffer(1, 7)], [buffer(2, 3), buffer(3, 9)]);
            testkit::driver::write(&world.mem, out[0].gpa, b"hello");
            testkit::driver::write(&world.mem, out[1].gpa, b", world");
            let token = world.driver.add(&out, &into, shape).unwrap();
            let mut chain = Chain::new();
            assert!(!world.device.pop(&world.mem, &mut chain).unwrap(), "not exposed yet");
            world.driver.expose();
            assert!(world.device.pop(&world.mem, &mut chain).unwrap());
            assert_eq!(bytes(chain.readable()), b"hello, world");
            assert_eq!((chain.readable_len(), chain.writable_len()), (12, 12));
            assert_eq!(fill(&chain, b"an answer"), 9);
            world.device.complete(&[chain.used(9)]);
            world.device.publish();
            assert_eq!(world.driver.collect().unwrap(), Some(Completed { token, len: 9 }));
            let read = |b: &testkit::driver::Buffer| {
                testkit::driver::read(&world.mem, b.gpa, b.len).unwrap()
            };
            assert_eq!([read(&into[0]), read(&into[1])].concat()[..9], *b"an answer");
        }
    }
}

/// The quick form takes chains of one buffer and leaves the others to `pop`.
#[test]
fn next_takes_single_buffers_only() {
    for packed in [false, true] {
        let mut world = World::plain(packed, 8);
        let one = world.driver.add(&[], &[buffer(1, 80)], Shape::Direct).unwrap();
        let two = world.driver.add(&[buffer(2, 7), buffer(3, 9)], &[], Shape::Direct).unwrap();
        let table = world.driver.add(&[buffer(4, 5)], &[], Shape::Indirect).unwrap();
        world.driver.expose();
        let World { mem, device, .. } = &mut world;
        match device.next(mem).unwrap() {
            Next::One { buffer, id, writable: true } if id == one => assert_eq!(buffer.len(), 80),
            other => panic!("{other:?}"),
        }
        let mut chain = Chain::new();
        for (token, len) in [(two, 16), (table, 5)] {
            assert!(matches!(device.next(mem).unwrap(), Next::Chain));
            assert!(device.pop(mem, &mut chain).unwrap());
            assert_eq!((chain.id, chain.readable_len()), (token, len));
        }
        assert!(matches!(device.next(mem).unwrap(), Next::Empty));
    }
}

/// A split ring shows nothing before publish; a packed one may show whole frames earlier.
#[test]
fn what_is_completed_is_shown_with_publish() {
    for packed in [false, true] {
        for frame in [1, 2, 3] {
            let mut world = World::plain(packed, 64);
            send(&mut world, 36);
            for _ in 0..36 / frame {
                let mut used = Vec::new();
                for _ in 0..frame {
                    let mut chain = Chain::new();
                    assert!(world.device.pop(&world.mem, &mut chain).unwrap());
                    used.push(chain.used(0));
                }
                world.device.complete(&used);
            }
            world.device.complete(&[]);
            let early = collect_all(&mut world);
            assert!(if packed { early.is_multiple_of(frame) } else { early == 0 });
            world.device.publish();
            assert_eq!(collect_all(&mut world), 36 - early);
        }
    }
}

#[test]
fn every_index_wraps() {
    for (packed, size) in [(false, 4), (true, 4), (true, 7)] {
        let mut world = World::plain(packed, size);
        for round in 0..70_000 / usize::from(size) {
            send(&mut world, size.into());
            serve(&mut world, size.into());
            assert_eq!(collect_all(&mut world), size.into(), "round {round}");
        }
        let mut chain = Chain::new();
        assert!(!world.device.pop(&world.mem, &mut chain).unwrap());
    }
}

#[test]
fn the_largest_ring_can_be_full() {
    for packed in [false, true] {
        let mut world = World::new(&RingSpec::new(packed, 32768, RING));
        for _ in 0..3 {
            send(&mut world, 32768);
            serve(&mut world, 32768);
            let mut chain = Chain::new();
            assert!(!world.device.pop(&world.mem, &mut chain).unwrap());
            world.device.publish();
            assert_eq!(collect_all(&mut world), 32768);
        }
    }
}

#[test]
fn the_base_of_a_split_ring_is_its_avail_index() {
    let mut world = World::new(&RingSpec { start: 65534, ..RingSpec::new(false, 8, RING) });
    send(&mut world, 5);
    serve(&mut world, 3);
    assert_eq!(world.device.base(), 1);
    // Whatever a front end remembers, the successor goes on where the driver saw this one stop.
    restart(&mut world, 0x1234);
    assert_eq!(world.device.base(), 1);
    serve(&mut world, 2);
    assert_eq!(collect_all(&mut world), 5);
}

#[test]
fn chains_in_the_hands_of_a_dead_device_are_done_again() {
    for packed in [false, true] {
        let mut world = World::plain(packed, 8);
        send(&mut world, 5);
        serve(&mut world, 2);
        let mut chain = Chain::new();
        assert!(world.device.pop(&world.mem, &mut chain).unwrap());
        let base = world.device.base();
        restart(&mut world, base);
        serve(&mut world, 3);
        assert_eq!(collect_all(&mut world), 5);
    }
}

#[test]
fn the_base_of_a_packed_ring_has_both_positions_and_counters() {
    let mut world = World::plain(true, 3);
    assert_eq!(world.device.base(), 0x8000_8000);
    send(&mut world, 3);
    serve(&mut world, 1);
    let mut chain = Chain::new();
    assert!(world.device.pop(&world.mem, &mut chain).unwrap());
    assert_eq!(world.device.base(), 0x8001_8002);
    world.device.complete(&[chain.used(0)]);
    serve(&mut world, 1);
    assert_eq!(world.device.base(), 0);
    assert_eq!(collect_all(&mut world), 3);
    send(&mut world, 2);
    serve(&mut world, 2);
    assert_eq!(world.device.base(), 0x0002_0002);
}

/// DPDK gives the avail half only, at a start.
#[test]
fn half_a_packed_base_means_both() {
    let mut world = World::plain(true, 4);
    restart(&mut world, 0x8000);
    assert_eq!(world.device.base(), 0x8000_8000);
    send(&mut world, 3);
    serve(&mut world, 3);
    restart(&mut world, 0x8003);
    assert_eq!(world.device.base(), 0x8003_8003);
    assert_eq!(collect_all(&mut world), 3);
    send(&mut world, 4);
    serve(&mut world, 4);
    assert_eq!(collect_all(&mut world), 4);
}

#[test]
fn rewound_chains_come_again() {
    for packed in [false, true] {
        let mut world = World::plain(packed, 4);
        // Over the end of the ring.
        send(&mut world, 3);
        serve(&mut world, 3);
        collect_all(&mut world);
        send(&mut world, 4);
        let ids = |world: &mut World| {
            let mut chain = Chain::new();
            let mut all = Vec::new();
            while world.device.pop(&world.mem, &mut chain).unwrap() {
                all.push(chain.id);
            }
            all
        };
        let before = world.device.position();
        let first = ids(&mut world);
        assert_eq!(first.len(), 4);
        world.device.rewind(before);
        assert_eq!(ids(&mut world), first);
        let used: Vec<_> = first.iter().map(|&id| Used { id, descs: 1, len: 0 }).collect();
        world.device.complete(&used);
        world.device.publish();
        assert_eq!(collect_all(&mut world), 4);
    }
}

#[test]
fn the_fields_that_ask_for_kicks() {
    let world =
        |packed, event_idx| World::new(&RingSpec { event_idx, ..RingSpec::new(packed, 8, RING) });
    let mut split = world(false, false);
    assert!(!split.device.enable_kicks());
    assert_eq!(split.driver.raw().used_flags(), 0);
    split.device.disable_kicks();
    assert_eq!(split.driver.raw().used_flags(), 1);
    send(&mut split, 1);
    assert!(!split.driver.kick_needed());
    assert!(split.device.enable_kicks(), "one is there");

    let mut split = world(false, true);
    send(&mut split, 2);
    assert!(split.driver.kick_needed(), "a new device is armed");
    serve(&mut split, 2);
    assert!(!split.device.enable_kicks());
    assert_eq!((split.driver.raw().used_flags(), split.driver.raw().avail_event()), (0, 2));
    split.device.disable_kicks();
    assert_eq!(split.driver.raw().used_flags(), 0, "always, with event-idx (2.7.10.1)");
    send(&mut split, 3);
    assert!(!split.driver.kick_needed());

    let mut packed = world(true, false);
    packed.device.enable_kicks();
    assert_eq!(packed.driver.raw().device_event(), (0, 0));
    packed.device.disable_kicks();
    assert_eq!(packed.driver.raw().device_event(), (0, 1));

    let mut packed = world(true, true);
    send(&mut packed, 5);
    serve(&mut packed, 5);
    collect_all(&mut packed);
    packed.device.enable_kicks();
    assert_eq!(packed.driver.raw().device_event(), (0x8005, 2));
    send(&mut packed, 4);
    serve(&mut packed, 4);
    packed.device.enable_kicks();
    assert_eq!(packed.driver.raw().device_event(), (1, 2), "the counter of the next lap");
}

#[test]
fn the_first_decision_is_for_an_interrupt() {
    for packed in [false, true] {
        let mut world = World::new(&RingSpec { event_idx: true, ..RingSpec::new(packed, 8, RING) });
        world.driver.enable_interrupts_after(5);
        assert!(world.device.should_notify(), "a predecessor may have owed one");
        assert!(!world.device.should_notify());
        // Without anything used since, not even a driver that wants all gets one.
        let mut world = World::plain(packed, 8);
        assert!(world.device.should_notify());
        assert!(!world.device.should_notify());
        // A driver that wants none gets none, from the first.
        let mut world = World::plain(packed, 8);
        world.driver.disable_interrupts();
        assert!(!world.device.should_notify());
    }
}

#[test]
fn a_wish_by_index_is_fulfilled_once() {
    for packed in [false, true] {
        let mut world = World::new(&RingSpec { event_idx: true, ..RingSpec::new(packed, 8, RING) });
        world.device.should_notify();
        for skip in [0, 1, 3, 0] {
            world.driver.enable_interrupts_after(skip);
            world.device.enable_kicks();
            for n in 0..5 {
                send(&mut world, 1);
                assert_eq!(world.driver.kick_needed(), n == 0, "packed: {packed}");
                serve(&mut world, 1);
                assert_eq!(world.device.should_notify(), n == skip, "packed: {packed}");
            }
            assert_eq!(collect_all(&mut world), 5);
        }
    }
}

/// Decisions may be far apart: with more than a turn of the counters between them the event was
/// passed for sure.
#[test]
fn a_late_decision_is_for_an_interrupt() {
    for packed in [false, true] {
        let mut world =
            World::new(&RingSpec { event_idx: true, ..RingSpec::new(packed, 256, RING) });
        world.device.should_notify();
        world.driver.enable_interrupts();
        for _ in 0..65_536 / 256 {
            send(&mut world, 256);
            serve(&mut world, 256);
            assert_eq!(collect_all(&mut world), 256);
        }
        assert!(world.device.should_notify(), "packed: {packed}");
    }
}

/// What the specification reserves in the driver's event suppression counts as "yes".
#[test]
fn a_wish_that_means_nothing_is_taken_for_yes() {
    let mut world = World::plain(true, 8);
    world.driver.disable_interrupts();
    assert!(!world.device.should_notify());
    for (position, flags) in [(0, 3), (7, 2), (0x7fff, 3)] {
        world.driver.raw().set_driver_event(position, flags);
        send(&mut world, 1);
        serve(&mut world, 1);
        assert!(world.device.should_notify(), "flags {flags} without event-idx");
        collect_all(&mut world);
    }
    // An event outside the ring is never reached, and breaks nothing.
    let mut world = World::new(&RingSpec { event_idx: true, ..RingSpec::new(true, 8, RING) });
    world.device.should_notify();
    world.driver.raw().set_driver_event(0x7fff, 2);
    for _ in 0..20 {
        send(&mut world, 1);
        serve(&mut world, 1);
        world.device.should_notify();
        collect_all(&mut world);
    }
}

/// With in-order the driver expects the oldest buffer, whatever its descriptors are called.
#[test]
fn in_order_is_kept() {
    for (packed, only_reads) in [(false, false), (true, false), (true, true)] {
        let spec = RingSpec { in_order: true, ..RingSpec::new(packed, 8, RING) };
        let mut world = World::new(&spec);
        if only_reads {
            world.device = world.device.read_only();
        }
        for _ in 0..5 {
            for len in 1..=3 {
                let parts: Vec<_> = (0..len).map(|n| buffer(n, 9)).collect();
                world.driver.add(&parts, &[], Shape::Direct).unwrap();
            }
            world.driver.expose();
            serve(&mut world, 3);
            assert_eq!(collect_all(&mut world), 3);
        }
    }
}

/// A driver on memory of several regions: a chain may have buffers in each, one buffer may not
/// reach over a hole.
#[test]
fn buffers_may_be_in_several_regions() {
    let (low, high) = (0x10_0000, 0x1_0000_0000);
    let mem = testkit::driver::memory(&[(low, 1 << 20), (high, 1 << 20)]).unwrap();
    let mut driver = DriverQueue::new(&mem, &RingSpec::new(false, 8, high)).unwrap();
    let mut device = Queue::new(&mem, &config(&driver)).unwrap();
    let at = |gpa, len| testkit::driver::Buffer { gpa, len };
    driver.add(&[at(low, 9), at(high + 65536, 9)], &[], Shape::Direct).unwrap();
    driver.add(&[at(low + (1 << 20) - 8, 9)], &[], Shape::Direct).unwrap();
    driver.expose();
    let mut chain = Chain::new();
    assert!(device.pop(&mem, &mut chain).unwrap());
    assert_eq!(chain.readable_len(), 18);
    assert_eq!(device.pop(&mem, &mut chain).unwrap_err().name(), "buffer-outside");
}
