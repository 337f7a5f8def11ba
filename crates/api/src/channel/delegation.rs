//! A delegation: interfaces, next hops, routes, and what was counted of them.
//!
//! Each request is carried out as a whole or refused as a whole ([`Refusal`]).

use serde::{Deserialize, Serialize};

use super::{Refusal, Selector};
use crate::{Mac, Name};

/// What one router may delegate at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Limits {
    /// Interfaces.
    pub interfaces: u32,
    /// Numbers of [`NextHops`] in use.
    pub nexthops: u32,
    /// Prefixes.
    pub prefixes: u32,
    /// Connections, each direction for itself.
    pub connections: u32,
}

/// The router's interfaces, in place of those before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interfaces {
    /// All of them.
    pub interfaces: Vec<Interface>,
}

/// An interface of the router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interface {
    /// The agent's number for it, each once.
    pub id: u32,
    /// Its name in the guest, for people; 32 bytes at most.
    pub name: String,
    /// Its address.
    pub mac: Mac,
    /// Address of the card it is on, if that is another: by this the port is found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<Mac>,
    /// VLAN id (1 to 4094) of an interface like `eth0.10`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Longest packet, bytes, 68 or more.
    pub mtu: u32,
    /// What it asks of the sources of IPv4 packets it gets.
    #[serde(default)]
    pub source_check: SourceCheck,
    /// What it asks of the sources of IPv6 packets it gets. Linux has no setting for it.
    #[serde(default)]
    pub source_check_v6: SourceCheck,
}

/// Reverse-path filtering (`rp_filter`), of one version of IP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceCheck {
    /// None.
    #[default]
    Off,
    /// There is a route to the source.
    Loose,
    /// The route to the source leads back to where the packet came from.
    Strict,
    /// No source will do: the router does not forward packets of this version that it gets here.
    Closed,
}

/// Answer to [`Interfaces`]: each with its port, or why it has none. One without a port counts for
/// nothing; it is tried again with every [`Renew`](super::Renew).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// In the order of the request.
    pub interfaces: Vec<PlacedInterface>,
}

/// Where an interface is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedInterface {
    /// The agent's number.
    pub id: u32,
    /// The port it is behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Name>,
    /// Why it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
}

/// Changes to whom packets are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextHops {
    /// New ones, and those that changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<NextHop>,
    /// Numbers given up. No prefix and no connection may take them any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub del: Vec<u32>,
}

/// To whom packets are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextHop {
    /// The agent's number, below [`Limits::nexthops`].
    pub id: u32,
    /// How.
    pub to: To,
}

/// What is done with packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum To {
    /// They go to the router, and packets from these addresses do too: its own addresses.
    Own,
    /// They are sent by one of these ([`HOPS_MAX`](super::HOPS_MAX)), the same for all packets of a
    /// flow. With none, they go to the router: it has to find out the neighbour's address first.
    Via(Vec<Hop>),
}

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hop {
    /// Number of the interface it is behind.
    pub interface: u32,
    /// Its address.
    pub mac: Mac,
}

/// Changes which prefixes are delegated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routes {
    /// New ones, and those that go elsewhere now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<Via>,
    /// No longer delegated. Carried out before `set`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub del: Vec<Selector>,
}

/// Prefixes with the same next hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Via {
    /// Number of the next hop.
    pub nexthop: u32,
    /// The prefixes.
    pub prefixes: Vec<Selector>,
}

/// Asks what passed the router by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Only the numbers above this one: to go on where an answer with [`Counted::more`] ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u32>,
}

/// Answer to [`Counters`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Those that were used, since they were last changed; by number, as many as fit a line.
    pub nexthops: Vec<CountedNextHop>,
    /// There are more: ask again, after the last number.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// What went one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedNextHop {
    /// The agent's number.
    pub id: u32,
    /// For each hop, in order.
    pub hops: Vec<HopCount>,
}

/// What went to one neighbour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HopCount {
    /// Packets.
    pub packets: u64,
    /// Their bytes, with the Ethernet header.
    pub bytes: u64,
}
