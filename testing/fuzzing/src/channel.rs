//! A guest channel on which an agent says whatever the input says, in whatever pieces.

#![expect(clippy::expect_used, reason = "a fuzz target reports by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use api::channel::{
    ChannelFunction, CountedRule, Ends, Failed, Flow, FlowCount, FlowCursor, FlowFunction,
    FlowLimits, FlowRest, Flows, HopCount, LINE_MAX, Limits, Refusal, Selector,
};
use api::rule::FlowDirection;
use api::{Function, GuestRight, GuestSettings, LinkState, Mac, Name, PfConfig, PortPolicy};
use channel::{
    Action, Changed, FlowBook, FlowPf, Later, Line, Lines, Port, Session, Step, Target, World,
};

use crate::bytes::Bytes;

const LIMITS: Limits = Limits { interfaces: 4, nexthops: 8, prefixes: 16, connections: 8 };

const FLOWS: FlowLimits = FlowLimits { rules: 16, rate: 10, meters: 2, connections: 8 };

/// The target.
///
/// # Panics
/// When a session breaks a rule its host relies on.
pub fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let mut now = Instant::now();
    let mut ports = Ports { open: 3, pf: pf(), guest: BTreeMap::new(), book: FlowBook::default() };
    let mut lines = Lines::default();
    let vm = "edge".parse().expect("a name");
    let mut session = Session::new(vm, "hayate".to_owned(), LIMITS);
    let mut host = Host::default();
    while !input.is_empty() {
        match input.u8() {
            // So many bytes, as they are.
            count @ 1..0x80 => {
                let piece: Vec<u8> = (0..count).map(|_| input.u8()).collect();
                let mut rest = &piece[..];
                while let Some(line) = lines.next(&mut rest) {
                    let step = match line {
                        Line::Whole(line) => session.line(line, now, &ports),
                        Line::TooLong => session.too_long(),
                    };
                    let step = ports.take(step, &mut session);
                    host.take(step);
                }
                assert!(rest.is_empty());
            }
            // A line that is too long sooner or later.
            0x80 => {
                let long = [b'x'; 40_000];
                let mut rest = &long[..];
                if lines.next(&mut rest).is_some() {
                    host.take(session.too_long());
                }
            }
            0x81 => host.take(session.failed(Some(input.u8().into()), "no room")),
            0x82 => {
                session.disconnected();
                lines = Lines::default();
                host = Host::default();
            }
            0x83 => ports.open = input.u8(),
            other => now += Duration::from_millis(u64::from(other) * 40),
        }
        if session.expire(now) {
            host = Host::default();
        }
        host.check(&session);
    }
}

/// Two ports, each with a card, and others behind them; a PF whose guest may do some things.
struct Ports {
    open: u8,
    pf: PfConfig,
    guest: BTreeMap<u16, GuestSettings>,
    book: FlowBook,
}

fn pf() -> PfConfig {
    let name = |text: &str| -> Name { text.parse().expect("a name") };
    let mut pf = PfConfig::new(name("edge"), name("lan"), 255);
    pf.trunk = Some("1-100".parse().expect("VLANs"));
    pf.guest.may = [GuestRight::Mac, GuestRight::Rate].into();
    pf.guest.max_rate = Some(1000);
    let strict = PortPolicy {
        spoofchk: true,
        trust: false,
        max_tx_rate: Some(100),
        link: LinkState::Disable,
        ..PortPolicy::default()
    };
    pf.policies.insert(name("pfvf1"), strict);
    pf
}

impl Ports {
    fn settings(&self, vf: Option<u16>) -> api::FunctionSettings {
        let guest = vf.and_then(|vf| self.guest.get(&vf)).copied().unwrap_or_default();
        self.pf.settings(&port(vf), &guest)
    }

    /// Does what takes its time, at once: the answer is there then.
    fn take(&mut self, step: Step<u8>, session: &mut Session<u8>) -> Step<u8> {
        match step.later {
            None => step,
            Some(Later::Booted(boot)) => {
                self.guest.clear();
                if self.book.booted(&boot) {
                    self.book = FlowBook::default();
                }
                assert!(!step.answer.is_empty());
                Step { later: None, ..step }
            }
            Some(Later::Flows { pf, change, boot }) => {
                assert!(step.answer.is_empty() && step.actions.is_empty());
                assert_eq!(pf.as_str(), "pf");
                assert!(change.add.len() <= FLOWS.rules as usize);
                let done = match self.book.apply(&change, boot.as_deref(), &FLOWS) {
                    Ok(Changed { book, touched, updates }) => {
                        assert!(touched.len() <= updates as usize);
                        check(&book);
                        self.book = book;
                        Ok(())
                    }
                    Err(failed) => Err(failed),
                };
                Step { answer: session.done(step.id, done), later: None, ..step }
            }
            Some(Later::Set { function, change, boot: _ }) => {
                assert!(step.answer.is_empty() && step.actions.is_empty());
                let vf = function.vf.expect("nothing is set on the PF");
                let before = self.guest.get(&vf).copied().unwrap_or_default();
                let name = port(Some(vf));
                let done = self.pf.ask(&name, &before, &change);
                if let Ok(after) = done {
                    assert!(self.pf.port_with(&name, &after).check().is_ok());
                    self.guest.insert(vf, after);
                }
                let done = match done {
                    Ok(_) => Ok(self.settings(Some(vf))),
                    Err(_) => Err(Failed::new(Refusal::NotAllowed, "no")),
                };
                // VF 1 stays as strict as it was made.
                let strict = self.settings(Some(1));
                assert!(strict.spoofchk && !strict.trust && strict.state == LinkState::Disable);
                assert!((1..=1000).contains(&strict.rate));
                assert!(strict.vlan <= 100);
                Step { answer: session.set(step.id, done), later: None, ..step }
            }
        }
    }
}

/// What is kept is within the quota, of this PF, and can be read again.
fn check(book: &FlowBook) {
    assert!(book.rules().len() <= FLOWS.rules as usize);
    let rules = book.rules().values();
    assert!(rules.clone().filter(|rule| rule.meter.is_some()).count() <= FLOWS.meters as usize);
    for rule in rules {
        assert_eq!(rule.check(), Ok(()));
        assert!(rule.ports().all(|port| port.number().is_none_or(|number| number < 255)));
        let words = rule.words().parse::<api::rule::FlowLine>().expect("a rule");
        assert_eq!(words.to_string(), rule.words());
    }
    let text = serde_json::to_vec(book).expect("a text");
    assert_eq!(serde_json::from_slice::<FlowBook>(&text).expect("a book"), *book);
}

fn port(vf: Option<u16>) -> Name {
    let name = vf.map_or("pf".to_owned(), |vf| format!("pfvf{vf}"));
    name.parse().expect("a name")
}

impl World for Ports {
    type Port = u8;

    fn ports(&self) -> Vec<Port<u8>> {
        let port = |n: u8| Port {
            name: format!("edge{n}").parse().expect("a name"),
            network: "lan".parse().expect("a name"),
            mac: Some(Mac([2, 0, 0, 0, 0, n])),
            handle: (self.open >> n & 1 == 1).then_some(n),
        };
        vec![port(0), port(1)]
    }

    fn functions(&self) -> Vec<ChannelFunction> {
        let function = |vf: u16| ChannelFunction {
            function: Function { pf: "pf".parse().expect("a name"), vf: vf.checked_sub(1) },
            network: "lan".parse().expect("a name"),
            mac: Mac([2, 0, 0, 0, 1, vf as u8]),
            carrier: vf & 1 == 1,
            settings: self.settings(vf.checked_sub(1)),
            sent: HopCount { packets: u64::MAX, bytes: u64::MAX },
            received: HopCount::default(),
            dropped: 0,
        };
        (0..256).map(function).collect()
    }

    fn learned(&self, wanted: &BTreeSet<Mac>) -> Vec<(Mac, u8)> {
        wanted.iter().map(|mac| (*mac, mac.0[5] & 3)).collect()
    }

    fn counts(&self) -> BTreeMap<u32, Vec<HopCount>> {
        [(1, vec![HopCount { packets: 1, bytes: 64 }])].into()
    }

    fn connection_count(&self, flow: &Flow) -> HopCount {
        HopCount { packets: u64::from(flow.source.port() & 1), bytes: 64 }
    }

    fn flow_pf(&self, mac: Mac) -> Option<FlowPf> {
        let pf = FlowPf { name: "pf".parse().expect("a name"), vfs: 255, limits: FLOWS };
        (mac == Mac([2, 0, 0, 0, 1, 0])).then_some(pf)
    }

    fn flows(&self, _: &Name, after: Option<FlowCursor>) -> Flows {
        let behind = |cursor| after.is_none_or(|after| cursor > after);
        let count = FlowCount { packets: u64::MAX, bytes: u64::MAX, idle_ms: Some(u64::MAX) };
        let functions = self.book.functions().into_iter();
        let rest = |on, way| FlowRest { action: self.book.default_of(on, way), count };
        let functions = functions.filter(|on| behind(FlowCursor::Function(*on))).map(|on| {
            let (from, to) = (rest(on, FlowDirection::From), rest(on, FlowDirection::To));
            FlowFunction { on, from, to }
        });
        let rules = self.book.rules().values().filter(|rule| behind(FlowCursor::Rule(rule.id)));
        let rules = rules.map(|rule| CountedRule { rule: rule.clone(), count });
        Flows { limits: FLOWS, functions: functions.collect(), rules: rules.collect(), next: None }
    }
}

/// What the host was told.
#[derive(Default)]
struct Host {
    interfaces: usize,
    nexthops: BTreeMap<u32, Target>,
    prefixes: BTreeMap<Selector, u32>,
    /// Place of the interface, what it becomes, next hop.
    connections: BTreeMap<Flow, (usize, Ends, u32)>,
}

impl Host {
    fn take(&mut self, step: Step<u8>) {
        assert!(step.later.is_none());
        let in_force = !self.prefixes.is_empty() || !self.connections.is_empty();
        assert!(step.answer.len() <= LINE_MAX && step.answer.ends_with(b"\n"));
        let answer: serde_json::Value = serde_json::from_slice(&step.answer).expect("an answer");
        assert_eq!(answer["id"].as_u64(), step.id);
        assert!(answer["result"].is_object() != answer["error"].is_object());
        let changes = step.actions.iter().any(|action| *action != Action::Confirm);
        assert!(step.settle || !in_force || !changes);
        for action in step.actions {
            match action {
                Action::Clear => *self = Self::default(),
                Action::Confirm => {}
                Action::Interfaces(placed) => self.interfaces = placed.len(),
                Action::NextHop { number, to } => drop(self.nexthops.insert(number, to)),
                Action::RemoveNextHop(number) => {
                    assert!(self.prefixes.values().all(|used| *used != number));
                    assert!(self.connections.values().all(|(_, _, used)| *used != number));
                    self.nexthops.remove(&number).expect("a next hop");
                }
                Action::Delegate { prefix, nexthop } => {
                    self.prefixes.insert(prefix, nexthop);
                }
                Action::Withdraw(prefix) => {
                    self.prefixes.remove(&prefix).expect("a prefix");
                }
                Action::Connect { flow, interface, to, nexthop } => {
                    let version = flow.source.is_ipv4();
                    let ends = [flow.destination, to.source, to.destination];
                    assert!(ends.iter().all(|end| end.is_ipv4() == version));
                    self.connections.insert(flow, (interface, to, nexthop));
                }
                Action::Disconnect(flow) => {
                    self.connections.remove(&flow).expect("a connection");
                }
            }
        }
    }

    fn check(&self, session: &Session<u8>) {
        assert!(self.interfaces <= LIMITS.interfaces as usize);
        assert!(self.prefixes.len() <= LIMITS.prefixes as usize);
        for (number, to) in &self.nexthops {
            assert!(*number < LIMITS.nexthops);
            let Target::Via(hops) = to else { continue };
            assert!(hops.iter().all(|(place, mac)| *place < self.interfaces && mac.0[0] & 1 == 0));
        }
        assert!(self.prefixes.values().all(|number| self.nexthops.contains_key(number)));
        assert!(self.connections.len() <= LIMITS.connections as usize);
        for (place, _, number) in self.connections.values() {
            assert!(*place < self.interfaces && self.nexthops.contains_key(number));
        }
        // The session shows what the host has.
        let delegation = session.delegation();
        assert_eq!(&self.prefixes, delegation.prefixes());
        assert!(self.nexthops.keys().eq(delegation.nexthops().keys()));
        assert!(delegation.connections().len() <= LIMITS.connections as usize);
        let known = |flow: &Flow| delegation.connections().contains_key(flow);
        assert!(self.connections.keys().all(known));
        let used = |number: &u32| self.prefixes.values().filter(|used| *used == number).count();
        let counted = |(number, known): (&u32, &channel::KnownNextHop)| {
            let connections = delegation.connections().values();
            let taken = connections.filter(|one| one.nexthop == *number).count();
            known.prefixes as usize == used(number) && known.connections as usize == taken
        };
        assert!(delegation.nexthops().iter().all(counted));
    }
}
