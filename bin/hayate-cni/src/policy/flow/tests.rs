//! Flow rules, asked frame by frame, against what the rules of a pod say.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

/// A frame as a switch sees it.
#[derive(Clone, Copy, Debug)]
struct Frame {
    way: Way,
    peer: IpAddr,
    /// Of what has ports: which, the destination's, and whether it is of a connection that was let through.
    transport: Option<(Protocol, u16, bool)>,
    icmp: Option<u8>,
    arp: bool,
    later: bool,
}

fn matches(wanted: &Value, frame: &Frame) -> bool {
    let state = |text: &str| {
        frame.transport.is_some_and(|(_, _, established)| established == (text == "established"))
    };
    wanted.as_object().unwrap().iter().all(|(key, value)| {
        let text = value.as_str().unwrap_or_default();
        match key.as_str() {
            "state" => !frame.later && state(text),
            "ethertype" => frame.arp,
            "later_fragment" => !frame.arp && value.as_bool() == Some(frame.later),
            "protocol" => match text {
                "icmp" => frame.icmp.is_some() && frame.peer.is_ipv4(),
                "icmpv6" => frame.icmp.is_some() && frame.peer.is_ipv6(),
                _ => frame
                    .transport
                    .is_some_and(|(protocol, ..)| (protocol == Protocol::Tcp) == (text == "tcp")),
            },
            "icmp_type" => frame.icmp == value.as_u64().and_then(|kind| kind.try_into().ok()),
            "dst_port" => {
                let (first, last) = text.split_once('-').unwrap();
                let range = first.parse().unwrap()..=last.parse::<u16>().unwrap();
                !frame.later && frame.transport.is_some_and(|(_, port, _)| range.contains(&port))
            }
            key if key == frame.way.peer() => {
                !frame.arp && text.parse::<IpNet>().unwrap().contains(&frame.peer)
            }
            other => panic!("{other}"),
        }
    })
}

/// Whether a switch with these rules lets it pass.
fn passes(rules: &FlowRules, frame: &Frame) -> bool {
    if rules.is_empty() {
        return true;
    }
    let way = |one: &&Value| one["on"] == rules.on && one["direction"] == frame.way.word();
    rules.rules.iter().filter(way).any(|rule| matches(&rule["match"], frame))
        || rules.defaults.iter().find(way).unwrap()["action"] == "accept"
}

fn new(way: Way, peer: &str, protocol: Protocol, port: u16) -> Frame {
    let transport = Some((protocol, port, false));
    Frame { way, peer: peer.parse().unwrap(), transport, icmp: None, arp: false, later: false }
}

fn direction(isolated: bool, allow: Vec<Rule>) -> Direction {
    Direction { isolated, allow }
}

fn pod(ingress: Direction, egress: Direction) -> PodRules {
    PodRules { namespace: "n".into(), name: "p".into(), ips: Vec::new(), ingress, egress }
}

fn open() -> Direction {
    direction(false, Vec::new())
}

#[test]
fn a_pod_that_is_not_isolated_has_no_rules() {
    let rules = FlowRules::new(&pod(open(), open()), 3);
    assert_eq!(rules, FlowRules { on: "vf3".into(), rules: vec![], defaults: vec![] });
    assert!(FlowRules::closed(3, false, false).is_empty());
}

#[test]
fn what_all_need_passes_and_nothing_else() {
    let rules = FlowRules::closed(2, true, true);
    for way in [Way::To, Way::From] {
        let frame = |peer: &str| Frame { transport: None, ..new(way, peer, Protocol::Tcp, 1) };
        assert!(passes(&rules, &Frame { arp: true, ..frame("10.0.0.1") }));
        for kind in 0..=255 {
            let v4 = Frame { icmp: Some(kind), ..frame("10.0.0.1") };
            assert_eq!(
                passes(&rules, &v4),
                way == Way::To && [3, 11, 12].contains(&kind),
                "{kind}"
            );
            let v6 = Frame { icmp: Some(kind), ..frame("fe80::1") };
            let found = (130..=136).contains(&kind) || kind == 143;
            let error = way == Way::To && (1..=4).contains(&kind);
            assert_eq!(passes(&rules, &v6), found || error, "{kind}");
        }
        for peer in ["10.0.0.1", "fd00::1"] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let begins = new(way, peer, protocol, 80);
                assert!(!passes(&rules, &begins));
                assert!(!passes(&rules, &Frame { later: true, ..begins }));
                let answer = Frame { transport: Some((protocol, 80, true)), ..begins };
                assert!(passes(&rules, &answer));
            }
        }
    }
    // One direction alone.
    let rules = FlowRules::closed(2, true, false);
    assert!(passes(&rules, &new(Way::From, "10.0.0.1", Protocol::Udp, 53)));
    assert!(!passes(&rules, &new(Way::To, "10.0.0.1", Protocol::Udp, 53)));
}

#[test]
fn fragments_pass_between_those_that_may_talk() {
    let peers = |net: &str| Some(vec![net.parse().unwrap()]);
    let ports = Some(vec![Ports { protocol: Protocol::Udp, first: 53, last: 53 }]);
    let allow = |net: &str, ports: &Option<Vec<Ports>>| {
        direction(true, vec![Rule { peers: peers(net), ports: ports.clone() }])
    };
    let both = pod(allow("10.1.0.0/16", &ports), allow("10.2.0.0/16", &ports));
    let rules = FlowRules::new(&both, 0);
    for way in [Way::To, Way::From] {
        for (peer, expected) in [("10.1.2.3", true), ("10.2.2.3", true), ("10.3.2.3", false)] {
            let later = Frame { later: true, ..new(way, peer, Protocol::Udp, 53) };
            assert_eq!(passes(&rules, &later), expected, "{peer}");
        }
    }
    // Ports of no kind allow nothing, so nobody has fragments.
    let none = pod(allow("10.1.0.0/16", &Some(Vec::new())), direction(true, Vec::new()));
    let later = Frame { later: true, ..new(Way::To, "10.1.2.3", Protocol::Udp, 53) };
    assert!(!passes(&FlowRules::new(&none, 0), &later));
    // Whoever may ask anybody gets answers from anybody.
    let asks = FlowRules::new(&pod(direction(true, Vec::new()), open()), 0);
    assert!(passes(&asks, &later));
}

#[test]
fn a_rule_that_stays_keeps_its_number() {
    let allow = |nets: &[&str]| {
        let peers = Some(nets.iter().map(|net| net.parse().unwrap()).collect());
        direction(true, vec![Rule { peers, ports: None }])
    };
    let one = FlowRules::new(&pod(allow(&["10.0.0.1/32", "10.0.0.9/32"]), open()), 254);
    let two = FlowRules::new(&pod(allow(&["10.0.0.9/32"]), open()), 254);
    for rule in &two.rules {
        let same = one.rules.contains(rule);
        let fragment = rule["match"]["later_fragment"] == true;
        assert!(same || fragment, "{rule}");
        let id = rule["id"].as_u64().unwrap();
        assert_eq!(id >> NUMBER_BITS, 254);
        assert!(id < 1 << 53);
    }
    let mut ids: Vec<u64> = one.rules.iter().map(|rule| rule["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), one.rules.len());
}

#[test]
fn all_but_one_address_is_no_rule_for_each_length() {
    for (block, but) in [("0.0.0.0/0", "10.1.2.3/32"), ("fd00::/64", "fd00::7/128")] {
        let block: IpNet = block.parse().unwrap();
        let but: IpNet = but.parse().unwrap();
        let nets = super::super::compile::minus(block, but);
        let set: BTreeSet<IpNet> = nets.iter().copied().collect();
        let stride = stride(&set);
        assert!(stride > 1);
        let all: Vec<IpNet> = nets.into_iter().flat_map(|net| padded(net, stride)).collect();
        let lengths: BTreeSet<u8> = all.iter().map(IpNet::prefix_len).collect();
        assert!(lengths.len() <= LENGTHS_MAX, "{lengths:?}");
        // Together they are what they were.
        let size =
            |net: &IpNet| 1_u128.checked_shl((net.max_prefix_len() - net.prefix_len()).into());
        let sum: u128 = all.iter().map(|net| size(net).unwrap()).sum();
        assert_eq!(sum + 1, size(&block).unwrap());
        assert!(all.iter().all(|net| block.contains(net) && !net.contains(&but)));
        let peers = Some(set.into_iter().collect());
        let ports = Some(vec![Ports { protocol: Protocol::Tcp, first: 80, last: 90 }]);
        let rules = direction(true, vec![Rule { peers, ports }]);
        as_the_daemon_reads_it(&FlowRules::new(&pod(rules.clone(), rules), 9));
    }
}

/// The daemon understands them, and finds nothing wrong.
fn as_the_daemon_reads_it(rules: &FlowRules) {
    let set = json!({ "pf": "02:00:00:00:00:01", "clear": [rules.on], "add": rules.rules, "defaults": rules.defaults });
    let set: api::channel::SetFlows = serde_json::from_value(set).unwrap();
    for rule in &set.add {
        rule.check().unwrap();
    }
}

fn nets() -> impl Strategy<Value = IpNet> {
    prop_oneof![
        (0..4_u8, 28..=32_u8).prop_map(|(low, length)| format!("10.0.0.{low}/{length}")),
        (0..4_u8, 124..=128_u8).prop_map(|(low, length)| format!("fd00::{low}/{length}")),
        Just("0.0.0.0/0".to_owned()),
        Just("::/0".to_owned()),
    ]
    .prop_map(|text| text.parse::<IpNet>().unwrap().trunc())
}

fn ranges() -> impl Strategy<Value = Ports> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let whole = (0..6_u16, 0..6_u16).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let range = prop_oneof![4 => whole, 1 => Just((0, u16::MAX))];
    (protocol, range).prop_map(|(protocol, (first, last))| Ports { protocol, first, last })
}

fn directions() -> impl Strategy<Value = Direction> {
    use proptest::collection::vec;
    use proptest::option::weighted;
    let rule = (weighted(0.8, vec(nets(), 0..3)), weighted(0.8, vec(ranges(), 0..3)));
    let rules = vec(rule.prop_map(|(peers, ports)| Rule { peers, ports }), 0..4);
    (any::<bool>(), rules).prop_map(|(isolated, allow)| Direction {
        isolated,
        allow: if isolated { allow } else { Vec::new() },
    })
}

fn allowed(direction: &Direction, peer: IpAddr, protocol: Protocol, port: u16) -> bool {
    let rule = |rule: &Rule| {
        let who = rule.peers.as_ref().is_none_or(|nets| nets.iter().any(|net| net.contains(&peer)));
        let is = |one: &Ports| one.protocol == protocol && (one.first..=one.last).contains(&port);
        who && rule.ports.as_ref().is_none_or(|ports| ports.iter().any(is))
    };
    !direction.isolated || direction.allow.iter().any(rule)
}

proptest! {
    #[test]
    fn connections_begin_where_the_rules_allow_it(
        ingress in directions(), egress in directions(), peer in 0..6_u8, six: bool, port in 0..8_u16, tcp: bool,
    ) {
        let peer: IpAddr = if six { format!("fd00::{peer}") } else { format!("10.0.0.{peer}") }.parse().unwrap();
        let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
        let rules = FlowRules::new(&pod(ingress.clone(), egress.clone()), 7);
        as_the_daemon_reads_it(&rules);
        for (way, direction) in [(Way::To, &ingress), (Way::From, &egress)] {
            let frame = Frame { peer, ..new(way, "10.0.0.1", protocol, port) };
            prop_assert_eq!(passes(&rules, &frame), allowed(direction, peer, protocol, port));
            let answer = Frame { transport: Some((protocol, port, true)), ..frame };
            prop_assert!(passes(&rules, &answer));
        }
    }
}
