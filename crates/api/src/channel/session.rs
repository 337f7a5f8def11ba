//! A session: its beginning, its lease, what the agent says of itself, and its end.

use serde::{Deserialize, Serialize};

use super::{Limits, Placed};
use crate::{Mac, Name};

/// Begins a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`PROTOCOL`](super::PROTOCOL).
    pub protocol: u32,
    /// Name and version of the agent, for people; 64 bytes at most.
    pub agent: String,
    /// Asks for another lease than [`LEASE_DEFAULT_MS`](super::LEASE_DEFAULT_MS), within
    /// [`LEASE_MS`](super::LEASE_MS).
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
    /// [`PROTOCOL`](super::PROTOCOL).
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
    /// Until it was told so, other requests are refused ([`Refusal::Lost`](super::Refusal::Lost)).
    pub lost: bool,
    /// Where the interfaces are, if that has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed: Option<Placed>,
}

/// Gives up all that was delegated. When it is answered, nothing bypasses the router any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Withdraw {}
