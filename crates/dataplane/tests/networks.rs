//! Ports that treat frames differently: VLANs, MTU, workers, networks.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::HashMap;
use std::thread;

use common::frames::{BROADCAST, Mac, Packet, Vnet, eth, mac, tagged};
use common::plane::Plane;
use common::vm::{ALL_OFFLOADS, Guest, Received, Vm};
use common::{Rng, wait};
use dataplane::{DropReason, Moderation, PortId, VlanMode};
use testkit::frontend::request;

/// A network of ports in these modes; VM n has address `mac(n)`.
struct Vlans {
    plane: Plane,
    ports: Vec<PortId>,
    vms: Vec<Vm>,
}

impl Vlans {
    fn new(modes: &[VlanMode], guest: &Guest) -> Vlans {
        let plane = Plane::new();
        let (ports, vms) = plane.vms(modes, guest);
        Vlans { plane, ports, vms }
    }

    /// Sends a frame; each of `to` gets it in this form, the others nothing.
    fn expect(&mut self, from: usize, frame: &[u8], to: &[(usize, Vec<u8>)]) {
        let drops = self.drops();
        self.vms[from].send(frame);
        for (n, expected) in to {
            let got = &self.vms[*n].take(1)[0];
            assert!(got.frame == *expected, "{from} to {n}: {:x?}, not {expected:x?}", got.frame);
        }
        self.vms[from].drain();
        self.settle();
        if !to.is_empty() {
            assert_eq!(self.drops(), drops);
        }
    }

    /// Sends a frame that is dropped at its own port.
    fn refuse(&mut self, from: usize, frame: &[u8], reason: DropReason) {
        let before = self.plane.dropped(self.ports[from], reason);
        self.expect(from, frame, &[]);
        assert_eq!(self.plane.dropped(self.ports[from], reason), before + 1, "{reason}");
    }

    fn settle(&mut self) {
        let sent = self.vms.iter().map(|vm| vm.sent).sum();
        self.plane.settle(&self.ports, sent);
        for (n, vm) in self.vms.iter_mut().enumerate() {
            vm.poll();
            assert!(vm.inbox.is_empty(), "{n} got {:x?}", vm.inbox);
        }
    }

    fn drops(&self) -> u64 {
        let all = self.ports.iter().flat_map(|port| self.plane.status(*port).drops);
        all.map(|(_, frames)| frames).sum()
    }
}

fn trunk(allowed: &str, native: Option<u16>) -> VlanMode {
    VlanMode::Trunk { allowed: allowed.parse().unwrap(), native }
}

/// Two access ports of VLAN 10, one of 20, two trunks, and one that knows no VLANs.
#[test]
fn tags_are_pushed_popped_and_kept() {
    let modes = [
        VlanMode::Access(10),
        VlanMode::Access(10),
        VlanMode::Access(20),
        trunk("10,20", None),
        trunk("10", Some(20)),
        VlanMode::None,
    ];
    for packed in [false, true] {
        let mut net = Vlans::new(&modes, &Guest { packed, ..Guest::plain() });
        let mut rng = Rng::new(10);
        for len in [0, 2, 46, 110, 111, 115, 116, 600, 1496] {
            let body = rng.bytes(len);
            let group = |src| eth(BROADCAST, src, &body);
            // From an access port: untagged to its own kind, tagged to trunks and the transparent.
            for from in [1, 0] {
                let frame = group(mac(from));
                let with = tagged(&frame, 10);
                let peer = 1 - from as usize;
                net.expect(
                    from as usize,
                    &frame,
                    &[
                        (peer, frame.clone()),
                        (3, with.clone()),
                        (4, with.clone()),
                        (5, with.clone()),
                    ],
                );
            }
            // VLAN 20: the native VLAN of the second trunk, so it leaves there untagged.
            let frame = group(mac(2));
            let with = tagged(&frame, 20);
            net.expect(2, &frame, &[(3, with.clone()), (4, frame.clone()), (5, with.clone())]);
            // Tagged by a trunk, priority bits and all.
            let frame = group(mac(3));
            let with = tagged(&frame, 5 << 13 | 10);
            net.expect(
                3,
                &with,
                &[(0, frame.clone()), (1, frame.clone()), (4, with.clone()), (5, with.clone())],
            );
            // Native of the second trunk.
            let frame = group(mac(4));
            let with = tagged(&frame, 20);
            net.expect(4, &frame, &[(2, frame.clone()), (3, with.clone()), (5, with.clone())]);
            // The transparent port tags for itself.
            let frame = group(mac(5));
            let with = tagged(&frame, 10);
            net.expect(
                5,
                &with,
                &[(0, frame.clone()), (1, frame.clone()), (3, with.clone()), (4, with.clone())],
            );
            // Now known: unicast in all forms.
            let unicast = |to: u32, from: u32| eth(mac(to), mac(from), &body);
            net.expect(0, &unicast(1, 0), &[(1, unicast(1, 0))]);
            net.expect(0, &unicast(3, 0), &[(3, tagged(&unicast(3, 0), 10))]);
            net.expect(3, &tagged(&unicast(0, 3), 10), &[(0, unicast(0, 3))]);
            net.expect(4, &unicast(2, 4), &[(2, unicast(2, 4))]);
            net.expect(2, &unicast(4, 2), &[(4, unicast(4, 2))]);
            net.expect(5, &tagged(&unicast(3, 5), 10), &[(3, tagged(&unicast(3, 5), 10))]);
        }
        let frame = eth(BROADCAST, mac(0), &[0; 46]);
        net.refuse(0, &tagged(&frame, 10), DropReason::VlanNotAllowed);
        let frame = eth(BROADCAST, mac(3), &[0; 46]);
        net.refuse(3, &frame, DropReason::VlanNotAllowed);
        net.refuse(3, &tagged(&frame, 30), DropReason::VlanNotAllowed);
        // Untagged traffic of transparent ports reaches transparent ports only.
        net.refuse(5, &eth(BROADCAST, mac(5), &[0; 46]), DropReason::NoDestination);
        net.plane.end();
    }
}

/// Checksum and segmentation offsets follow the tag.
#[test]
fn offloads_follow_a_changed_tag() {
    let guest =
        Guest { offloads: ALL_OFFLOADS, tx_max: 9000, rx_buffer: (9100, 9100), ..Guest::plain() };
    let plain = Guest { offloads: 0, ..guest.clone() };
    let plane = Plane::new();
    let mut ports = Vec::new();
    let mut add = |name: &str, vlan, guest: &Guest| {
        ports.push(plane.port_with(name, |spec, _| spec.vlan = vlan));
        plane.connect(name, guest)
    };
    let mut access = add("access", VlanMode::Access(10), &guest);
    let mut able = add("able", trunk("10", None), &guest);
    let mut unable = add("unable", trunk("10", None), &plain);
    for (v6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
        // From untagged to tagged, and from tagged to untagged.
        for push in [true, false] {
            let payload = Rng::new(3).bytes(5000);
            let mut packet = Packet::new(v6, udp, BROADCAST, mac(1), payload);
            let mut after = packet.clone();
            let (tagged, sender) = if push { (&mut after, 0) } else { (&mut packet, 1) };
            tagged.vlan = Some(10);
            for gso in [false, true] {
                let header = |packet: &Packet| {
                    if gso { packet.needs_gso(1400) } else { packet.needs_csum() }
                };
                let from = if sender == 0 { &mut access } else { &mut able };
                from.send_on(0, &header(&packet), &packet.partial());
                let to = if sender == 0 { &mut able } else { &mut access };
                let got = to.take(1).remove(0);
                assert_eq!(got.header, header(&after));
                assert!(got.frame == after.partial(), "{packet:?}");
                // The other trunk port has it segmented and tagged either way.
                let segments = if gso { 4 } else { 1 };
                let mut payload = Vec::new();
                for got in unable.take(segments) {
                    assert_eq!(got.header, Vnet::default());
                    let part = Packet::read(&got.frame, false);
                    assert_eq!(part.vlan, Some(10));
                    payload.extend(part.payload);
                }
                assert!(payload == packet.payload);
            }
        }
    }
    let sent = access.sent + able.sent + unable.sent;
    access.drain();
    able.drain();
    assert_eq!(plane.settle(&ports, sent).drops, []);
    plane.end();
}

/// Frames larger than the MTU of the port they go to are dropped there, whatever their kind.
#[test]
fn the_mtu_of_the_receiver_counts() {
    let plane = Plane::new();
    let guest = Guest {
        offloads: ALL_OFFLOADS,
        tx_max: 65_600,
        tx_buffers: 16,
        rx_buffer: (65_600, 65_600),
        rx_buffers: 16,
        ..Guest::plain()
    };
    let (from, mut a) = plane.vm("from", &guest);
    let small = plane.port_with("small", |spec, _| spec.mtu = Some(1000));
    let mut b = plane.connect("small", &guest);
    let (any, mut c) = plane.vm("any", &guest);
    assert_eq!(plane.status(small).mtu, Some(1000));
    assert_eq!(plane.status(any).mtu, None);
    let mut too_big = 0;
    let mut check = |b: &mut Vm, header: &Vnet, frame: &[u8], fits: bool| {
        a.send_on(0, header, frame);
        assert!(c.take(1)[0].frame == frame, "the port without an MTU takes all");
        if fits {
            assert!(b.take(1)[0].frame == frame);
        } else {
            too_big += 1;
        }
        let dropped = || plane.dropped(small, DropReason::MtuExceeded) == too_big;
        wait(|| format!("{} bytes: {:#?}", frame.len(), plane.status(small)), dropped);
        assert!(b.inbox.is_empty());
    };
    let plain = Vnet::default();
    for (payload, fits) in [(46, true), (999, true), (1000, true), (1001, false), (65_536, false)] {
        let frame = eth(BROADCAST, mac(0), &vec![1; payload]);
        check(&mut b, &plain, &frame, fits);
        // A tag is not part of the packet.
        if payload < 65_000 {
            check(&mut b, &plain, &tagged(&frame, 7), fits);
        }
    }
    // Of a frame to be segmented each segment must fit: 20 bytes of IPv4, 20 of TCP.
    for (size, fits) in [(100, true), (960, true), (961, false), (1460, false)] {
        let mut packet = Packet::new(false, false, BROADCAST, mac(0), vec![2; 30_000]);
        check(&mut b, &packet.needs_gso(size), &packet.partial(), fits);
        packet.vlan = Some(9);
        check(&mut b, &packet.needs_gso(size), &packet.partial(), fits);
    }
    for (size, fits) in [(952, true), (953, false)] {
        let packet = Packet::new(true, true, BROADCAST, mac(0), vec![3; 20_000]);
        check(&mut b, &packet.needs_gso(size), &packet.partial(), fits);
    }

    // NET_SET_MTU: what the front end tells its guest holds from now on.
    b.frontend.set_u64(request::NET_SET_MTU, 500).unwrap();
    assert_eq!(plane.status(small).mtu, Some(500));
    check(&mut b, &plain, &eth(BROADCAST, mac(0), &[5; 500]), true);
    check(&mut b, &plain, &eth(BROADCAST, mac(0), &[5; 501]), false);
    assert!(b.frontend.set_u64(request::NET_SET_MTU, 67).is_err(), "below the least of IPv4");
    assert!(b.frontend.set_u64(request::NET_SET_MTU, 65_536).is_err(), "above the largest");
    assert_eq!(plane.status(small).mtu, Some(500));
    a.drain();
    plane.settle(&[from, small, any], a.sent);
    plane.end();
}

/// A frame to be segmented whose payload is less than one segment is as long as it is.
#[test]
fn a_single_segment_may_be_shorter_than_the_segment_size() {
    let plane = Plane::new();
    let guest = Guest { offloads: ALL_OFFLOADS, ..Guest::plain() };
    let (_, mut a) = plane.vm("a", &guest);
    let small = plane.port_with("small", |spec, _| spec.mtu = Some(1000));
    let mut b = plane.connect("small", &guest);
    let packet = Packet::new(false, false, BROADCAST, mac(0), vec![4; 500]);
    a.send_on(0, &packet.needs_gso(1460), &packet.partial());
    a.drain();
    let judged = || {
        b.poll();
        !b.inbox.is_empty() || plane.dropped(small, DropReason::MtuExceeded) > 0
    };
    wait(|| "the frame's fate".into(), judged);
    assert_eq!(plane.dropped(small, DropReason::MtuExceeded), 0, "540 bytes through 1000");
}

/// What one front end said of its guest's MTU does not bind the next guest on the port.
#[test]
fn the_mtu_of_a_session_ends_with_it() {
    let plane = Plane::new();
    let port = plane.port_with("port", |spec, _| spec.mtu = Some(2000));
    let mut vm = plane.connect("port", &Guest::plain());
    vm.frontend.set_u64(request::NET_SET_MTU, 1300).unwrap();
    assert_eq!(plane.status(port).mtu, Some(1300));
    vm.leave();
    plane.wait_state(port, &dataplane::PortState::Waiting);
    let _next = plane.connect("port", &Guest::plain());
    assert_eq!(plane.status(port).mtu, Some(2000));
}

/// Ports on two workers that all send to each other at once: nobody waits for anybody for ever,
/// nothing is lost without a name, and nothing arrives twice or in the wrong order.
#[test]
fn two_workers_send_to_each_other_at_once() {
    const PORTS: usize = 4;
    const FRAMES: u32 = 20_000;
    let plane = Plane::with_workers(2);
    let mut ports = Vec::new();
    let mut vms = Vec::new();
    for n in 0..PORTS {
        let name = format!("vm{n}");
        ports.push(plane.port_with(&name, |spec, _| spec.worker = Some(n as u16 % 2)));
        let guest = Guest { packed: n >= 2, event_idx: n % 2 == 1, pairs: 2, ..Guest::plain() };
        vms.push(plane.connect(&name, &guest));
    }
    let run = |(n, mut vm): (usize, Vm)| {
        let mut last = HashMap::new();
        let mut rng = Rng::new(n as u64);
        for number in 0..FRAMES {
            let to: Mac = match rng.below(10) {
                0 => BROADCAST,
                _ => mac(rng.below(PORTS as u64) as u32),
            };
            let mut body = number.to_be_bytes().to_vec();
            body.extend_from_slice(&[n as u8; 42]);
            vm.send_on(number as usize % 2, &Vnet::default(), &eth(to, mac(n as u32), &body));
            vm.poll();
            look(&mut vm, &mut last);
        }
        vm.drain();
        (vm, last)
    };
    let threads: Vec<_> =
        vms.into_iter().enumerate().map(|one| thread::spawn(move || run(one))).collect();
    let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let balance = plane.settle(&ports, u64::from(FRAMES) * PORTS as u64);
    for worker in plane.host.workers() {
        assert!(worker.busy_polls > 0 && worker.queues.len() == PORTS, "{worker:?}");
    }
    let mut arrived = 0;
    for (n, (mut vm, mut last)) in results.into_iter().enumerate() {
        vm.poll();
        look(&mut vm, &mut last);
        arrived += vm.rx.iter().map(|side| side.completed).sum::<u64>();
        assert!(!last.is_empty(), "{n} heard nobody");
    }
    assert_eq!(arrived, balance.to.frames, "what left the switch is what arrived");
    let named = [DropReason::SamePort, DropReason::RxRingEmpty, DropReason::NoDestination];
    assert!(balance.drops.iter().all(|(reason, _)| named.contains(reason)), "{balance:?}");
    plane.end();
}

/// Frames of one sender's queue keep their order in each queue of each receiver.
fn look(vm: &mut Vm, last: &mut HashMap<(u8, u32, u16), u32>) {
    for Received { queue, frame, .. } in vm.inbox.drain(..) {
        let number = u32::from_be_bytes(frame[14..18].try_into().unwrap());
        let from = frame[18];
        assert!(frame[18..].iter().all(|byte| *byte == from));
        if let Some(before) = last.insert((from, number % 2, queue), number) {
            assert!(before < number, "{before} of {from}, then {number}");
        }
    }
}

/// A worker that does not exist is refused, and the ports go to the idler worker by themselves.
#[test]
fn ports_are_placed_on_workers() {
    let plane = Plane::with_workers(2);
    let mut ports = Vec::new();
    for n in 0..4 {
        ports.push(plane.port_with(&format!("p{n}"), |spec, _| spec.worker = None));
    }
    let vms: Vec<_> = (0..4).map(|n| plane.connect(&format!("p{n}"), &Guest::plain())).collect();
    let placed = || plane.host.workers().iter().all(|worker| worker.queues.len() == 2);
    wait(|| format!("two ports each: {:#?}", plane.host.workers()), placed);
    let spec = dataplane::PortSpec {
        name: "nowhere".into(),
        network: plane.network,
        vlan: VlanMode::None,
        mac_limit: None,
        policy: dataplane::Policy::default(),
        mtu: None,
        worker: Some(2),
        kind: dataplane::PortKind::Vhost(dataplane::VhostSpec {
            socket: plane.socket("nowhere"),
            mode: dataplane::SocketMode::Server,
            queues: 1,
            features_off: 0,
            moderation: Moderation::default(),
            rings: None,
        }),
    };
    let error = plane.run(plane.host.add_port(spec)).unwrap_err().to_string();
    assert_eq!(error, "there is no worker 2: this daemon has 2, numbered from 0");
    assert!(!plane.socket("nowhere").exists(), "nothing is left behind");
    drop(vms);
    plane.end();
}

/// Networks do not hear each other, and a port that is removed leaves nothing behind.
#[test]
fn networks_are_apart_and_ports_can_go() {
    let plane = Plane::new();
    let other = plane.host.add_network(&common::plane::network("other")).unwrap();
    let (a, mut vm_a) = plane.vm("a", &Guest::plain());
    let (b, mut vm_b) = plane.vm("b", &Guest::plain());
    let c = plane.port_with("c", |spec, _| spec.network = other);
    let mut vm_c = plane.connect("c", &Guest::plain());
    for frame in [eth(BROADCAST, mac(0), &[1; 46]), eth(mac(2), mac(0), &[2; 46])] {
        vm_a.send(&frame);
        assert!(vm_b.take(1)[0].frame == frame);
    }
    vm_c.send(&eth(mac(0), mac(2), &[3; 46]));
    wait(
        || "nobody else in the network".into(),
        || plane.dropped(c, DropReason::NoDestination) == 1,
    );
    vm_a.poll();
    vm_c.poll();
    assert!(vm_a.inbox.is_empty() && vm_c.inbox.is_empty());
    assert!(plane.host.remove_network(other).is_err(), "it has a port");

    plane.run(plane.host.remove_port(b)).unwrap();
    assert!(plane.host.port_status(b).is_none() && !plane.socket("b").exists());
    vm_b.frontend.wait_closed().unwrap();
    vm_a.send(&eth(mac(1), mac(0), &[4; 46]));
    wait(|| "its peer is gone".into(), || plane.dropped(a, DropReason::NoDestination) == 1);
    plane.run(plane.host.remove_port(c)).unwrap();
    plane.host.remove_network(other).unwrap();
    assert!(plane.run(plane.host.remove_port(c)).is_err(), "it is gone already");
    plane.end();
}
