//! The guest channel: what an agent inside a VM and the daemon say to each other.
//!
//! JSON-RPC 2.0, one message a line ([`LINE_MAX`]), over the virtio-serial port [`PORT_NAME`] of the
//! guest; on the host it is a Unix socket of the VM, by which the daemon knows whose it is. The agent
//! asks, the daemon answers, in order. The first request on a connection is [`Hello`]; it begins a
//! new session and ends the one before with all it delegated. `docs/guest-channel.md` has the words
//! for people.
//!
//! A delegation in three parts, so that what changes often is small: [`Interfaces`] says where the
//! router gets packets and sends them from, [`NextHops`] says under a number to whom it sends, and
//! [`Routes`] says which prefixes take which number. A router that filters or translates says instead
//! which [`Connections`] do.

mod connections;
mod flows;
mod functions;
mod refusal;
mod rpc;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Mac, Name};

pub use connections::{
    Connection, ConnectionCount, ConnectionCounters, Connections, CountedConnections, Ends, Flow,
    Transport,
};
pub use flows::{
    CountedRule, FlowCount, FlowCursor, FlowFunction, FlowLimits, FlowPart, FlowRest, Flows,
    ListFlows, SetFlows,
};
pub use functions::{ChannelFunction, Functions, ListFunctions, SetFunction, ShowFunction};
pub use refusal::Refusal;
pub use rpc::{Answer, Failed, Outcome, Request, Version};

/// Version of what is said here. Another one is refused.
pub const PROTOCOL: u32 = 1;
/// Name of the virtio-serial port: `/dev/virtio-ports/org.hayate.0` in the guest.
pub const PORT_NAME: &str = "org.hayate.0";
/// Longest line in either direction, bytes, with its newline.
pub const LINE_MAX: usize = 64 * 1024;
/// Neighbours of one next hop at most.
pub const HOPS_MAX: usize = 64;
/// A delegation ends so long after the agent was last heard, unless it asks for another time.
pub const LEASE_DEFAULT_MS: u32 = 3000;
/// Shortest and longest lease.
pub const LEASE_MS: std::ops::RangeInclusive<u32> = 300..=60_000;

/// A request and its answer.
pub trait Method: Serialize + for<'de> Deserialize<'de> {
    /// Its name in the message.
    const NAME: &'static str;
    /// What is answered.
    type Result: Serialize + for<'de> Deserialize<'de>;
}

macro_rules! method {
    ($params:ty, $name:literal, $result:ty) => {
        impl Method for $params {
            const NAME: &'static str = $name;
            type Result = $result;
        }
    };
}

method!(Hello, "hello", Welcome);
method!(Interfaces, "router.interfaces", Placed);
method!(NextHops, "router.nexthops", Done);
method!(Routes, "router.routes", Done);
method!(Status, "router.status", Done);
method!(Renew, "router.renew", Lease);
method!(Counters, "router.counters", Counted);
method!(Connections, "router.connections", Done);
method!(ConnectionCounters, "router.connection_counters", CountedConnections);
method!(Withdraw, "router.withdraw", Done);

/// Begins a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Name and version of the agent, for people; 64 bytes at most.
    pub agent: String,
    /// Asks for another lease than [`LEASE_DEFAULT_MS`], within [`LEASE_MS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u32>,
    /// What the kernel calls this boot of the machine, 64 bytes at most. What was set on virtual functions
    /// in another one ends, flow rules too, as with hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

/// Answer to [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// Name and version of the daemon, for people.
    pub daemon: String,
    /// The VM's name.
    pub vm: Name,
    /// The lease that is given, milliseconds. Every request that is not refused renews it.
    pub lease_ms: u32,
    /// What this router may delegate.
    pub limits: Limits,
    /// Its ports, as many as a router may have interfaces.
    pub ports: Vec<ChannelPort>,
}

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

/// A port of the VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelPort {
    /// Its name.
    pub name: Name,
    /// The network it is in.
    pub network: Name,
    /// The address its card has, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
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
/// nothing; it is tried again with every [`Renew`].
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
    /// They are sent by one of these ([`HOPS_MAX`]), the same for all packets of a flow. With none,
    /// they go to the router: it has to find out the neighbour's address first.
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

/// Which packets: to a prefix, or to one address in frames from one machine, like
/// `10.0.7.9/32 from 02:00:5e:10:00:01`. The latter goes before all prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector {
    prefix: Prefix,
    from: Option<Mac>,
}

/// A prefix like `10.1.0.0/16`, without bits behind its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// What the agent does, for the operator to see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// What it delegates.
    pub policy: Policy,
    /// Why not more: each 200 bytes at most, 32 of them at most.
    #[serde(default)]
    pub reasons: Vec<String>,
}

/// What a router delegates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// All it routes: it does nothing else with packets.
    Plain,
    /// Established connections: it filters or translates.
    Stateful,
    /// Nothing.
    #[default]
    Nothing,
}

/// Says that the agent is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renew {}

/// Answer to [`Renew`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Milliseconds until it ends.
    pub lease_ms: u32,
    /// The lease had ended, or the daemon gave up what was delegated: the agent says all of it anew.
    /// Until it was told so, other requests are refused ([`Refusal::Lost`]).
    pub lost: bool,
    /// Where the interfaces are, if that has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<Placed>,
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

/// Gives up all that was delegated. When it is answered, nothing bypasses the router any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Withdraw {}

/// It is done: packets that come from now on are treated so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// Not a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a prefix; write one like 10.1.0.0/16 or 2001:db8::/32")]
pub struct BadPrefix(String);

impl Prefix {
    /// A prefix; bits of `address` behind `length` are cleared. `None` if it is too long.
    pub fn new(address: IpAddr, length: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(v4) if length <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                IpAddr::V4((v4.to_bits() & mask).into())
            }
            IpAddr::V6(v6) if length <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                IpAddr::V6((v6.to_bits() & mask).into())
            }
            _ => return None,
        };
        Some(Self { address, length })
    }

    /// Its first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits that all its addresses share.
    pub fn length(&self) -> u8 {
        self.length
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl std::str::FromStr for Prefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Self, BadPrefix> {
        let bad = || BadPrefix(text.chars().take(64).collect());
        let (address, length) = text.split_once('/').ok_or_else(bad)?;
        let address = address.parse().map_err(|_| bad())?;
        let length = length.parse().map_err(|_| bad())?;
        let prefix = Self::new(address, length).ok_or_else(bad)?;
        if prefix.address == address { Ok(prefix) } else { Err(bad()) }
    }
}

/// Neither a prefix nor an address and a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSelector {
    /// The prefix.
    #[error(transparent)]
    Prefix(#[from] BadPrefix),
    /// Not one address.
    #[error("{0} is not one address; write 10.0.7.9/32 from 02:00:5e:10:00:01")]
    NotOne(Prefix),
    /// The machine's address.
    #[error(transparent)]
    Mac(#[from] crate::BadMac),
}

impl Selector {
    /// Packets to one address in frames from one machine. `None`: it is more than one address.
    pub fn exact(prefix: Prefix, from: Mac) -> Option<Self> {
        let longest = if prefix.address.is_ipv4() { 32 } else { 128 };
        (prefix.length == longest).then_some(Self { prefix, from: Some(from) })
    }

    /// All packets to a prefix.
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// Only those in frames from this machine, and it is one address.
    pub fn from(&self) -> Option<Mac> {
        self.from
    }
}

impl From<Prefix> for Selector {
    fn from(prefix: Prefix) -> Self {
        Self { prefix, from: None }
    }
}

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from {
            Some(from) => write!(f, "{} from {from}", self.prefix),
            None => self.prefix.fmt(f),
        }
    }
}

impl std::str::FromStr for Selector {
    type Err = BadSelector;

    fn from_str(text: &str) -> Result<Self, BadSelector> {
        let Some((prefix, from)) = text.split_once(" from ") else {
            return Ok(Self { prefix: text.parse()?, from: None });
        };
        let prefix: Prefix = prefix.parse()?;
        Self::exact(prefix, from.parse()?).ok_or(BadSelector::NotOne(prefix))
    }
}

crate::text::as_text!(
    Selector,
    pattern: "^[0-9a-fA-F.:]+/[0-9]{1,3}( from [0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5})?$",
    example: "10.1.0.0/16",
    what: "An IP prefix, or one address and the machine whose packets to it are meant"
);

crate::text::as_text!(
    Prefix,
    pattern: "^[0-9a-fA-F.:]+/[0-9]{1,3}$",
    example: "10.1.0.0/16",
    what: "An IP prefix"
);

#[cfg(test)]
mod tests;
