//! Compiled rules against rules read one by one: on frames that were built from a description, the
//! plain way evaluates the description and shares nothing with the crate but its types.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use packet::{HEAD_MAX, Mac, Tci};
use proptest::collection::vec;
use proptest::prelude::*;
use switch::rules::{
    Actions, Connections, Denied, Frame, Limits, Match, Rule, RuleError, RuleId, RuleVerdict,
    State, Table, TagAction, Timeouts, VlanMatch,
};
use switch::{Meter, PortId, Prefix};

/// What a frame is made of.
#[derive(Clone, Debug)]
struct Spec {
    dst: u8,
    src: u8,
    tci: Option<u16>,
    network: Network,
    from: u8,
    to: u8,
    protocol: u8,
    ports: (u16, u16),
    /// Of ICMP.
    kind: u8,
    flags: u8,
    fragment: Fragment,
    /// So much of the transport header is in the packet at most.
    transport: usize,
    /// Bytes behind the packet.
    padding: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Other(u16),
    V4,
    /// With so many bytes of destination options: a multiple of 8.
    V6(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fragment {
    No,
    First,
    Later,
}

const TCP: u8 = 6;
const UDP: u8 = 17;

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, n >> 2, n & 3])
}

impl Spec {
    fn udp(from: u8, to: u8, ports: (u16, u16)) -> Self {
        Self {
            dst: to,
            src: from,
            tci: None,
            network: Network::V4,
            from,
            to,
            protocol: UDP,
            ports,
            kind: 0,
            flags: 0,
            fragment: Fragment::No,
            transport: 8,
            padding: 0,
        }
    }

    fn tcp(from: u8, to: u8, ports: (u16, u16), flags: u8) -> Self {
        Self { protocol: TCP, flags, transport: 20, ..Self::udp(from, to, ports) }
    }

    fn back(&self) -> Self {
        let Self { dst, src, from, to, ports, .. } = *self;
        let ports = (ports.1, ports.0);
        Self { dst: src, src: dst, from: to, to: from, ports, ..self.clone() }
    }

    fn is_v6(&self) -> bool {
        matches!(self.network, Network::V6(_))
    }

    fn address(&self, n: u8) -> IpAddr {
        if self.is_v6() {
            Ipv6Addr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n >> 2, n & 3]).into()
        } else {
            Ipv4Addr::new(10, 0, n >> 2, n & 3).into()
        }
    }

    fn is_icmp(&self) -> bool {
        self.protocol == if self.is_v6() { 58 } else { 1 }
    }

    fn has_ports(&self) -> bool {
        matches!(self.protocol, TCP | UDP | 132)
    }

    fn header(&self) -> Vec<u8> {
        let mut header = if self.has_ports() {
            [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat()
        } else {
            // ICMP with the first port as the identifier of an echo.
            [&[self.kind, 0, 0, 0][..], &self.ports.0.to_be_bytes()].concat()
        };
        header.resize(20, 0);
        header[13] = if self.protocol == TCP { self.flags } else { 0xff };
        header.truncate(self.transport);
        header
    }

    fn bytes(&self) -> Vec<u8> {
        let mut frame = [mac(self.dst).0, mac(self.src).0].concat();
        if let Some(tci) = self.tci {
            frame.extend([0x81, 0]);
            frame.extend(tci.to_be_bytes());
        }
        let transport = self.header();
        match self.network {
            Network::Other(ethertype) => {
                frame.extend(ethertype.to_be_bytes());
                frame.extend([9; 46]);
            }
            Network::V4 => {
                let fragment: u16 = match self.fragment {
                    Fragment::No => 0,
                    Fragment::First => 0x2000,
                    Fragment::Later => 3,
                };
                frame.extend([0x08, 0x00, 0x45, 0]);
                frame.extend((20 + transport.len() as u16).to_be_bytes());
                frame.extend([0, 0]);
                frame.extend(fragment.to_be_bytes());
                frame.extend([64, self.protocol, 0, 0]);
                for n in [self.from, self.to] {
                    let IpAddr::V4(address) = self.address(n) else { unreachable!() };
                    frame.extend(address.octets());
                }
                frame.extend(&transport);
            }
            Network::V6(options) => {
                let mut chain = Vec::new();
                let mut next = self.protocol;
                if self.fragment != Fragment::No {
                    let field: u16 = if self.fragment == Fragment::First { 1 } else { 24 };
                    chain = [&[next, 0][..], &field.to_be_bytes(), &[0, 0, 0, 7]].concat();
                    next = 44;
                }
                if options > 0 {
                    let mut header = vec![next, (options / 8 - 1) as u8];
                    header.resize(options, 0);
                    chain = [header, chain].concat();
                    next = 60;
                }
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend(((chain.len() + transport.len()) as u16).to_be_bytes());
                frame.extend([next, 64]);
                for n in [self.from, self.to] {
                    let IpAddr::V6(address) = self.address(n) else { unreachable!() };
                    frame.extend(address.octets());
                }
                frame.extend(chain);
                frame.extend(&transport);
            }
        }
        // Looks like ports and flags, and is none of the packet.
        frame.extend(vec![0xff; self.padding]);
        frame
    }

    fn read(&self) -> Frame {
        let bytes = self.bytes();
        Frame::read(&bytes[..bytes.len().min(HEAD_MAX)], bytes.len()).unwrap()
    }

    /// How much of the transport header is in the head of the frame, and what it carries; `None`:
    /// not even that can be seen.
    fn visible(&self) -> Option<usize> {
        let before = 14 + if self.tci.is_some() { 4 } else { 0 };
        let options = match self.network {
            Network::Other(_) => return None,
            Network::V4 => return Some(self.transport),
            Network::V6(options) => options,
        };
        let fragment = if self.fragment == Fragment::No { 0 } else { 8 };
        let at = before + 40 + options;
        // The header that says what follows has to be in the head.
        let last = if fragment > 0 { at } else { at - options };
        let known = (options == 0 || at - options + 4 <= HEAD_MAX)
            && (fragment == 0 || last + 4 <= HEAD_MAX);
        known.then(|| self.transport.min(HEAD_MAX.saturating_sub(at + fragment)))
    }

    /// What tells its connection apart, and whether the frame is from the greater end of it.
    fn connection(&self) -> Option<((u8, End, End), bool)> {
        let seen = self.visible().filter(|_| self.fragment != Fragment::Later)?;
        let numbers = match self.protocol {
            TCP if seen >= 14 => self.ports,
            UDP | 132 if seen >= 4 => self.ports,
            _ if self.is_icmp() && seen >= 8 && self.is_echo() => (self.ports.0, self.ports.0),
            _ => return None,
        };
        let one = (self.address(self.from), numbers.0);
        let two = (self.address(self.to), numbers.1);
        let (low, high) = if one > two { (two, one) } else { (one, two) };
        Some(((self.protocol, low, high), one > two))
    }

    fn is_echo(&self) -> bool {
        matches!((self.is_v6(), self.kind), (false, 0 | 8) | (true, 128 | 129))
    }

    fn asks(&self) -> bool {
        matches!(self.kind, 8 | 128)
    }
}

type End = (IpAddr, u16);

fn in_prefix(prefix: Prefix, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => format!("{:032b}", v4.to_bits()),
        IpAddr::V6(v6) => format!("{:0128b}", v6.to_bits()),
    };
    let (own, other) = (bits(prefix.address()), bits(address));
    let len = usize::from(prefix.bits());
    own.len() == other.len() && own[..len] == other[..len]
}

fn masked(one: Mac, two: Mac, mask: Mac) -> bool {
    (0..6).all(|i| one.0[i] & mask.0[i] == two.0[i] & mask.0[i])
}

/// Whether all that a rule says is so.
fn holds(matches: &Match, frame: &Spec, state: Option<State>) -> bool {
    let Match { dst, src, vlan, ethertype, source, destination, .. } = matches;
    let Match { protocol, source_port, destination_port, icmp_type, tcp_flags, .. } = matches;
    let Match { later_fragment, state: asked, .. } = matches;
    let is_ip = !matches!(frame.network, Network::Other(_));
    let own_type = match frame.network {
        Network::Other(ethertype) => ethertype,
        Network::V4 => 0x0800,
        Network::V6(_) => 0x86dd,
    };
    let vid = frame.tci.map(|tci| tci & 0xfff).filter(|vid| *vid != 0);
    let later = is_ip && frame.fragment == Fragment::Later;
    let seen = frame.visible();
    let transport = seen.filter(|_| !later).unwrap_or(0);
    let ports = frame.has_ports() && transport >= 4;
    let within = |range: &Option<RangeInclusive<u16>>, port: u16| {
        range.as_ref().is_none_or(|range| ports && *range.start() <= port && port <= *range.end())
    };
    let prefix = |prefix: &Option<Prefix>, n| {
        prefix.is_none_or(|prefix| is_ip && in_prefix(prefix, frame.address(n)))
    };
    dst.is_none_or(|(value, mask)| masked(value, mac(frame.dst), mask))
        && src.is_none_or(|(value, mask)| masked(value, mac(frame.src), mask))
        && match vlan {
            None => true,
            Some(VlanMatch::Untagged) => vid.is_none(),
            Some(VlanMatch::Id(id)) => vid == Some(*id),
        }
        && ethertype.is_none_or(|ethertype| ethertype == own_type)
        && prefix(source, frame.from)
        && prefix(destination, frame.to)
        && protocol.is_none_or(|protocol| seen.is_some() && protocol == frame.protocol)
        && within(source_port, frame.ports.0)
        && within(destination_port, frame.ports.1)
        && icmp_type.is_none_or(|kind| frame.is_icmp() && transport >= 1 && kind == frame.kind)
        && tcp_flags.is_none_or(|(flags, which)| {
            frame.protocol == TCP && transport >= 14 && frame.flags & which == flags & which
        })
        && later_fragment.is_none_or(|wanted| seen.is_some() && wanted == later)
        && asked.is_none_or(|asked| state == Some(asked))
}

/// Connections the plain way.
#[derive(Default)]
struct Known(BTreeMap<(u8, End, End), Entry>);

struct Entry {
    until: u64,
    stage: &'static str,
    by_high: bool,
    fins: (bool, bool),
}

impl Known {
    fn timeout(stage: &str) -> u64 {
        let all = TIMEOUTS;
        match stage {
            "opening" => all.opening_ms,
            "open" => all.open_ms,
            "closing" => all.closing_ms,
            "datagram" => all.datagram_ms,
            _ => all.stream_ms,
        }
    }

    fn look(&mut self, frame: &Spec, now: u64) -> Option<State> {
        let (key, by_high) = frame.connection()?;
        self.0.retain(|_, entry| entry.until > now);
        let Some(entry) = self.0.get_mut(&key) else { return Some(State::New) };
        let tcp = frame.protocol == TCP;
        if tcp && frame.flags & 0b1_0111 == 2 && entry.stage == "closing" {
            self.0.remove(&key);
            return Some(State::New);
        }
        let answer = if frame.has_ports() { by_high != entry.by_high } else { !frame.asks() };
        if !tcp {
            if answer {
                entry.stage = "stream";
            }
        } else {
            let fin = frame.flags & 1 != 0;
            if by_high {
                entry.fins.1 |= fin;
            } else {
                entry.fins.0 |= fin;
            }
            if frame.flags & 4 != 0 || entry.fins == (true, true) {
                entry.stage = "closing";
            } else if entry.stage == "opening" && answer {
                entry.stage = "open";
            }
        }
        entry.until = now + Self::timeout(entry.stage);
        Some(State::Established)
    }

    fn open(&mut self, frame: &Spec, now: u64) {
        let Some((key, by_high)) = frame.connection() else { return };
        let stage = match frame.protocol {
            TCP if frame.flags & 0b101 != 0 => return,
            TCP if frame.flags & 0b1_0010 == 2 => "opening",
            TCP => "open",
            _ if frame.has_ports() || frame.asks() => "datagram",
            _ => return,
        };
        let until = now + Self::timeout(stage);
        self.0.entry(key).or_insert(Entry { until, stage, by_high, fins: (false, false) });
    }
}

const TIMEOUTS: Timeouts =
    Timeouts { opening_ms: 30, open_ms: 1000, closing_ms: 60, datagram_ms: 40, stream_ms: 200 };

const OWN: [PortId; 2] = [PortId(7), PortId(8)];

fn spec() -> impl Strategy<Value = Spec> {
    let tci = prop_oneof![3 => Just(None), 1 => Just(Some(0xa000)), 2 => (1u16..3).prop_map(Some)];
    let network = prop_oneof![
        4 => Just(Network::V4),
        3 => Just(Network::V6(0)),
        2 => (1usize..=10).prop_map(|units| Network::V6(8 * units)),
        1 => Just(Network::Other(0x88b5)),
    ];
    let protocol = prop_oneof![4 => Just(TCP), 3 => Just(UDP), 1 => Just(132), 1 => Just(1), 1 => Just(58), 1 => Just(47)];
    let kind = prop::sample::select(vec![0u8, 8, 3, 128, 129, 135]);
    let flags = prop::sample::select(vec![2u8, 0x12, 0x10, 0x18, 0x11, 1, 4, 0x14]);
    let fragment = prop_oneof![
        8 => Just(Fragment::No),
        1 => Just(Fragment::First),
        1 => Just(Fragment::Later),
    ];
    let transport = prop_oneof![6 => Just(20usize), 1 => 0usize..20];
    (
        (0u8..8, 0u8..8, tci, network, 0u8..8, 0u8..8),
        (protocol, (0u16..6, 0u16..6), kind, flags, fragment, transport, 0usize..20),
    )
        .prop_map(|((dst, src, tci, network, from, to), rest)| {
            let (protocol, ports, kind, flags, fragment, transport, padding) = rest;
            Spec {
                dst,
                src,
                tci,
                network,
                from,
                to,
                protocol,
                ports,
                kind,
                flags,
                fragment,
                transport,
                padding,
            }
        })
}

fn prefixes() -> impl Strategy<Value = Option<Prefix>> {
    let v4 = (0u8..8, 28u8..=32)
        .prop_map(|(n, len)| Prefix::new(Ipv4Addr::new(10, 0, n >> 2, n & 3).into(), len));
    let v6 = (0u8..8, prop_oneof![Just(0u8), 118u8..=128]).prop_map(|(n, len)| {
        let octets = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n >> 2, n & 3];
        Prefix::new(Ipv6Addr::from(octets).into(), len)
    });
    prop_oneof![4 => Just(None), 2 => v4, 2 => v6]
}

fn matches() -> impl Strategy<Value = Match> {
    fn seldom<T: std::fmt::Debug + Clone>(
        some: impl Strategy<Value = T>,
    ) -> impl Strategy<Value = Option<T>> {
        prop::option::weighted(0.2, some)
    }
    let station = || seldom((0u8..8, prop::sample::select(vec![0xffu8, 1, 0])));
    let with = |station: Option<(u8, u8)>| {
        station.map(|(n, last)| (mac(n), Mac([0xff, 0xff, 0xff, 0xff, last, 0xff])))
    };
    let vlan = prop_oneof![Just(VlanMatch::Untagged), (1u16..3).prop_map(VlanMatch::Id)];
    let ethertype = prop::sample::select(vec![0x0800u16, 0x86dd, 0x88b5]);
    let protocol = prop::sample::select(vec![TCP, UDP, 132, 1, 58, 0]);
    let range = || seldom((0u16..6, 0u16..4).prop_map(|(first, more)| first..=first + more));
    let kind = prop::sample::select(vec![0u8, 8, 128]);
    let flags = prop::sample::select(vec![(2u8, 0x12u8), (0x10, 0x10), (0, 7), (0xff, 0)]);
    let state = prop_oneof![Just(State::New), Just(State::Established)];
    (
        (station(), station(), seldom(vlan), seldom(ethertype), prefixes(), prefixes()),
        (seldom(protocol), range(), range(), seldom(kind), seldom(flags)),
        (seldom(any::<bool>()), seldom(state)),
    )
        .prop_map(move |((dst, src, vlan, ethertype, source, destination), l4, rest)| {
            let (protocol, source_port, destination_port, icmp_type, tcp_flags) = l4;
            let same = source.zip(destination).is_none_or(|(a, b)| a.is_ipv4() == b.is_ipv4());
            Match {
                dst: with(dst),
                src: with(src),
                vlan,
                ethertype,
                source,
                destination: destination.filter(|_| same),
                protocol,
                source_port,
                destination_port,
                icmp_type,
                tcp_flags,
                later_fragment: rest.0,
                state: rest.1,
            }
        })
}

fn verdict() -> impl Strategy<Value = RuleVerdict> {
    prop_oneof![
        2 => Just(RuleVerdict::Accept),
        2 => Just(RuleVerdict::Drop),
        1 => Just(RuleVerdict::Forward(OWN[0])),
    ]
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    vec((0u32..4, matches(), verdict()), 0..24).prop_map(|rules| {
        let rule = |(id, (priority, matches, verdict))| Rule {
            id: RuleId(id),
            priority,
            matches,
            actions: Actions::only(verdict),
        };
        (0u64..).zip(rules).map(rule).collect()
    })
}

fn table(rules: Vec<Rule>, refuses: bool) -> Table {
    Table::new(rules, refuses, &OWN, Limits::default(), None).unwrap()
}

/// The rule that counts, the plain way.
fn plain<'r>(rules: &'r [Rule], frame: &Spec, state: Option<State>) -> Option<&'r Rule> {
    let matching = rules.iter().filter(|rule| holds(&rule.matches, frame, state));
    matching.min_by_key(|rule| (u32::MAX - rule.priority, rule.id))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn compiled_and_plain_rules_agree(
        rules in rules(),
        frames in vec((spec(), 0u64..30, any::<bool>()), 1..60),
        refuses in any::<bool>(),
        tracks in any::<bool>(),
    ) {
        let table = table(rules.clone(), refuses);
        prop_assert_eq!(
            table.asks_state(),
            rules.iter().any(|rule| rule.matches.state.is_some())
        );
        let connections = Connections::new(4096, TIMEOUTS);
        let connections = tracks.then_some(&connections);
        let mut known = Known::default();
        let mut now = 1000;
        let mut counts: BTreeMap<Option<RuleId>, (u64, u64)> = BTreeMap::new();
        let mut before: Option<Spec> = None;
        for (spec, wait, answers) in frames {
            now += wait;
            // Half of them answer the one before, so that there are connections.
            let spec = match before.take().filter(|_| answers) {
                Some(before) => Spec { flags: spec.flags, kind: spec.kind, ..before.back() },
                None => spec,
            };
            let state = if tracks { known.look(&spec, now) } else { None };
            let rule = plain(&rules, &spec, state);
            let expected = match rule.map(|rule| rule.actions.verdict) {
                Some(RuleVerdict::Drop) => Err(Denied::ByRule),
                None if refuses => Err(Denied::ByRule),
                Some(RuleVerdict::Forward(port)) => Ok(Some(port)),
                Some(RuleVerdict::Accept) | None => Ok(None),
            };
            if tracks && expected.is_ok() && state == Some(State::New) {
                known.open(&spec, now);
            }
            let ruling = table.judge(&spec.read(), connections, (now, now * 1_000_000));
            prop_assert_eq!(ruling.rule.map(|rule| rule.id), rule.map(|rule| rule.id), "{:?} {:?}", spec, state);
            prop_assert_eq!(ruling.to, expected);
            let count = counts.entry(rule.map(|rule| rule.id)).or_default();
            *count = (count.0 + 1, count.1 + spec.bytes().len() as u64);
            before = Some(spec);
        }
        for (rule, stats) in table.stats() {
            let (packets, bytes) = counts.get(&Some(rule.id)).copied().unwrap_or_default();
            prop_assert_eq!((stats.packets, stats.bytes), (packets, bytes));
        }
        let (packets, bytes) = counts.get(&None).copied().unwrap_or_default();
        prop_assert_eq!((table.rest().packets, table.rest().bytes), (packets, bytes));
    }

    /// Whatever is in the first bytes.
    #[test]
    fn any_bytes_are_judged(
        bytes in vec(any::<u8>(), 0..140),
        kind in prop::sample::select(vec![0x0800u16, 0x86dd, 0x8100, 0x0806]),
        len in 0usize..70_000,
        rules in rules(),
    ) {
        let mut framed = [&[2u8; 12][..], &kind.to_be_bytes(), &bytes].concat();
        framed.truncate(HEAD_MAX);
        let table = table(rules, false);
        let connections = Connections::new(16, TIMEOUTS);
        for bytes in [&bytes, &framed] {
            if let Some(frame) = Frame::read(bytes, len) {
                table.judge(&frame, Some(&connections), (1, 1_000_000));
            }
        }
    }
}

fn rule(id: u64, matches: Match, actions: Actions) -> Rule {
    Rule { id: RuleId(id), priority: 10, matches, actions }
}

fn accept(id: u64, matches: Match) -> Rule {
    rule(id, matches, Actions::only(RuleVerdict::Accept))
}

#[test]
fn statistics_and_meters_go_on_in_rules_that_stay() {
    let slow = Actions { meter: Some(1), ..Actions::only(RuleVerdict::Accept) };
    let to = |port| Match { destination_port: Some(port..=port), ..Match::default() };
    let first = table(vec![rule(1, to(1), slow.clone()), accept(2, to(2))], true);
    let frame = |port| Spec::udp(1, 2, (9, port)).read();
    let now = (1000, 1_000_000_000);
    let passed =
        |table: &Table| (0..200).filter(|_| table.judge(&frame(1), None, now).to.is_ok()).count();
    // 20 ms at 125 bytes in a millisecond, in frames of 42 bytes.
    assert_eq!(passed(&first), 60);
    assert_eq!(first.judge(&frame(1), None, now).to, Err(Denied::ByMeter));
    first.judge(&frame(2), None, now);
    first.judge(&frame(3), None, now);
    // The second rule is another one now, and the first stays what it was.
    let rules = vec![rule(1, to(1), slow), accept(2, to(3))];
    let second = Table::new(rules, true, &OWN, Limits::default(), Some(&first)).unwrap();
    assert_eq!(passed(&second), 0);
    let counts: Vec<_> = second.stats().map(|(rule, stats)| (rule.id.0, stats.packets)).collect();
    assert_eq!(counts, [(1, 401), (2, 0)]);
    assert_eq!((second.rest().packets, second.rest().last_ms), (1, 1000));
    let renewed = table(vec![rule(1, to(1), Actions::only(RuleVerdict::Drop))], true);
    assert_eq!(renewed.stats().next().unwrap().1.packets, 0);
}

/// A web server that anybody may begin connections to, and that may begin none.
#[test]
fn established_connections_pass_in_both_directions() {
    let state = |state| Match { state: Some(state), ..Match::default() };
    let http = Match {
        protocol: Some(TCP),
        destination_port: Some(80..=80),
        state: Some(State::New),
        ..Match::default()
    };
    let to_server = table(vec![accept(1, state(State::Established)), accept(2, http)], true);
    let from_server = table(vec![accept(1, state(State::Established))], true);
    let connections = Connections::new(100, TIMEOUTS);
    let judge = |table: &Table, frame: &Spec, now| {
        table.judge(&frame.read(), Some(&connections), (now, 0)).to.is_ok()
    };
    let syn = Spec::tcp(1, 2, (3, 80), 2);
    let ack = Spec { flags: 0x10, ..syn.clone() };
    let reply = Spec { flags: 0x12, ..syn.back() };
    assert!(!judge(&from_server, &reply, 1), "nobody has asked");
    assert!(!judge(&to_server, &Spec { ports: (3, 81), ..syn.clone() }, 1));
    assert!(judge(&to_server, &syn, 1));
    assert!(judge(&from_server, &reply, 2) && judge(&to_server, &ack, 3));
    assert!(!judge(&from_server, &Spec { ports: (80, 4), ..reply.clone() }, 3));
    assert_eq!(connections.count(4), 1);
    // A later fragment is of no connection.
    assert!(!judge(&to_server, &Spec { fragment: Fragment::Later, ..ack.clone() }, 4));
    // Silent for too long, or forgotten.
    assert!(judge(&from_server, &reply, 900));
    assert!(!judge(&from_server, &reply, 900 + TIMEOUTS.open_ms));
    assert!(judge(&to_server, &syn, 5000));
    connections.flush();
    assert!(!judge(&from_server, &reply, 5001));
}

#[test]
fn beginnings_give_way_and_connections_do_not() {
    let table = table(Vec::new(), false);
    // Two sets of eight.
    let connections = Connections::new(8, TIMEOUTS);
    let judge = |frame: &Spec, now| table.judge(&frame.read(), Some(&connections), (now, 0)).to;
    let udp = |port| Spec::udp(1, 2, (port, 9));
    // Any number of beginnings.
    for port in 0..200 {
        assert_eq!(judge(&udp(port), 1), Ok(None));
    }
    assert_eq!(connections.count(1), 16);
    // Those that are answered stay, whatever comes.
    for port in 0..200 {
        let _ = judge(&udp(port), 2);
        let _ = judge(&udp(port).back(), 2);
    }
    assert_eq!(connections.count(2), 16);
    let refused = (200..400).filter(|port| judge(&udp(*port), 3) == Err(Denied::Connections));
    assert_eq!(refused.count(), 200);
    assert_eq!(connections.count(3), 16);
    assert_eq!(judge(&udp(400), 2 + TIMEOUTS.stream_ms), Ok(None));
}

#[test]
fn what_makes_no_sense_or_is_too_much_is_refused() {
    let limits = Limits { rules: 3, shapes: 2 };
    let new = |rules| Table::new(rules, false, &OWN, limits, None).unwrap_err();
    let any = || accept(1, Match::default());
    assert_eq!(new(vec![any(), any(), any(), any()]), RuleError::TooMany(3));
    assert_eq!(new(vec![any(), any()]), RuleError::Twice(RuleId(1)));
    let port = |id, port| accept(id, Match { source_port: Some(port..=port), ..Match::default() });
    let kind = accept(3, Match { ethertype: Some(5), ..Match::default() });
    let shapes = RuleError::TooManyShapes { id: RuleId(3), most: 2 };
    assert_eq!(new(vec![any(), port(2, 5), kind]), shapes);
    Table::new(vec![any(), port(2, 5), port(3, 6)], false, &OWN, limits, None).unwrap();

    let accepting = || Actions::only(RuleVerdict::Accept);
    let stranger = PortId(9);
    let forward = rule(1, Match::default(), Actions::only(RuleVerdict::Forward(stranger)));
    assert_eq!(new(vec![forward]), RuleError::NotOwn(RuleId(1), stranger));
    let mirror = Actions { mirror: Some(stranger), ..accepting() };
    assert_eq!(
        new(vec![rule(1, Match::default(), mirror)]),
        RuleError::NotOwn(RuleId(1), stranger)
    );
    let v4 = Prefix::new(Ipv4Addr::LOCALHOST.into(), 8);
    let v6 = Prefix::new(Ipv6Addr::LOCALHOST.into(), 8);
    let backwards = RangeInclusive::new(5, 4);
    for matches in [
        Match { source: v4, destination: v6, ..Match::default() },
        Match { source_port: Some(backwards), ..Match::default() },
        Match { vlan: Some(VlanMatch::Id(4095)), ..Match::default() },
    ] {
        assert!(matches!(new(vec![accept(1, matches)]), RuleError::Nonsense(..)));
    }
    let push = Some(TagAction::Push(Tci(0)));
    let mut both = accepting();
    both.rewrite.source = Some(Ipv4Addr::LOCALHOST.into());
    both.rewrite.destination = Some(Ipv6Addr::LOCALHOST.into());
    let mut group = accepting();
    group.rewrite.src = Some(Mac::BROADCAST);
    for actions in [
        Actions { tag: push, ..accepting() },
        Actions { tag: Some(TagAction::Pop), ..Actions::only(RuleVerdict::Drop) },
        Actions { meter: Some(0), ..accepting() },
        Actions { meter: Some(Meter::RATE_MAX + 1), ..accepting() },
        both,
        group,
    ] {
        let refused = new(vec![rule(1, Match::default(), actions)]);
        assert!(matches!(refused, RuleError::Nonsense(..)), "{refused}");
    }
}
