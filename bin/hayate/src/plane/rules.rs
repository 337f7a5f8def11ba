//! Flow rules: what a guest asked for, as the data plane has it, and what they did.

use super::{Plane, PlaneError, PortHandle};
use api::channel::{FlowCount, FlowLimits};
use api::rule::{
    FlowAction, FlowDirection, FlowMatch, FlowPort, FlowRule, FlowState, FlowTag, FlowVerdict,
    FlowVlan, MacMask, PortRange,
};
use channel::FlowBook;
use dataplane::rules::{
    Actions, Limits, Match, Rule, RuleId, RuleSet, RuleVerdict, State, TagAction, VlanMatch,
};
use dataplane::{HostError, Mac, Prefix, RuleCount};
use std::collections::BTreeMap;

/// Fewest connections that a function remembers.
const CONNECTIONS_MIN: usize = 16;

/// What the rules of a function did.
#[derive(Default)]
pub(crate) struct RulesDone {
    /// By the rules' numbers.
    pub(crate) rules: BTreeMap<u64, FlowCount>,
    /// Frames from the function that no rule matched.
    pub(crate) from: FlowCount,
    /// Frames to it that no rule matched.
    pub(crate) to: FlowCount,
}

/// Why rules are not in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RulesError {
    /// They are wrong, or too much.
    #[error("{0}")]
    Wrong(String),
    /// The data plane could not.
    #[error(transparent)]
    Plane(PlaneError),
}

/// The rules of one function of a PF with so many VFs. `own`: the open ports of its functions; a rule that
/// forwards to another one drops, until that one is open. `None`: there are none.
pub(crate) fn rule_set(
    book: &FlowBook,
    on: FlowPort,
    own: &BTreeMap<FlowPort, PortHandle>,
    (limits, vfs): (&FlowLimits, u16),
) -> Option<RuleSet> {
    let of = |direction| {
        let rules = book.rules().values();
        let own_rules = rules.filter(|rule| rule.on == on && rule.direction == direction);
        own_rules.map(|one| rule(one, own)).collect::<Vec<_>>()
    };
    let refused = |direction| book.default_of(on, direction) == FlowVerdict::Drop;
    let set = RuleSet {
        from: of(FlowDirection::From),
        from_refused: refused(FlowDirection::From),
        to: of(FlowDirection::To),
        to_refused: refused(FlowDirection::To),
        own: own.values().copied().collect(),
        // What was kept may be more than is allowed now.
        limits: Limits {
            rules: (limits.rules as usize).max(book.rules().len()),
            ..Limits::default()
        },
        connections: (limits.connections as usize / (usize::from(vfs) + 1)).max(CONNECTIONS_MIN),
    };
    let any = !set.from.is_empty() || !set.to.is_empty() || set.from_refused || set.to_refused;
    any.then_some(set)
}

fn rule(rule: &FlowRule, own: &BTreeMap<FlowPort, PortHandle>) -> Rule {
    let forward = match rule.action {
        FlowAction::Accept => RuleVerdict::Accept,
        FlowAction::Drop => RuleVerdict::Drop,
        FlowAction::Forward(to) => {
            own.get(&to).map_or(RuleVerdict::Drop, |port| RuleVerdict::Forward(*port))
        }
    };
    let mirror = rule.mirror.and_then(|to| own.get(&to)).copied();
    let dropped = Actions { mirror, meter: rule.meter, ..Actions::only(RuleVerdict::Drop) };
    let actions = match forward {
        RuleVerdict::Drop => dropped,
        verdict => Actions {
            verdict,
            rewrite: dataplane::Rewrite {
                src: rule.rewrite.src_mac.map(|mac| Mac(mac.0)),
                dst: rule.rewrite.dst_mac.map(|mac| Mac(mac.0)),
                source: rule.rewrite.src,
                destination: rule.rewrite.dst,
                source_port: rule.rewrite.src_port,
                destination_port: rule.rewrite.dst_port,
            },
            tag: rule.tag.map(|tag| match tag {
                FlowTag::Push(vlan) => TagAction::Push(dataplane::Tci(vlan)),
                FlowTag::Pop => TagAction::Pop,
            }),
            ..dropped
        },
    };
    Rule { id: RuleId(rule.id), priority: rule.priority, matches: matching(&rule.matches), actions }
}

fn matching(matches: &FlowMatch) -> Match {
    let mac = |one: MacMask| (Mac(one.mac().0), Mac(one.mask().0));
    let prefix = |one: api::channel::Prefix| Prefix::new(one.address(), one.length());
    let ports = |range: PortRange| range.first()..=range.last();
    Match {
        dst: matches.dst_mac.map(mac),
        src: matches.src_mac.map(mac),
        vlan: matches.vlan.map(|vlan| match vlan {
            FlowVlan::Untagged => VlanMatch::Untagged,
            FlowVlan::Id(id) => VlanMatch::Id(id),
        }),
        ethertype: matches.ethertype.map(|one| one.0),
        source: matches.src.and_then(prefix),
        destination: matches.dst.and_then(prefix),
        protocol: matches.protocol.map(|one| one.0),
        source_port: matches.src_port.map(ports),
        destination_port: matches.dst_port.map(ports),
        icmp_type: matches.icmp_type,
        tcp_flags: matches.tcp_flags.map(|flags| (flags.set(), flags.mask())),
        later_fragment: matches.later_fragment,
        state: matches.state.map(|state| match state {
            FlowState::New => State::New,
            FlowState::Established => State::Established,
        }),
    }
}

impl Plane {
    /// Has several ports judge by these rules from now on: all at once, or nothing.
    pub(crate) async fn set_rules(
        &self,
        all: Vec<(PortHandle, Option<RuleSet>)>,
    ) -> Result<(), RulesError> {
        self.host.set_all_rules(all).await.map_err(|error| match error {
            HostError::Rule(why) => RulesError::Wrong(why.to_string()),
            other => RulesError::Plane(other.into()),
        })
    }

    /// What the rules of a port did.
    pub(crate) fn rules_done(&self, port: PortHandle) -> RulesDone {
        let count = |count: RuleCount| FlowCount {
            packets: count.packets,
            bytes: count.bytes,
            idle_ms: count.idle.map(|idle| u64::try_from(idle.as_millis()).unwrap_or(u64::MAX)),
        };
        let status = self.host.rules_status(port).unwrap_or_default();
        RulesDone {
            rules: status.rules.into_iter().map(|(id, done)| (id.0, count(done))).collect(),
            from: count(status.from_rest),
            to: count(status.to_rest),
        }
    }
}
