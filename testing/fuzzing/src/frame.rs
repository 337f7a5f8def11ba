//! A frame of any bytes, checked as that of a port with addresses of its own, judged by rules of any
//! kind, and rewritten.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::checksum::checksum;
use packet::ip::{Ip, Version};
use packet::rewrite::Rewrite;
use packet::{Checked, HEAD_MAX, Mac};
use switch::rules::{
    Actions, Connections, Frame, Limits, Match, Rule, RuleId, RuleVerdict, State, Table, Timeouts,
};
use switch::{Policy, PortConfig, Prefix, Switch};

use crate::bytes::Bytes;

/// The target.
///
/// # Panics
/// When rules in another order decide otherwise, or a rewritten packet is not whole.
pub fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let count = input.u8() % 6;
    let rules: Vec<Rule> = (0..count).map(|id| rule(id, &mut input)).collect();
    let backwards = rules.iter().rev().cloned().collect();
    let tables = [rules, backwards].map(|rules| {
        let refuses = data.len().is_multiple_of(2);
        Table::new(rules, refuses, &[], Limits::default(), None)
    });
    let [Ok(table), Ok(same)] = tables else { return };
    let connections = [0; 2].map(|_| Connections::new(64, Timeouts::default()));
    let change = rewrite(&mut input);
    let guard = guard();
    let mut now = 1;
    while !input.is_empty() {
        let len = usize::from(input.u8());
        let bytes: Vec<u8> = (0..len).map(|_| input.u8()).collect();
        now += 1;
        let head = bytes.get(..HEAD_MAX).unwrap_or(&bytes);
        if let Some(snapshot) = &guard
            && let Some(guard) = snapshot.guard(switch::PortId(0))
        {
            let _ = guard.check(head);
        }
        if let Some(frame) = Frame::read(head, len) {
            let ours = table.judge(&frame, connections.first(), (now, now));
            let theirs = same.judge(&frame, connections.last(), (now, now));
            assert_eq!(ours, theirs, "the order in which rules are given does not matter");
        }
        rewritten(&change, head);
    }
}

/// All or nothing, and what was whole is so afterwards.
fn rewritten(change: &Rewrite, head: &[u8]) {
    let mut after = head.to_vec();
    let done = change.apply(&mut after, &Checked::PLAIN);
    assert!(done.is_ok() || after == head);
    if let Some(ip) = Ip::parse(head)
        && ip.version == Version::V4
        && let (Some(old), Some(new)) = (head.get(ip.l3..ip.l4), after.get(ip.l3..ip.l4))
    {
        assert_eq!(checksum(old) == 0, checksum(new) == 0, "a header's checksum");
    }
}

/// A switch whose one port has addresses of its own.
fn guard() -> Option<std::sync::Arc<switch::Snapshot>> {
    let switch = Switch::new();
    let network = switch.add_network(switch::NetworkConfig::default()).ok()?;
    let vlan = switch::VlanMode::None;
    let port = switch.add_port(PortConfig { network, vlan, mac_limit: None }).ok()?;
    let policy = Policy {
        mac: Some(Mac([2; 6])),
        spoofchk: true,
        addresses: vec![v4(8), v6(8)].into_iter().flatten().collect(),
        ..Policy::default()
    };
    switch.set_policy(port, &policy).ok()?;
    Some(switch.snapshot())
}

fn v4(bits: u8) -> Option<Prefix> {
    Prefix::new(Ipv4Addr::new(10, 0, 0, 0).into(), bits % 33)
}

fn v6(bits: u8) -> Option<Prefix> {
    Prefix::new(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0).into(), bits % 129)
}

fn rule(id: u8, input: &mut Bytes<'_>) -> Rule {
    let mut matches = Match::default();
    for _ in 0..input.u8() % 4 {
        let (what, value) = (input.u8(), input.u8());
        match what % 12 {
            0 => matches.source = v4(value),
            1 => matches.source = v6(value),
            2 => matches.destination = v4(value),
            3 => matches.protocol = Some(value),
            4 => matches.source_port = Some(0..=value.into()),
            5 => matches.destination_port = Some(value.into()..=value.into()),
            6 => matches.icmp_type = Some(value),
            7 => matches.tcp_flags = Some((value, 0x17)),
            8 => matches.state = Some(State::New),
            9 => matches.state = Some(State::Established),
            10 => matches.later_fragment = Some(value.is_multiple_of(2)),
            _ => matches.dst = Some((Mac([value; 6]), Mac([1; 6]))),
        }
    }
    let verdict =
        if input.u8().is_multiple_of(2) { RuleVerdict::Accept } else { RuleVerdict::Drop };
    let priority = u32::from(input.u8()) % 3;
    Rule { id: RuleId(id.into()), priority, matches, actions: Actions::only(verdict) }
}

fn rewrite(input: &mut Bytes<'_>) -> Rewrite {
    let which = input.u8();
    let said = |bit: u8| which >> bit & 1 == 1;
    let address = |last: u16| -> IpAddr {
        if said(6) {
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last).into()
        } else {
            Ipv4Addr::from_bits(last.into()).into()
        }
    };
    let mut value = || input.u16();
    Rewrite {
        dst: said(0).then_some(Mac([3; 6])),
        src: said(1).then_some(Mac([4; 6])),
        source: said(2).then(|| address(value())),
        destination: said(3).then(|| address(value())),
        source_port: said(4).then(&mut value),
        destination_port: said(5).then(&mut value),
    }
}
