use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::Mac;
use api::channel::{ConnectionCount, CountedNextHop, Hop, Limits, Placed, Prefix, To, Transport};
use proptest::prelude::*;

use super::*;
use crate::state::{
    Change, ChangeKind, FamilyConf, Filters, Gateway, Kind, Link, Object, Obstacle, Settings,
    Table, Target,
};

#[path = "../../tests/common/model.rs"]
mod model;
use model::Model;

const LIMITS: Limits = Limits { interfaces: 16, nexthops: 64, prefixes: 1000, connections: 100 };

const PREFIXES: [&str; 14] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.1.0/24",
    "10.1.1.4/31",
    "10.1.1.5/32",
    "10.1.2.0/24",
    "10.2.0.0/16",
    "192.0.2.0/24",
    "::/0",
    "2001:db8::/32",
    "2001:db8:1::/64",
    "2001:db8:1::5/128",
    "2001:db8:2::/64",
];

const ADDRESSES: [&str; 10] = [
    "10.1.1.4",
    "10.1.1.5",
    "10.1.1.6",
    "10.1.2.5",
    "10.2.0.1",
    "192.0.2.1",
    "198.51.100.1",
    "2001:db8:1::5",
    "2001:db8:1::6",
    "2001:db8:2::1",
];

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

fn gateway(interface: u32, to: &str, weight: u32) -> Gateway {
    Gateway { interface, address: address(to), weight }
}

fn via(interface: u32, to: &str) -> Target {
    Target::Gateways([gateway(interface, to, 1)].into())
}

fn add(target: Target) -> Change {
    Change { metric: 0, tos: 0, target, kind: ChangeKind::Added }
}

/// Two links that forward, and what both have for addresses.
fn router() -> State {
    let mut state = State::default();
    state.set_settings(Settings { rp_filter: 0, forwarding_v6: true });
    state.set_link(1, Link::plain(1));
    state.set_link(2, Link::plain(2));
    for own in ["10.1.1.1/32", "10.1.2.1/32", "2001:db8:1::1/128"] {
        state.change_route(true, prefix(own), &add(Target::Own));
    }
    for (connected, index) in [("10.1.1.0/24", 1), ("10.1.2.0/24", 2), ("2001:db8:1::/64", 1)] {
        state.change_route(false, prefix(connected), &add(Target::Link(index)));
    }
    state
}

/// Carries a call out and gives the plan its answer.
fn carry_out(model: &mut Model, plan: &mut Plan, call: Call) {
    match call {
        Call::Interfaces(call) => plan.placed(model.interfaces(call).unwrap()),
        Call::NextHops(call) => model.next_hops(call).unwrap(),
        Call::Routes(call) => model.routes(call).unwrap(),
        Call::Connections(call) => {
            let set = call.set.len();
            model.connections(call).unwrap();
            // One or both directions of each.
            let begun = plan.begun_connections().len();
            assert!((begun..=2 * begun).contains(&set), "{begun} {set}");
        }
        Call::Status(_) => {}
        Call::Withdraw => model.withdraw(),
    }
}

/// Tells all there is to tell; returns how many requests that took.
fn tell(model: &mut Model, plan: &mut Plan, state: &mut State) -> usize {
    plan.update(state);
    let mut calls = 0;
    while let Some(call) = plan.next(state) {
        carry_out(model, plan, call);
        calls += 1;
    }
    calls
}

fn told(state: &mut State) -> (Model, Plan) {
    let mut model = Model::new(LIMITS);
    let mut plan = Plan::new(LIMITS, state);
    tell(&mut model, &mut plan, state);
    (model, plan)
}

fn hops(hops: &[(u32, u8)]) -> To {
    To::Via(hops.iter().map(|&(interface, last)| Hop { interface, mac: mac(last) }).collect())
}

#[test]
fn a_router_is_told() {
    let mut state = router();
    state.change_route(false, prefix("0.0.0.0/0"), &add(via(2, "10.1.2.5")));
    state.change_route(false, prefix("192.0.2.0/24"), &add(Target::Own));
    state.set_neighbour(1, address("10.1.1.5"), Some(mac(15)));
    let (mut model, mut plan) = told(&mut state);
    let ways = |model: &Model, to: &str| model.look_up(address(to)).cloned();
    assert_eq!(ways(&model, "10.1.1.1"), Some(To::Own));
    assert_eq!(ways(&model, "10.1.1.5"), Some(hops(&[(1, 15)])));
    assert_eq!(ways(&model, "10.1.1.6"), Some(hops(&[])));
    assert_eq!(ways(&model, "192.0.2.1"), Some(To::Own));
    // The gateway is not resolved.
    assert_eq!(ways(&model, "198.51.100.1"), Some(hops(&[])));
    assert_eq!(ways(&model, "2001:db8:2::1"), None);

    // It is now: one next hop for the default route and its own address, and the address.
    state.set_neighbour(2, address("10.1.2.5"), Some(mac(25)));
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(ways(&model, "198.51.100.1"), Some(hops(&[(2, 25)])));
    assert_eq!(ways(&model, "10.1.2.5"), Some(hops(&[(2, 25)])));

    // Another address of the gateway: no prefix is told again.
    state.set_neighbour(2, address("10.1.2.5"), Some(mac(26)));
    plan.update(&mut state);
    let Some(Call::NextHops(call)) = plan.next(&state) else { panic!("next hops") };
    assert_eq!((call.set.len(), call.del.len()), (2, 0));
    carry_out(&mut model, &mut plan, Call::NextHops(call));
    while let Some(call) = plan.next(&state) {
        assert!(!matches!(call, Call::Routes(_)), "{call:?}");
    }
    assert_eq!(ways(&model, "198.51.100.1"), Some(hops(&[(2, 26)])));
}

#[test]
fn several_ways_are_repeated_by_weight() {
    let mut state = router();
    let target = Target::Gateways([gateway(1, "10.1.1.5", 2), gateway(2, "10.1.2.5", 4)].into());
    state.change_route(false, prefix("10.2.0.0/16"), &add(target));
    state.set_neighbour(1, address("10.1.1.5"), Some(mac(15)));
    let (mut model, mut plan) = told(&mut state);
    // One of them is not resolved.
    assert_eq!(model.look_up(address("10.2.0.1")), Some(&hops(&[])));
    state.set_neighbour(2, address("10.1.2.5"), Some(mac(25)));
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(model.look_up(address("10.2.0.1")), Some(&hops(&[(1, 15), (2, 25), (2, 25)])));
}

#[test]
fn weights_are_shares_of_a_bounded_list() {
    use super::ways::{HOPS_MAX, repetitions};
    assert_eq!(repetitions(&[1]), Some(vec![1]));
    assert_eq!(repetitions(&[10, 30]), Some(vec![1, 3]));
    assert_eq!(repetitions(&[0, 1]), None);
    assert_eq!(repetitions(&[]), None);
    assert_eq!(repetitions(&vec![1; HOPS_MAX]).map(|all| all.len()), Some(HOPS_MAX));
    assert_eq!(repetitions(&vec![1; HOPS_MAX + 1]), None);
    let uneven = repetitions(&[1, 255, u32::MAX]).unwrap();
    assert!(uneven.iter().all(|times| *times > 0) && uneven[2] > 50);
    assert!(uneven.iter().sum::<usize>() <= HOPS_MAX);
}

#[test]
fn what_else_is_done_to_packets_ends_all_until_it_is_gone() {
    let mut state = router();
    let (mut model, mut plan) = told(&mut state);
    assert!(!model.prefixes.is_empty());
    state.set_obstacles("nf_tables", [Obstacle::all("a rule")].into());
    plan.update(&mut state);
    assert_eq!(plan.next(&state), Some(Call::Withdraw));
    model.withdraw();
    let Some(Call::Status(status)) = plan.next(&state) else { panic!("status") };
    assert_eq!((status.policy, status.reasons), (Policy::Nothing, vec!["a rule".to_owned()]));
    assert_eq!(plan.next(&state), None);

    state.set_obstacles("nf_tables", BTreeSet::new());
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(model.look_up(address("10.1.1.1")), Some(&To::Own));
    assert_eq!(plan.policy().policy, Policy::Plain);
}

#[test]
fn an_obstacle_of_a_version_that_is_not_forwarded_is_none() {
    let mut state = router();
    state.set_settings(Settings { rp_filter: 0, forwarding_v6: false });
    state.set_obstacles("rules", [Obstacle::of(Family::V6, "a rule")].into());
    let (model, plan) = told(&mut state);
    assert_eq!(plan.policy().policy, Policy::Plain);
    assert!(model.prefixes.keys().all(|prefix| prefix.address().is_ipv4()));
    assert!(!model.prefixes.is_empty());
}

#[test]
fn a_wide_local_route_is_before_longer_ones() {
    let mut state = router();
    state.set_neighbour(1, address("10.1.1.5"), Some(mac(15)));
    let (mut model, mut plan) = told(&mut state);
    state.change_route(true, prefix("10.1.0.0/16"), &add(Target::Own));
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(model.look_up(address("10.1.1.5")), Some(&To::Own));
}

#[test]
fn a_type_of_service_leaves_its_prefix_to_the_router() {
    let mut state = router();
    state.set_neighbour(2, address("10.1.2.5"), Some(mac(25)));
    state.change_route(false, prefix("10.2.0.0/16"), &add(via(2, "10.1.2.5")));
    let (mut model, mut plan) = told(&mut state);
    assert_eq!(model.look_up(address("10.2.0.1")), Some(&hops(&[(2, 25)])));
    let change = Change { tos: 8, ..add(via(1, "10.1.1.5")) };
    state.change_route(false, prefix("10.2.0.0/16"), &change);
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(model.look_up(address("10.2.0.1")), Some(&hops(&[])));
}

#[test]
fn a_refused_interface_leads_nowhere() {
    let mut state = router();
    state.set_neighbour(1, address("10.1.1.5"), Some(mac(15)));
    let (mut model, mut plan) = told(&mut state);
    model.refused.insert(1);
    plan.placed(model.placed());
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(model.look_up(address("10.1.1.5")), Some(&hops(&[])));
    model.refused.clear();
    plan.placed(model.placed());
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(model.look_up(address("10.1.1.5")), Some(&hops(&[(1, 15)])));
}

#[test]
fn interfaces_say_what_they_ask_of_sources() {
    let mut state = router();
    let mut vlan = Link::plain(3);
    vlan.kind = Kind::Vlan { parent: 2, vid: 10 };
    vlan.v4 = FamilyConf { forwarding: true, rp_filter: 2 };
    vlan.v6 = FamilyConf { forwarding: false, rp_filter: 0 };
    state.set_link(3, vlan);
    let mut first = Link::plain(1);
    first.v4 = FamilyConf { forwarding: false, rp_filter: 0 };
    first.permanent = Some(mac(99));
    state.set_link(1, first);
    state.set_settings(Settings { rp_filter: 1, forwarding_v6: true });
    let (model, _) = told(&mut state);
    use api::channel::SourceCheck::{Closed, Loose, Off, Strict};
    let said: Vec<_> = model
        .interfaces
        .iter()
        .map(|one| (one.id, one.card, one.vlan, one.source_check, one.source_check_v6))
        .collect();
    assert_eq!(
        said,
        [
            (1, Some(mac(99)), None, Closed, Off),
            (2, None, None, Strict, Off),
            (3, Some(mac(2)), Some(10), Loose, Closed),
        ]
    );
}

#[test]
fn links_that_others_take_packets_of_are_left_out() {
    for change in [
        (|one: &mut Link| one.enslaved = true) as fn(&mut Link),
        |one| one.up = false,
        |one| one.noarp = true,
        |one| one.priorities = true,
        |one| one.kind = Kind::Other,
        |one| one.mac = None,
    ] {
        let mut state = router();
        state.set_neighbour(1, address("10.1.1.5"), Some(mac(15)));
        let (mut model, mut plan) = told(&mut state);
        assert_eq!(model.look_up(address("10.1.1.5")), Some(&hops(&[(1, 15)])));
        let mut changed = Link::plain(1);
        change(&mut changed);
        state.set_link(1, changed);
        tell(&mut model, &mut plan, &mut state);
        assert_eq!(model.look_up(address("10.1.1.5")), Some(&hops(&[])));
        assert_eq!(model.interfaces.len(), 1);
    }
    let mut state = router();
    let mut above = Link::plain(3);
    above.kind = Kind::Other;
    above.takes_from = Some(1);
    state.set_link(3, above);
    let (model, _) = told(&mut state);
    assert_eq!(model.interfaces.iter().map(|one| one.id).collect::<Vec<_>>(), [2]);
}

#[test]
fn too_many_prefixes_are_a_reason() {
    let mut state = router();
    let limits = Limits { prefixes: 5, ..LIMITS };
    let mut plan = Plan::new(limits, &state);
    let mut model = Model::new(limits);
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(plan.policy().policy, Policy::Nothing);
    assert!(plan.policy().reasons[0].contains("more than 5 prefixes"));
    state.change_route(
        true,
        prefix("10.1.1.1/32"),
        &Change { kind: ChangeKind::Removed, ..add(Target::Own) },
    );
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(plan.policy().policy, Policy::Plain);
    assert_eq!(model.prefixes.len(), 5);
}

#[test]
fn without_numbers_the_rest_goes_to_the_router() {
    let mut state = router();
    for last in 10..20 {
        state.set_neighbour(1, address(&format!("10.1.1.{last}")), Some(mac(last)));
    }
    let limits = Limits { nexthops: 5, ..LIMITS };
    let (mut plan, mut model) = (Plan::new(limits, &state), Model::new(limits));
    tell(&mut model, &mut plan, &mut state);
    let resolved = |model: &Model| {
        let at = |last: u8| model.look_up(address(&format!("10.1.1.{last}"))).cloned();
        (10..20).filter(|last| at(*last) == Some(hops(&[(1, *last)]))).count()
    };
    assert_eq!(resolved(&model), 3);
    for last in 10..18 {
        state.set_neighbour(1, address(&format!("10.1.1.{last}")), None);
    }
    tell(&mut model, &mut plan, &mut state);
    // What went to the router gets the numbers that became free.
    assert_eq!(resolved(&model), 2);
}

#[test]
fn lines_are_never_too_long() {
    let mut state = router();
    let mut routes = Table::default();
    for n in 0..20_000_u32 {
        let gateway = format!("10.1.{}.{}", 1 + n % 2, 10 + n % 50);
        let target = via(1 + n % 2, &gateway);
        state.set_neighbour(1 + n % 2, address(&gateway), Some(mac(1)));
        let to = IpAddr::V6((0x2001_0db8_ffff_ffff_ffff_ffff_0000_0000 | u128::from(n)).into());
        routes.push(&mut state.targets, Prefix::new(to, 128).unwrap(), &add(target.clone()));
        let to = IpAddr::V4((0xc8c8_c800 + n).into());
        state.change_route(false, Prefix::new(to, 32).unwrap(), &add(target));
    }
    state.replace_routes(false, Family::V6, routes);
    let limits = Limits { prefixes: 100_000, ..LIMITS };
    let limits = Limits { nexthops: 1000, ..limits };
    let (mut plan, mut model) = (Plan::new(limits, &state), Model::new(limits));
    plan.update(&mut state);
    let mut calls = 0;
    while let Some(call) = plan.next(&state) {
        let line = match &call {
            Call::Interfaces(call) => api::channel::Request::line(u64::MAX, call),
            Call::NextHops(call) => api::channel::Request::line(u64::MAX, call),
            Call::Routes(call) => api::channel::Request::line(u64::MAX, call),
            Call::Connections(call) => api::channel::Request::line(u64::MAX, call),
            Call::Status(call) => api::channel::Request::line(u64::MAX, call),
            Call::Withdraw => panic!("nothing to withdraw"),
        };
        assert!(line.unwrap().len() <= LINE_MAX);
        carry_out(&mut model, &mut plan, call);
        calls += 1;
    }
    assert!(model.prefixes.len() > 40_000);
    // And not much shorter than they may be.
    assert!(calls < 50, "{calls}");
}

/// Ends of a connection as the kernel knows it: the original direction, and the other one.
fn connection(original: [&str; 2], reply: [&str; 2]) -> (Flow, Flow) {
    let flow = |[source, destination]: [&str; 2]| Flow {
        protocol: Transport::Tcp,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    };
    (flow(original), flow(reply))
}

/// A router that translates what leaves by its second link.
fn stateful() -> State {
    let mut state = router();
    let mut filters = Filters::default();
    filters.set(Family::V4, Some(Stateful { nat: true }));
    state.set_filters(filters);
    state.set_neighbour(1, address("10.1.1.5"), Some(mac(15)));
    state.set_neighbour(2, address("10.1.2.5"), Some(mac(25)));
    state.change_route(false, prefix("0.0.0.0/0"), &add(via(2, "10.1.2.5")));
    state
}

#[test]
fn a_connection_is_told_both_ways_as_it_is_translated() {
    let mut state = stateful();
    let (mut model, mut plan) = told(&mut state);
    assert_eq!(plan.policy().policy, Policy::Stateful);
    assert!(model.prefixes.keys().all(|prefix| prefix.address().is_ipv6()));
    assert_eq!(state.connections_max, LIMITS.connections as usize / 2);
    let (original, reply) =
        connection(["10.1.1.5:4000", "192.0.2.9:80"], ["192.0.2.9:80", "10.1.2.1:61000"]);
    state.set_connection(original, reply);
    tell(&mut model, &mut plan, &mut state);
    let there = model.connections[&original];
    assert_eq!(
        (there.interface, there.to.source, there.to.destination),
        (1, reply.destination, reply.source)
    );
    assert_eq!(model.nexthops[&there.nexthop], hops(&[(2, 25)]));
    let back = model.connections[&reply];
    assert_eq!(
        (back.interface, back.to.source, back.to.destination),
        (2, original.destination, original.source)
    );
    assert_eq!(model.nexthops[&back.nexthop], hops(&[(1, 15)]));

    // Each direction says that the connection is used, once.
    let counted = |flow, packets| {
        let count = HopCount { packets, bytes: 0 };
        CountedConnections { connections: vec![ConnectionCount { flow, count }], more: false }
    };
    assert_eq!(plan.counted_connections(&counted(reply, 3)), [original].into());
    assert_eq!(plan.counted_connections(&counted(reply, 3)), [].into());
    assert_eq!(plan.counted_connections(&counted(original, 3)), [original].into());

    // Another one of the same original direction.
    let other = Flow { destination: "10.1.2.1:61001".parse().unwrap(), ..reply };
    state.remove_connection(&original);
    state.set_connection(original, other);
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(model.connections.keys().collect::<BTreeSet<_>>(), [&original, &other].into());
    assert_eq!(plan.counted_connections(&counted(original, 3)), [original].into());

    state.remove_connection(&original);
    tell(&mut model, &mut plan, &mut state);
    assert!(model.connections.is_empty());
}

#[test]
fn a_connection_follows_routes_and_neighbours() {
    let mut state = stateful();
    let (original, reply) =
        connection(["10.1.1.5:4000", "192.0.2.9:80"], ["192.0.2.9:80", "10.1.2.1:4000"]);
    state.set_connection(original, reply);
    let (mut model, mut plan) = told(&mut state);
    assert_eq!(model.connections.len(), 2);

    // The server is on the client's side: the router has a word to say.
    state.set_neighbour(1, address("10.1.1.6"), Some(mac(16)));
    let detour = Change { kind: ChangeKind::Removed, ..add(via(1, "10.1.1.6")) };
    state.change_route(false, prefix("192.0.2.0/24"), &add(via(1, "10.1.1.6")));
    tell(&mut model, &mut plan, &mut state);
    assert!(model.connections.is_empty());
    state.change_route(false, prefix("192.0.2.0/24"), &detour);
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(model.connections.len(), 2);

    // Two ways: the kernel chooses.
    let two = Target::Gateways([gateway(2, "10.1.2.5", 1), gateway(2, "10.1.2.6", 1)].into());
    state.set_neighbour(2, address("10.1.2.6"), Some(mac(26)));
    state.change_route(false, prefix("192.0.2.0/24"), &add(two.clone()));
    tell(&mut model, &mut plan, &mut state);
    assert!(model.connections.is_empty());
    let gone = Change { kind: ChangeKind::Removed, ..add(two) };
    state.change_route(false, prefix("192.0.2.0/24"), &gone);

    // The client's address is the router's own.
    state.change_route(true, prefix("10.1.1.5/32"), &add(Target::Own));
    tell(&mut model, &mut plan, &mut state);
    assert!(model.connections.is_empty());
    let gone = Change { kind: ChangeKind::Removed, ..add(Target::Own) };
    state.change_route(true, prefix("10.1.1.5/32"), &gone);
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(model.connections.len(), 2);

    // A neighbour that is lost takes no packets until it is known again.
    state.set_neighbour(2, address("10.1.2.5"), None);
    tell(&mut model, &mut plan, &mut state);
    let leads = |model: &Model| {
        model.connections.get(&original).map(|one| model.nexthops[&one.nexthop].clone())
    };
    assert!(leads(&model).is_none_or(|to| to == hops(&[])));
    state.set_neighbour(2, address("10.1.2.5"), Some(mac(27)));
    tell(&mut model, &mut plan, &mut state);
    assert_eq!(leads(&model), Some(hops(&[(2, 27)])));

    // No connection passes a router whose rules are others.
    state.set_filters(Filters::default());
    plan.update(&mut state);
    assert_eq!(plan.next(&state), Some(Call::Withdraw));
}

#[test]
fn calls_about_connections_fit_a_line() {
    let mut state = router();
    let mut filters = Filters::default();
    filters.set(Family::V6, Some(Stateful { nat: false }));
    state.set_filters(filters);
    let far = "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff";
    let near = "2001:db8:1:0:ffff:ffff:ffff:ffff";
    state.set_neighbour(1, address(near), Some(mac(15)));
    state.set_neighbour(2, address("10.1.2.5"), Some(mac(25)));
    state.change_route(false, prefix("2001:db8:ffff::/48"), &add(via(2, "10.1.2.5")));
    let limits = Limits { connections: 20_000, ..LIMITS };
    let (mut plan, mut model) = (Plan::new(limits, &state), Model::new(limits));
    for port in 10_000..11_000 {
        let (source, destination) = (format!("[{near}]:{port}"), format!("[{far}]:65535"));
        let (original, reply) = connection([&source, &destination], [&destination, &source]);
        state.set_connection(original, reply);
    }
    let follow = |plan: &mut Plan, model: &mut Model, state: &mut State| {
        plan.update(state);
        let mut calls = 0;
        while let Some(call) = plan.next(state) {
            if let Call::Connections(call) = &call {
                let line = api::channel::Request::line(u64::MAX, call).unwrap();
                assert!(line.len() <= LINE_MAX);
                calls += 1;
            }
            carry_out(model, plan, call);
        }
        calls
    };
    assert!(follow(&mut plan, &mut model, &mut state) > 1);
    assert_eq!(model.connections.len(), 2000);
    state.clear_connections();
    assert!(follow(&mut plan, &mut model, &mut state) > 1);
    assert!(model.connections.is_empty());
}

#[test]
fn neighbours_that_packets_went_to_are_in_use() {
    let mut state = router();
    state.set_neighbour(1, address("10.1.1.5"), Some(mac(15)));
    state.set_neighbour(2, address("10.1.2.5"), Some(mac(25)));
    let (model, mut plan) = told(&mut state);
    let number = |to: &str| model.prefixes[&host(address(to)).unwrap()];
    let counted = |packets| CountedNextHop {
        id: number("10.1.1.5"),
        hops: vec![HopCount { packets, bytes: packets * 100 }],
    };
    let used = [(1, address("10.1.1.5"))];
    assert_eq!(plan.counted(&Counted { nexthops: vec![counted(7)], more: false }), used);
    assert_eq!(plan.counted(&Counted { nexthops: vec![counted(7)], more: false }), []);
    assert_eq!(plan.counted(&Counted { nexthops: vec![counted(8)], more: false }), used);
    assert_eq!(plan.sizes().passed, HopCount { packets: 8, bytes: 800 });
    // Numbers that nobody gave are ignored.
    let stray = CountedNextHop { id: 1_000_000, ..counted(9) };
    assert_eq!(plan.counted(&Counted { nexthops: vec![stray], more: false }), []);
}

/// To whom packets go: none for the router's own affairs.
type Hops = Option<Vec<(u32, Mac)>>;

/// Where packets to an address go, before it is known who is there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Naive {
    Own,
    Router,
    Via(Vec<(u32, IpAddr, u32)>),
    Object(u32, IpAddr),
}

/// Looks an address up as the kernel does, without any of the plan's tables.
fn naive(state: &State, to: IpAddr) -> Naive {
    let family = Family::of(to);
    let open = |index: &u32| state.link_refusal(*index).is_none();
    let forwarding =
        state.links.iter().any(|(index, link)| open(index) && state.forwards(link, family));
    if !forwarding || state.obstacles().next().is_some() {
        return Naive::Router;
    }
    let longest = |table: &Table| {
        let mut all: Vec<Prefix> = table.prefixes().collect();
        all.retain(|one| Prefix::new(to, one.length()) == Some(*one));
        all.into_iter().max_by_key(Prefix::length)
    };
    if longest(&state.local).is_some() {
        return Naive::Own;
    }
    let Some(found) = longest(&state.main) else { return Naive::Router };
    let entries = state.main.entries(found);
    if entries.iter().any(|entry| entry.tos != 0) {
        return Naive::Router;
    }
    let lowest = entries.iter().map(|entry| entry.metric).min().unwrap();
    let mut lowest = entries.iter().filter(|entry| entry.metric == lowest);
    let entry = lowest.next().unwrap();
    if to.is_ipv6() && lowest.next().is_some() {
        return Naive::Router;
    }
    leads(&[(state.targets.get(entry.target).unwrap(), 1)], to)
}

fn leads(targets: &[(&Target, u32)], to: IpAddr) -> Naive {
    let mut hops = Vec::new();
    let several = targets.len() > 1;
    for &(target, weight) in targets {
        match target {
            Target::Object(id) => return Naive::Object(*id, to),
            Target::Own if !several => return Naive::Own,
            Target::Link(index) if !several => hops.push((*index, to, 1)),
            Target::Gateways(all) if several => {
                hops.push((all[0].interface, all[0].address, weight));
            }
            Target::Gateways(all) => {
                hops.extend(all.iter().map(|one| (one.interface, one.address, one.weight)));
            }
            _ => return Naive::Router,
        }
    }
    Naive::Via(hops)
}

/// The same; of a nexthop object what it is now as well, whatever becomes of it.
fn naive_ways(state: &State, to: IpAddr) -> BTreeSet<Naive> {
    let way = naive(state, to);
    let object = if let Naive::Object(id, _) = way { state.object(id) } else { None };
    object.map(|targets| leads(&targets, to)).into_iter().chain([way]).collect()
}

/// To whom that leads now: a list of hops, none for the router.
fn resolve(state: &State, model: &Model, way: &Naive) -> Option<Vec<Hop>> {
    let hops = match way {
        Naive::Own => return None,
        Naive::Router => return Some(Vec::new()),
        Naive::Via(hops) => hops,
        Naive::Object(id, to) => {
            return match state.object(*id) {
                Some(targets) => resolve(state, model, &leads(&targets, *to)),
                None => Some(Vec::new()),
            };
        }
    };
    let mut list = Vec::new();
    for &(interface, address, weight) in hops {
        let open = state.link_refusal(interface).is_none() && !model.refused.contains(&interface);
        match state.neighbour(interface, address).filter(|_| open) {
            Some(mac) => list.extend((0..weight).map(|_| Hop { interface, mac })),
            None => return Some(Vec::new()),
        }
    }
    Some(list)
}

/// A request in the steps in which a daemon carries it out: prefix by prefix.
fn steps(call: Call) -> Vec<Call> {
    let Call::Routes(routes) = call else { return vec![call] };
    let set = |nexthop, prefix| Routes {
        set: vec![Via { nexthop, prefixes: vec![prefix] }],
        del: Vec::new(),
    };
    let dels = routes.del.into_iter().map(|prefix| Routes { set: Vec::new(), del: vec![prefix] });
    let sets = routes
        .set
        .into_iter()
        .flat_map(|via| via.prefixes.into_iter().map(move |prefix| set(via.nexthop, prefix)));
    dels.chain(sets).map(Call::Routes).collect()
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Event {
    Link(u32, u8),
    Forwarding(bool),
    Route(bool, usize, Change),
    Reload(Vec<(usize, Target)>),
    Neighbour(u32, usize, Option<u8>),
    Object(u32, Option<Object>),
    Obstacle(bool),
    Refused(u32, bool),
}

fn target() -> impl Strategy<Value = Target> {
    let one = || (1..4_u32, 0..ADDRESSES.len());
    let gateways = prop::collection::vec((one(), 1..3_u32), 1..4).prop_map(|list| {
        let gateway = |((interface, to), weight): ((u32, usize), u32)| Gateway {
            interface,
            address: address(ADDRESSES[to]),
            weight,
        };
        let list: Vec<Gateway> = list.into_iter().map(gateway).collect();
        Target::Gateways(list.into())
    });
    prop_oneof![
        1 => Just(Target::Own),
        1 => Just(Target::Router),
        3 => (1..4_u32).prop_map(Target::Link),
        5 => one().prop_map(|(interface, to)| via(interface, ADDRESSES[to])),
        2 => gateways,
        2 => (1..4_u32).prop_map(Target::Object),
    ]
}

fn object() -> impl Strategy<Value = Object> {
    prop_oneof![
        Just(Object::To(Target::Own)),
        (1..4_u32).prop_map(|index| Object::To(Target::Link(index))),
        (1..4_u32, 0..ADDRESSES.len())
            .prop_map(|(interface, to)| Object::To(via(interface, ADDRESSES[to]))),
        prop::collection::vec((1..3_u32, 1..3_u32), 1..3).prop_map(Object::Group),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let change = (0..2_u32, 0..12_u8, target(), 0..4).prop_map(|(metric, tos, target, kind)| {
        let kind = match kind {
            0 => ChangeKind::Added,
            1 => ChangeKind::Appended,
            2 => ChangeKind::Replaced,
            _ => ChangeKind::Removed,
        };
        Change { metric, tos: if tos == 0 { 8 } else { 0 }, target, kind }
    });
    let reload = prop::collection::vec((0..9_usize, target()), 0..6);
    prop_oneof![
        2 => (1..4_u32, 0..8_u8).prop_map(|(index, what)| Event::Link(index, what)),
        1 => any::<bool>().prop_map(Event::Forwarding),
        8 => (prop::bool::weighted(0.1), 0..PREFIXES.len(), change)
            .prop_map(|(local, at, change)| Event::Route(local, at, change)),
        1 => reload.prop_map(Event::Reload),
        6 => (1..4_u32, 0..ADDRESSES.len(), prop::option::of(10..13_u8))
            .prop_map(|(index, at, last)| Event::Neighbour(index, at, last)),
        2 => (1..4_u32, prop::option::of(object())).prop_map(|(id, what)| Event::Object(id, what)),
        1 => prop::bool::weighted(0.2).prop_map(Event::Obstacle),
        1 => (1..4_u32, any::<bool>()).prop_map(|(index, refused)| Event::Refused(index, refused)),
    ]
}

fn happen(state: &mut State, model: &mut Model, plan: &mut Plan, event: Event) {
    match event {
        Event::Link(index, what) => {
            let mut new = Link::plain(index as u8);
            match what {
                0 => new.up = false,
                1 => new.mac = Some(mac(100)),
                2 => new.kind = Kind::Vlan { parent: 1 + index % 3, vid: 7 },
                3 => new.v4.forwarding = false,
                4 => return state.remove_link(index),
                5 => new.mtu = 1400,
                _ => {}
            }
            state.set_link(index, new);
        }
        Event::Forwarding(on) => {
            state.set_settings(Settings { rp_filter: 0, forwarding_v6: on });
        }
        Event::Route(local, at, mut change) => {
            if local {
                change.target = Target::Own;
            }
            // What is unclear is read again by the kernel's reader: here it stays with the router.
            state.change_route(local, prefix(PREFIXES[at]), &change);
        }
        Event::Reload(routes) => {
            let mut table = Table::default();
            for (at, target) in routes {
                table.push(&mut state.targets, prefix(PREFIXES[at]), &add(target));
            }
            state.replace_routes(false, Family::V4, table);
        }
        Event::Neighbour(index, at, last) => {
            state.set_neighbour(index, address(ADDRESSES[at]), last.map(mac));
        }
        Event::Object(id, Some(object)) => state.set_object(id, object),
        Event::Object(id, None) => state.remove_object(id),
        Event::Obstacle(there) => {
            let found = there.then(|| Obstacle::all("there is one"));
            state.set_obstacles("test", found.into_iter().collect());
        }
        Event::Refused(index, refused) => {
            if refused {
                model.refused.insert(index);
            } else {
                model.refused.remove(&index);
            }
            if !model.interfaces.is_empty() {
                plan.placed(model.placed());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Whatever happens, in whatever order requests and events come: in the end the daemon knows
    /// what the kernel does, and on the way no packet goes where the kernel did not send it since
    /// all was told the last time. (What a gateway's new address is counts for its routes of before
    /// too: the plan follows neighbours at once.)
    #[test]
    fn what_is_told_is_what_the_kernel_does(
        batches in prop::collection::vec(
            (prop::collection::vec(event(), 1..6), prop::option::of(0..6_usize)),
            1..25,
        )
    ) {
        let mut state = router();
        let (mut model, mut plan) = (Model::new(LIMITS), Plan::new(LIMITS, &state));
        let probes = ADDRESSES.map(address);
        // Ways since all was told the last time.
        let mut ways: BTreeMap<IpAddr, BTreeSet<Naive>> = BTreeMap::new();
        let mut allowed: BTreeMap<IpAddr, BTreeSet<Hops>> = BTreeMap::new();
        // Repetitions are the affair of another test.
        let plain = |hops: Option<Vec<Hop>>| {
            hops.map(|list| {
                let mut list: Vec<_> =
                    list.into_iter().map(|hop| (hop.interface, hop.mac)).collect();
                list.dedup();
                list
            })
        };
        for (events, calls) in batches {
            for event in events {
                happen(&mut state, &mut model, &mut plan, event);
            }
            plan.update(&mut state);
            for to in probes {
                let all = ways.entry(to).or_default();
                all.extend(naive_ways(&state, to));
                let now = all.iter().map(|way| plain(resolve(&state, &model, way)));
                allowed.entry(to).or_default().extend(now);
            }
            let mut rest = calls.unwrap_or(usize::MAX);
            let mut done = false;
            while rest > 0 {
                let Some(call) = plan.next(&state) else {
                    done = true;
                    break;
                };
                rest -= 1;
                for step in steps(call) {
                    carry_out(&mut model, &mut plan, step.clone());
                    for to in probes {
                        let now = match model.look_up(to) {
                            None | Some(To::Own) => continue,
                            Some(To::Via(hops)) if hops.is_empty() => continue,
                            Some(To::Via(hops)) => plain(Some(hops.clone())),
                        };
                        prop_assert!(
                            allowed[&to].contains(&now),
                            "{to} goes to {now:?} after {step:?}; {:?}", allowed[&to]
                        );
                    }
                }
            }
            if done {
                for to in probes {
                    let told = match model.look_up(to) {
                        None => Some(Vec::new()),
                        Some(To::Own) => None,
                        Some(To::Via(hops)) => Some(hops.clone()),
                    };
                    let way = naive(&state, to);
                    let wanted = resolve(&state, &model, &way);
                    let wanted = plain(wanted);
                    prop_assert_eq!(plain(told), wanted.clone(), "{} {:?}", to, way);
                    ways.insert(to, naive_ways(&state, to));
                    allowed.insert(to, [wanted].into());
                }
                prop_assert!(model.nexthops.len() <= LIMITS.nexthops as usize);
                prop_assert_eq!(plan.sizes().pending * usize::from(plan.policy().reasons.is_empty()), 0);
            }
        }
    }
}

#[test]
fn the_daemon_says_where_interfaces_are_only_once() {
    let mut state = router();
    let (model, mut plan) = told(&mut state);
    plan.placed(Placed::default());
    assert!(plan.place(1).is_none());
    plan.placed(model.placed());
    assert!(plan.place(1).unwrap().is_ok());
}
