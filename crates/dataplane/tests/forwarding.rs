//! Frames from guest to guest: every ring format and layout, learning, order, VLANs, MTU, queues,
//! and an account of every frame.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::HashMap;

use common::frames::{BROADCAST, ETHERTYPE, Mac, Vnet, eth, mac};
use common::plane::{Balance, Plane};
use common::vm::{Guest, Received, Vm};
use common::{Rng, wait};
use dataplane::rules::{Actions, Match, Rule, RuleId, RuleSet, RuleVerdict};
use dataplane::{Direction, DropReason, PortId};

/// Every address there can be, for 14-byte frames too.
const NOBODY: Mac = [2, 0xff, 0, 0, 0, 1];

/// Ports with one VM each; VM n has address `mac(n)`.
struct Trio {
    plane: Plane,
    ports: Vec<PortId>,
    vms: Vec<Vm>,
}

impl Trio {
    fn new(guests: &[Guest]) -> Trio {
        let plane = Plane::new();
        let mut trio = Trio { plane, ports: Vec::new(), vms: Vec::new() };
        for (n, guest) in guests.iter().enumerate() {
            let (port, vm) = trio.plane.vm(&format!("vm{n}"), guest);
            trio.ports.push(port);
            trio.vms.push(vm);
        }
        trio
    }

    /// Has everybody say something until the switch knows where everybody is; how many frames it
    /// took.
    fn introduce(&mut self) -> u64 {
        let Trio { plane, vms, .. } = self;
        let mut said = 0;
        for n in 0..vms.len() {
            let known = || plane.host.fdb(plane.network).iter().any(|e| e.mac == mac(n as u32));
            while !known() {
                vms[n].send(&eth(BROADCAST, mac(n as u32), b"hello"));
                said += 1;
                for other in (0..vms.len()).filter(|other| *other != n) {
                    assert_eq!(
                        vms[other].take(1)[0].frame,
                        eth(BROADCAST, mac(n as u32), b"hello")
                    );
                }
            }
        }
        said
    }

    fn frames_sent(&self) -> u64 {
        self.vms.iter().map(|vm| vm.sent).sum()
    }

    /// Everything is accounted for and nothing is left over; the account.
    fn end(mut self) -> Balance {
        for vm in &mut self.vms {
            vm.drain();
        }
        let balance = self.plane.settle(&self.ports, self.frames_sent());
        for vm in &mut self.vms {
            vm.poll();
            assert!(vm.inbox.is_empty(), "a frame nobody expected: {:x?}", vm.inbox);
        }
        self.plane.end();
        balance
    }
}

fn frames(received: Vec<Received>) -> Vec<Vec<u8>> {
    let plain = |one: Received| {
        assert_eq!(one.header, Vnet::default());
        one.frame
    };
    received.into_iter().map(plain).collect()
}

/// Sizes with every edge in them: runts excluded, the largest frame included.
fn any_len(rng: &mut Rng) -> usize {
    match rng.below(8) {
        0 => rng.range(14, 20),
        1 => rng.pick(&[14, 59, 60, 127, 128, 129, 141, 142, 1514, 1515, 65_549, 65_550]),
        2 => rng.range(9000, 65_550),
        3 | 4 => rng.range(100, 160),
        _ => rng.range(14, 1514),
    }
}

/// Batches of random frames to known, unknown and all addresses, compared with a plain model of a
/// switch.
fn exchange(guest: &Guest) {
    let seed = guest.layouts.unwrap();
    let layouts = |n: u64| Guest { layouts: Some(seed * 8 + n), ..guest.clone() };
    let mut trio = Trio::new(&[layouts(0), layouts(1), layouts(2)]);
    let mut rng = Rng::new(seed);

    // Nobody knows anybody: a frame to an address that exists goes to everybody all the same.
    let first = eth(mac(1), mac(0), b"where are you?");
    trio.vms[0].send(&first);
    for other in [1, 2] {
        assert!(frames(trio.vms[other].take(1)) == [first.as_slice()]);
    }
    let mut floods = 1 + trio.introduce();
    let mut same_port = 0;
    for _ in 0..30 {
        let from = rng.below(3) as usize;
        let mut expected: [Vec<Vec<u8>>; 3] = Default::default();
        let mut budget = 150_000;
        for _ in 0..rng.range(1, 12) {
            let len = any_len(&mut rng);
            if len > budget {
                break;
            }
            budget -= len;
            let to = match rng.below(6) {
                0 => BROADCAST,
                1 => NOBODY,
                _ => mac(rng.below(3) as u32),
            };
            let frame = eth(to, mac(from as u32), &rng.bytes(len - 14));
            trio.vms[from].send(&frame);
            let known = (0..3).find(|n| mac(*n as u32) == to);
            if known == Some(from) {
                same_port += 1;
                continue;
            }
            floods += u64::from(known.is_none());
            for n in (0..3).filter(|n| *n != from && known.is_none_or(|to| to == *n)) {
                expected[n].push(frame.clone());
            }
        }
        for (vm, expected) in trio.vms.iter_mut().zip(expected) {
            let got = frames(vm.take(expected.len()));
            for (n, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got.len(), expected.len(), "length of frame {n}, {guest:?}");
                let differs = got.iter().zip(expected).position(|(a, b)| a != b);
                assert_eq!(differs, None, "frame {n} of {} bytes, {guest:?}", got.len());
            }
        }
    }
    let balance = trio.end();
    // Each flood has two receivers.
    assert_eq!(balance.flood_copies, floods);
    assert_eq!(balance.dropped(), same_port);
    let named = |(reason, _): &(DropReason, u64)| *reason == DropReason::SamePort;
    assert!(balance.drops.iter().all(named), "{:?}", balance.drops);
}

/// All combinations of the features that change how rings look.
fn every_combination(packed: bool, modern: bool) {
    for bits in 0..16u64 {
        let on = |bit: u64| bits >> bit & 1 == 1;
        let in_order = on(3);
        if in_order && !modern {
            // Bit 35: a legacy driver has no such feature.
            continue;
        }
        let guest = Guest {
            packed,
            modern,
            mergeable: on(0),
            indirect: on(1),
            event_idx: on(2),
            in_order,
            ..Guest::plain()
        };
        let seed = 1 + bits + if packed { 16 } else { 0 } + if modern { 32 } else { 0 };
        exchange(&Guest { layouts: Some(seed), ..guest.for_any_size() });
    }
}

#[test]
fn split_rings_carry_any_frame_in_any_layout() {
    every_combination(false, true);
}

#[test]
fn packed_rings_carry_any_frame_in_any_layout() {
    every_combination(true, true);
}

#[test]
fn legacy_guests_carry_any_frame_in_any_layout() {
    every_combination(false, false);
}

/// Guests of different kinds on one network: header lengths and formats differ on the way.
#[test]
fn guests_of_all_kinds_understand_each_other() {
    let legacy = Guest { modern: false, mergeable: false, ..Guest::plain() };
    let packed = Guest { packed: true, mergeable: false, indirect: true, ..Guest::plain() };
    let small = Guest { event_idx: true, in_order: true, ring: 1024, ..Guest::plain() };
    let guests = [legacy.for_any_size(), packed.for_any_size(), small.for_any_size()];
    let mut trio = Trio::new(&guests);
    trio.introduce();
    let mut rng = Rng::new(77);
    for _ in 0..60 {
        let from = rng.below(3) as usize;
        let len = any_len(&mut rng);
        let frame = eth(BROADCAST, mac(from as u32), &rng.bytes(len - 14));
        trio.vms[from].send(&frame);
        for other in (0..3).filter(|other| *other != from) {
            let got = frames(trio.vms[other].take(1));
            assert!(got == [frame.clone()], "{len} bytes from {from} to {other}");
        }
    }
    assert_eq!(trio.end().drops, []);
}

/// The least rings there are, the largest, and for packed ones any in between.
#[test]
fn rings_of_any_size_work() {
    let split = [1, 2, 1 << 15].map(|ring| (false, ring));
    let packed = [1, 2, 3, 7, 300, 1 << 15].map(|ring| (true, ring));
    for (packed, ring) in split.into_iter().chain(packed) {
        for event_idx in [false, true] {
            let buffers = usize::from(ring).min(600);
            let guest = Guest {
                packed,
                ring,
                event_idx,
                rx_buffers: buffers,
                tx_buffers: buffers,
                ..Guest::plain()
            };
            let mut trio = Trio::new(&[guest.clone(), guest]);
            trio.introduce();
            for n in 0..200u32 {
                let frame = eth(mac(1), mac(0), &n.to_be_bytes());
                trio.vms[0].send(&frame);
                assert_eq!(frames(trio.vms[1].take(1)), [frame], "ring of {ring}");
            }
            assert_eq!(trio.end().drops, []);
        }
    }
}

/// One frame of each kind that cannot be delivered, and the name it is counted under.
#[test]
fn each_drop_has_its_name() {
    let big = Guest { tx_max: 70_000, ..Guest::plain() };
    let tiny = Guest { mergeable: false, rx_buffer: (128, 128), ..Guest::plain() };
    let mut trio = Trio::new(&[big, tiny.clone(), Guest { rx_buffers: 2, ..tiny }]);
    trio.introduce();
    let (a, b, c) = (trio.ports[0], trio.ports[1], trio.ports[2]);
    let check = |trio: &mut Trio, bytes: &[u8], port: PortId, reason: DropReason| {
        let before = trio.plane.dropped(port, reason);
        let vm = &mut trio.vms[0];
        assert!(vm.add_raw(0, bytes));
        vm.flush(0);
        let seen = || trio.plane.dropped(port, reason) == before + 1;
        wait(|| format!("{reason}: {:#?}", trio.plane.status(port)), seen);
    };
    let raw = |frame: &[u8]| [&[0; 12], frame].concat();
    let to = |dst: Mac, len: usize| raw(&eth(dst, mac(0), &vec![7; len - 14]));

    // Fewer bytes than a frame's header, than a virtio-net header, than anything.
    for len in [1, 11, 12, 13, 25] {
        check(&mut trio, &to(mac(1), 60)[..len], a, DropReason::Runt);
    }
    check(&mut trio, &to(mac(1), 65_558), a, DropReason::FrameTooBig);
    check(&mut trio, &to(mac(1), 70_000), a, DropReason::FrameTooBig);
    check(&mut trio, &to(mac(0), 60), a, DropReason::SamePort);
    check(&mut trio, &raw(&eth(mac(1), BROADCAST, &[0; 46])), a, DropReason::SrcMacInvalid);
    check(&mut trio, &raw(&eth(mac(1), [0; 6], &[0; 46])), a, DropReason::SrcMacInvalid);
    let lldp = [1, 0x80, 0xc2, 0, 0, 0xe];
    check(&mut trio, &to(lldp, 60), a, DropReason::ReservedMulticast);
    check(&mut trio, &to(mac(1), 128), b, DropReason::RxBufferTooSmall);
    // The buffer that was too small is still there, and large enough for another frame.
    trio.vms[0].send(&eth(mac(1), mac(0), &[1; 102]));
    assert_eq!(frames(trio.vms[1].take(1))[0].len(), 116);

    // The third VM has two buffers and takes its time.
    trio.vms[2].refilling = false;
    for n in 0..2 {
        trio.vms[0].send(&eth(mac(2), mac(0), &[n; 46]));
    }
    wait(
        || "both buffers used".into(),
        || {
            trio.vms[2].poll();
            trio.vms[2].inbox.len() == 2
        },
    );
    check(&mut trio, &to(mac(2), 60), c, DropReason::RxRingEmpty);
    // A large frame on an empty ring: there is no buffer, small or not.
    check(&mut trio, &to(mac(2), 200), c, DropReason::RxRingEmpty);
    trio.vms[2].refill();
    trio.vms[0].send(&eth(mac(2), mac(0), &[9; 46]));
    assert_eq!(frames(trio.vms[2].take(3)).pop().unwrap(), eth(mac(2), mac(0), &[9; 46]));
    trio.end();
}

/// A frame that needs more mergeable buffers than there are takes none of them.
#[test]
fn mergeable_buffers_are_given_back_if_they_do_not_suffice() {
    let few = Guest { rx_buffer: (500, 500), rx_buffers: 3, ..Guest::plain() };
    let packed = Guest { packed: true, ..few.clone() };
    let sender = Guest { tx_max: 9000, ..Guest::plain() };
    let mut trio = Trio::new(&[sender, few, packed]);
    trio.introduce();
    for n in [1, 2] {
        let port = trio.ports[n];
        let before = trio.plane.dropped(port, DropReason::RxRingEmpty);
        for len in [1488, 9000, 1489] {
            trio.vms[0].send(&eth(mac(n as u32), mac(0), &vec![3; len - 14]));
            let got = u64::from(len == 1488);
            assert_eq!(trio.vms[n].take(got as usize).len() as u64, got);
        }
        let dropped = || trio.plane.dropped(port, DropReason::RxRingEmpty) == before + 2;
        wait(|| format!("{:#?}", trio.plane.status(port)), dropped);
        let exact = eth(mac(n as u32), mac(0), &[4; 1474]);
        trio.vms[0].send(&exact);
        assert_eq!(frames(trio.vms[n].take(1)), [exact]);
    }
    trio.end();
}

/// A frame in more parts than are collected for one is refused, and the ring goes on.
#[test]
fn a_frame_in_too_many_parts_is_dropped() {
    let crumbs = Guest { rx_buffer: (16, 16), rx_buffers: 512, ring: 512, ..Guest::plain() };
    let mut trio = Trio::new(&[Guest { tx_max: 9000, ..Guest::plain() }, crumbs]);
    trio.introduce();
    let port = trio.ports[1];
    trio.vms[0].send(&eth(mac(1), mac(0), &[5; 9000 - 14]));
    let dropped = || trio.plane.dropped(port, DropReason::RxBufferTooSmall) == 1;
    wait(|| format!("{:#?}", trio.plane.status(port)), dropped);
    let frame = eth(mac(1), mac(0), &Rng::new(1).bytes(1500));
    trio.vms[0].send(&frame);
    assert_eq!(frames(trio.vms[1].take(1)), [frame]);
    assert_eq!(trio.end().drops, [(DropReason::RxBufferTooSmall, 1)]);
}

/// The only port of a network has nobody to talk to; neither has one whose peer has left.
#[test]
fn a_frame_for_nobody_is_counted() {
    let mut trio = Trio::new(&[Guest::plain()]);
    trio.vms[0].send(&eth(BROADCAST, mac(0), &[0; 46]));
    let port = trio.ports[0];
    let alone = |n| trio.plane.dropped(port, DropReason::NoDestination) == n;
    wait(|| "no destination".into(), || alone(1));

    let (other, mut peer) = trio.plane.vm("peer", &Guest::plain());
    peer.send(&eth(BROADCAST, mac(9), &[0; 46]));
    assert_eq!(trio.vms[0].take(1).len(), 1);
    trio.vms[0].send(&eth(mac(9), mac(0), &[0; 46]));
    assert_eq!(peer.take(1).len(), 1);
    let from_peer = peer.sent;
    drop(peer);
    trio.plane.wait_state(other, &dataplane::PortState::Waiting);
    trio.plane.barrier();
    trio.vms[0].send(&eth(mac(9), mac(0), &[0; 46]));
    wait(|| "no destination".into(), || alone(2));
    trio.ports.push(other);
    let sent = trio.frames_sent() + from_peer;
    trio.plane.settle(&trio.ports, sent);
}

/// A queue that the guest has disabled sends nothing and gets nothing, by name.
#[test]
fn disabled_queues_are_respected() {
    for packed in [false, true] {
        let guest = Guest { packed, ..Guest::plain() };
        let mut trio = Trio::new(&[guest.clone(), guest]);
        trio.introduce();
        let (a, b) = (trio.ports[0], trio.ports[1]);
        trio.vms[1].frontend.enable_queue(0, false).unwrap();
        trio.plane.barrier();
        trio.vms[0].send(&eth(mac(1), mac(0), b"not now"));
        let dropped = |port, n| trio.plane.dropped(port, DropReason::QueueDisabled) == n;
        wait(|| "queue-disabled at the receiver".into(), || dropped(b, 1));

        trio.vms[0].frontend.enable_queue(1, false).unwrap();
        trio.plane.barrier();
        trio.vms[0].send(&eth(mac(1), mac(0), b"not I"));
        trio.vms[0].drain();
        wait(|| "queue-disabled at the sender".into(), || dropped(a, 1));

        trio.vms[0].frontend.enable_queue(1, true).unwrap();
        trio.vms[1].frontend.enable_queue(0, true).unwrap();
        trio.plane.barrier();
        trio.vms[0].send(&eth(mac(1), mac(0), b"now"));
        assert_eq!(frames(trio.vms[1].take(1)), [eth(mac(1), mac(0), b"now")]);
        trio.end();
    }
}

/// Flows of a VM with several queue pairs: each arrives on one queue, in order, and they spread.
#[test]
fn queue_pairs_keep_the_order_of_flows() {
    for (pairs, packed) in [(2, false), (4, true), (4, false), (2, true)] {
        let guest = Guest { pairs, packed, ..Guest::plain() };
        let mut trio = Trio::new(&[guest.clone(), guest]);
        trio.introduce();
        let mut rng = Rng::new(u64::from(pairs));
        let flows = 24u16;
        let mut counts = vec![0u16; usize::from(flows)];
        let mut queue_of: HashMap<u16, u16> = HashMap::new();
        let mut next = vec![0u16; usize::from(flows)];
        for _ in 0..40 {
            let mut count = 0;
            for _ in 0..rng.range(1, 30) {
                let flow = rng.below(flows.into()) as u16;
                let number = &mut counts[usize::from(flow)];
                let mut packet = common::frames::Packet::new(
                    flow % 2 == 1,
                    flow.is_multiple_of(3),
                    mac(1),
                    mac(0),
                    number.to_be_bytes().to_vec(),
                );
                packet.ports = (1000 + flow, 80);
                *number += 1;
                // A guest sends a flow by one queue, as Linux does.
                let vm = &mut trio.vms[0];
                vm.send_on(usize::from(flow % pairs), &Vnet::default(), &packet.full());
                count += 1;
            }
            for received in trio.vms[1].take(count) {
                let packet = common::frames::Packet::read(&received.frame, false);
                let flow = packet.ports.0 - 1000;
                let number = u16::from_be_bytes(packet.payload.try_into().unwrap());
                assert_eq!(number, next[usize::from(flow)], "order of flow {flow}");
                next[usize::from(flow)] += 1;
                let queue = *queue_of.entry(flow).or_insert(received.queue);
                assert_eq!(queue, received.queue, "flow {flow} changed queues");
            }
        }
        let used: std::collections::HashSet<_> = queue_of.values().collect();
        assert_eq!(used.len(), usize::from(pairs), "{flows} flows on {used:?}");
        let status = trio.plane.status(trio.ports[1]);
        let rx = status.queues.iter().filter(|queue| queue.dir == Direction::Rx);
        assert!(rx.clone().count() == usize::from(pairs) && rx.into_iter().all(|q| q.frames > 0));
        assert_eq!(trio.end().drops, []);
    }
}

/// With one of two RX queues disabled all flows go to the other.
#[test]
fn flows_avoid_a_disabled_queue() {
    let guest = Guest { pairs: 2, ..Guest::plain() };
    let mut trio = Trio::new(&[guest.clone(), guest]);
    trio.introduce();
    for (off, expected) in [(0, 1), (2, 0)] {
        trio.vms[1].frontend.enable_queue(off, false).unwrap();
        trio.plane.barrier();
        for flow in 0..32 {
            let mut packet =
                common::frames::Packet::new(false, true, mac(1), mac(0), vec![flow as u8]);
            packet.ports = (flow, 7);
            trio.vms[0].send(&packet.full());
        }
        let queues: Vec<u16> = trio.vms[1].take(32).iter().map(|one| one.queue).collect();
        assert_eq!(queues, vec![expected; 32]);
        trio.vms[1].frontend.enable_queue(off, true).unwrap();
        trio.plane.barrier();
    }
    assert_eq!(trio.end().drops, []);
}

/// So many machines behind two ports talk to each other, in all directions, that the worker has to make room
/// to remember who is where, and takes their frames many at once: what is more than one burst.
#[test]
fn more_pairs_than_there_is_room_for_at_first() {
    const MACHINES: u32 = 120;
    let machine = |side: u32, n: u32| mac(1000 * side + n);
    for guest in [false, true].map(|packed| Guest { packed, ..Guest::plain() }) {
        let mut trio = Trio::new(&[guest.clone(), guest.clone(), guest]);
        let mut rng = Rng::new(7);
        for n in 0..MACHINES {
            for (side, other) in [(0, 1), (1, 0)] {
                let hello = eth(BROADCAST, machine(side, n), b"hello");
                trio.vms[side as usize].send(&hello);
                for to in [other, 2] {
                    assert_eq!(frames(trio.vms[to].take(1)), [hello.as_slice()]);
                }
            }
        }
        // Nobody else hears any of it.
        for _ in 0..3 {
            for from in 0..MACHINES {
                let sent: Vec<_> = (0..MACHINES)
                    .map(|n| {
                        let pair = (machine(1, (n + from) % MACHINES), machine(0, from));
                        eth(pair.0, pair.1, &rng.bytes(60))
                    })
                    .collect();
                trio.vms[0].send_at_once(&sent);
                assert!(frames(trio.vms[1].take(sent.len())) == sent);
            }
        }
        // One moves away: what was remembered about it is over.
        let moved = machine(1, 5);
        let moves = eth(machine(0, 0), moved, b"here I am");
        trio.vms[2].send(&moves);
        assert_eq!(frames(trio.vms[0].take(1)), [moves.as_slice()]);
        for from in 0..MACHINES {
            let frame = eth(moved, machine(0, from), b"where are you?");
            trio.vms[0].send(&frame);
            assert_eq!(frames(trio.vms[2].take(1)), [frame.as_slice()]);
        }
        // What rules make of a frame is looked up, and not what it was. Others from there to there stay as they are.
        let mut actions = Actions::only(RuleVerdict::Accept);
        actions.rewrite.dst = Some(dataplane::Mac(moved));
        let matches = Match { ethertype: Some(ETHERTYPE), ..Match::default() };
        let rules = RuleSet {
            from: vec![Rule { id: RuleId(1), priority: 0, matches, actions }],
            ..RuleSet::default()
        };
        let rules = vec![(trio.ports[0], Some(rules))];
        trio.plane.run(trio.plane.host.set_all_rules(rules)).unwrap();
        for shift in 0..MACHINES {
            let all = |ethertype: u16, to: &dyn Fn(u32) -> Mac| -> Vec<Vec<u8>> {
                let others = (0..MACHINES).filter(|n| machine(1, *n) != moved);
                let frame = |n| {
                    let mut frame = eth(to(n), machine(0, (n + shift) % MACHINES), b"to whom?");
                    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
                    frame
                };
                others.map(frame).collect()
            };
            for (ethertype, to, changed) in [(ETHERTYPE ^ 1, 1, false), (ETHERTYPE, 2, true)] {
                let sent = all(ethertype, &|n| machine(1, n));
                trio.vms[0].send_at_once(&sent);
                let got = frames(trio.vms[to].take(sent.len()));
                let expected = if changed { all(ethertype, &|_| moved) } else { sent };
                assert!(got == expected);
            }
        }
        trio.end();
    }
}

/// Frames of many machines, in rows to one guest and to several: to those nobody knows and to the own side too, longer
/// than a receiver's MTU, in buffers of all layouts, and more than a receiver has room for.
#[test]
fn frames_taken_many_at_once_go_their_own_ways() {
    const MACHINES: u32 = 110;
    const MTU: usize = 1000;
    let machine = |side: u32, n: u32| mac(1000 * side + n);
    let plain = Guest::plain();
    let scattered =
        Guest { layouts: Some(3), rx_buffer: (700, 1600), ring: 1024, ..Guest::plain() };
    let single = Guest { mergeable: false, rx_buffer: (900, 1600), ..Guest::plain() };
    let packed = |guest: &Guest| Guest { packed: true, event_idx: true, ..guest.clone() };
    let in_order = Guest { in_order: true, ..packed(&plain) };
    let kinds = [
        [plain.clone(), plain.clone(), scattered.clone()],
        [packed(&plain), in_order, packed(&scattered)],
        [scattered.clone(), packed(&plain), plain.clone()],
        [packed(&plain), single, packed(&scattered)],
    ];
    for (turn, guests) in kinds.into_iter().enumerate() {
        // In pieces, more than those take more entries than a ring has.
        let row = if guests[0].layouts.is_some() { 20 } else { 60 };
        let plane = Plane::new();
        let ports: Vec<_> = ["sender", "any", "small"]
            .map(|name| {
                plane.port_with(name, |spec, _| spec.mtu = (name == "small").then_some(MTU as u16))
            })
            .into();
        let vms = ["sender", "any", "small"].iter().zip(&guests);
        let vms = vms.map(|(name, guest)| plane.connect(name, guest)).collect();
        let mut trio = Trio { plane, ports, vms };
        for n in 0..MACHINES {
            for side in 0..3 {
                let hello = eth(BROADCAST, machine(side, n), b"hello");
                trio.vms[side as usize].send(&hello);
                for other in (0..3).filter(|other| *other != side) {
                    assert_eq!(frames(trio.vms[other as usize].take(1)), [hello.as_slice()]);
                }
            }
        }
        let mut rng = Rng::new(turn as u64);
        // All pairs, so that there is room for many.
        for side in [1, 2, 1, 2] {
            for from in 0..MACHINES {
                let one = |n| eth(machine(side, (n + from) % MACHINES), machine(0, from), b"who?");
                let sent: Vec<_> = (0..MACHINES).map(one).collect();
                for part in sent.chunks(row) {
                    trio.vms[0].drain();
                    trio.vms[0].send_at_once(part);
                    assert!(frames(trio.vms[side as usize].take(part.len())) == part);
                }
            }
        }
        let (mut same_port, mut too_long) = (0, 0);
        for _ in 0..200 {
            let (mut sent, mut expected) = (Vec::new(), [Vec::new(), Vec::new()]);
            while sent.len() < row {
                let way = rng.below(12);
                for _ in 0..rng.range(1, 12) {
                    let to = match way {
                        0 => NOBODY,
                        1 => machine(0, rng.below(u64::from(MACHINES)) as u32),
                        way => machine(1 + way as u32 % 2, rng.below(u64::from(MACHINES)) as u32),
                    };
                    let len =
                        rng.pick(&[14, 60, 64, 100, 129, 700, 888, 889, 1000, 1014, 1015, 1514]);
                    let from = machine(0, rng.below(u64::from(MACHINES)) as u32);
                    let frame = eth(to, from, &rng.bytes(len - 14));
                    let small = len <= MTU + 14;
                    let to_any = way == 0 || way > 1 && way.is_multiple_of(2);
                    let to_small = way == 0 || way > 1 && !way.is_multiple_of(2);
                    // What the buffers of a guest hold that does not merge them.
                    if to_any && !guests[1].mergeable && len > 888 {
                        continue;
                    }
                    sent.push(frame.clone());
                    same_port += u64::from(way == 1);
                    too_long += u64::from(to_small && !small);
                    if to_any {
                        expected[0].push(frame.clone());
                    }
                    if to_small && small {
                        expected[1].push(frame);
                    }
                }
            }
            trio.vms[0].drain();
            trio.vms[0].send_at_once(&sent);
            for (vm, expected) in trio.vms[1..].iter_mut().zip(expected) {
                assert!(frames(vm.take(expected.len())) == expected);
            }
        }
        assert!(same_port > 0 && too_long > 0);
        // One that takes its time gets what there is room for, and the other one all of it.
        for vm in &mut trio.vms {
            vm.drain();
        }
        trio.vms[2].refilling = false;
        let mut late = Vec::new();
        for _ in 0..(600 / row) {
            let sent: Vec<_> = (0..row as u32)
                .map(|n| {
                    let to = machine(1 + n / 10 % 2, rng.below(u64::from(MACHINES)) as u32);
                    eth(to, machine(0, n), &rng.bytes(46))
                })
                .collect();
            trio.vms[0].send_at_once(&sent);
            let (here, there): (Vec<_>, Vec<_>) =
                sent.iter().cloned().enumerate().partition(|(n, _)| n / 10 % 2 == 0);
            let only = |all: Vec<(usize, Vec<u8>)>| all.into_iter().map(|(_, one)| one);
            assert!(frames(trio.vms[1].take(here.len())) == only(here).collect::<Vec<_>>());
            trio.vms[0].drain();
            late.extend(only(there));
        }
        trio.vms[2].poll();
        let got = frames(trio.vms[2].inbox.drain(..).collect());
        assert!(got.len() >= 100 && got.len() < late.len(), "{} of {}", got.len(), late.len());
        assert!(got == late[..got.len()]);
        let lost = (late.len() - got.len()) as u64;
        trio.vms[2].refill();
        let balance = trio.end();
        let drops: HashMap<_, _> = balance.drops.iter().copied().collect();
        let expected = [
            (DropReason::SamePort, same_port),
            (DropReason::MtuExceeded, too_long),
            (DropReason::RxRingEmpty, lost),
        ];
        assert_eq!(drops, HashMap::from(expected));
    }
}
