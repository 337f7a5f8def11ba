//! Policies, pods and namespaces in, rules out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::object::{
    IpBlock, Labels, Namespace, NetworkPolicy, Peer, Pod, PolicyPort, PolicyRule, PolicySpec, Port,
};
use super::select::Checked;
use super::{Direction, PodRules, Ports, Protocol, Refused, Rule};

/// Where Multus says which addresses a pod's interfaces have.
const INTERFACES: &str = "k8s.v1.cni.cncf.io/network-status";
/// The label every namespace has.
const NAME: &str = "kubernetes.io/metadata.name";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Ingress,
    Egress,
}

/// A pod that takes part.
struct Member<'a> {
    pod: &'a Pod,
    ips: Vec<IpAddr>,
    namespace: &'a Labels,
}

/// A port of a rule that was checked.
enum Wanted<'a> {
    Numbers(Ports),
    Named(Protocol, &'a str),
}

/// The rules of all pods that take part, in the order of `pods`.
///
/// # Errors
/// The first policy that cannot be compiled.
pub fn compile(
    policies: &[NetworkPolicy],
    pods: &[Pod],
    namespaces: &[Namespace],
) -> Result<Vec<PodRules>, Refused> {
    let labels: BTreeMap<&str, Labels> = namespaces
        .iter()
        .map(|one| {
            let mut labels = one.metadata.labels.clone();
            labels.insert(NAME.into(), one.metadata.name.clone());
            (one.metadata.name.as_str(), labels)
        })
        .collect();
    let none = Labels::new();
    let members: Vec<Member<'_>> = pods
        .iter()
        .filter(|pod| takes_part(pod))
        .map(|pod| {
            let namespace = labels.get(pod.metadata.namespace.as_str()).unwrap_or(&none);
            Member { pod, ips: addresses(pod), namespace }
        })
        .collect();
    let mut all: Vec<PodRules> = members
        .iter()
        .map(|member| PodRules {
            namespace: member.pod.metadata.namespace.clone(),
            name: member.pod.metadata.name.clone(),
            ips: member.ips.clone(),
            ingress: Direction::default(),
            egress: Direction::default(),
        })
        .collect();
    for policy in policies {
        let name = format!("{}/{}", policy.metadata.namespace, policy.metadata.name);
        add(policy, &members, &mut all).map_err(|why| Refused { policy: name, why })?;
    }
    Ok(all)
}

fn takes_part(pod: &Pod) -> bool {
    !pod.spec.host_network && !matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// Those of all its interfaces: Multus says what further ones have.
fn addresses(pod: &Pod) -> Vec<IpAddr> {
    #[derive(serde::Deserialize)]
    struct Interface {
        #[serde(default)]
        ips: Vec<IpAddr>,
    }
    let more = pod.metadata.annotations.get(INTERFACES);
    let more: Vec<Interface> =
        more.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let all = pod.status.ips.iter().map(|one| one.ip).chain(pod.status.ip);
    let all: BTreeSet<IpAddr> = all.chain(more.into_iter().flat_map(|one| one.ips)).collect();
    all.into_iter().collect()
}

/// Which directions a policy is about: ingress, egress.
pub(super) fn about(spec: &PolicySpec) -> Result<(bool, bool), String> {
    let Some(types) = spec.policy_types.as_ref().filter(|types| !types.is_empty()) else {
        // An empty list is as none.
        return Ok((true, spec.egress.is_some()));
    };
    if let Some(other) = types.iter().find(|one| !["Ingress", "Egress"].contains(&one.as_str())) {
        return Err(format!("policyTypes: there is no {other:?}"));
    }
    let has = |name: &str| types.iter().any(|one| one == name);
    Ok((has("Ingress"), has("Egress")))
}

fn add(policy: &NetworkPolicy, members: &[Member<'_>], all: &mut [PodRules]) -> Result<(), String> {
    let spec = &policy.spec;
    let selector = Checked::new(&spec.pod_selector).map_err(|why| format!("podSelector: {why}"))?;
    let (ingress, egress) = about(spec)?;
    for (way, wanted, rules) in [
        (Way::Ingress, ingress, spec.ingress.as_slice()),
        (Way::Egress, egress, spec.egress.as_deref().unwrap_or_default()),
    ] {
        let word = if way == Way::Ingress { "ingress" } else { "egress" };
        // Also those that are not about anything have to be right.
        let rules: Result<Vec<CheckedRule<'_>>, String> = rules
            .iter()
            .enumerate()
            .map(|(at, rule)| {
                let checked = CheckedRule::new(rule, way, &policy.metadata.namespace, members);
                checked.map_err(|why| format!("{word}[{at}]: {why}"))
            })
            .collect();
        let rules = rules?;
        if !wanted {
            continue;
        }
        for (member, found) in members.iter().zip(all.iter_mut()) {
            if member.pod.metadata.namespace != policy.metadata.namespace
                || !selector.matches(&member.pod.metadata.labels)
            {
                continue;
            }
            let direction =
                if way == Way::Ingress { &mut found.ingress } else { &mut found.egress };
            direction.isolated = true;
            for rule in &rules {
                direction.allow.extend(rule.for_pod(way, member, members));
            }
        }
    }
    Ok(())
}

/// A rule whose peers are known.
struct CheckedRule<'a> {
    /// `None`: everybody.
    peers: Option<Peers>,
    /// `None`: everywhere.
    ports: Option<Vec<Wanted<'a>>>,
}

#[derive(Default)]
struct Peers {
    /// Places among the members.
    pods: BTreeSet<usize>,
    nets: Vec<IpNet>,
}

impl<'a> CheckedRule<'a> {
    fn new(
        rule: &'a PolicyRule,
        way: Way,
        namespace: &str,
        members: &[Member<'_>],
    ) -> Result<Self, String> {
        let (word, list, other) = match way {
            Way::Ingress => ("from", &rule.from, ("to", &rule.to)),
            Way::Egress => ("to", &rule.to, ("from", &rule.from)),
        };
        if !other.1.is_empty() {
            return Err(format!("it has {}", other.0));
        }
        let mut peers = Peers::default();
        for (at, peer) in list.iter().enumerate() {
            let added = peers.add(peer, namespace, members);
            added.map_err(|why| format!("{word}[{at}]: {why}"))?;
        }
        let ports: Result<Vec<Wanted<'a>>, String> = rule
            .ports
            .iter()
            .enumerate()
            .map(|(at, port)| wanted(port).map_err(|why| format!("ports[{at}]: {why}")))
            .collect();
        Ok(Self {
            peers: (!list.is_empty()).then_some(peers),
            ports: Some(ports?).filter(|_| !rule.ports.is_empty()),
        })
    }

    fn for_pod(&self, way: Way, member: &Member<'_>, members: &[Member<'_>]) -> Vec<Rule> {
        let peers = self.peers.as_ref().map(|peers| peers.nets(members));
        let Some(wanted) = &self.ports else {
            return vec![Rule { peers, ports: None }];
        };
        let mut ports = Vec::new();
        let mut more = Vec::new();
        for one in wanted {
            match (one, way) {
                (Wanted::Numbers(numbers), _) => ports.push(*numbers),
                (Wanted::Named(protocol, name), Way::Ingress) => {
                    ports.extend(named(member.pod, *protocol, name));
                }
                // The number is what the other end says, which differs from one to the next.
                (Wanted::Named(protocol, name), Way::Egress) => {
                    for (at, other) in members.iter().enumerate() {
                        if self.peers.as_ref().is_some_and(|peers| !peers.pods.contains(&at)) {
                            continue;
                        }
                        let ports: Vec<Ports> = named(other.pod, *protocol, name).collect();
                        if !ports.is_empty() && !other.ips.is_empty() {
                            let peers = other.ips.iter().copied().map(IpNet::from).collect();
                            more.push(Rule { peers: Some(peers), ports: Some(ports) });
                        }
                    }
                }
            }
        }
        if !ports.is_empty() {
            ports.sort_unstable();
            ports.dedup();
            more.insert(0, Rule { peers, ports: Some(ports) });
        }
        more
    }
}

impl Peers {
    fn add(&mut self, peer: &Peer, own: &str, members: &[Member<'_>]) -> Result<(), String> {
        if let Some(block) = &peer.ip_block {
            if peer.pod_selector.is_some() || peer.namespace_selector.is_some() {
                return Err("ipBlock cannot be together with a selector".into());
            }
            self.nets.extend(without(block)?);
            return Ok(());
        }
        let checked =
            |selector, word: &str| Checked::new(selector).map_err(|why| format!("{word}: {why}"));
        let pods = peer.pod_selector.as_ref();
        let pods = pods.map(|selector| checked(selector, "podSelector")).transpose()?;
        let namespaces = peer.namespace_selector.as_ref();
        let namespaces =
            namespaces.map(|selector| checked(selector, "namespaceSelector")).transpose()?;
        if pods.is_none() && namespaces.is_none() {
            return Err("it names nobody".into());
        }
        for (at, member) in members.iter().enumerate() {
            let metadata = &member.pod.metadata;
            let here = match &namespaces {
                Some(selector) => selector.matches(member.namespace),
                None => metadata.namespace == own,
            };
            if here && pods.as_ref().is_none_or(|selector| selector.matches(&metadata.labels)) {
                self.pods.insert(at);
            }
        }
        Ok(())
    }

    fn nets(&self, members: &[Member<'_>]) -> Vec<IpNet> {
        let pods = self.pods.iter().filter_map(|at| members.get(*at));
        let pods = pods.flat_map(|member| member.ips.iter().copied().map(IpNet::from));
        let mut nets: Vec<IpNet> = pods.chain(self.nets.iter().copied()).collect();
        nets.sort_unstable();
        nets.dedup();
        nets
    }
}

/// The ports of this name that a pod says it has.
fn named<'a>(pod: &'a Pod, protocol: Protocol, name: &'a str) -> impl Iterator<Item = Ports> + 'a {
    let beside = |one: &&super::object::Container| one.restart_policy.as_deref() == Some("Always");
    let programs = pod.spec.containers.iter().chain(pod.spec.init_containers.iter().filter(beside));
    let ports = programs.flat_map(|program| &program.ports);
    ports
        .filter(move |port| {
            port.name.as_deref() == Some(name)
                && self::protocol(port.protocol.as_deref()) == Ok(protocol)
        })
        .map(move |port| Ports { protocol, first: port.container_port, last: port.container_port })
}

fn protocol(name: Option<&str>) -> Result<Protocol, String> {
    match name {
        None | Some("TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => {
            Err("protocol SCTP is not supported: only TCP and UDP are told apart by port".into())
        }
        Some(other) => Err(format!("protocol {other:?} is none of TCP and UDP")),
    }
}

fn wanted(port: &PolicyPort) -> Result<Wanted<'_>, String> {
    let protocol = protocol(port.protocol.as_deref())?;
    let number = |number: i64| {
        let fits = u16::try_from(number).ok().filter(|number| *number > 0);
        fits.ok_or_else(|| format!("{number} is no port"))
    };
    let (first, last) = match (&port.port, port.end_port) {
        (None, None) => (0, u16::MAX),
        (Some(Port::Number(first)), None) => (number(*first)?, number(*first)?),
        (Some(Port::Number(first)), Some(last)) => (number(*first)?, number(last)?),
        (Some(Port::Name(name)), None) => return Ok(Wanted::Named(protocol, name)),
        (None | Some(Port::Name(_)), Some(_)) => {
            return Err("endPort needs a port that is a number".into());
        }
    };
    if last < first {
        return Err(format!("endPort {last} is before port {first}"));
    }
    Ok(Wanted::Numbers(Ports { protocol, first, last }))
}

/// The addresses of a block, as prefixes.
fn without(block: &IpBlock) -> Result<Vec<IpNet>, String> {
    let mut left = vec![block.cidr.trunc()];
    for except in &block.except {
        let except = except.trunc();
        if !block.cidr.contains(&except) || except == block.cidr.trunc() {
            return Err(format!("ipBlock: except {except} is no part of {}", block.cidr));
        }
        left = left.into_iter().flat_map(|net| minus(net, except)).collect();
    }
    Ok(left)
}

/// What of a prefix is not in another: halves that are not, down to the other one.
pub(super) fn minus(net: IpNet, except: IpNet) -> Vec<IpNet> {
    if except.contains(&net) {
        return Vec::new();
    }
    let (mut rest, mut left) = (net, Vec::new());
    while rest.contains(&except) && rest != except {
        let Some((one, other)) = halves(rest) else { break };
        if one.contains(&except) {
            left.push(other);
            rest = one;
        } else {
            left.push(one);
            rest = other;
        }
    }
    if rest != except {
        left.push(rest);
    }
    left
}

fn halves(net: IpNet) -> Option<(IpNet, IpNet)> {
    let length = net.prefix_len() + 1;
    match net {
        IpNet::V4(net) => {
            let bit = 1_u32.checked_shl(32_u32.checked_sub(length.into())?)?;
            let one = Ipv4Net::new(net.network(), length).ok()?;
            let other = Ipv4Net::new((u32::from(net.network()) | bit).into(), length).ok()?;
            Some((one.into(), other.into()))
        }
        IpNet::V6(net) => {
            let bit = 1_u128.checked_shl(128_u32.checked_sub(length.into())?)?;
            let one = Ipv6Net::new(net.network(), length).ok()?;
            let other = Ipv6Net::new((u128::from(net.network()) | bit).into(), length).ok()?;
            Some((one.into(), other.into()))
        }
    }
}
