//! Kubernetes' NetworkPolicy objects become plain rules for each pod.
//!
//! **Purpose.** Policies select pods by labels and name ports by words; a switch knows addresses and numbers.
//! [`compile`] takes objects as the API serves them ([`object`]: `networking.k8s.io/v1` policies, pods,
//! namespaces) and answers, for each pod, whether it is isolated and who may talk to it, and it to whom. [`flow`] says that in
//! the words of the switch, and [`apply`] puts it in force for the pods of this node.
//!
//! **Semantics** are those of the API: a pod is isolated in a direction as soon as one policy selects it for that
//! direction; what any of them allows is allowed; answers to what is allowed are allowed. Pods in the node's own
//! network namespace and pods that have ended take no part.
//!
//! **Owner and threads.** None: values in, values out.
//!
//! **Failure.** [`Refused`] names the policy and the place in it. Nothing is compiled from a policy that is
//! understood in part: what it allows would be guessed.

pub mod apply;
mod compile;
pub mod flow;
pub mod object;
mod select;

#[cfg(test)]
mod tests;

use ipnet::IpNet;
use serde::Serialize;

pub use compile::compile;

/// What holds for one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodRules {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub ips: Vec<std::net::IpAddr>,
    /// What others may send to it.
    pub ingress: Direction,
    /// What it may send to others.
    pub egress: Direction,
}

/// What holds for one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Direction {
    /// Is only that allowed which `allow` has? Otherwise everything is.
    pub isolated: bool,
    /// Each of them allows what matches it.
    pub allow: Vec<Rule>,
}

/// Connections that are allowed: with one of these peers, and to one of these ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The other end; `None`: whoever it is. An empty list matches nobody.
    pub peers: Option<Vec<IpNet>>,
    /// Where to; `None`: all protocols and ports. An empty list matches nothing.
    pub ports: Option<Vec<Ports>>,
}

/// Ports of one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Ports {
    /// Whose.
    pub protocol: Protocol,
    /// The first one.
    pub first: u16,
    /// The last one.
    pub last: u16,
}

/// What ports are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A policy that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// `NAMESPACE/NAME` of the policy.
    pub policy: String,
    /// Where in it, and why.
    pub why: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NetworkPolicy {}: {}", self.policy, self.why)
    }
}

impl std::error::Error for Refused {}
