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
//!
//! Beside that, an agent sees and sets up the virtual functions of its VM ([`ListFunctions`], [`SetFunction`])
//! and the flow rules on them ([`SetFlows`]).

mod connections;
mod delegation;
mod flows;
mod functions;
mod prefix;
mod refusal;
mod rpc;
mod session;

use serde::{Deserialize, Serialize};

use crate::FunctionSettings;

pub use connections::{
    Connection, ConnectionCount, ConnectionCounters, Connections, CountedConnections, Ends, Flow,
    Transport,
};
pub use delegation::{
    Counted, CountedNextHop, Counters, Hop, HopCount, Interface, Interfaces, Limits, NextHop,
    NextHops, Placed, PlacedInterface, Routes, SourceCheck, To, Via,
};
pub use flows::{
    CountedRule, FlowCount, FlowCursor, FlowFunction, FlowLimits, FlowPart, FlowRest, Flows,
    ListFlows, SetFlows,
};
pub use functions::{ChannelFunction, Functions, ListFunctions, SetFunction, ShowFunction};
pub use prefix::{BadPrefix, BadSelector, Prefix, Selector};
pub use refusal::Refusal;
pub use rpc::{Answer, Failed, Outcome, Request, Version};
pub use session::{ChannelPort, Hello, Lease, Policy, Renew, Status, Welcome, Withdraw};

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
method!(ListFunctions, "vf.list", Functions);
method!(ShowFunction, "vf.show", FunctionSettings);
method!(SetFunction, "vf.set", FunctionSettings);
method!(SetFlows, "flow.set", Done);
method!(ListFlows, "flow.list", Flows);

/// It is done: packets that come from now on are treated so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

#[cfg(test)]
mod tests;
