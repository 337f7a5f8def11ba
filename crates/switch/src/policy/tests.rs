use packet::{Checked, VlanEdit, arp};

use super::*;
use crate::{Cache, NetworkConfig, PortConfig, PortId, Switch, Tci, Verdict, VlanMode};

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Nobody was seen with it.
const UNKNOWN: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn prefix(text: &str, bits: u8) -> Prefix {
    Prefix::new(text.parse().unwrap(), bits).unwrap()
}

fn frame(dst: Mac, src: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&dst.0[..], &src.0, &ethertype.to_be_bytes(), payload].concat()
}

fn v4(src: Mac, from: [u8; 4]) -> Vec<u8> {
    let head = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0];
    frame(OTHER, src, 0x0800, &[&head[..], &from, &[10, 0, 0, 9]].concat())
}

fn v6(src: Mac, from: &str) -> Vec<u8> {
    let from = from.parse::<Ipv6Addr>().unwrap().octets();
    let head = [0x60, 0, 0, 0, 0, 0, 59, 64];
    frame(OTHER, src, 0x86dd, &[&head[..], &from, &[0xff; 16]].concat())
}

fn guard(policy: &Policy) -> Guard {
    policy.check().unwrap();
    policy.guard().unwrap()
}

fn own() -> Policy {
    Policy { mac: Some(OWN), spoofchk: true, ..Policy::default() }
}

#[test]
fn nothing_is_enforced_unless_it_is_asked_for() {
    assert!(Policy::default().guard().is_none());
    assert!(Policy { mac: Some(OWN), qos: Some(3), ..Policy::default() }.guard().is_none());
    assert!(Policy { trust: false, ..own() }.guard().unwrap().addresses.is_empty());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |policy: Policy| policy.check().unwrap_err();
    let unsaid = Policy { spoofchk: true, ..Policy::default() };
    assert_eq!(refused(unsaid), SwitchError::NoAddress);
    assert_eq!(refused(Policy { trust: false, ..Policy::default() }), SwitchError::NoAddress);
    let group = Policy { mac: Some(Mac::BROADCAST), ..own() };
    assert_eq!(refused(group), SwitchError::NotUnicast(Mac::BROADCAST));
    let many = vec![prefix("10.0.0.0", 8); Policy::ADDRESSES_MAX + 1];
    assert_eq!(refused(Policy { addresses: many, ..own() }), SwitchError::TooManyAddresses);
    assert_eq!(refused(Policy { qos: Some(8), ..own() }), SwitchError::BadPriority);
    for rate in [0, Meter::RATE_MAX + 1] {
        assert_eq!(refused(Policy { max_tx_rate: Some(rate), ..own() }), SwitchError::BadRate);
    }
}

#[test]
fn a_source_address_is_the_ports_own() {
    let guard = guard(&own());
    assert_eq!(guard.check(&v4(OWN, [1, 2, 3, 4])), Ok(()));
    assert_eq!(guard.check(&v4(OTHER, [1, 2, 3, 4])), Err(DropReason::SpoofedMac));
    assert_eq!(guard.check(&frame(OTHER, OWN, 0x88b5, &[])), Ok(()));
    assert_eq!(guard.check(&[2; 13]), Err(DropReason::Runt));
}

#[test]
fn packets_are_from_the_ports_addresses() {
    let addresses = vec![prefix("10.0.0.1", 32), prefix("10.1.0.0", 16), prefix("fd00::", 64)];
    let guard = guard(&Policy { addresses, ..own() });
    for (from, may) in [([10, 0, 0, 1], true), ([10, 1, 9, 9], true), ([10, 0, 0, 2], false)] {
        let verdict = if may { Ok(()) } else { Err(DropReason::SpoofedIp) };
        assert_eq!(guard.check(&v4(OWN, from)), verdict, "{from:?}");
        let arp = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &OWN.0, &from, &[0; 10]].concat();
        assert_eq!(guard.check(&frame(OTHER, OWN, 0x0806, &arp)), verdict, "{from:?}");
        // Somebody else's address behind the Ethernet header.
        let arp = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &OTHER.0, &from, &[0; 10]].concat();
        let verdict = verdict.and(Err(DropReason::SpoofedMac));
        assert_eq!(guard.check(&frame(OTHER, OWN, 0x0806, &arp)), verdict, "{from:?}");
    }
    // The last is the link-local address made of the port's.
    for (from, may) in [("fd00::7", true), ("fd00:0:0:1::7", false), ("fe80::ff:fe00:1", true)] {
        let verdict = if may { Ok(()) } else { Err(DropReason::SpoofedIp) };
        assert_eq!(guard.check(&v6(OWN, from)), verdict, "{from}");
    }
    assert_eq!(guard.check(&frame(OTHER, OWN, 0x88b5, &[0; 46])), Err(DropReason::SpoofedIp));
    // What the daemon announces for a guest that moved.
    assert_eq!(guard.check(&arp::announcement(OWN)), Ok(()));
    assert_eq!(guard.check(&arp::announcement(OTHER)), Err(DropReason::SpoofedMac));
}

#[test]
fn ipv4_addresses_alone_leave_no_ipv6() {
    let guard = guard(&Policy { addresses: vec![prefix("0.0.0.0", 0)], ..own() });
    assert_eq!(guard.check(&v4(OWN, [8, 8, 8, 8])), Ok(()));
    assert_eq!(guard.check(&v6(OWN, "fe80::ff:fe00:1")), Err(DropReason::SpoofedIp));
}

#[test]
fn a_meter_counts_what_comes() {
    let guard = guard(&Policy { max_tx_rate: Some(8), ..Policy::default() });
    assert!(guard.is_metered());
    // 8 Mbit/s is a byte in a microsecond: 20000 at once, and the one that goes over it.
    let now = 1_000_000_000;
    let passed = (0..100).filter(|_| guard.meter(1000, now).is_ok()).count();
    assert_eq!(passed, 21);
    assert_eq!(guard.meter(60, now), Err(DropReason::RateExceeded));
    assert_eq!(guard.meter(60, now + 1_000_000), Ok(()));
}

/// A switch with these modes of ports, all up.
fn ports(modes: &[VlanMode]) -> (Switch, Vec<PortId>) {
    let switch = Switch::new();
    let network = switch.add_network(NetworkConfig::default()).unwrap();
    let port = |vlan: &VlanMode| {
        let settings = PortConfig { network, vlan: vlan.clone(), mac_limit: None };
        let port = switch.add_port(settings).unwrap();
        switch.set_link(port, true).unwrap();
        port
    };
    let ports = modes.iter().map(port).collect();
    (switch, ports)
}

fn members(switch: &Switch, dst: Mac, verdict: Verdict) -> Vec<PortId> {
    let Verdict::Flood(flood) = verdict else { panic!("{verdict:?}") };
    let mut members: Vec<_> =
        switch.snapshot().flood(flood, dst).map(|member| member.port).collect();
    members.sort_unstable();
    members
}

#[test]
fn without_trust_a_port_has_one_address() {
    let (switch, ports) = ports(&[VlanMode::None, VlanMode::None, VlanMode::None]);
    let [vf, peer, third] = ports[..] else { panic!() };
    let policy = Policy { mac: Some(OWN), trust: false, ..Policy::default() };
    switch.set_policy(vf, &policy).unwrap();
    let mut cache = Cache::default();
    let mut send = |port, dst, src| {
        let head = frame(dst, src, 0x88b5, &[0; 46]);
        cache.lookup(&switch.snapshot(), port, &head, 1)
    };
    // Another source passes and is not learned; frames to nobody known do not come, but its own do.
    assert_eq!(members(&switch, OTHER, send(vf, OTHER, UNKNOWN)), [peer, third]);
    assert_eq!(members(&switch, UNKNOWN, send(peer, UNKNOWN, OTHER)), [third]);
    assert_eq!(members(&switch, OWN, send(peer, OWN, OTHER)), [vf, third]);
    assert_eq!(members(&switch, Mac::BROADCAST, send(peer, Mac::BROADCAST, OTHER)), [vf, third]);
    let edit = VlanEdit::Keep;
    assert_eq!(send(vf, OTHER, UNKNOWN), Verdict::Forward { port: peer, edit });
    assert_eq!(send(vf, OTHER, OWN), Verdict::Forward { port: peer, edit });
    assert_eq!(send(peer, OWN, OTHER), Verdict::Forward { port: vf, edit });
    assert_eq!(members(&switch, UNKNOWN, send(peer, UNKNOWN, OTHER)), [third]);
    // With trust it is learned at last.
    switch.set_policy(vf, &Policy::default()).unwrap();
    send(vf, OTHER, UNKNOWN);
    assert_eq!(send(peer, UNKNOWN, OTHER), Verdict::Forward { port: vf, edit });
}

#[test]
fn a_port_gives_its_frames_a_priority() {
    let trunk = VlanMode::Trunk { allowed: "10".parse().unwrap(), native: None };
    let (switch, ports) = ports(&[VlanMode::Access(10), trunk, VlanMode::Access(10)]);
    let [vf, trunk, peer] = ports[..] else { panic!() };
    switch.set_policy(vf, &Policy { qos: Some(5), ..Policy::default() }).unwrap();
    let mut cache = Cache::default();
    let mut send = |port, head: &[u8]| cache.lookup(&switch.snapshot(), port, head, 1);
    let to = |port, edit| Verdict::Forward { port, edit };
    let tagged = frame(Mac::BROADCAST, OTHER, 0x8100, &[&[0, 10, 8, 0][..], &[0; 46]].concat());
    send(trunk, &tagged);
    send(peer, &frame(OTHER, UNKNOWN, 0x0800, &[0; 46]));
    let plain = frame(OTHER, OWN, 0x0800, &[0; 46]);
    // Worked out, and remembered.
    for _ in 0..2 {
        assert_eq!(send(vf, &plain), to(trunk, VlanEdit::Push(Tci(5 << 13 | 10))));
    }
    let to_peer = frame(UNKNOWN, OWN, 0x0800, &[0; 46]);
    assert_eq!(send(vf, &to_peer), to(peer, VlanEdit::Keep));
    // The guest's own priority has no say, and its own VLAN is none of its business.
    let own = |tci: u8| frame(OTHER, OWN, 0x8100, &[&[0xe0, tci, 8, 0][..], &[0; 46]].concat());
    assert_eq!(send(vf, &own(0)), to(trunk, VlanEdit::Set(Tci(5 << 13 | 10))));
    assert_eq!(send(vf, &own(10)), Verdict::Drop(DropReason::VlanNotAllowed));
}

#[test]
fn a_link_is_what_its_owner_says() {
    let (switch, ports) = ports(&[VlanMode::None, VlanMode::None]);
    let [vf, peer] = ports[..] else { panic!() };
    let with = |link| switch.set_policy(vf, &Policy { link, ..Policy::default() }).unwrap();
    let send = |port, dst, src| {
        let head = frame(dst, src, 0x88b5, &[0; 46]);
        switch.snapshot().lookup(port, &head, 1)
    };
    with(LinkState::Disable);
    assert_eq!(send(vf, OTHER, OWN), Verdict::Drop(DropReason::PortDown));
    assert_eq!(send(peer, Mac::BROADCAST, OTHER), Verdict::Drop(DropReason::NoDestination));
    with(LinkState::Enable);
    send(vf, OTHER, OWN);
    // Its guest goes: what is behind the port is known all the same.
    switch.set_link(vf, false).unwrap();
    assert_eq!(send(peer, OWN, OTHER), Verdict::Forward { port: vf, edit: VlanEdit::Keep });
    with(LinkState::Auto);
    assert_eq!(send(peer, OWN, OTHER), Verdict::Drop(DropReason::NoDestination));
}

#[test]
fn explaining_a_frame_tells_of_its_checks() {
    let (switch, ports) = ports(&[VlanMode::None, VlanMode::None]);
    switch.set_policy(ports[0], &own()).unwrap();
    let head = v4(OTHER, [10, 0, 0, 1]);
    let packet = packet::route::Packet::parse(&head, head.len(), &Checked::PLAIN);
    let steps = switch.snapshot().explain(ports[0], &head, packet, &Checked::PLAIN);
    let dropped = Verdict::Drop(DropReason::SpoofedMac);
    assert_eq!(steps, [crate::Step::Switched(ports[0], dropped)]);
}
