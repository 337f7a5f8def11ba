//! Rules of a pod become flow rules of its VF, in the words of the agent (`flow.set`).
//!
//! **Purpose.** [`FlowRules::new`] says what the switch is to do with the frames of a VF, so that the pod on it may talk
//! to whom its policies say. The switch decides frame by frame, by rules that match and a default for each direction, and
//! remembers connections of which it let a frame through.
//!
//! A pod that is isolated in no direction gets no rules. Otherwise, in each direction:
//!
//! * What belongs to a connection that was let through passes, whoever began it.
//! * ARP, and the ICMPv6 by which neighbours, routers and groups are found, pass: without them nobody is reached, whom a
//!   policy allows. They say nothing but who is there.
//! * ICMP errors pass to the pod (paths with a smaller MTU, ports where nobody listens), and not from one whose egress is
//!   isolated: they can carry what is not to leave.
//! * A fragment that is not the first has no ports. It passes between the pod and those with whom its policies allow
//!   anything, in either direction. It is of no use without the first one, which is let through, or not, by its ports.
//! * If the direction is isolated, what begins a connection passes by one rule for each peer and range of ports, and
//!   all else is dropped; otherwise all passes.
//!
//! **Owner and threads.** None: values in, values out. **Failure.** None.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::{Direction, PodRules, Ports, Protocol, Rule};

/// Rules of one VF have numbers that begin with its own.
const NUMBER_BITS: u32 = 40;
/// Of rules that match the highest counts; all of them accept, so it only says what is counted where.
const ESTABLISHED: u32 = 100;
const ALWAYS: u32 = 50;
/// Lengths of prefixes in one list; the switch takes 64 kinds of rules.
const LENGTHS_MAX: usize = 16;
/// Router and neighbour solicitations and advertisements (RFC 4861), and groups (RFC 2710, RFC 3810).
const NEIGHBOURS: [u8; 8] = [130, 131, 132, 133, 134, 135, 136, 143];
/// Destination unreachable, time exceeded, parameter problem (RFC 792).
const ERRORS: [u8; 3] = [3, 11, 12];
/// The same and packet too big (RFC 4443).
const ERRORS_V6: [u8; 4] = [1, 2, 3, 4];

/// What the switch is to do with the frames of a VF.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRules {
    /// The function, as the agent calls it.
    pub on: String,
    /// Its rules.
    pub rules: Vec<Value>,
    /// What becomes of the rest, in each direction.
    pub defaults: Vec<Value>,
}

/// Of a pod's frames: those to it, or those from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    To,
    From,
}

impl Way {
    fn word(self) -> &'static str {
        match self {
            Self::To => "to",
            Self::From => "from",
        }
    }

    /// Where a frame says who the other end is.
    fn peer(self) -> &'static str {
        match self {
            Self::To => "src",
            Self::From => "dst",
        }
    }
}

impl FlowRules {
    /// Those of a pod on this VF. A pod that is not isolated has none.
    pub fn new(pod: &PodRules, vf: u32) -> Self {
        let mut made = Self { on: format!("vf{vf}"), rules: Vec::new(), defaults: Vec::new() };
        let PodRules { ingress, egress, .. } = pod;
        if !ingress.isolated && !egress.isolated {
            return made;
        }
        let mut known = Known { vf, numbers: BTreeSet::new() };
        for (way, direction) in [(Way::To, ingress), (Way::From, egress)] {
            let mut add = |priority: u32, matches: Value| {
                let mut rule = json!({
                    "on": made.on, "direction": way.word(), "priority": priority, "match": matches, "action": "accept",
                });
                rule["id"] = json!(known.number(&rule));
                made.rules.push(rule);
            };
            add(ESTABLISHED, json!({ "state": "established" }));
            if direction.isolated {
                always(way, &mut add);
                for net in fragments(ingress, egress) {
                    add(ALWAYS, with(json!({ "later_fragment": true }), way, net.as_ref()));
                }
                let nets = direction.allow.iter().filter_map(|rule| rule.peers.as_ref());
                let stride = stride(&nets.flatten().copied().collect());
                let all: BTreeSet<String> = direction
                    .allow
                    .iter()
                    .flat_map(|rule| begins(rule, way, stride))
                    .map(|matches| matches.to_string())
                    .collect();
                for matches in all {
                    // It was made by us a moment ago.
                    add(0, serde_json::from_str(&matches).unwrap_or_default());
                }
            }
            let action = if direction.isolated { "drop" } else { "accept" };
            made.defaults.push(json!({ "on": made.on, "direction": way.word(), "action": action }));
        }
        made
    }

    /// For a pod of which nothing is known: nothing passes in the directions that may be isolated.
    pub fn closed(vf: u32, ingress: bool, egress: bool) -> Self {
        let isolated = |isolated| Direction { isolated, allow: Vec::new() };
        let pod = PodRules {
            namespace: String::new(),
            name: String::new(),
            ips: Vec::new(),
            ingress: isolated(ingress),
            egress: isolated(egress),
        };
        Self::new(&pod, vf)
    }

    /// Whether the VF is as without policies.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.defaults.is_empty()
    }
}

/// Numbers of rules: the same as long as the rule is, so that it goes on counting.
struct Known {
    vf: u32,
    numbers: BTreeSet<u64>,
}

impl Known {
    fn number(&mut self, rule: &Value) -> u64 {
        let mut hasher = DefaultHasher::new();
        rule.to_string().hash(&mut hasher);
        let mut low = hasher.finish() >> (u64::BITS - NUMBER_BITS);
        while !self.numbers.insert(low) {
            low = (low + 1) & ((1 << NUMBER_BITS) - 1);
        }
        // JSON numbers are exact to 2^53 everywhere, so a VF has what is left.
        u64::from(self.vf) << NUMBER_BITS | low
    }
}

/// What passes whatever is isolated.
fn always(way: Way, add: &mut impl FnMut(u32, Value)) {
    add(ALWAYS, json!({ "ethertype": "arp" }));
    for kind in NEIGHBOURS {
        add(ALWAYS, json!({ "protocol": "icmpv6", "icmp_type": kind }));
    }
    if way == Way::To {
        for kind in ERRORS {
            add(ALWAYS, json!({ "protocol": "icmp", "icmp_type": kind }));
        }
        for kind in ERRORS_V6 {
            add(ALWAYS, json!({ "protocol": "icmpv6", "icmp_type": kind }));
        }
    }
}

/// Peers whose later fragments pass; `None`: everybody's.
fn fragments(ingress: &Direction, egress: &Direction) -> Vec<Option<IpNet>> {
    let mut nets = BTreeSet::new();
    for direction in [ingress, egress] {
        if !direction.isolated {
            return vec![None];
        }
        for rule in direction
            .allow
            .iter()
            .filter(|rule| rule.ports.as_ref().is_none_or(|all| !all.is_empty()))
        {
            match &rule.peers {
                None => return vec![None],
                Some(peers) => nets.extend(peers.iter().copied()),
            }
        }
    }
    let stride = stride(&nets);
    nets.into_iter().flat_map(|net| padded(net, stride)).map(Some).collect()
}

/// To the switch prefixes of different lengths are different kinds of rules, which it looks up one after the other, and
/// of which it takes a limited number. So lengths may have to be multiples of this; a prefix between them is said as
/// several longer ones.
fn stride(nets: &BTreeSet<IpNet>) -> u8 {
    let lengths = |stride: u8| {
        let of = |net: &IpNet| (net.addr().is_ipv4(), net.prefix_len().next_multiple_of(stride));
        nets.iter().map(of).collect::<BTreeSet<_>>().len()
    };
    [1, 2, 4].into_iter().find(|stride| lengths(*stride) <= LENGTHS_MAX).unwrap_or(8)
}

/// A prefix as prefixes whose lengths are multiples of `stride`, a power of 2 to 8.
fn padded(net: IpNet, stride: u8) -> Vec<IpNet> {
    let net = net.trunc();
    // 32 and 128 are multiples of them all, so it is never too long.
    net.subnets(net.prefix_len().next_multiple_of(stride))
        .map_or_else(|_| vec![net], Iterator::collect)
}

/// What begins a connection that a rule allows.
fn begins(rule: &Rule, way: Way, stride: u8) -> Vec<Value> {
    let peers: Vec<Option<IpNet>> = match &rule.peers {
        None => vec![None],
        Some(nets) => nets.iter().flat_map(|net| padded(*net, stride)).map(Some).collect(),
    };
    let ports: Vec<Value> = match &rule.ports {
        // Whatever it is: also what is of no connection.
        None => vec![json!({})],
        Some(ports) => ports.iter().map(|ports| json!(of_ports(ports))).collect(),
    };
    let each = |peer: Option<IpNet>| {
        ports.iter().map(|ports| with(ports.clone(), way, peer.as_ref())).collect::<Vec<_>>()
    };
    peers.into_iter().flat_map(each).collect()
}

fn of_ports(Ports { protocol, first, last }: &Ports) -> Map<String, Value> {
    let mut matches = Map::new();
    let name = match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    matches.insert("protocol".into(), json!(name));
    if (*first, *last) != (0, u16::MAX) {
        matches.insert("dst_port".into(), json!(format!("{first}-{last}")));
    }
    matches.insert("state".into(), json!("new"));
    matches
}

/// The same for one peer.
fn with(mut matches: Value, way: Way, peer: Option<&IpNet>) -> Value {
    if let Some(net) = peer {
        matches[way.peer()] = json!(net.trunc().to_string());
    }
    matches
}

#[cfg(test)]
mod tests;
