//! A session against a plain model of what is delegated, and a host that does what it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::channel::{
    Answer, ChannelFunction, Connection, Connections, Ends, Flow, Functions, Hello, Hop, HopCount,
    Interface, Interfaces, LINE_MAX, Lease, Limits, ListFunctions, Method, NextHop, NextHops,
    Outcome, PlacedInterface as Where, Policy, Refusal, Renew, Request, Routes, Selector,
    SetFunction, ShowFunction, SourceCheck, Status, To, Transport, Via, Withdraw,
};
use api::{Function, FunctionSettings, GuestSettings, LinkState, Mac, Name};
use proptest::prelude::*;

use super::*;

mod flows;

const LIMITS: Limits = Limits { interfaces: 3, nexthops: 4, prefixes: 5, connections: 4 };
const LEASE: Duration = Duration::from_millis(1000);

/// Ports 0 and 1 have cards 0 and 1; card 2 was seen behind both, card 3 behind port 1.
struct Ports {
    open: [bool; 2],
    /// What went past next hops, and by connections.
    counts: BTreeMap<u32, Vec<HopCount>>,
    connection: fn(&Flow) -> HopCount,
}

impl Ports {
    fn new(open: [bool; 2]) -> Ports {
        Ports { open, counts: BTreeMap::new(), connection: |_| HopCount::default() }
    }
}

impl World for Ports {
    type Port = u8;

    fn ports(&self) -> Vec<Port<u8>> {
        let port = |n: u8| Port {
            name: name(n),
            network: name(9),
            mac: Some(mac(n)),
            handle: self.open[usize::from(n)].then_some(n),
        };
        vec![port(0), port(1)]
    }

    fn functions(&self) -> Vec<ChannelFunction> {
        let pfs = [("a", 255), ("b", 2)].into_iter();
        pfs.flat_map(|(pf, vfs)| functions(pf, vfs)).collect()
    }

    fn learned(&self, wanted: &BTreeSet<Mac>) -> Vec<(Mac, u8)> {
        let all = [(mac(2), 0), (mac(2), 1), (mac(3), 1)];
        all.into_iter().filter(|(mac, _)| wanted.contains(mac)).collect()
    }

    fn counts(&self) -> BTreeMap<u32, Vec<HopCount>> {
        self.counts.clone()
    }

    fn connection_count(&self, flow: &Flow) -> HopCount {
        (self.connection)(flow)
    }
}

/// A PF and its VFs, with names and counters as long as they may be.
fn functions(pf: &str, vfs: u16) -> impl Iterator<Item = ChannelFunction> {
    let pf: Name = pf.repeat(58).parse().unwrap();
    let most = HopCount { packets: u64::MAX, bytes: u64::MAX };
    [None].into_iter().chain((0..vfs).map(Some)).map(move |vf| ChannelFunction {
        function: Function { pf: pf.clone(), vf },
        network: "n".repeat(63).parse().unwrap(),
        mac: Mac([
            2,
            pf.as_str().as_bytes()[0],
            0,
            0,
            1 + u8::from(vf.is_none()),
            vf.unwrap_or(0) as u8,
        ]),
        carrier: false,
        settings: settings(mac(1)),
        sent: most,
        received: most,
        dropped: u64::MAX,
    })
}

fn settings(mac: Mac) -> FunctionSettings {
    FunctionSettings {
        mac,
        vlan: 4094,
        qos: Some(7),
        spoofchk: false,
        trust: false,
        rate: 1_000_000,
        state: LinkState::Disable,
    }
}

fn name(n: u8) -> Name {
    format!("p{n}").parse().unwrap()
}

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

/// Every fourth is for one machine.
fn prefix(n: u8) -> Selector {
    let text = match n % 4 {
        3 => format!("10.0.0.{n}/32 from 02:00:00:00:00:0{}", n % 8),
        _ => format!("10.{n}.0.0/16"),
    };
    text.parse().unwrap()
}

/// Ends of a connection: those above 4 are of two versions of IP.
fn ends(n: u8) -> Ends {
    let source = format!("10.0.0.{n}:1000").parse().unwrap();
    let other = if n > 4 { "[2001:db8::2]:80" } else { "10.9.0.2:80" };
    Ends { source, destination: other.parse().unwrap() }
}

fn flow(n: u8) -> Flow {
    let Ends { source, destination } = ends(n);
    Flow { protocol: Transport::Udp, source, destination }
}

/// A host that does what it is told: what packets would do.
#[derive(Debug, Default, PartialEq)]
struct Host {
    interfaces: Vec<PlacedInterface<u8>>,
    nexthops: BTreeMap<u32, Target>,
    prefixes: BTreeMap<Selector, u32>,
    /// Place of the interface, what it becomes, next hop.
    connections: BTreeMap<Flow, (usize, Ends, u32)>,
}

impl Host {
    fn carry_out(&mut self, actions: Vec<Action<u8>>) {
        for action in actions {
            match action {
                Action::Clear => *self = Self::default(),
                Action::Confirm => {}
                Action::Interfaces(interfaces) => {
                    assert_ne!(interfaces, self.interfaces, "nothing is done twice");
                    self.interfaces = interfaces;
                }
                Action::NextHop { number, to } => {
                    let old = self.nexthops.insert(number, to);
                    assert_ne!(old.as_ref(), self.nexthops.get(&number), "nothing is done twice");
                }
                Action::RemoveNextHop(number) => {
                    assert!(self.prefixes.values().all(|used| *used != number));
                    assert!(self.connections.values().all(|(_, _, used)| *used != number));
                    self.nexthops.remove(&number).unwrap();
                }
                Action::Delegate { prefix, nexthop } => {
                    assert!(self.nexthops.contains_key(&nexthop));
                    assert_ne!(self.prefixes.insert(prefix, nexthop), Some(nexthop));
                }
                Action::Withdraw(prefix) => {
                    self.prefixes.remove(&prefix).unwrap();
                }
                Action::Connect { flow, interface, to, nexthop } => {
                    assert!(self.nexthops.contains_key(&nexthop));
                    let new = (interface, to, nexthop);
                    assert_ne!(self.connections.insert(flow, new), Some(new));
                }
                Action::Disconnect(flow) => {
                    self.connections.remove(&flow).unwrap();
                }
            }
        }
    }
}

/// What is delegated, in the words of the protocol.
#[derive(Debug, Default)]
struct Model {
    /// End of the lease: nobody has said hello, it has ended, or a time.
    lease: Option<Option<Instant>>,
    interfaces: Vec<(Interface, Option<u8>)>,
    nexthops: BTreeMap<u32, To>,
    prefixes: BTreeMap<Selector, u32>,
    /// Interface, what it becomes, next hop.
    connections: BTreeMap<Flow, (u32, Ends, u32)>,
}

impl Model {
    fn clear(&mut self) {
        self.interfaces.clear();
        self.nexthops.clear();
        self.prefixes.clear();
        self.connections.clear();
    }

    /// The port of an interface that was behind `before`.
    fn find(&self, interface: &Interface, before: Option<u8>, ports: &Ports) -> Option<u8> {
        let card = interface.card.unwrap_or(interface.mac).0[5];
        let is_open = |port: &u8| ports.open[usize::from(*port)];
        let own = (card < 2).then_some(card).filter(is_open);
        let seen = (card == 3).then_some(1).filter(is_open);
        own.or(before.filter(is_open)).or(seen)
    }

    /// What a host should do with packets.
    fn host(&self) -> Host {
        let placed: Vec<_> = self.interfaces.iter().filter(|(_, port)| port.is_some()).collect();
        let place = |hop: &Hop| {
            placed.iter().position(|(one, _)| one.id == hop.interface).map(|place| (place, hop.mac))
        };
        let target = |to: &To| match to {
            To::Own => Target::Own,
            To::Via(hops) => {
                let hops: Vec<_> = hops.iter().map(place).collect();
                let known = hops.iter().all(Option::is_some);
                Target::Via(if known { hops.into_iter().flatten().collect() } else { Vec::new() })
            }
        };
        Host {
            interfaces: placed
                .iter()
                .map(|(one, port)| PlacedInterface {
                    port: port.unwrap(),
                    mac: one.mac,
                    vlan: one.vlan,
                    mtu: one.mtu,
                    source_check: one.source_check,
                    source_check_v6: one.source_check_v6,
                })
                .collect(),
            nexthops: self.nexthops.iter().map(|(n, to)| (*n, target(to))).collect(),
            prefixes: self.prefixes.clone(),
            connections: self
                .connections
                .iter()
                .filter_map(|(flow, (interface, to, nexthop))| {
                    let place = placed.iter().position(|(one, _)| one.id == *interface)?;
                    Some((*flow, (place, *to, *nexthop)))
                })
                .collect(),
        }
    }

    /// Does a request, or says why not.
    fn ask(&mut self, request: &Asked, now: Instant, ports: &Ports) -> Result<(), Refusal> {
        if let Asked::Hello = request {
            self.clear();
            self.lease = Some(Some(now + LEASE));
            return Ok(());
        }
        let lease = self.lease.ok_or(Refusal::NoSession)?;
        match request {
            Asked::Hello => {}
            Asked::Renew => {
                for place in 0..self.interfaces.len() {
                    let (interface, before) = self.interfaces[place].clone();
                    self.interfaces[place].1 = self.find(&interface, before, ports);
                }
            }
            _ if lease.is_none() => return Err(Refusal::Lost),
            Asked::Interfaces(all) => {
                if all.len() > 3 {
                    return Err(Refusal::TooManyInterfaces);
                }
                let ids: BTreeSet<u32> = all.iter().map(|one| one.id).collect();
                if ids.len() < all.len() {
                    return Err(Refusal::BadParams);
                }
                let card = |one: &Interface| one.card.unwrap_or(one.mac);
                let found = all.iter().map(|one| {
                    let same = self.interfaces.iter().find(|(old, _)| card(old) == card(one));
                    let before = same.and_then(|(_, port)| *port);
                    (one.clone(), self.find(one, before, ports))
                });
                self.interfaces = found.collect();
            }
            Asked::NextHops(NextHops { set, del }) => {
                for hop in set {
                    if hop.id >= 4 {
                        return Err(Refusal::TooManyNextHops);
                    }
                    let To::Via(hops) = &hop.to else { continue };
                    let known = |id: u32| self.interfaces.iter().any(|(one, _)| one.id == id);
                    if hops.iter().any(|hop| !known(hop.interface)) {
                        return Err(Refusal::UnknownInterface);
                    }
                }
                let del: BTreeSet<u32> = del.iter().copied().collect();
                for number in &del {
                    if self.prefixes.values().any(|used| used == number)
                        || self.connections.values().any(|(_, _, used)| used == number)
                    {
                        return Err(Refusal::NextHopInUse);
                    }
                    let set = set.iter().any(|hop| hop.id == *number);
                    if !set && !self.nexthops.contains_key(number) {
                        return Err(Refusal::UnknownNextHop);
                    }
                }
                self.nexthops.extend(set.iter().map(|hop| (hop.id, hop.to.clone())));
                self.nexthops.retain(|number, _| !del.contains(number));
            }
            Asked::Routes(Routes { set, del }) => {
                let mut prefixes = self.prefixes.clone();
                prefixes.retain(|prefix, _| !del.contains(prefix));
                for via in set {
                    if !self.nexthops.contains_key(&via.nexthop) {
                        return Err(Refusal::UnknownNextHop);
                    }
                    prefixes.extend(via.prefixes.iter().map(|prefix| (*prefix, via.nexthop)));
                }
                if prefixes.len() > 5 {
                    return Err(Refusal::TooManyPrefixes);
                }
                self.prefixes = prefixes;
            }
            Asked::Connections(Connections { set, del }) => {
                let two = |source: SocketAddr, destination: SocketAddr| {
                    source.is_ipv4() != destination.is_ipv4()
                };
                if del.iter().any(|flow| two(flow.source, flow.destination)) {
                    return Err(Refusal::BadParams);
                }
                let mut connections = self.connections.clone();
                connections.retain(|flow, _| !del.contains(flow));
                for Connection { flow, interface, to, nexthop } in set {
                    if two(flow.source, flow.destination) || two(to.source, to.destination) {
                        return Err(Refusal::BadParams);
                    }
                    if self.interfaces.iter().all(|(one, _)| one.id != *interface) {
                        return Err(Refusal::UnknownInterface);
                    }
                    if !self.nexthops.contains_key(nexthop) {
                        return Err(Refusal::UnknownNextHop);
                    }
                    connections.insert(*flow, (*interface, *to, *nexthop));
                }
                if connections.len() > 4 {
                    return Err(Refusal::TooManyConnections);
                }
                self.connections = connections;
            }
            Asked::Withdraw => self.clear(),
        }
        self.lease = Some(Some(now + LEASE));
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Asked {
    Hello,
    Interfaces(Vec<Interface>),
    NextHops(NextHops),
    Routes(Routes),
    Connections(Connections),
    Renew,
    Withdraw,
}

impl Asked {
    fn line(&self, id: u64) -> Vec<u8> {
        let lease_ms = Some(1000);
        let mut line = match self {
            Self::Hello => Request::line(
                id,
                &Hello { protocol: 1, agent: "test".into(), lease_ms, boot: None },
            ),
            Self::Interfaces(all) => Request::line(id, &Interfaces { interfaces: all.clone() }),
            Self::NextHops(params) => Request::line(id, params),
            Self::Routes(params) => Request::line(id, params),
            Self::Connections(params) => Request::line(id, params),
            Self::Renew => Request::line(id, &Renew {}),
            Self::Withdraw => Request::line(id, &Withdraw {}),
        }
        .unwrap();
        line.pop();
        line
    }
}

#[derive(Clone, Debug)]
enum Event {
    Ask(Asked),
    Pass(u64),
    Port(bool, bool),
    Disconnect,
    HostFails,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let interface = (0..4u32, 0..5u8, proptest::option::of(0..5u8), 0..2u32).prop_map(
        |(id, own, card, mtu)| Interface {
            id,
            name: format!("eth{id}"),
            mac: mac(own),
            card: card.map(mac),
            vlan: None,
            mtu: 1500 + mtu,
            source_check: SourceCheck::Off,
            source_check_v6: SourceCheck::Off,
        },
    );
    let hop = (0..4u32, 10..12u8).prop_map(|(interface, n)| Hop { interface, mac: mac(n) });
    let to = prop_oneof![
        1 => Just(To::Own),
        4 => proptest::collection::vec(hop, 0..3).prop_map(To::Via),
    ];
    let nexthop = (0..5u32, to).prop_map(|(id, to)| NextHop { id, to });
    let nexthops =
        (proptest::collection::vec(nexthop, 0..4), proptest::collection::vec(0..5u32, 0..2));
    let prefixes = || proptest::collection::vec((0..8u8).prop_map(prefix), 0..4);
    let via = (0..5u32, prefixes()).prop_map(|(nexthop, prefixes)| Via { nexthop, prefixes });
    let routes = (proptest::collection::vec(via, 0..3), prefixes());
    let connection =
        (0..6u8, 0..4u32, 0..6u8, 0..4u32).prop_map(|(from, interface, to, nexthop)| Connection {
            flow: flow(from),
            interface,
            to: ends(to),
            nexthop,
        });
    let connections = (
        proptest::collection::vec(connection, 0..3),
        proptest::collection::vec((0..6u8).prop_map(flow), 0..2),
    );
    let asked = prop_oneof![
        2 => Just(Asked::Hello),
        4 => proptest::collection::vec(interface, 0..4).prop_map(Asked::Interfaces),
        6 => nexthops.prop_map(|(set, del)| Asked::NextHops(NextHops { set, del })),
        8 => routes.prop_map(|(set, del)| Asked::Routes(Routes { set, del })),
        8 => connections.prop_map(|(set, del)| Asked::Connections(Connections { set, del })),
        3 => Just(Asked::Renew),
        1 => Just(Asked::Withdraw),
    ];
    let event = prop_oneof![
        20 => asked.prop_map(Event::Ask),
        4 => (0..1200u64).prop_map(Event::Pass),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(one, two)| Event::Port(one, two)),
        1 => Just(Event::Disconnect),
        1 => Just(Event::HostFails),
    ];
    proptest::collection::vec(event, 1..60)
}

fn session() -> Session<u8> {
    Session::new("edge".parse().unwrap(), "hayate".to_owned(), LIMITS)
}

/// What an answer refuses, if it does.
fn refused(answer: &[u8], id: u64) -> Option<Refusal> {
    assert!(answer.len() <= LINE_MAX && answer.ends_with(b"\n"));
    let answer: Answer<serde_json::Value> = serde_json::from_slice(answer).unwrap();
    assert_eq!(answer.id, Some(id));
    match answer.outcome {
        Outcome::Result(_) => None,
        Outcome::Error(failed) => {
            assert_eq!(failed.code, failed.data.code());
            Some(failed.data)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_session_is_as_the_model_says(events in events()) {
        let (mut session, mut model, mut host) = (session(), Model::default(), Host::default());
        let mut now = Instant::now();
        let mut ports = Ports::new([true; 2]);
        let mut refusals: BTreeMap<Refusal, u64> = BTreeMap::new();
        for (event, id) in events.into_iter().zip(0..) {
            match event {
                Event::Ask(asked) => {
                    let in_force = !model.prefixes.is_empty() || !model.connections.is_empty();
                    let expected = model.ask(&asked, now, &ports);
                    let step = session.line(&asked.line(id), now, &ports);
                    prop_assert_eq!(refused(&step.answer, id), expected.err(), "{:?}", asked);
                    let changes = step.actions.iter().any(|action| *action != Action::Confirm);
                    prop_assert_eq!(step.settle, in_force && changes);
                    let renews = matches!(asked, Asked::Renew) && expected.is_ok();
                    prop_assert_eq!(step.actions.contains(&Action::Confirm), renews);
                    prop_assert!(expected.is_ok() || step.actions.is_empty());
                    host.carry_out(step.actions);
                    if let Err(reason) = expected {
                        *refusals.entry(reason).or_default() += 1;
                    } else if let Asked::Interfaces(_) = asked {
                        let lost = model.interfaces.iter().filter(|(_, port)| port.is_none());
                        *refusals.entry(Refusal::NotYourPort).or_default() += lost.count() as u64;
                    }
                }
                Event::Pass(time) => {
                    now += Duration::from_millis(time);
                    let due = matches!(model.lease, Some(Some(end)) if end <= now);
                    prop_assert_eq!(session.expire(now), due);
                    if due {
                        model.clear();
                        model.lease = Some(None);
                        host.carry_out(vec![Action::Clear]);
                    }
                }
                Event::Port(one, two) => ports.open = [one, two],
                Event::Disconnect => {
                    session.disconnected();
                    host.carry_out(vec![Action::Clear]);
                    model = Model::default();
                }
                Event::HostFails => {
                    let step = session.failed(Some(id), "no memory");
                    prop_assert_eq!(refused(&step.answer, id), Some(Refusal::Host));
                    host.carry_out(step.actions);
                    *refusals.entry(Refusal::Host).or_default() += 1;
                    model.clear();
                    model.lease = model.lease.map(|_| None);
                }
            }
            prop_assert_eq!(&host, &model.host());
            prop_assert_eq!(session.deadline(), model.lease.flatten());
            let used = |number: u32| host.prefixes.values().filter(|used| **used == number).count();
            for (number, known) in session.delegation().nexthops() {
                prop_assert_eq!(known.prefixes as usize, used(*number));
                let taken = model.connections.values().filter(|(_, _, used)| used == number);
                prop_assert_eq!(known.connections as usize, taken.count());
            }
        }
        refusals.retain(|_, count| *count > 0);
        prop_assert_eq!(session.refusals().collect::<BTreeMap<_, _>>(), refusals);
    }

    #[test]
    fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut session = session();
        let (now, ports) = (Instant::now(), Ports::new([true; 2]));
        let step = session.line(&bytes, now, &ports);
        prop_assert!(step.actions.is_empty() && step.answer.ends_with(b"\n"));
        prop_assert_eq!(session.refusals().map(|(_, count)| count).sum::<u64>(), 1);
    }
}

/// Asks one thing of a session; it must be granted.
fn granted<M: Method>(
    session: &mut Session<u8>,
    params: &M,
    now: Instant,
    ports: &Ports,
) -> M::Result {
    let mut line = Request::line(1, params).unwrap();
    line.pop();
    let step = session.line(&line, now, ports);
    let answer: Answer<M::Result> = serde_json::from_slice(&step.answer).unwrap();
    match answer.outcome {
        Outcome::Result(result) => result,
        Outcome::Error(failed) => panic!("{failed:?}"),
    }
}

#[test]
fn interfaces_are_placed_when_their_port_is_known() {
    let (mut session, now) = (session(), Instant::now());
    let mut ports = Ports::new([true, false]);
    granted(
        &mut session,
        &Hello { protocol: 1, agent: "a".into(), lease_ms: None, boot: None },
        now,
        &ports,
    );
    let interface = |id: u32, own: u8, card: Option<u8>| Interface {
        id,
        name: "e".to_owned(),
        mac: mac(own),
        card: card.map(mac),
        vlan: None,
        mtu: 1500,
        source_check: SourceCheck::Off,
        source_check_v6: SourceCheck::Off,
    };
    // Its own card; one of a port that is not open; one that was seen behind two ports.
    let interfaces = vec![interface(1, 7, Some(0)), interface(2, 3, None), interface(3, 2, None)];
    let placed = granted(&mut session, &Interfaces { interfaces }, now, &ports);
    let at = |id: u32, port: Option<u8>| Where {
        id,
        port: port.map(name),
        refused: port.is_none().then_some(Refusal::NotYourPort),
    };
    assert_eq!(placed.interfaces, [at(1, Some(0)), at(2, None), at(3, None)]);
    ports.open = [true, true];
    let lease: Lease = granted(&mut session, &Renew {}, now, &ports);
    assert_eq!(lease.placed.unwrap().interfaces, [at(1, Some(0)), at(2, Some(1)), at(3, None)]);
    assert_eq!(granted(&mut session, &Renew {}, now, &ports).placed, None);
    // Refused once for each, however often it was tried again.
    assert_eq!(session.refusals().collect::<Vec<_>>(), [(Refusal::NotYourPort, 2)]);
}

#[test]
fn what_an_agent_says_is_bounded_and_does_not_move_a_cursor() {
    let (mut session, now, ports) = (session(), Instant::now(), Ports::new([true; 2]));
    let agent = "\u{1b}[2J\u{9b}x".to_owned();
    granted(&mut session, &Hello { protocol: 1, agent, lease_ms: None, boot: None }, now, &ports);
    assert_eq!(session.agent(), Some("?[2J?x"));
    let status = |reasons: Vec<String>| Status { policy: Policy::Plain, reasons };
    granted(&mut session, &status(vec!["x".repeat(200); 32]), now, &ports);
    for reasons in [vec![String::new(); 33], vec!["x".repeat(201)]] {
        let mut line = Request::line(1, &status(reasons)).unwrap();
        line.pop();
        let step = session.line(&line, now, &ports);
        assert_eq!(refused(&step.answer, 1), Some(Refusal::BadParams));
    }
    // An error quotes only the beginning of what it is about.
    let unknown =
        format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\"}}", "\\u001b".repeat(5));
    assert!(session.line(unknown.as_bytes(), now, &ports).answer.len() < 1000);
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{}\"}}", "x".repeat(60_000));
    assert!(session.line(long.as_bytes(), now, &ports).answer.len() < 1000);
}

#[test]
fn counters_come_in_lines() {
    let most = HopCount { packets: u64::MAX, bytes: u64::MAX };
    let counts = |id| vec![if id % 2 == 0 { most } else { HopCount::default() }; 64];
    let counts = (0..5000).map(|id| (id, counts(id))).collect();
    let ports = Ports { counts, ..Ports::new([true; 2]) };
    use api::channel::{Counted, Counters};
    let (mut session, now) = (session(), Instant::now());
    let hello = Hello { protocol: 1, agent: String::new(), lease_ms: None, boot: None };
    let mut seen = Vec::new();
    let mut after = None;
    let mut ask = |line: Vec<u8>| session.line(line.trim_ascii(), now, &ports).answer;
    ask(Request::line(1, &hello).unwrap());
    loop {
        let answer = ask(Request::line(1, &Counters { after }).unwrap());
        assert!(answer.len() <= LINE_MAX);
        let answer: Answer<Counted> = serde_json::from_slice(&answer).unwrap();
        let Outcome::Result(Counted { nexthops, more }) = answer.outcome else { panic!("refused") };
        seen.extend(nexthops.iter().map(|one| one.id));
        after = seen.last().copied();
        if !more {
            break;
        }
    }
    assert_eq!(seen, (0..5000).step_by(2).collect::<Vec<u32>>());
}

#[test]
fn connections_are_counted_in_lines() {
    use api::channel::{ConnectionCounters, CountedConnections};
    // Of every second one.
    let connection = |flow: &Flow| {
        let packets = if flow.source.port().is_multiple_of(2) { u64::MAX } else { 0 };
        HopCount { packets, bytes: u64::MAX }
    };
    let ports = Ports { connection, ..Ports::new([true; 2]) };
    let limits = Limits { connections: 2000, ..LIMITS };
    let (mut session, now) =
        (Session::new("edge".parse().unwrap(), "hayate".to_owned(), limits), Instant::now());
    let mut ask = |line: Vec<u8>| session.line(line.trim_ascii(), now, &ports).answer;
    ask(Request::line(1, &Hello { protocol: 1, agent: String::new(), lease_ms: None, boot: None })
        .unwrap());
    let interface = Interface {
        id: 1,
        name: "e".to_owned(),
        mac: mac(1),
        card: None,
        vlan: None,
        mtu: 1500,
        source_check: SourceCheck::Off,
        source_check_v6: SourceCheck::Off,
    };
    ask(Request::line(1, &Interfaces { interfaces: vec![interface] }).unwrap());
    let via = NextHop { id: 1, to: To::Via(Vec::new()) };
    ask(Request::line(1, &NextHops { set: vec![via], del: Vec::new() }).unwrap());
    let end = |port: u16| {
        SocketAddr::new("2001:db8:1111:2222:3333:4444:5555:6666".parse().unwrap(), port)
    };
    for port in 0..2000 {
        let to = Ends { source: end(port), destination: end(80) };
        let flow =
            Flow { protocol: Transport::Tcp, source: to.source, destination: to.destination };
        let set = vec![Connection { flow, interface: 1, to, nexthop: 1 }];
        let answer = ask(Request::line(1, &Connections { set, del: Vec::new() }).unwrap());
        assert_eq!(refused(&answer, 1), None);
    }
    let (mut seen, mut after, mut lines) = (Vec::new(), None, 0);
    loop {
        let answer = ask(Request::line(1, &ConnectionCounters { after }).unwrap());
        assert!(answer.len() <= LINE_MAX);
        let answer: Answer<CountedConnections> = serde_json::from_slice(&answer).unwrap();
        let Outcome::Result(counted) = answer.outcome else { panic!("refused") };
        seen.extend(counted.connections.iter().map(|one| one.flow.source.port()));
        after = counted.connections.last().map(|one| one.flow);
        lines += 1;
        if !counted.more {
            break;
        }
    }
    assert!(lines > 1);
    assert_eq!(seen, (0..2000).step_by(2).collect::<Vec<u16>>());
}

#[test]
fn functions_come_in_lines() {
    let (mut session, now, ports) = (session(), Instant::now(), Ports::new([true; 2]));
    let list = |session: &mut Session<u8>, list: &ListFunctions| {
        let line = Request::line(1, list).unwrap();
        let step = session.line(line.trim_ascii(), now, &ports);
        assert!(step.answer.len() <= LINE_MAX && step.actions.is_empty());
        step.answer
    };
    let first = list(&mut session, &ListFunctions::default());
    assert_eq!(refused(&first, 1), Some(Refusal::NoSession));
    let hello = Hello { protocol: 1, agent: String::new(), lease_ms: None, boot: None };
    granted(&mut session, &hello, now, &ports);
    let everything = ports.functions();
    let of_b = everything[256].clone();
    assert_eq!((of_b.function.pf.as_str().len(), of_b.function.vf), (58, None));
    let none = ListFunctions { pf: Some(Mac([2, 9, 9, 9, 9, 9])), after: None };
    // A VF's address is no PF's.
    let vf = ListFunctions { pf: Some(everything[1].mac), after: None };
    for (pf, expected) in [
        (None, &everything[..]),
        (Some(of_b.mac), &everything[256..]),
        (none.pf, &[]),
        (vf.pf, &[]),
    ] {
        let (mut seen, mut after, mut lines) = (Vec::new(), None, 0);
        loop {
            let answer = list(&mut session, &ListFunctions { pf, after });
            let answer: Answer<Functions> = serde_json::from_slice(&answer).unwrap();
            let Outcome::Result(found) = answer.outcome else { panic!("refused") };
            after = found.functions.last().map(|one| one.function.clone());
            seen.extend(found.functions);
            lines += 1;
            if !found.more {
                break;
            }
        }
        assert_eq!(seen, expected);
        assert!(lines > 1 || expected.len() < 10);
    }
}

#[test]
fn what_is_set_on_a_function_is_answered_later() {
    let (mut session, now, ports) = (session(), Instant::now(), Ports::new([true; 2]));
    let everything = ports.functions();
    let pf = everything[0].mac;
    let line = |session: &mut Session<u8>, text: &str| {
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":{text}}}");
        session.line(line.as_bytes(), now, &ports)
    };
    let set = |pf: Mac, vf: u16, rest: &str| {
        format!("\"vf.set\",\"params\":{{\"pf\":\"{pf}\",\"vf\":{vf}{rest}}}")
    };
    let early = line(&mut session, &set(pf, 0, ",\"vlan\":1"));
    assert_eq!(refused(&early.answer, 1), Some(Refusal::NoSession));
    let boot = Some("b".repeat(64));
    let hello = Hello { protocol: 1, agent: String::new(), lease_ms: None, boot: boot.clone() };
    let welcome = session.line(Request::line(1, &hello).unwrap().trim_ascii(), now, &ports);
    assert_eq!(refused(&welcome.answer, 1), None);
    assert_eq!(welcome.later, boot.clone().map(Later::Booted));
    // A refused hello boots nothing.
    let long = Hello { boot: Some("b".repeat(65)), ..hello };
    let step = session.line(Request::line(1, &long).unwrap().trim_ascii(), now, &ports);
    assert_eq!((refused(&step.answer, 1), step.later), (Some(Refusal::BadParams), None));
    let shown = granted(&mut session, &ShowFunction { pf, vf: 1 }, now, &ports);
    assert_eq!(shown, everything[2].settings);

    let asked = line(&mut session, &set(pf, 254, ",\"vlan\":10,\"spoofchk\":true,\"rate\":5"));
    assert_eq!((asked.id, &asked.answer[..], &asked.actions[..]), (Some(1), &[][..], &[][..]));
    let change = GuestSettings {
        vlan: Some(10),
        spoofchk: Some(true),
        rate: Some(5),
        ..GuestSettings::default()
    };
    let function = everything[255].function.clone();
    assert_eq!(asked.later, Some(Later::Set { function, change, boot }));
    let answer = session.set(asked.id, Ok(settings(mac(2))));
    let answer: Answer<FunctionSettings> = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer.outcome, Outcome::Result(settings(mac(2))));
    let why = api::channel::Failed::new(Refusal::NotAllowed, "no\u{7}");
    assert_eq!(refused(&session.set(asked.id, Err(why)), 1), Some(Refusal::NotAllowed));
    assert!(session.refusals().any(|refused| refused == (Refusal::NotAllowed, 1)));

    for (pf, vf, rest, refusal) in [
        (pf, 255, ",\"vlan\":1", Refusal::UnknownFunction),
        (everything[1].mac, 0, ",\"vlan\":1", Refusal::UnknownFunction),
        (mac(1), 0, ",\"vlan\":1", Refusal::UnknownFunction),
        (pf, 0, "", Refusal::BadParams),
        (pf, 0, ",\"vlans\":1", Refusal::BadParams),
        (pf, 0, ",\"min_tx_rate\":1,\"vlan\":1", Refusal::BadParams),
        (pf, 0, ",\"vlan\":65536", Refusal::BadParams),
        (pf, 0, ",\"state\":\"up\"", Refusal::BadParams),
        (pf, 0, ",\"mac\":\"02:00\"", Refusal::BadParams),
        (pf, 0, ",\"vf\":1", Refusal::BadParams),
    ] {
        let step = line(&mut session, &set(pf, vf, rest));
        assert_eq!((refused(&step.answer, 1), step.later), (Some(refusal), None), "{rest}");
    }
    let show = SetFunction { pf, vf: 3, change };
    let written = String::from_utf8(Request::line(1, &show).unwrap()).unwrap();
    assert!(written.contains("\"vf\":3,\"vlan\":10,"), "{written}");
    assert_eq!(
        serde_json::from_value::<SetFunction>(serde_json::to_value(&show).unwrap()).unwrap(),
        show
    );
}

#[test]
fn a_connection_is_of_one_version_of_ip_and_has_no_scope() {
    let (mut session, now, ports) = (session(), Instant::now(), Ports::new([true; 2]));
    granted(
        &mut session,
        &Hello { protocol: 1, agent: String::new(), lease_ms: None, boot: None },
        now,
        &ports,
    );
    for (source, destination, protocol) in [
        ("10.0.0.1:1", "[2001:db8::1]:1", "tcp"),
        ("[fe80::1%2]:1", "[fe80::2]:1", "tcp"),
        ("[fe80::1]:1", "[fe80::2%2]:1", "udp"),
        ("10.0.0.1", "10.0.0.2:1", "udp"),
        ("10.0.0.1:1", "10.0.0.2:65536", "udp"),
        ("10.0.0.1:1", "10.0.0.2:1", "sctp"),
    ] {
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"router.connections\",\"params\":{{\"del\":[{{\
             \"protocol\":\"{protocol}\",\"source\":\"{source}\",\"destination\":\"{destination}\"}}]}}}}"
        );
        let step = session.line(line.as_bytes(), now, &ports);
        assert_eq!(refused(&step.answer, 1), Some(Refusal::BadParams), "{source} {destination}");
    }
    // One that is not there is given up already.
    let del = vec![flow(1)];
    granted(&mut session, &Connections { set: Vec::new(), del }, now, &ports);
}

#[test]
fn refusals_are_counted_in_their_order() {
    for (place, refusal) in Refusal::ALL.into_iter().enumerate() {
        assert_eq!(refusal as usize, place);
    }
}
