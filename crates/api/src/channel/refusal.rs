//! Why the daemon refuses what an agent asks for.

use serde::{Deserialize, Serialize};

/// Each is counted, for every router.
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
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// Not a JSON-RPC 2.0 request.
    Malformed,
    /// Longer than a line may be.
    TooLong,
    /// No such method.
    UnknownMethod,
    /// Parameters that the method does not have, or of which one is out of range.
    BadParams,
    /// Another version of the protocol.
    Protocol,
    /// Before [`Hello`](super::Hello).
    NoSession,
    /// Nothing delegated counts any more: the router was given up or its lease ended. Say
    /// [`Renew`](super::Renew) or [`Hello`](super::Hello), then all of it anew.
    Lost,
    /// The interface's address is not that of a card of this VM, as far as is known.
    NotYourPort,
    /// No such interface.
    UnknownInterface,
    /// No such next hop.
    UnknownNextHop,
    /// Prefixes or connections still take this next hop.
    NextHopInUse,
    /// An address that a packet cannot be sent to.
    NotUnicast,
    /// More interfaces than allowed.
    TooManyInterfaces,
    /// More next hops than allowed.
    TooManyNextHops,
    /// More prefixes than allowed.
    TooManyPrefixes,
    /// More connections than allowed.
    TooManyConnections,
    /// The daemon cannot do it; the message says why. It gave up what was delegated before.
    Host,
    /// The VM has no such virtual function.
    UnknownFunction,
    /// The host's operator does not allow it; the message says which right it needs.
    NotAllowed,
    /// The daemon cannot do it; the message says why. All is as before.
    NotDone,
    /// A part of a change whose parts before are not there (any more).
    UnknownBatch,
    /// No flow rule of this number.
    UnknownRule,
    /// There is a flow rule of this number.
    RuleExists,
    /// More flow rules than the PF may have, or more kinds of them, by what they look at.
    TooManyRules,
    /// More flow rules with a meter than the PF may have.
    TooManyMeters,
    /// More changes of flow rules than the PF may have in this time: later.
    TooManyUpdates,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::Malformed,
        Self::TooLong,
        Self::UnknownMethod,
        Self::BadParams,
        Self::Protocol,
        Self::NoSession,
        Self::Lost,
        Self::NotYourPort,
        Self::UnknownInterface,
        Self::UnknownNextHop,
        Self::NextHopInUse,
        Self::NotUnicast,
        Self::TooManyInterfaces,
        Self::TooManyNextHops,
        Self::TooManyPrefixes,
        Self::TooManyConnections,
        Self::Host,
        Self::UnknownFunction,
        Self::NotAllowed,
        Self::NotDone,
        Self::UnknownBatch,
        Self::UnknownRule,
        Self::RuleExists,
        Self::TooManyRules,
        Self::TooManyMeters,
        Self::TooManyUpdates,
    ];

    /// As it is written in messages, metrics and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLong => "too-long",
            Self::UnknownMethod => "unknown-method",
            Self::BadParams => "bad-params",
            Self::Protocol => "protocol",
            Self::NoSession => "no-session",
            Self::Lost => "lost",
            Self::NotYourPort => "not-your-port",
            Self::UnknownInterface => "unknown-interface",
            Self::UnknownNextHop => "unknown-next-hop",
            Self::NextHopInUse => "next-hop-in-use",
            Self::NotUnicast => "not-unicast",
            Self::TooManyInterfaces => "too-many-interfaces",
            Self::TooManyNextHops => "too-many-next-hops",
            Self::TooManyPrefixes => "too-many-prefixes",
            Self::TooManyConnections => "too-many-connections",
            Self::Host => "host",
            Self::UnknownFunction => "unknown-function",
            Self::NotAllowed => "not-allowed",
            Self::NotDone => "not-done",
            Self::UnknownBatch => "unknown-batch",
            Self::UnknownRule => "unknown-rule",
            Self::RuleExists => "rule-exists",
            Self::TooManyRules => "too-many-rules",
            Self::TooManyMeters => "too-many-meters",
            Self::TooManyUpdates => "too-many-updates",
        }
    }

    /// Code of the JSON-RPC error (JSON-RPC 2.0, section 5.1).
    pub const fn code(self) -> i32 {
        match self {
            Self::Malformed | Self::TooLong => -32600,
            Self::UnknownMethod => -32601,
            Self::BadParams => -32602,
            other => -32000 - other as i32,
        }
    }
}
