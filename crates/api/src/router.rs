//! Routers that are bypassed, as the daemon shows them: VMs with a guest channel.

use crate::channel::{Ends, Flow, HopCount, Limits, Policy, Refusal, Selector, SourceCheck};
use crate::{Mac, Name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A router at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Router {
    /// Its VM.
    pub vm: Name,
    /// Path of the socket of its guest channel.
    #[schema(value_type = String)]
    pub socket: PathBuf,
    /// Why the socket is not there, if it is not; it is tried again.
    pub failure: Option<String>,
    /// Whether somebody is connected to the socket.
    pub connected: bool,
    /// Name and version of the agent, while it has a session.
    pub agent: Option<String>,
    /// What the router delegates.
    pub policy: Policy,
    /// Whether the operator lets it be bypassed.
    pub bypass: bool,
    /// Milliseconds until the lease ends, while there is one.
    pub lease_ms: Option<u64>,
    /// Number of its interfaces.
    pub interfaces: usize,
    /// Of these, behind a port.
    pub placed: usize,
    /// Number of its next hops.
    pub nexthops: usize,
    /// Number of its prefixes.
    pub prefixes: usize,
    /// Number of its connections, each direction for itself.
    pub connections: usize,
    /// The most it may have of each.
    pub limits: Limits,
    /// Packets that bypassed it.
    pub packets: u64,
    /// Bytes of these, with Ethernet headers.
    pub bytes: u64,
    /// What was refused, by reason.
    pub refusals: BTreeMap<String, u64>,
}

/// A router with all it delegated but its prefixes and connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RouterDetail {
    /// The router.
    pub router: Router,
    /// Why it does not delegate more, in the words of its agent.
    pub reasons: Vec<String>,
    /// Its interfaces.
    pub interfaces: Vec<RouterInterface>,
    /// Its next hops, by number.
    pub nexthops: Vec<RouterNextHop>,
}

/// An interface of a router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RouterInterface {
    /// The agent's number.
    pub id: u32,
    /// Its name in the guest.
    pub name: String,
    /// Its address.
    pub mac: Mac,
    /// Address of the card it is on, if that is another.
    pub card: Option<Mac>,
    /// Tag of its frames.
    pub vlan: Option<u16>,
    /// Longest packet, bytes.
    pub mtu: u32,
    /// What it asks of the sources of IPv4 packets.
    pub source_check: SourceCheck,
    /// What it asks of the sources of IPv6 packets.
    pub source_check_v6: SourceCheck,
    /// The port it is behind.
    pub port: Option<Name>,
    /// Why it has none.
    pub refused: Option<Refusal>,
}

/// Where a router sends packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RouterNextHop {
    /// The agent's number.
    pub id: u32,
    /// Its own addresses: packets there, and from there, go to the router.
    pub own: bool,
    /// The neighbours. With none, packets go to the router.
    pub hops: Vec<RouterHop>,
    /// Prefixes that take it.
    pub prefixes: u32,
    /// Connections that take it.
    pub connections: u32,
}

/// A neighbour of a router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RouterHop {
    /// Number of the interface it is behind.
    pub interface: u32,
    /// Its address.
    pub mac: Mac,
    /// Packets that were sent to it past the router.
    pub packets: u64,
    /// Bytes of these, with Ethernet headers.
    pub bytes: u64,
}

/// Some of the prefixes of a router, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RouterPrefixes {
    /// The prefixes.
    pub prefixes: Vec<RouterPrefix>,
    /// There are more: ask again, `after` the last.
    pub more: bool,
}

/// A prefix of a router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RouterPrefix {
    /// The prefix.
    pub prefix: Selector,
    /// Number of the next hop it takes.
    pub nexthop: u32,
}

/// Some of the connections of a router, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RouterConnections {
    /// The connections, each direction for itself.
    pub connections: Vec<RouterConnection>,
    /// There are more: ask again, `after` the last.
    pub more: bool,
}

/// One direction of a connection of a router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RouterConnection {
    /// Its packets, as they come.
    pub flow: Flow,
    /// Number of the interface that they come by.
    pub interface: u32,
    /// What becomes of their addresses and ports.
    pub to: Ends,
    /// Number of the next hop it takes.
    pub nexthop: u32,
    /// What went past the router since it was last set.
    pub count: HopCount,
}

/// Whether a router is bypassed where it delegates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Bypass {
    /// No: it gets all packets itself, and what it delegates is kept for later.
    pub bypass: bool,
}
