//! Flow rules with real front ends: what they let pass, change, send elsewhere and count. Every frame
//! stays accounted for.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use common::frames::{BROADCAST, Mac, Packet, Vnet, eth, mac, tagged};
use common::plane::Plane;
use common::vm::{ALL_OFFLOADS, Guest, Vm};
use dataplane::rules::{Actions, Match, Rule, RuleId, RuleSet, RuleVerdict, State, TagAction};
use dataplane::{DropReason, Policy, PortId, PortKind, PortSpec, SocketMode, VhostSpec, VlanMode};

/// One VM behind each port; VM n has address `mac(n)`.
struct Ports {
    plane: Plane,
    ports: Vec<PortId>,
    vms: Vec<Vm>,
}

impl Ports {
    fn new(ports: usize, guest: &Guest) -> Ports {
        let plane = Plane::new();
        let (ports, vms) = plane.vms(&vec![VlanMode::None; ports], guest);
        Ports { plane, ports, vms }
    }

    /// Everybody is known.
    fn introduce(&mut self) {
        for n in 0..self.vms.len() {
            let hello = eth(BROADCAST, mac(n as u32), &[0; 46]);
            self.vms[n].send(&hello);
            for other in (0..self.vms.len()).filter(|other| *other != n) {
                assert!(self.vms[other].take(1)[0].frame == hello);
            }
        }
    }

    fn rules(&self, port: usize, rules: RuleSet) {
        let rules = RuleSet { own: self.ports.clone(), connections: 100, ..rules };
        self.set(port, Some(rules));
    }

    fn set(&self, port: usize, rules: Option<RuleSet>) {
        let sets = vec![(self.ports[port], rules)];
        self.plane.run(self.plane.host.set_all_rules(sets)).unwrap();
    }

    fn counts(&self, port: usize) -> Vec<u64> {
        let status = self.plane.host.rules_status(self.ports[port]).unwrap();
        status.rules.into_iter().map(|(_, count)| count.packets).collect()
    }

    /// Sends a frame, which these get in this form, and nobody else anything.
    fn expect(&mut self, from: usize, frame: &[u8], to: &[(usize, &[u8])]) {
        self.expect_with(from, &Vnet::default(), frame, to);
    }

    fn expect_with(&mut self, from: usize, header: &Vnet, frame: &[u8], to: &[(usize, &[u8])]) {
        self.vms[from].send_on(0, header, frame);
        for (n, expected) in to {
            let got = &self.vms[*n].take(1)[0];
            assert!(got.frame == *expected, "{from} to {n}: {:x?}", got.frame);
        }
        self.settle();
    }

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

    fn dropped(&self, port: usize, reason: DropReason) -> u64 {
        self.plane.dropped(self.ports[port], reason)
    }
}

fn rule(id: u64, priority: u32, matches: Match, actions: Actions) -> Rule {
    Rule { id: RuleId(id), priority, matches, actions }
}

fn only(verdict: RuleVerdict) -> Actions {
    Actions::only(verdict)
}

fn to_port(port: u16) -> Match {
    Match { destination_port: Some(port..=port), ..Match::default() }
}

fn to_mac(to: Mac) -> Match {
    Match { dst: Some((dataplane::Mac(to), dataplane::Mac([0xff; 6]))), ..Match::default() }
}

/// UDP from 10.0.0.1 to 10.0.0.2.
fn udp(from: u32, to: u32, port: u16, len: usize) -> Packet {
    let mut packet = Packet::new(false, true, mac(to), mac(from), vec![7; len]);
    packet.ports.1 = port;
    packet
}

#[test]
fn what_a_port_sends_is_judged_first() {
    let mut net = Ports::new(3, &Guest::plain());
    net.introduce();
    let from = vec![
        rule(1, 2, to_port(53), only(RuleVerdict::Accept)),
        rule(2, 1, Match { protocol: Some(17), ..Match::default() }, only(RuleVerdict::Drop)),
    ];
    net.rules(0, RuleSet { from: from.clone(), ..RuleSet::default() });
    let (dns, other) = (udp(0, 1, 53, 100).full(), udp(0, 1, 54, 1000).full());
    let ether = eth(mac(1), mac(0), &[1; 46]);
    for _ in 0..3 {
        net.expect(0, &dns, &[(1, &dns)]);
        net.expect(0, &other, &[]);
        net.expect(0, &ether, &[(1, &ether)]);
    }
    assert_eq!((net.counts(0), net.dropped(0, DropReason::RuleDrop)), (vec![3, 3], 3));
    // What comes to the port is none of these rules' business.
    let back = udp(1, 0, 54, 100).full();
    net.expect(1, &back, &[(0, &back)]);
    // Nothing but what is accepted; the rule that stays goes on counting.
    let accept = from[..1].to_vec();
    net.rules(0, RuleSet { from: accept, from_refused: true, ..RuleSet::default() });
    net.expect(0, &ether, &[]);
    net.expect(0, &eth(BROADCAST, mac(0), &[1; 46]), &[]);
    net.expect(0, &dns, &[(1, &dns)]);
    assert_eq!((net.counts(0), net.dropped(0, DropReason::RuleDrop)), (vec![4], 5));
    net.set(0, None);
    net.expect(0, &other, &[(1, &other)]);
    net.plane.end();
}

#[test]
fn what_is_delivered_is_judged_for_each_receiver() {
    let mut net = Ports::new(4, &Guest::plain());
    net.introduce();
    let to = vec![rule(1, 0, to_mac(BROADCAST), only(RuleVerdict::Drop))];
    net.rules(2, RuleSet { to, ..RuleSet::default() });
    net.rules(3, RuleSet { to_refused: true, ..RuleSet::default() });
    let all = eth(BROADCAST, mac(0), &[2; 600]);
    net.expect(0, &all, &[(1, &all)]);
    assert_eq!(net.dropped(2, DropReason::RuleDrop), 1);
    assert_eq!(net.dropped(3, DropReason::RuleDrop), 1);
    let one = |to| eth(mac(to), mac(0), &[3; 46]);
    net.expect(0, &one(2), &[(2, &one(2))]);
    net.expect(0, &one(3), &[]);
    let unknown = eth(mac(9), mac(0), &[3; 46]);
    net.expect(0, &unknown, &[(1, &unknown), (2, &unknown)]);
    assert_eq!(net.dropped(3, DropReason::RuleDrop), 3);
    assert_eq!(net.dropped(0, DropReason::RuleDrop), 0);
    net.plane.end();
}

#[test]
fn frames_go_elsewhere_and_copies_to_a_mirror() {
    let mut net = Ports::new(4, &Guest::plain());
    net.introduce();
    let forward = only(RuleVerdict::Forward(net.ports[2]));
    let mirrored = Actions { mirror: Some(net.ports[3]), ..only(RuleVerdict::Accept) };
    let unseen = Actions { mirror: Some(net.ports[3]), ..only(RuleVerdict::Drop) };
    let from = vec![
        rule(1, 1, to_port(1), forward),
        rule(2, 1, to_port(2), mirrored.clone()),
        rule(3, 1, to_port(3), unseen),
    ];
    net.rules(0, RuleSet { from, ..RuleSet::default() });
    for len in [10, 100, 1400] {
        let packet = |port| udp(0, 1, port, len).full();
        net.expect(0, &packet(1), &[(2, &packet(1))]);
        net.expect(0, &packet(2), &[(1, &packet(2)), (3, &packet(2))]);
        net.expect(0, &packet(3), &[(3, &packet(3))]);
        net.expect(0, &packet(4), &[(1, &packet(4))]);
    }
    // The same for what is delivered; the frame is flooded and mirrored.
    net.rules(
        1,
        RuleSet { to: vec![rule(9, 1, to_mac(BROADCAST), mirrored)], ..RuleSet::default() },
    );
    let all = eth(BROADCAST, mac(2), &[4; 700]);
    net.expect(2, &all, &[(0, &all), (1, &all), (3, &all), (3, &all)]);
    // A port that is gone takes what names it along: its number will be another's.
    net.plane.run(net.plane.host.remove_port(net.ports[2])).unwrap();
    net.vms[0].send(&udp(0, 1, 1, 100).full());
    let gone = net.ports[0];
    common::wait(|| "dropped".into(), || net.plane.dropped(gone, DropReason::RuleDrop) == 4);
    net.plane.end();
}

#[test]
fn packets_are_changed_with_whole_checksums() {
    let guest = Guest { offloads: ALL_OFFLOADS, ..Guest::plain() }.for_any_size();
    for (offloads, receiver) in [(true, guest), (false, Guest::plain().for_any_size())] {
        let plane = Plane::new();
        let sending = Guest { offloads: ALL_OFFLOADS, ..Guest::plain() }.for_any_size();
        let (a, vm_a) = plane.vm("vm0", &sending);
        let (b, vm_b) = plane.vm("vm1", &receiver);
        let mut net = Ports { plane, ports: vec![a, b], vms: vec![vm_a, vm_b] };
        net.introduce();
        let mut actions = only(RuleVerdict::Accept);
        actions.rewrite.destination_port = Some(8053);
        actions.rewrite.src = Some(dataplane::Mac([2, 9, 9, 9, 9, 9]));
        actions.tag = Some(TagAction::Push(packet::Tci(77)));
        net.rules(
            0,
            RuleSet { from: vec![rule(1, 0, to_port(53), actions)], ..RuleSet::default() },
        );
        for v6 in [false, true] {
            for partial in [false, true] {
                let mut sent = Packet::new(v6, true, mac(1), mac(0), vec![5; 300]);
                sent.ports.1 = 53;
                let (frame, header) = if partial {
                    (sent.partial(), sent.needs_csum())
                } else {
                    (sent.full(), Vnet::default())
                };
                net.vms[0].send_on(0, &header, &frame);
                let got = net.vms[1].take(1).remove(0);
                let left = partial && offloads;
                let read = Packet::read(&got.frame, left);
                assert_eq!((read.ports, read.vlan), ((4000, 8053), Some(77)));
                assert_eq!((read.src, read.dst), ([2, 9, 9, 9, 9, 9], mac(1)));
                assert_eq!(read.payload, sent.payload);
                assert_eq!(got.header.flags & 1, u8::from(left));
                net.settle();
            }
        }
        // What cannot be changed does not pass unchanged.
        let mut actions = only(RuleVerdict::Accept);
        actions.rewrite.destination_port = Some(1);
        let all = vec![rule(1, 0, Match::default(), actions)];
        net.rules(0, RuleSet { from: all, ..RuleSet::default() });
        net.expect(0, &eth(mac(1), mac(0), &[0; 46]), &[]);
        assert_eq!(net.dropped(0, DropReason::RuleRewrite), 1);
        // A tag that is not there cannot be taken off.
        let pop = Actions { tag: Some(TagAction::Pop), ..only(RuleVerdict::Accept) };
        net.rules(
            0,
            RuleSet { from: vec![rule(1, 0, Match::default(), pop)], ..RuleSet::default() },
        );
        let plain = eth(mac(1), mac(0), &[0; 46]);
        net.expect(0, &plain, &[]);
        net.expect(0, &tagged(&plain, 5), &[(1, &plain)]);
        assert_eq!(net.dropped(0, DropReason::RuleRewrite), 2);
        net.plane.end();
    }
}

/// Behind port 1 is a server that may be asked, and may ask nobody.
#[test]
fn answers_pass_and_questions_do_not() {
    let mut net = Ports::new(2, &Guest::plain());
    net.introduce();
    let state = |state| Match { state: Some(state), ..Match::default() };
    let asked = Match { state: Some(State::New), ..to_port(53) };
    let known = || rule(1, 2, state(State::Established), only(RuleVerdict::Accept));
    let to = vec![known(), rule(2, 1, asked, only(RuleVerdict::Accept))];
    let (from, both) = (vec![known()], true);
    net.rules(1, RuleSet { from, to, from_refused: both, to_refused: both, ..RuleSet::default() });
    let ask = udp(0, 1, 53, 100);
    let mut answer = Packet { dst: mac(0), src: mac(1), ..ask.clone() };
    answer.ports = (ask.ports.1, ask.ports.0);
    // In both packets the addresses are the same: that of the answer has to be turned around.
    let (ask, mut answer) = (ask.full(), answer.full());
    let (source, destination) = (answer[26..30].to_vec(), answer[30..34].to_vec());
    answer[26..30].copy_from_slice(&destination);
    answer[30..34].copy_from_slice(&source);
    net.expect(1, &answer, &[]);
    assert_eq!(net.dropped(1, DropReason::RuleDrop), 1);
    for _ in 0..3 {
        net.expect(0, &ask, &[(1, &ask)]);
        net.expect(1, &answer, &[(0, &answer)]);
    }
    net.expect(0, &udp(0, 1, 54, 100).full(), &[]);
    assert_eq!(net.counts(1), [3, 2, 1]);
    net.plane.end();
}

#[test]
fn a_meter_drops_what_is_over_it() {
    let mut net = Ports::new(2, &Guest::plain());
    net.introduce();
    let slow = Actions { meter: Some(1), ..only(RuleVerdict::Accept) };
    net.rules(0, RuleSet { from: vec![rule(1, 0, to_port(9), slow)], ..RuleSet::default() });
    let frame = udp(0, 1, 9, 1400).full();
    let began = std::time::Instant::now();
    for _ in 0..100 {
        net.vms[0].send(&frame);
        net.vms[1].drain();
    }
    let sent = net.vms.iter().map(|vm| vm.sent).sum();
    net.plane.settle(&net.ports, sent);
    let passed = 100 - net.dropped(0, DropReason::RuleRate);
    let most = began.elapsed().as_millis() as u64 * 125 + 125 + 20 * 125 + frame.len() as u64;
    assert!(passed >= 2 && passed * frame.len() as u64 <= most, "{passed}");
    net.plane.end();
}

/// Frames of 0 go by what is behind 1 and then 2 before they come to 3: a chain. Each of those sends what it
/// was given on to whom it is for, and rules say that it goes elsewhere.
#[test]
fn a_chain_of_ports_and_out() {
    let mut net = Ports::new(4, &Guest::plain());
    net.introduce();
    let [_, first, second, _] = net.ports[..] else { panic!() };
    let all = |to| {
        let from = vec![rule(1, 0, Match::default(), only(RuleVerdict::Forward(to)))];
        RuleSet { from, own: net.ports.clone(), ..RuleSet::default() }
    };
    let sets = vec![(net.ports[0], Some(all(first))), (first, Some(all(second)))];
    net.plane.run(net.plane.host.set_all_rules(sets)).unwrap();
    for len in [10, 1400] {
        let packet = udp(0, 3, 80, len).full();
        net.expect(0, &packet, &[(1, &packet)]);
        net.expect(1, &packet, &[(2, &packet)]);
        net.expect(2, &packet, &[(3, &packet)]);
    }
    // The last of them sent it last: what is for the first comes back by it.
    let back = eth(mac(0), mac(3), &[1; 46]);
    net.expect(3, &back, &[(2, &back)]);
    assert_eq!((net.counts(0), net.counts(1)), (vec![2], vec![2]));
    let status = net.plane.host.rules_status(net.ports[0]).unwrap();
    let (_, done) = status.rules[0];
    assert_eq!((done.packets, status.from_rest.packets, status.to_rest.packets), (2, 0, 0));
    assert!(done.idle.is_some() && status.from_rest.idle.is_none());
    net.plane.end();
}

/// Rules are the guest's, checks are the host's.
#[test]
fn a_rule_does_not_lead_around_a_check() {
    let mut net = Ports::new(2, &Guest::plain());
    net.introduce();
    let policy = Policy { mac: Some(dataplane::Mac(mac(0))), spoofchk: true, ..Policy::default() };
    net.plane.run(net.plane.host.set_policy(net.ports[0], &policy)).unwrap();
    let mut lie = only(RuleVerdict::Accept);
    lie.rewrite.src = Some(dataplane::Mac(mac(9)));
    let mut change = only(RuleVerdict::Accept);
    change.rewrite.destination_port = Some(81);
    let from = vec![rule(1, 1, to_port(80), change), rule(2, 0, Match::default(), lie)];
    net.rules(0, RuleSet { from, ..RuleSet::default() });
    net.expect(0, &udp(0, 1, 9, 100).full(), &[]);
    assert_eq!(net.dropped(0, DropReason::SpoofedMac), 1);
    net.expect(0, &udp(0, 1, 80, 100).full(), &[(1, &udp(0, 1, 81, 100).full())]);
    net.plane.end();
}

/// All or nothing; and a port may have rules before it has anything else.
#[test]
fn rules_of_several_ports_hold_at_once_and_from_the_first_frame() {
    let plane = Plane::new();
    let (a, mut vm_a) = plane.vm("vm0", &Guest::plain());
    let drop_all = || RuleSet { from_refused: true, ..RuleSet::default() };
    let socket = plane.socket("vm1");
    let vhost = VhostSpec {
        socket,
        mode: SocketMode::Server,
        queues: 4,
        features_off: 0,
        moderation: dataplane::Moderation::default(),
        rings: None,
    };
    let spec = PortSpec {
        name: "vm1".into(),
        network: plane.network,
        vlan: VlanMode::None,
        mac_limit: None,
        policy: Policy::default(),
        mtu: None,
        worker: Some(0),
        kind: PortKind::Vhost(vhost),
    };
    let twice = RuleSet {
        from: vec![rule(1, 0, Match::default(), only(RuleVerdict::Drop)); 2],
        ..RuleSet::default()
    };
    assert!(plane.run(plane.host.add_port_with(spec.clone(), Some(twice.clone()))).is_err());
    let b = plane.run(plane.host.add_port_with(spec, Some(drop_all()))).unwrap();
    let vm_b = plane.connect("vm1", &Guest::plain());
    let hello = eth(BROADCAST, mac(0), &[0; 46]);
    vm_a.send(&hello);
    let mut net = Ports { plane, ports: vec![a, b], vms: vec![vm_a, vm_b] };
    assert!(net.vms[1].take(1)[0].frame == hello);
    let said = eth(BROADCAST, mac(1), &[0; 46]);
    net.expect(1, &said, &[]);
    assert_eq!(net.dropped(1, DropReason::RuleDrop), 1);
    // One of two makes no sense: neither is in force.
    let sets = vec![(b, None), (a, Some(twice))];
    assert!(net.plane.run(net.plane.host.set_all_rules(sets)).is_err());
    net.expect(1, &said, &[]);
    let sets = vec![(b, None), (a, Some(drop_all()))];
    net.plane.run(net.plane.host.set_all_rules(sets)).unwrap();
    net.expect(1, &said, &[(0, &said)]);
    net.expect(0, &hello, &[]);
    net.plane.end();
}
