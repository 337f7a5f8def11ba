//! Connections that a router delegates: it filters or translates, and lets those pass that it knows.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::HopCount;

/// Changes which connections are delegated, each direction for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connections {
    /// New ones, and those that go elsewhere now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<Connection>,
    /// No longer delegated, if they were. Carried out before `set`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub del: Vec<Flow>,
}

/// One direction of a connection. Its packets that begin or end it (SYN, FIN, RST) always go to the
/// router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Its packets, as they come.
    pub flow: Flow,
    /// Number of the interface that they come by.
    pub interface: u32,
    /// What becomes of their addresses and ports.
    pub to: Ends,
    /// Number of the next hop.
    pub nexthop: u32,
}

/// What packets of one direction of a connection have in common.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(deny_unknown_fields)]
#[schema(as = ConnectionFlow)]
pub struct Flow {
    /// Its protocol.
    pub protocol: Transport,
    /// Address and port they come from, like `10.1.0.2:4000` or `[2001:db8::2]:4000`.
    #[schema(value_type = String)]
    pub source: SocketAddr,
    /// Address and port they go to, of the same version of IP.
    #[schema(value_type = String)]
    pub destination: SocketAddr,
}

/// A protocol with ports.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Both ends of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ends {
    /// Address and port of the source.
    #[schema(value_type = String)]
    pub source: SocketAddr,
    /// Address and port of the destination.
    #[schema(value_type = String)]
    pub destination: SocketAddr,
}

/// Asks what passed the router by, by connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionCounters {
    /// Only those behind this one: to go on where an answer with [`CountedConnections::more`] ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Flow>,
}

/// Answer to [`ConnectionCounters`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedConnections {
    /// Those that were used, since they were last set; in order, as many as fit a line.
    pub connections: Vec<ConnectionCount>,
    /// There are more: ask again, after the last one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// What went past the router of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionCount {
    /// Which one.
    pub flow: Flow,
    /// Its packets and bytes.
    #[serde(flatten)]
    pub count: HopCount,
}
