//! Routers that are bypassed: frames go past them as they would have sent them, or to them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use common::frames::{BROADCAST, Mac, Packet, Vnet, eth, mac};
use common::plane::{Plane, network};
use common::vm::{ALL_OFFLOADS, Guest, Vm};
use dataplane::{
    HopCount, NetworkId, NextHop, PortId, Prefix, Route, RouteId, RouterId, RouterInterface,
    SourceCheck, Step, Tuple,
};

/// A host, a router and another host, in two networks; the router has a card in each.
struct Lab {
    plane: Plane,
    ports: Vec<PortId>,
    a: Vm,
    router: [Vm; 2],
    b: Vm,
    id: RouterId,
    route: RouteId,
}

const A: u32 = 1;
const R0: u32 = 2;
const R1: u32 = 3;
const B: u32 = 4;

fn address(n: u32) -> Mac {
    mac(n)
}

/// Where packets go, by both versions of IP.
fn prefixes() -> [Prefix; 2] {
    [("10.0.0.2", 32), ("fd00::2", 64)]
        .map(|(ip, len)| Prefix::new(ip.parse().unwrap(), len).unwrap())
}

impl Lab {
    fn new(guest: &Guest) -> Lab {
        let plane = Plane::new();
        let other = plane.host.add_network(&network("other")).unwrap();
        let mut ports = Vec::new();
        let mut vm = |name: &str, network: NetworkId, number| {
            ports.push(plane.port_with(name, |spec, _| spec.network = network));
            let mut vm = plane.connect(name, guest);
            vm.send(&eth(BROADCAST, address(number), &[0; 46]));
            vm
        };
        let (a, r0) = (vm("a", plane.network, A), vm("r0", plane.network, R0));
        let (r1, b) = (vm("r1", other, R1), vm("b", other, B));
        let host = &plane.host;
        let id = host.add_router().unwrap();
        let interface = |port: usize, number| RouterInterface {
            port: ports[port],
            vlan: None,
            mac: packet::Mac(address(number)),
            mtu: 1500,
            check: SourceCheck::Off,
            check_v6: SourceCheck::Off,
        };
        host.set_interfaces(id, vec![interface(1, R0), interface(2, R1)]).unwrap();
        let hop = NextHop { interface: 1, mac: packet::Mac(address(B)) };
        let route = host.add_route(id, Route::Via(vec![hop])).unwrap();
        for prefix in prefixes() {
            host.delegate(id, prefix, route).unwrap();
        }
        let mut lab = Lab { plane, ports, a, router: [r0, r1], b, id, route };
        lab.settle();
        let Lab { a, router: [r0, r1], b, .. } = &mut lab;
        for vm in [a, r0, r1, b] {
            vm.poll();
            vm.inbox.clear();
        }
        lab
    }

    fn settle(&mut self) {
        let vms = [&self.a, &self.router[0], &self.router[1], &self.b];
        let sent = vms.iter().map(|vm| vm.sent).sum();
        self.plane.settle(&self.ports, sent);
    }

    /// Sends a frame to the router. What B got, and what the router got.
    fn send(&mut self, header: &Vnet, frame: &[u8]) -> [Vec<(Vnet, Vec<u8>)>; 2] {
        self.a.send_on(0, header, frame);
        self.settle();
        let Lab { b, router: [router, _], .. } = self;
        [b, router].map(|vm| {
            vm.poll();
            vm.inbox.drain(..).map(|got| (got.header, got.frame)).collect()
        })
    }

    fn counted(&self) -> HopCount {
        self.plane.run(self.plane.host.settle()).unwrap();
        let counts = self.plane.host.route_counts(self.id).unwrap();
        assert_eq!(counts.routes, [(self.route, vec![counts.total])]);
        counts.total
    }
}

fn to_router(v6: bool, udp: bool, len: usize) -> Packet {
    Packet::new(v6, udp, address(R0), address(A), (0..len).map(|n| n as u8).collect())
}

/// What the router makes of a frame.
fn forwarded(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&address(B));
    frame[6..12].copy_from_slice(&address(R1));
    if frame[12..14] == [0x08, 0x00] {
        frame[22] -= 1;
        frame[24..26].fill(0);
        let csum = !common::frames::sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&csum.to_be_bytes());
    } else {
        frame[21] -= 1;
    }
    frame
}

#[test]
fn packets_go_past_the_router_as_it_would_send_them() {
    for packed in [false, true] {
        let guest = Guest { packed, layouts: Some(1), ..Guest::plain() };
        let mut lab = Lab::new(&guest);
        let mut expected = HopCount::default();
        for len in [0, 1, 90, 114, 115, 600, 1400] {
            for (v6, udp) in [(false, false), (false, true), (true, false), (true, true)] {
                let frame = to_router(v6, udp, len).full();
                let [b, router] = lab.send(&Vnet::default(), &frame);
                assert_eq!(b.into_iter().map(|got| got.1).collect::<Vec<_>>(), [forwarded(&frame)]);
                assert_eq!(router, []);
                expected.packets += 1;
                expected.bytes += frame.len() as u64;
            }
        }
        assert_eq!(lab.counted(), expected);
        lab.plane.end();
    }
}

#[test]
fn padding_is_not_passed_on() {
    let mut lab = Lab::new(&Guest::plain());
    let frame = to_router(false, true, 4).full();
    let mut padded = frame.clone();
    padded.resize(60, 0xee);
    let [b, router] = lab.send(&Vnet::default(), &padded);
    assert_eq!((b[0].1.clone(), router.len()), (forwarded(&frame), 0));
    // More behind the packet than padding: the router may deal with that.
    padded.resize(300, 0xee);
    let [b, router] = lab.send(&Vnet::default(), &padded);
    assert_eq!((b.len(), router[0].1.clone()), (0, padded));
    lab.plane.end();
}

#[test]
fn what_the_router_must_see_goes_to_it_unchanged() {
    let mut lab = Lab::new(&Guest { tx_max: 9000, ..Guest::plain() }.for_any_size());
    let whole = to_router(false, true, 100).full();
    let with = |at: usize, byte: u8| {
        let mut frame = whole.clone();
        frame[at] = byte;
        frame[24..26].fill(0);
        let csum = !common::frames::sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&csum.to_be_bytes());
        frame
    };
    let mut damaged = whole.clone();
    damaged[24] ^= 1;
    let arp = eth(address(R0), address(A), &[0; 46]);
    for (what, frame) in [
        ("the last hop", with(22, 1)),
        ("no hops", with(22, 0)),
        ("another destination", with(33, 9)),
        ("a group", with(30, 224)),
        ("options", with(14, 0x46)),
        ("a wrong checksum", damaged),
        ("no IP", arp),
        ("a long packet", to_router(false, true, 1500).full()),
    ] {
        let [b, router] = lab.send(&Vnet::default(), &frame);
        assert_eq!(b, [], "{what}");
        assert_eq!(router.into_iter().map(|got| got.1).collect::<Vec<_>>(), [frame], "{what}");
    }
    assert_eq!(lab.counted(), HopCount::default());
    lab.plane.end();
}

#[test]
fn large_frames_pass_if_their_segments_fit() {
    let guest = Guest { offloads: ALL_OFFLOADS, ..Guest::plain() }.for_any_size();
    let mut lab = Lab::new(&guest);
    for v6 in [false, true] {
        let packet = to_router(v6, false, 20_000);
        let header = packet.needs_gso(1400);
        let [b, router] = lab.send(&header, &packet.partial());
        assert_eq!((b[0].1.clone(), router.len()), (forwarded(&packet.partial()), 0));
        assert_eq!((b[0].0.gso_size, b[0].0.gso_type), (1400, header.gso_type));
        let [b, router] = lab.send(&packet.needs_gso(1461), &packet.partial());
        assert_eq!((b.len(), router[0].1.clone()), (0, packet.partial()));
    }
    // A checksum that is left to do stays so.
    let packet = to_router(false, true, 200);
    let [b, _] = lab.send(&packet.needs_csum(), &packet.partial());
    assert_eq!(b[0].1, forwarded(&packet.partial()));
    assert_eq!(b[0].0.csum_start, packet.needs_csum().csum_start);
    lab.plane.end();
}

#[test]
fn after_a_withdrawal_is_settled_nothing_goes_past_the_router() {
    let mut lab = Lab::new(&Guest::plain());
    let frame = to_router(false, true, 64).full();
    let (id, route, [v4, _]) = (lab.id, lab.route, prefixes());
    let past = |lab: &mut Lab| {
        let host = lab.plane.host.clone();
        lab.plane.run(host.settle()).unwrap();
        let [b, router] = lab.send(&Vnet::default(), &frame);
        assert_eq!(b.len() + router.len(), 1);
        b.len() == 1
    };
    assert!(past(&mut lab));
    let host = lab.plane.host.clone();
    assert!(host.withdraw(id, v4).unwrap());
    assert!(!past(&mut lab));
    host.delegate(id, v4, route).unwrap();
    assert!(past(&mut lab));
    host.set_bypass(id, false).unwrap();
    assert!(!past(&mut lab));
    host.set_bypass(id, true).unwrap();
    assert!(past(&mut lab));
    host.change_route(id, route, Route::Own).unwrap();
    assert!(!past(&mut lab));
    let away = NextHop { interface: 1, mac: packet::Mac(address(B)) };
    host.change_route(id, route, Route::Via(vec![away])).unwrap();
    assert!(past(&mut lab));
    lab.plane.run(host.remove_router(id)).unwrap();
    assert!(!past(&mut lab));
    lab.plane.end();
}

/// A router that translates: packets of a connection that it delegated go past it with the addresses
/// and ports it would have given them.
#[test]
fn connections_are_translated() {
    let guest = Guest { offloads: ALL_OFFLOADS, ..Guest::plain() }.for_any_size();
    let mut lab = Lab::new(&guest);
    let (host, id, route) = (lab.plane.host.clone(), lab.id, lab.route);
    for prefix in prefixes() {
        assert!(host.withdraw(id, prefix).unwrap());
    }
    let new = ([10, 99, 0, 7], 4321);
    let tuple = |udp: bool, source: [u8; 4], source_port| Tuple {
        protocol: if udp { 17 } else { 6 },
        source: source.into(),
        source_port,
        destination: [10, 0, 0, 2].into(),
        destination_port: 5000,
    };
    let mut bytes = 0;
    for udp in [false, true] {
        let (old, new) = (tuple(udp, [10, 0, 0, 1], 4000), tuple(udp, new.0, new.1));
        host.add_connection(id, old, 0, new, route).unwrap();
        assert!(host.remove_route(id, route).is_err(), "it is in use");
        let packet = to_router(false, udp, 3);
        let translated = |frame: &[u8]| {
            let mut frame = forwarded(frame);
            frame[26..30].copy_from_slice(&[10, 99, 0, 7]);
            frame[34..36].copy_from_slice(&4321_u16.to_be_bytes());
            for (at, end) in [(24, 34), (if udp { 40 } else { 50 }, frame.len())] {
                frame[at..at + 2].fill(0);
                let mut covered = frame[if end == 34 { 14 } else { 34 }..end].to_vec();
                if end != 34 {
                    covered.resize(covered.len().next_multiple_of(2), 0);
                    covered.extend(&frame[26..34]);
                    covered.extend([0, old.protocol]);
                    covered.extend(((frame.len() - 34) as u16).to_be_bytes());
                }
                let csum = !common::frames::sum(&covered);
                frame[at..at + 2].copy_from_slice(&csum.to_be_bytes());
            }
            frame
        };
        let [b, router] = lab.send(&Vnet::default(), &packet.full());
        assert_eq!((b[0].1.clone(), router.len()), (translated(&packet.full()), 0), "{udp}");
        bytes += packet.full().len() as u64;
        // Its checksum left to do: the same once that is done.
        let [b, _] = lab.send(&packet.needs_csum(), &packet.partial());
        let read = Packet::read(&b[0].1, true);
        assert_eq!((read.ports.0, read.payload), (4321, packet.payload.clone()));
        bytes += packet.full().len() as u64;
        assert_eq!(host.connection_count(id, &new), None);
        lab.plane.run(host.settle()).unwrap();
        let count = host.connection_count(id, &old).unwrap();
        assert_eq!(count.packets, 2);
        // Another port, and the end of it, are the router's.
        let others = [
            Packet { ports: (4001, 5000), ..packet.clone() },
            Packet { flags: common::frames::FIN | common::frames::ACK, ..packet.clone() },
        ];
        for other in others.iter().take(if udp { 1 } else { 2 }) {
            let [b, router] = lab.send(&Vnet::default(), &other.full());
            assert_eq!((b.len(), router[0].1.clone()), (0, other.full()));
        }
        // What comes by another interface is not of it.
        host.add_connection(id, old, 1, new, route).unwrap();
        let [b, router] = lab.send(&Vnet::default(), &packet.full());
        assert_eq!((b.len(), router.len()), (0, 1));
        assert!(host.remove_connection(id, &old).unwrap());
        assert!(!host.remove_connection(id, &old).unwrap());
        let [b, router] = lab.send(&Vnet::default(), &packet.full());
        assert_eq!((b.len(), router.len()), (0, 1));
    }
    let total = lab.counted();
    assert_eq!(total, HopCount { packets: 4, bytes });
    let other = Tuple { protocol: 17, ..tuple(false, [10, 0, 0, 1], 1) };
    assert!(host.add_connection(id, tuple(false, [10, 0, 0, 1], 1), 0, other, route).is_err());
    host.remove_route(id, route).unwrap();
    lab.plane.end();
}

#[test]
fn it_is_explained() {
    let lab = Lab::new(&Guest::plain());
    let frame = to_router(false, true, 64).full();
    let steps = lab.plane.host.explain(lab.ports[0], &frame).unwrap();
    let bypassed = |step: &Step| matches!(step, Step::Bypassed { router, .. } if *router == lab.id);
    assert!(steps.iter().any(bypassed), "{steps:?}");
    assert_eq!(steps.last(), Some(&Step::Leaves(lab.ports[3])));
    assert!(lab.plane.host.explain(PortId(4000), &frame).is_err());
    lab.plane.end();
}
