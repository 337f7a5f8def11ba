//! Objects as the API of Kubernetes serves them; only what policies are about.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::conf::or_default;

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// What every object has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Metadata {
    /// Its name.
    pub name: String,
    /// Its namespace.
    #[serde(default)]
    pub namespace: String,
    /// Its labels.
    #[serde(default, deserialize_with = "or_default")]
    pub labels: Labels,
    /// Which of those that had this name one after the other.
    #[serde(default)]
    pub uid: Option<String>,
    /// Its annotations.
    #[serde(default, deserialize_with = "or_default")]
    pub annotations: Labels,
}

impl Metadata {
    /// `NAMESPACE/NAME`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A namespace.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Namespace {
    /// Name and labels.
    pub metadata: Metadata,
}

/// A pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pod {
    /// Name, namespace and labels.
    pub metadata: Metadata,
    /// What it should be.
    #[serde(default)]
    pub spec: PodSpec,
    /// What it is.
    #[serde(default)]
    pub status: PodStatus,
}

/// What a pod should be.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Is it in the node's own network namespace?
    pub host_network: bool,
    /// Its programs.
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
    /// Programs that run before them, or, if they always restart, beside them.
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
}

/// A program of a pod.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Ports it says it has.
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<ContainerPort>,
    /// `Always`: it runs beside the others.
    pub restart_policy: Option<String>,
}

/// A port a program says it has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerPort {
    /// What policies may call it.
    pub name: Option<String>,
    /// Its number.
    pub container_port: u16,
    /// `TCP` if it is not said.
    pub protocol: Option<String>,
}

/// What a pod is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    /// `Succeeded` and `Failed` pods have ended.
    pub phase: Option<String>,
    /// One of its addresses.
    #[serde(rename = "podIP")]
    pub ip: Option<IpAddr>,
    /// All of them.
    #[serde(rename = "podIPs", deserialize_with = "or_default")]
    pub ips: Vec<PodIp>,
}

/// An address of a pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PodIp {
    /// It.
    pub ip: IpAddr,
}

/// A policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetworkPolicy {
    /// Name and namespace.
    pub metadata: Metadata,
    /// What it says.
    pub spec: PolicySpec,
}

/// What a policy says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicySpec {
    /// For whom; an empty one: all pods of its namespace.
    #[serde(default)]
    pub pod_selector: Selector,
    /// Directions it is about.
    #[serde(default)]
    pub policy_types: Option<Vec<String>>,
    /// Who may send.
    #[serde(default, deserialize_with = "or_default")]
    pub ingress: Vec<PolicyRule>,
    /// To whom they may send.
    #[serde(default)]
    pub egress: Option<Vec<PolicyRule>>,
}

/// A rule of a policy. A direction has one of `from` and `to`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyRule {
    /// From whom; none: from everybody.
    #[serde(default, deserialize_with = "or_default")]
    pub from: Vec<Peer>,
    /// To whom; none: to everybody.
    #[serde(default, deserialize_with = "or_default")]
    pub to: Vec<Peer>,
    /// Where to; none: everywhere.
    #[serde(default, deserialize_with = "or_default")]
    pub ports: Vec<PolicyPort>,
}

/// Somebody else.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Peer {
    /// Pods with these labels, of the policy's namespace if no other is said.
    #[serde(default)]
    pub pod_selector: Option<Selector>,
    /// Namespaces with these labels.
    #[serde(default)]
    pub namespace_selector: Option<Selector>,
    /// Addresses.
    #[serde(default)]
    pub ip_block: Option<IpBlock>,
}

/// Addresses.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpBlock {
    /// All of these.
    pub cidr: IpNet,
    /// But not these.
    #[serde(default, deserialize_with = "or_default")]
    pub except: Vec<IpNet>,
}

/// Ports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyPort {
    /// `TCP` if it is not said.
    #[serde(default)]
    pub protocol: Option<String>,
    /// Which; none: all.
    #[serde(default)]
    pub port: Option<Port>,
    /// The last of several.
    #[serde(default)]
    pub end_port: Option<i64>,
}

/// A port.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Port {
    /// By its number.
    Number(i64),
    /// By the name that a container gives it.
    Name(String),
}

/// Which labels. All that is said has to hold.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    /// Labels with these values.
    #[serde(default, deserialize_with = "or_default")]
    pub match_labels: Labels,
    /// More about labels.
    #[serde(default, deserialize_with = "or_default")]
    pub match_expressions: Vec<Expression>,
}

/// Something about one label.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expression {
    /// Its key.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// Values that `In` and `NotIn` compare with.
    #[serde(default, deserialize_with = "or_default")]
    pub values: Vec<String>,
}
