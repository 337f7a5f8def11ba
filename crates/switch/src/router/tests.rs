use std::net::Ipv4Addr;

use packet::checksum::Sum;
use packet::route::Usual;
use packet::{Checked, Head, VlanEdit};
use proptest::prelude::*;

use super::*;
use crate::{By, Cache, NetworkConfig, NotBypassed, PortConfig, Step, Verdict, VlanMode};

const NETWORKS: usize = 4;
const ROUTERS: usize = 4;
const NOW: u64 = 1_000;

/// A network is plain, or its routers are on trunk ports and its hosts in this VLAN.
#[derive(Clone, Debug)]
struct Plan {
    vlans: [Option<u16>; NETWORKS],
    /// Networks of each router, and the MTU there.
    routers: Vec<Vec<(usize, u32)>>,
    /// Where each router sends what it has no other route for: the network, and which router there.
    defaults: Vec<(usize, usize)>,
    bypass: Vec<bool>,
    checks: Vec<SourceCheck>,
}

/// Host 1 of network `n` is 10.n.0.1; interface `i` of router `r` there is 10.n.1.r.
struct Lab {
    switch: Switch,
    hosts: Vec<(PortId, Mac)>,
    routers: Vec<Model>,
}

/// A router, as plain as can be.
struct Model {
    interfaces: Vec<RouterInterface>,
    own: Vec<[u8; 4]>,
    /// Longest prefix first.
    routes: Vec<([u8; 4], u8, NextHop)>,
}

/// What became of a packet: where it ended, and which routers sent it back by the interface it came
/// by, and so told the sender of a better way.
type Fate = (End, Vec<usize>);

/// Where a packet ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Delivered(PortId, Vec<u8>),
    /// At this router, for this reason, in this frame.
    Router(usize, &'static str, Vec<u8>),
    Lost(&'static str),
}

fn address(network: usize, third: usize, last: usize) -> [u8; 4] {
    [10, network as u8, third as u8, last as u8]
}

fn mac(network: usize, third: usize, last: usize) -> Mac {
    Mac([2, 0, 10, network as u8, third as u8, last as u8])
}

fn frame(
    dst: Mac,
    src: Mac,
    tag: Option<u16>,
    from: [u8; 4],
    to: [u8; 4],
    ttl: u8,
    len: usize,
) -> Vec<u8> {
    let mut frame = [dst.0, src.0].concat();
    if let Some(vid) = tag {
        frame.extend([0x81, 0x00]);
        frame.extend(vid.to_be_bytes());
    }
    frame.extend([8, 0]);
    let at = frame.len();
    frame.extend([0x45, 0, 0, 0, 0, 1, 0, 0, ttl, 17, 0, 0]);
    frame.extend(from);
    frame.extend(to);
    frame[at + 2..at + 4].copy_from_slice(&(len as u16).to_be_bytes());
    frame.resize(at + len, 0x5a);
    checksum(&mut frame[at..]);
    frame
}

fn checksum(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let sum = !Sum::ZERO.bytes(&ip[..20]).fold();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Offset of the IP header, and the tag.
fn layer3(frame: &[u8]) -> (usize, Option<u16>) {
    if frame[12..14] == [0x81, 0] {
        (18, Some(u16::from_be_bytes([frame[14], frame[15]]) & 0xfff))
    } else {
        (14, None)
    }
}

impl Model {
    /// What a router does with a frame that came to its interface: sends it by another one.
    fn forward(
        &self,
        number: usize,
        frame: &[u8],
        check: SourceCheck,
    ) -> Result<(PortId, Vec<u8>), &'static str> {
        let (at, _) = layer3(frame);
        let ip = &frame[at..];
        let (ttl, len) = (ip[8], usize::from(u16::from_be_bytes([ip[2], ip[3]])));
        let (from, to): ([u8; 4], [u8; 4]) =
            (ip[12..16].try_into().unwrap(), ip[16..20].try_into().unwrap());
        let die = |why| Err(why);
        let find = |address: [u8; 4]| {
            self.routes.iter().find(|(net, bits, _)| {
                let shift = 32 - u32::from(*bits);
                (u32::from_be_bytes(address) ^ u32::from_be_bytes(*net))
                    .checked_shr(shift)
                    .unwrap_or(0)
                    == 0
            })
        };
        if self.own.contains(&to) || self.own.contains(&from) {
            return die("own");
        }
        let back = find(from);
        match check {
            SourceCheck::Off => {}
            SourceCheck::Loose if back.is_some() => {}
            SourceCheck::Strict if back.is_some_and(|(.., hop)| hop.interface == number) => {}
            SourceCheck::Loose | SourceCheck::Strict | SourceCheck::Closed => return die("source"),
        }
        let Some((.., hop)) = find(to) else { return die("no route") };
        if ttl <= 1 {
            return die("ttl");
        }
        let out = self.interfaces[hop.interface];
        if len > out.mtu as usize {
            return die("too big");
        }
        let mut sent = [hop.mac.0, out.mac.0].concat();
        if let Some(vid) = out.vlan {
            sent.extend([0x81, 0x00]);
            sent.extend(vid.to_be_bytes());
        }
        sent.extend([8, 0]);
        let ip_at = sent.len();
        sent.extend(&ip[..len]);
        sent[ip_at + 8] -= 1;
        checksum(&mut sent[ip_at..]);
        Ok((out.port, sent))
    }
}

impl Lab {
    fn new(plan: &Plan) -> Lab {
        let switch = Switch::new();
        let networks: Vec<NetworkId> =
            (0..NETWORKS).map(|_| switch.add_network(NetworkConfig::default()).unwrap()).collect();
        let port = |network: usize, vlan: VlanMode| {
            let settings = PortConfig { network: networks[network], vlan, mac_limit: None };
            let port = switch.add_port(settings).unwrap();
            switch.set_link(port, true).unwrap();
            port
        };
        let learn = |port: PortId, mac: Mac, vid: Option<u16>| {
            let hello = frame(Mac([0xff; 6]), mac, vid, [0; 4], [255; 4], 1, 20);
            switch.snapshot().lookup(port, &hello, NOW);
        };
        let hosts: Vec<(PortId, Mac)> = (0..NETWORKS)
            .map(|n| {
                let port = port(n, plan.vlans[n].map_or(VlanMode::None, VlanMode::Access));
                learn(port, mac(n, 0, 1), None);
                (port, mac(n, 0, 1))
            })
            .collect();
        let routers = plan.routers.iter().enumerate().map(|(r, parts)| {
            let id = switch.add_router().unwrap();
            let interfaces: Vec<RouterInterface> = parts
                .iter()
                .map(|&(n, mtu)| {
                    let mode = |vid| VlanMode::Trunk {
                        allowed: [vid].into_iter().collect(),
                        native: None,
                    };
                    let port = port(n, plan.vlans[n].map_or(VlanMode::None, mode));
                    let vlan = plan.vlans[n];
                    learn(port, mac(n, 1, r), vlan);
                    let (mac, check) = (mac(n, 1, r), plan.checks[r]);
                    let check_v6 = SourceCheck::Closed;
                    RouterInterface { port, vlan, mac, mtu, check, check_v6 }
                })
                .collect();
            switch.set_interfaces(id, interfaces.clone()).unwrap();
            switch.set_bypass(id, plan.bypass[r]).unwrap();
            let own: Vec<[u8; 4]> = parts.iter().map(|&(n, _)| address(n, 1, r)).collect();
            let keep = switch.add_route(id, Route::Own).unwrap();
            for own in &own {
                switch.delegate(id, Prefix::new((*own).into(), 32).unwrap(), keep).unwrap();
            }
            let mut routes = Vec::new();
            for (interface, &(n, _)) in parts.iter().enumerate() {
                routes.push((address(n, 0, 1), 32, NextHop { interface, mac: mac(n, 0, 1) }));
            }
            let (n, other) = plan.defaults[r];
            if let Some(interface) = parts.iter().position(|(network, _)| *network == n)
                && other != r
                && plan.routers[other].iter().any(|(network, _)| *network == n)
            {
                routes.push(([0; 4], 0, NextHop { interface, mac: mac(n, 1, other) }));
            }
            for (net, len, hop) in &routes {
                let route = switch.add_route(id, Route::Via(vec![*hop])).unwrap();
                switch.delegate(id, Prefix::new((*net).into(), *len).unwrap(), route).unwrap();
            }
            Model { interfaces, own, routes }
        });
        let routers = routers.collect();
        Lab { switch, hosts, routers }
    }

    /// The router and interface that a frame behind a port is for.
    fn at_router(&self, port: PortId, frame: &[u8]) -> Option<(usize, usize)> {
        let (_, tag) = layer3(frame);
        self.routers.iter().enumerate().find_map(|(r, router)| {
            let mut all = router.interfaces.iter();
            let found =
                all.position(|one| one.port == port && one.vlan == tag && frame[..6] == one.mac.0);
            found.map(|interface| (r, interface))
        })
    }

    /// Follows a frame to its end, past routers if there is a cache. Also how often it was in a router.
    fn follow(
        &self,
        plan: &Plan,
        mut port: PortId,
        mut frame: Vec<u8>,
        mut cache: Option<&mut Cache>,
    ) -> (Fate, usize) {
        let snapshot = self.switch.snapshot();
        let (mut passed, mut redirects) = (0, Vec::new());
        for _ in 0..600 {
            let mut head = Head::new();
            head.copy_from(&frame);
            let packet = Packet::parse(head.bytes(), frame.len(), &Checked::PLAIN).unwrap();
            let of = (packet, &Checked::PLAIN);
            let again = cache.as_mut().filter(|_| frame[12..14] == [8, 0]).and_then(|cache| {
                let known = cache.expects_route(head.bytes()).then(|| {
                    let (block, len) = head.block().unwrap();
                    let usual = Usual::read(block, len, frame.len()).unwrap();
                    assert_eq!(usual.packet(), packet);
                    cache.route_again(&snapshot, port, &usual, NOW)
                });
                known.flatten().map(|way| (*way, None))
            });
            let verdict = match &mut cache {
                Some(cache) => cache.lookup(&snapshot, port, head.bytes(), NOW),
                None => snapshot.lookup(port, head.bytes(), NOW),
            };
            let (mut to, edit, router) = match verdict {
                Verdict::Forward { port, edit } => (port, edit, false),
                Verdict::Router { port, edit } => (port, edit, true),
                _ => return ((End::Lost("not forwarded"), redirects), passed),
            };
            let routed = again.or_else(|| {
                let cache = cache.as_mut().filter(|_| router)?;
                let way = cache.route(&snapshot, (port, to, edit), head.bytes(), of, NOW);
                way.map(|(way, to)| (*way, to.copied()))
            });
            let rest = frame[head.len()..packet.frame_len().max(head.len())].to_vec();
            match routed {
                Some((way, to_tuple)) => {
                    if let Some(new) = to_tuple {
                        let old = packet.tuple(head.bytes(), &Checked::PLAIN).unwrap();
                        packet.translate(head.bytes_mut(), &Checked::PLAIN, &old, &new);
                    }
                    packet.forward(&mut head, way.routers, way.macs);
                    assert!(head.edit(way.edit));
                    to = way.port;
                }
                None => assert!(head.edit(edit)),
            }
            frame = [head.bytes(), &rest].concat();
            let Some((r, interface)) = self.at_router(to, &frame) else {
                return ((End::Delivered(to, frame), redirects), passed);
            };
            passed += 1;
            match self.routers[r].forward(interface, &frame, plan.checks[r]) {
                Ok((out, sent)) => {
                    if out == self.routers[r].interfaces[interface].port {
                        redirects.push(r);
                    }
                    (port, frame) = (out, sent);
                }
                Err(why) => return ((End::Router(r, why, frame), redirects), passed),
            }
        }
        ((End::Lost("forever"), redirects), passed)
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let vlans = prop::array::uniform4(prop_oneof![Just(None), Just(Some(10)), Just(Some(20))]);
    let mtu = prop_oneof![4 => Just(1500u32), 1 => Just(576)];
    let check = prop_oneof![
        3 => Just(SourceCheck::Off), 1 => Just(SourceCheck::Loose), 1 => Just(SourceCheck::Strict),
        1 => Just(SourceCheck::Closed)
    ];
    let routers =
        prop::collection::vec(prop::collection::btree_map(0..NETWORKS, mtu, 2..4), ROUTERS);
    let defaults = prop::collection::vec((0..NETWORKS, 0..ROUTERS), ROUTERS);
    let bypass = prop::collection::vec(prop::bool::weighted(0.8), ROUTERS);
    (vlans, routers, defaults, bypass, prop::collection::vec(check, ROUTERS)).prop_map(
        |(vlans, routers, defaults, bypass, checks)| Plan {
            vlans,
            routers: routers.into_iter().map(|parts| parts.into_iter().collect()).collect(),
            defaults,
            bypass,
            checks,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Byte for byte what the routers would have sent, and what ends at a router ends at that one.
    #[test]
    fn bypassed_routers_change_nothing(
        plan in plan(),
        packets in prop::collection::vec(
            (
                (0..NETWORKS, 0usize..3),
                0..ROUTERS,
                (0..NETWORKS, 0usize..3),
                1u8..12,
                prop_oneof![Just(40usize), Just(600), Just(1500)],
            ),
            1..12,
        ),
    ) {
        let lab = Lab::new(&plan);
        let (mut cache, mut bypassed) = (Cache::new(64), 0);
        for ((n, from), router, (to, third), ttl, len) in packets {
            let Some(number) = plan.routers[router].iter().position(|(network, _)| *network == n) else {
                continue;
            };
            let (port, source) = lab.hosts[n];
            let gateway = lab.routers[router].interfaces[number].mac;
            // The host's own, a router's, or nobody's.
            let from = [address(n, 0, 1), address(n, 1, router), [172, 16, 0, 1]][from];
            let packet = frame(gateway, source, None, from, address(to, third, 1), ttl, len);
            let (slow, through) = lab.follow(&plan, port, packet.clone(), None);
            // Worked out, and remembered.
            for _ in 0..3 {
                let (fast, fewer) = lab.follow(&plan, port, packet.clone(), Some(&mut cache));
                prop_assert_eq!(&fast, &slow);
                prop_assert!(fewer <= through);
                bypassed += through - fewer;
            }
        }
        cache.settle(&lab.switch.snapshot());
        let counted = (0..ROUTERS).map(|r| {
            let RouteCounts { total, routes } = lab.switch.route_counts(RouterId(r as u16)).unwrap();
            let hops = routes.iter().flat_map(|(_, hops)| hops);
            assert_eq!(hops.map(|hop| hop.packets).sum::<u64>(), total.packets);
            assert!(total.bytes >= 54 * total.packets);
            total.packets
        });
        prop_assert_eq!(counted.sum::<u64>(), bypassed as u64);
    }
}

/// Two networks and a router between them.
fn pair() -> (Plan, Lab) {
    let plan = Plan {
        vlans: [None, Some(10), None, None],
        routers: vec![vec![(0, 1500), (1, 1500)]],
        defaults: vec![(0, 0)],
        bypass: vec![true],
        checks: vec![SourceCheck::Off],
    };
    let lab = Lab::new(&plan);
    (plan, lab)
}

fn ping(lab: &Lab) -> (PortId, Vec<u8>) {
    let gateway = lab.routers[0].interfaces[0].mac;
    (
        lab.hosts[0].0,
        frame(gateway, mac(0, 0, 1), None, address(0, 0, 1), address(1, 0, 1), 64, 100),
    )
}

/// For one address from one machine, before prefixes and whatever the check of sources says.
#[test]
fn an_exact_entry_is_for_one_machine() {
    let (plan, lab) = pair();
    let (port, packet) = ping(&lab);
    let (switch, id, to) = (&lab.switch, RouterId(0), address(1, 0, 1).into());
    let machine = mac(0, 0, 1);
    let mut cache = Cache::new(64);
    let mut passes = |packet: &[u8]| {
        let (_, asked) = lab.follow(&plan, port, packet.to_vec(), Some(&mut cache));
        let parsed = Packet::parse(packet, packet.len(), &Checked::PLAIN);
        let steps = switch.snapshot().explain(port, packet, parsed, &Checked::PLAIN);
        let by = steps.iter().find_map(|step| match step {
            Step::Bypassed { by, .. } => Some(*by),
            _ => None,
        });
        assert_eq!(by.is_some(), asked == 0);
        by
    };
    let host = Prefix::new(to, 32).unwrap();
    assert_eq!(passes(&packet), Some(By::Prefix(host)));

    let hop = NextHop { interface: 1, mac: lab.hosts[1].1 };
    let route = switch.add_route(id, Route::Via(vec![hop])).unwrap();
    switch.delegate_exact(id, to, machine, route).unwrap();
    assert_eq!(passes(&packet), Some(By::Exact(to, machine)));
    assert_eq!(switch.remove_route(id, route), Err(SwitchError::RouteInUse));
    // Without the prefix, and with a source that nobody knows.
    assert!(switch.withdraw(id, host).unwrap());
    let mut closed = lab.routers[0].interfaces.clone();
    closed[0].check = SourceCheck::Closed;
    switch.set_interfaces(id, closed).unwrap();
    assert_eq!(passes(&packet), Some(By::Exact(to, machine)));

    let (mut elsewhere, mut other) = (packet.clone(), packet.clone());
    elsewhere[33] ^= 2;
    checksum(&mut elsewhere[14..]);
    other[11] ^= 4;
    assert_eq!((passes(&elsewhere), passes(&other)), (None, None));

    let group = Mac([1, 0, 0, 0, 0, 1]);
    let refused = switch.delegate_exact(id, to, group, route);
    assert_eq!(refused, Err(SwitchError::NotUnicast(group)));
    assert!(switch.withdraw_exact(id, to, machine).unwrap());
    assert!(!switch.withdraw_exact(id, to, machine).unwrap());
    assert_eq!(passes(&packet), None);
    switch.remove_route(id, route).unwrap();
}

/// What a change made workers forget is worked out once and remembered again.
#[test]
fn changes_do_not_put_the_memory_of_ways_aside() {
    let (plan, lab) = pair();
    let (port, packet) = ping(&lab);
    let mut cache = Cache::new(64);
    let all = |cache: &mut Cache| {
        for source in 1..=200 {
            let mut packet = packet.clone();
            packet[29] = source;
            checksum(&mut packet[14..]);
            lab.follow(&plan, port, packet.clone(), Some(cache));
        }
    };
    // The first ones are new, which is a reason to put it aside.
    (0..100).for_each(|_| all(&mut cache));
    assert!(!cache.forgets_ways());
    for _ in 0..3 {
        lab.switch.set_bypass(RouterId(0), true).unwrap();
        for _ in 0..2 {
            all(&mut cache);
            assert!(!cache.forgets_ways());
        }
    }
}

#[test]
fn what_ends_a_bypass() {
    let bypassed = |change: &dyn Fn(&Lab)| {
        let (plan, lab) = pair();
        let (port, packet) = ping(&lab);
        let mut cache = Cache::new(64);
        // Worked out, found, and as the one before it.
        for _ in 0..3 {
            let ((before, _), passed) = lab.follow(&plan, port, packet.clone(), Some(&mut cache));
            assert!(passed == 0 && matches!(before, End::Delivered(..)));
        }
        // Of the same pass is what comes now.
        change(&lab);
        let ((end, _), passed) = lab.follow(&plan, port, packet, Some(&mut cache));
        (passed == 0 && matches!(end, End::Delivered(port, _) if port == lab.hosts[1].0), end)
    };
    assert!(bypassed(&|_| {}).0);
    let (id, to) = (RouterId(0), Prefix::new(address(1, 0, 1).into(), 32).unwrap());
    assert!(!bypassed(&|lab| lab.switch.set_bypass(id, false).unwrap()).0);
    assert!(!bypassed(&|lab| assert!(lab.switch.withdraw(id, to).unwrap())).0);
    assert!(!bypassed(&|lab| lab.switch.remove_router(id).unwrap()).0);
    assert!(!bypassed(&|lab| lab.switch.set_interfaces(id, Vec::new()).unwrap()).0);
    let egress = |lab: &Lab| lab.routers[0].interfaces[1].port;
    assert!(!bypassed(&|lab| lab.switch.set_link(egress(lab), false).unwrap()).0);
    // Another port that gets the number of the router's is not the router's.
    assert!(
        !bypassed(&|lab| {
            let port = egress(lab);
            lab.switch.remove_port(port).unwrap();
            for _ in 0..2 * Switch::PORTS_MAX {
                let network = NetworkId(1);
                let vlan = VlanMode::Trunk { allowed: [10].into_iter().collect(), native: None };
                let new =
                    lab.switch.add_port(PortConfig { network, vlan, mac_limit: None }).unwrap();
                if new == port {
                    lab.switch.set_link(new, true).unwrap();
                    return;
                }
                lab.switch.remove_port(new).unwrap();
            }
            panic!("the number never came again");
        })
        .0
    );
    // The neighbour has another address now, which nobody has.
    let (end, _) = bypassed(&|lab| {
        let away = NextHop { interface: 1, mac: Mac([2, 9, 9, 9, 9, 9]) };
        lab.switch.change_route(id, RouteId(2), Route::Via(vec![away])).unwrap();
        lab.switch.change_route(id, RouteId(3), Route::Via(vec![away])).unwrap();
    });
    assert!(!end);
}

#[test]
fn what_begins_a_bypass() {
    let (plan, lab) = pair();
    let (port, packet) = ping(&lab);
    let mut cache = Cache::new(64);
    let mut bypassed = || lab.follow(&plan, port, packet.clone(), Some(&mut cache)).1 == 0;
    let (switch, id) = (&lab.switch, RouterId(0));
    assert!(bypassed());
    let interfaces = lab.routers[0].interfaces.clone();
    switch.set_interfaces(id, Vec::new()).unwrap();
    assert!(!bypassed());
    switch.set_interfaces(id, interfaces).unwrap();
    assert!(bypassed());
    switch.set_bypass(id, false).unwrap();
    assert!(!bypassed());
    switch.set_bypass(id, true).unwrap();
    assert!(bypassed());
    // A link that was lost: the router says first that it is still the same.
    for port in [lab.routers[0].interfaces[0].port, lab.routers[0].interfaces[1].port] {
        switch.set_link(port, false).unwrap();
        switch.set_link(port, true).unwrap();
        // It is known again where it is.
        for interface in &lab.routers[0].interfaces {
            let hello =
                frame(Mac([0xff; 6]), interface.mac, interface.vlan, [0; 4], [255; 4], 1, 20);
            switch.snapshot().lookup(interface.port, &hello, NOW);
        }
        assert!(!bypassed());
        switch.confirm_router(id).unwrap();
        assert!(bypassed());
    }
    let (to, route) = (Prefix::new(address(1, 0, 1).into(), 32).unwrap(), RouteId(3));
    assert!(switch.withdraw(id, to).unwrap());
    assert!(!bypassed());
    switch.delegate(id, to, route).unwrap();
    assert!(bypassed());
}

#[test]
fn a_table_full_of_what_was_is_made_anew() {
    let (plan, lab) = pair();
    let (switch, id) = (&lab.switch, RouterId(0));
    let prefixes =
        || (0..20_000u32).map(|n| Prefix::new(Ipv4Addr::from(n << 8 | 7 << 28).into(), 30));
    for prefix in prefixes().flatten() {
        switch.delegate(id, prefix, RouteId(2)).unwrap();
    }
    assert!(!switch.is_untidy());
    for prefix in prefixes().flatten() {
        assert!(switch.withdraw(id, prefix).unwrap());
    }
    assert!(switch.is_untidy());
    switch.tidy_routers();
    assert!(!switch.is_untidy());
    let (port, packet) = ping(&lab);
    assert_eq!(lab.follow(&plan, port, packet, Some(&mut Cache::new(64))).1, 0);
}

#[test]
fn it_is_told_step_by_step() {
    let (_, lab) = pair();
    let (port, packet) = ping(&lab);
    let snapshot = lab.switch.snapshot();
    let parse = |frame: &[u8]| Packet::parse(frame, frame.len(), &Checked::PLAIN);
    let steps = snapshot.explain(port, &packet, parse(&packet), &Checked::PLAIN);
    let interfaces = &lab.routers[0].interfaces;
    let (first, last) = (interfaces[0], interfaces[1]);
    let to = (lab.hosts[1].0, mac(1, 0, 1));
    let bypassed = Step::Bypassed {
        router: RouterId(0),
        ingress: 0,
        by: By::Prefix(Prefix::new(address(1, 0, 1).into(), 32).unwrap()),
        route: RouteId(3),
        hop: 0,
        egress: 1,
        addresses: (last.mac, to.1),
        port: to.0,
    };
    let switched = Verdict::Router { port: first.port, edit: VlanEdit::Keep };
    assert_eq!(steps, [Step::Switched(port, switched), bypassed.clone(), Step::Leaves(to.0)]);

    let with = |ttl, len, to| {
        let frame = frame(first.mac, mac(0, 0, 1), None, address(0, 0, 1), to, ttl, len);
        snapshot.explain(port, &frame, parse(&frame), &Checked::PLAIN)[1..].to_vec()
    };
    let refused = |why| Step::ToRouter(RouterId(0), why);
    let there = address(1, 0, 1);
    assert_eq!(with(1, 100, there), [bypassed.clone(), refused(NotBypassed::Hops)]);
    assert_eq!(with(64, 1501, there), [bypassed, refused(NotBypassed::Mtu)]);
    assert_eq!(with(64, 100, address(9, 0, 1)), [refused(NotBypassed::NoRoute)]);
    assert_eq!(with(64, 100, address(1, 1, 0)), [refused(NotBypassed::Own)]);
    assert_eq!(with(64, 100, address(0, 0, 1)), [refused(NotBypassed::Redirect)]);
}

/// Neither the address that the frame comes from, nor that of the router.
#[test]
fn an_explanation_teaches_no_addresses() {
    let (plan, lab) = pair();
    let [first, last] = [0, 1].map(|number| lab.routers[0].interfaces[number]);
    lab.switch.flush_port(last.port).unwrap();
    let known = || {
        let networks = (0..).map_while(|id| lab.switch.fdb(NetworkId(id), NOW).ok());
        let snapshot = lab.switch.snapshot();
        let domain = snapshot.domain(first.port).unwrap();
        (networks.flatten().collect::<Vec<_>>(), domain.generation())
    };
    let before = known();
    let (to, new) = (address(1, 0, 1), mac(0, 0, 99));
    let frame = frame(first.mac, new, None, address(0, 0, 1), to, 64, 100);
    let packet = Packet::parse(&frame, frame.len(), &Checked::PLAIN);
    let (snapshot, port) = (lab.switch.snapshot(), lab.hosts[0].0);
    let steps = snapshot.explain(port, &frame, packet, &Checked::PLAIN);
    assert_eq!(steps.last(), Some(&Step::Leaves(lab.hosts[1].0)), "{steps:?}");
    assert_eq!(known(), before);
    lab.follow(&plan, port, frame, Some(&mut Cache::new(64)));
    assert_eq!(known().0.len(), before.0.len() + 2, "the frame itself does");
}

#[test]
fn what_is_refused() {
    let (_, lab) = pair();
    let (switch, id) = (&lab.switch, RouterId(0));
    let other = switch.add_router().unwrap();
    let theirs = lab.routers[0].interfaces.clone();
    let port = theirs[0].port;
    assert_eq!(switch.set_interfaces(other, theirs.clone()), Err(SwitchError::PortOfRouter(port)));
    let nowhere = RouterInterface { port: PortId(999), ..theirs[0] };
    assert_eq!(switch.set_interfaces(id, vec![nowhere]), Err(SwitchError::NoSuchPort(PortId(999))));
    let group = Mac([0xff; 6]);
    let all = RouterInterface { mac: group, ..theirs[0] };
    assert_eq!(switch.set_interfaces(id, vec![all]), Err(SwitchError::NotUnicast(group)));
    let hop = NextHop { interface: 0, mac: group };
    assert_eq!(switch.add_route(id, Route::Via(vec![hop])), Err(SwitchError::NotUnicast(group)));
    let prefix = Prefix::new(address(1, 0, 0).into(), 24).unwrap();
    assert_eq!(switch.delegate(id, prefix, RouteId(99)), Err(SwitchError::NoSuchRoute));
    assert_eq!(switch.withdraw(id, prefix), Ok(false));
    assert_eq!(switch.remove_router(RouterId(7)), Err(SwitchError::NoSuchRouter(RouterId(7))));
    let many = vec![NextHop { interface: 0, mac: mac(0, 0, 1) }; Switch::HOPS_MAX + 1];
    assert_eq!(switch.add_route(id, Route::Via(many)), Err(SwitchError::TooManyHops));
    let route = switch.add_route(id, Route::Own).unwrap();
    switch.delegate(id, prefix, route).unwrap();
    assert_eq!(switch.remove_route(id, route), Err(SwitchError::RouteInUse));
    assert_eq!(switch.withdraw(id, prefix), Ok(true));
    assert_eq!(switch.remove_route(id, route), Ok(()));
    assert_eq!(switch.remove_route(id, route), Err(SwitchError::NoSuchRoute));
    assert_ne!(switch.add_route(id, Route::Own), Ok(route), "a number does not come back at once");
    switch.remove_router(other).unwrap();
    assert_ne!(switch.add_router(), Ok(other), "nor does a router's");
}
