//! Flow rules: what becomes of the frames of a virtual function, by what stands in them.
//!
//! A rule is said in JSON, by programs, or in a line of words, by people ([`FlowRule::words`]); both
//! say the same. A value that exists is a valid one but for what needs several fields, which
//! [`FlowRule::check`] checks.

mod check;
mod values;
mod words;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::channel::Prefix;
use crate::{Function, MAX_VFS, Mac, Name};

pub use check::METER_MAX;
pub use values::{BadValue, EtherType, FlowVlan, MacMask, PortRange, Protocol, TcpFlags};
pub use words::{BadWords, FlowLine};

/// A function of a PF: `pf` is the PF itself, `vf3` its VF 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowPort(Option<u8>);

/// Not a [`FlowPort`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no function: `pf` is the PF itself, and `vf0` to `vf254` are its VFs")]
pub struct BadFlowPort(String);

/// Which frames of a function.
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
pub enum FlowDirection {
    /// Those that come from it into the switch.
    From,
    /// Those that are about to be delivered to it.
    To,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowRule {
    /// Its number: each once on a PF, chosen by whoever makes it.
    pub id: u64,
    /// The function whose frames it is for.
    pub on: FlowPort,
    /// Which of them.
    pub direction: FlowDirection,
    /// Of the rules that match, the one with the highest counts; of those with the same, the one with
    /// the lowest number.
    #[serde(default)]
    pub priority: u32,
    /// Which frames: all of what is said. Nothing said: all frames.
    #[serde(default, rename = "match", skip_serializing_if = "FlowMatch::is_any")]
    pub matches: FlowMatch,
    /// Where they go.
    pub action: FlowAction,
    /// What is changed in them before.
    #[serde(default, skip_serializing_if = "FlowRewrite::is_none")]
    pub rewrite: FlowRewrite,
    /// What is done to their tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<FlowTag>,
    /// Mbit/s that pass, 1 to 1000000; what is over it is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub meter: Option<u32>,
    /// The function that gets a copy of each, as it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<FlowPort>,
}

/// Which frames. What cannot be seen in a frame does not match: a fragment that is not the first has
/// no ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlowMatch {
    /// Source address of the frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_mac: Option<MacMask>,
    /// Destination address of the frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_mac: Option<MacMask>,
    /// Its outermost tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<FlowVlan>,
    /// EtherType, behind at most two tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<EtherType>,
    /// Source of the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<Prefix>,
    /// Destination of the packet, of the same version of IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst: Option<Prefix>,
    /// What the packet carries, behind extension headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Source port of TCP, UDP or SCTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_port: Option<PortRange>,
    /// Destination port of TCP, UDP or SCTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<PortRange>,
    /// Type of ICMP or ICMPv6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
    /// Flags of TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_flags: Option<TcpFlags>,
    /// Whether it is a fragment, and not the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub later_fragment: Option<bool>,
    /// Of which connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<FlowState>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowState {
    /// None of its frames was let through yet.
    New,
    /// One of them was, in either direction.
    Established,
}

/// Where frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowAction {
    /// On their way.
    Accept,
    /// Nowhere.
    Drop,
    /// To this function, and not where they were to go.
    Forward(FlowPort),
}

/// What becomes of frames that no rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowVerdict {
    /// They go on their way.
    #[default]
    Accept,
    /// They go nowhere.
    Drop,
}

/// What is to be different in a frame. One in which it cannot be done, say ports of a fragment, is
/// dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlowRewrite {
    /// Source address of the frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_mac: Option<Mac>,
    /// Destination address of the frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_mac: Option<Mac>,
    /// Source of the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub src: Option<IpAddr>,
    /// Destination of the packet, of the same version of IP.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub dst: Option<IpAddr>,
    /// Source port of TCP or UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src_port: Option<u16>,
    /// Destination port of TCP or UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<u16>,
}

/// What is done to a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowTag {
    /// One with this VLAN id, 1 to 4094, is put in front.
    Push(u16),
    /// The outermost goes. A frame without one is dropped.
    Pop,
}

/// What becomes of frames that no rule of a function matches, in one direction. Unless said, they go
/// on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowDefault {
    /// The function.
    pub on: FlowPort,
    /// Which frames of it.
    pub direction: FlowDirection,
    /// What becomes of them.
    pub action: FlowVerdict,
}

impl FlowPort {
    /// The PF itself.
    pub const PF: Self = Self(None);

    /// A VF by its number. `None`: there is none of this number on any PF.
    pub fn vf(number: u16) -> Option<Self> {
        u8::try_from(number).ok().filter(|_| number < MAX_VFS).map(|number| Self(Some(number)))
    }

    /// Number of the VF; `None`: it is the PF.
    pub fn number(self) -> Option<u16> {
        self.0.map(u16::from)
    }

    /// This function of the PF `pf`.
    pub fn of(self, pf: &Name) -> Function {
        Function { pf: pf.clone(), vf: self.number() }
    }
}

impl fmt::Display for FlowPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("pf"),
            Some(number) => write!(f, "vf{number}"),
        }
    }
}

impl FromStr for FlowPort {
    type Err = BadFlowPort;

    fn from_str(text: &str) -> Result<Self, BadFlowPort> {
        let bad = || BadFlowPort(text.chars().take(32).collect());
        if text == "pf" {
            return Ok(Self::PF);
        }
        let number = text.strip_prefix("vf").and_then(values::decimal).ok_or_else(bad)?;
        Self::vf(number).ok_or_else(bad)
    }
}

crate::text::as_text!(
    FlowPort,
    pattern: "^(pf|vf[0-9]{1,3})$",
    example: "vf3",
    what: "a function: the PF itself, or one of its VFs"
);

impl FlowDirection {
    /// Its name, as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::From => "from",
            Self::To => "to",
        }
    }
}

impl FlowVerdict {
    /// Its name, as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Drop => "drop",
        }
    }
}

impl FlowMatch {
    /// Whether it is all frames.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }
}

impl FlowRewrite {
    /// Whether nothing is to be different.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl FlowRule {
    /// A rule for all frames of a function in a direction, with priority 0.
    pub fn new(id: u64, on: FlowPort, direction: FlowDirection, action: FlowAction) -> Self {
        Self {
            id,
            on,
            direction,
            priority: 0,
            matches: FlowMatch::default(),
            action,
            rewrite: FlowRewrite::default(),
            tag: None,
            meter: None,
            mirror: None,
        }
    }

    /// The functions it names.
    pub fn ports(&self) -> impl Iterator<Item = FlowPort> {
        let forward = match self.action {
            FlowAction::Forward(to) => Some(to),
            FlowAction::Accept | FlowAction::Drop => None,
        };
        [Some(self.on), forward, self.mirror].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;
