//! What the owner of a port enforces on it, with real front ends: every frame that does not come
//! through is counted under its name.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use std::time::Instant;

use common::frames::{BROADCAST, Mac, Packet, eth, mac, tagged};
use common::plane::Plane;
use common::vm::{ALL_OFFLOADS, Guest, Vm};
use dataplane::{DropReason, LinkState, Policy, PortId, Prefix, VlanMode};

/// One VM behind each port; VM n has address `mac(n)`.
struct Ports {
    plane: Plane,
    ports: Vec<PortId>,
    vms: Vec<Vm>,
}

impl Ports {
    /// With these VLAN modes.
    fn new(modes: &[VlanMode], guest: &Guest) -> Ports {
        let plane = Plane::new();
        let (ports, vms) = plane.vms(modes, guest);
        Ports { plane, ports, vms }
    }

    fn enforce(&self, port: usize, policy: &Policy) {
        self.plane.run(self.plane.host.set_policy(self.ports[port], policy)).unwrap();
    }

    /// Sends a frame, which these get, and nobody else anything.
    fn expect(&mut self, from: usize, frame: &[u8], to: &[(usize, &[u8])]) {
        self.vms[from].send(frame);
        for (n, expected) in to {
            let got = &self.vms[*n].take(1)[0];
            assert!(got.frame == *expected, "{from} to {n}: {:x?}", got.frame);
        }
        self.settle();
    }

    /// Sends a frame that its own port drops.
    fn refuse(&mut self, from: usize, frame: &[u8], reason: DropReason) {
        let before = self.plane.dropped(self.ports[from], reason);
        self.expect(from, frame, &[]);
        assert_eq!(self.plane.dropped(self.ports[from], reason), before + 1, "{reason}");
    }

    /// Every frame is accounted for, and nobody got one that was not taken.
    fn settle(&mut self) {
        for vm in &mut self.vms {
            vm.drain();
        }
        let sent = self.vms.iter().map(|vm| vm.sent).sum();
        self.plane.settle(&self.ports, sent);
        for (n, vm) in self.vms.iter_mut().enumerate() {
            vm.poll();
            assert!(vm.inbox.is_empty(), "{n} got {:x?}", vm.inbox);
        }
    }
}

fn transparent(ports: usize) -> Ports {
    Ports::new(&vec![VlanMode::None; ports], &Guest::plain())
}

fn own() -> Policy {
    Policy { mac: Some(dataplane::Mac(mac(0))), ..Policy::default() }
}

fn prefix(text: &str, bits: u8) -> Prefix {
    Prefix::new(text.parse().unwrap(), bits).unwrap()
}

/// From 10.0.0.1 or fd00::1, to 10.0.0.2 or fd00::2.
fn packet(v6: bool, dst: Mac, src: Mac) -> Vec<u8> {
    Packet::new(v6, true, dst, src, vec![7; 100]).full()
}

#[test]
fn sources_that_are_not_the_ports_own_are_dropped() {
    let mut net = transparent(2);
    let (mine, other) = (eth(BROADCAST, mac(0), &[1; 46]), eth(BROADCAST, mac(9), &[2; 46]));
    net.expect(0, &other, &[(1, &other)]);
    net.enforce(0, &Policy { spoofchk: true, ..own() });
    for _ in 0..3 {
        net.expect(0, &mine, &[(1, &mine)]);
        net.refuse(0, &other, DropReason::SpoofedMac);
    }
    // What is remembered of a conversation is no way around it.
    let answer = eth(mac(9), mac(1), &[3; 46]);
    let there = eth(mac(1), mac(9), &[4; 46]);
    net.expect(1, &answer, &[(0, &answer)]);
    net.refuse(0, &there, DropReason::SpoofedMac);
    // Those of others are none of this port's business.
    let stranger = eth(BROADCAST, mac(8), &[5; 46]);
    net.expect(1, &stranger, &[(0, &stranger)]);
    net.enforce(0, &Policy::default());
    net.expect(0, &there, &[(1, &there)]);
    net.plane.end();
}

#[test]
fn packets_come_from_the_ports_addresses_only() {
    let mut net = transparent(2);
    let (v4, v6) = (packet(false, mac(1), mac(0)), packet(true, mac(1), mac(0)));
    let arp = |sender: [u8; 4]| {
        let head = [0, 1, 8, 0, 6, 4, 0, 2];
        let body = [&head[..], &mac(0), &sender, &mac(1), &[10, 0, 0, 2]].concat();
        [&mac(1)[..], &mac(0), &[8, 6], &body, &[0; 18]].concat()
    };
    let only = |addresses| Policy { spoofchk: true, addresses, ..own() };
    net.enforce(0, &only(vec![prefix("10.0.0.0", 30), prefix("fd00::", 64)]));
    net.expect(0, &v4, &[(1, &v4)]);
    net.expect(0, &v6, &[(1, &v6)]);
    net.expect(0, &arp([10, 0, 0, 3]), &[(1, &arp([10, 0, 0, 3]))]);
    net.refuse(0, &arp([10, 0, 0, 4]), DropReason::SpoofedIp);
    net.refuse(0, &eth(BROADCAST, mac(0), &[0; 46]), DropReason::SpoofedIp);
    // A tag hides nothing.
    net.enforce(0, &only(vec![prefix("10.0.0.2", 32)]));
    for frame in [v4.clone(), v6, tagged(&v4, 5), tagged(&tagged(&v4, 5), 6)] {
        net.refuse(0, &frame, DropReason::SpoofedIp);
    }
    net.plane.end();
}

#[test]
fn a_port_without_trust_gets_what_is_its_own() {
    let mut net = transparent(3);
    net.enforce(0, &Policy { trust: false, ..own() });
    let frame = |dst, src| eth(dst, src, &[6; 46]);
    // Not what is for somebody unknown, but groups, and what is for it, seen or not.
    net.expect(1, &frame(mac(7), mac(1)), &[(2, &frame(mac(7), mac(1)))]);
    let all = frame(BROADCAST, mac(1));
    net.expect(1, &all, &[(0, &all), (2, &all)]);
    let first = frame(mac(0), mac(1));
    net.expect(1, &first, &[(0, &first), (2, &first)]);
    // It takes nobody's place: what it sends from another address is not learned.
    let taken = frame(BROADCAST, mac(1));
    net.expect(0, &taken, &[(1, &taken), (2, &taken)]);
    let still = frame(mac(1), mac(2));
    net.expect(2, &still, &[(1, &still)]);
    net.plane.end();
}

#[test]
fn vlan_and_priority_are_put_on_and_taken_off() {
    let trunk = VlanMode::Trunk { allowed: "10".parse().unwrap(), native: None };
    let mut net = Ports::new(&[VlanMode::None, trunk], &Guest::plain());
    let port = net.ports[0];
    net.plane.run(net.plane.host.set_vlan(port, VlanMode::Access(10))).unwrap();
    net.enforce(0, &Policy { qos: Some(5), ..own() });
    for len in [46, 200, 1400] {
        let body = vec![9; len];
        let to_trunk = eth(mac(1), mac(0), &body);
        // Flooded first, then known, then remembered.
        net.expect(0, &to_trunk, &[(1, &tagged(&to_trunk, 5 << 13 | 10))]);
        let back = eth(mac(0), mac(1), &body);
        net.expect(1, &tagged(&back, 3 << 13 | 10), &[(0, &back)]);
    }
    let plain = eth(mac(1), mac(0), &[9; 46]);
    // Its own tags: a priority has no say, a VLAN is refused.
    net.expect(0, &tagged(&plain, 7 << 13), &[(1, &tagged(&plain, 5 << 13 | 10))]);
    net.refuse(0, &tagged(&plain, 10), DropReason::VlanNotAllowed);
    net.refuse(0, &tagged(&plain, 11), DropReason::VlanNotAllowed);
    net.plane.end();
}

#[test]
fn a_link_can_be_taken_and_kept() {
    let mut net = transparent(3);
    let with = |link| Policy { link, ..own() };
    let (from, to) = (eth(BROADCAST, mac(0), &[1; 46]), eth(mac(0), mac(1), &[2; 46]));
    net.enforce(0, &with(LinkState::Disable));
    net.refuse(0, &from, DropReason::PortDown);
    net.expect(1, &to, &[(2, &to)]);
    net.enforce(0, &with(LinkState::Enable));
    net.expect(0, &from, &[(1, &from), (2, &from)]);
    net.expect(1, &to, &[(0, &to)]);
    // The guest goes: its frames are dropped where it was, nobody else gets them.
    let gone = net.vms.remove(0);
    let sent = gone.sent;
    gone.leave();
    net.plane.wait_state(net.ports[0], &dataplane::PortState::Waiting);
    net.vms[0].send(&to);
    net.plane.settle(&net.ports, sent + net.vms.iter().map(|vm| vm.sent).sum::<u64>());
    assert_eq!(net.plane.dropped(net.ports[0], DropReason::PortDown), 2);
    net.vms[1].poll();
    assert!(net.vms[1].inbox.is_empty());
    net.plane.end();
}

/// As much passes as the rate allows for the time that went by, and a burst; the rest is counted.
#[test]
fn a_rate_is_kept() {
    for offloads in [false, true] {
        let guest = if offloads {
            Guest { offloads: ALL_OFFLOADS, ..Guest::plain() }.for_any_size()
        } else {
            Guest::plain()
        };
        let mut net = Ports::new(&[VlanMode::None, VlanMode::None], &guest);
        let started = Instant::now();
        net.enforce(0, &Policy { max_tx_rate: Some(1), ..own() });
        let frame = eth(mac(1), mac(0), &[3; 1486]);
        for _ in 0..100 {
            net.vms[0].send(&frame);
            net.vms[1].drain();
        }
        let balance = net.plane.settle(&net.ports, 100);
        // 125 bytes in a millisecond.
        let most = started.elapsed().as_millis() as u64 * 125 + 125 + 20 * 125 + 1500;
        let dropped = net.plane.dropped(net.ports[0], DropReason::RateExceeded);
        assert!(balance.to.bytes <= most, "{} of {most}", balance.to.bytes);
        assert!(balance.to.frames >= 2, "{balance:?}");
        assert_eq!(dropped + balance.to.frames, 100, "{balance:?}");
        // Without a limit all of it comes.
        net.enforce(0, &own());
        net.vms[1].poll();
        net.vms[1].inbox.clear();
        for _ in 0..100 {
            net.vms[0].send(&frame);
            net.vms[1].take(1);
        }
        net.plane.settle(&net.ports, 200);
        assert_eq!(net.plane.dropped(net.ports[0], DropReason::RateExceeded), dropped);
        net.plane.end();
    }
}
