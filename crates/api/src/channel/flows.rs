//! Flow rules of virtual functions: how a guest sets them and sees what they do.

use serde::{Deserialize, Serialize};

use crate::Mac;
use crate::rule::{FlowDefault, FlowPort, FlowRule, FlowVerdict};

/// Changes the flow rules of a PF and its VFs, all of it or nothing. What is not named stays.
///
/// In this order: rules are deleted, functions cleared, rules added, defaults set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetFlows {
    /// The PF, by its address: that of its interface in the guest.
    pub pf: Mac,
    /// Rules that are to go, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub del: Vec<u64>,
    /// Functions all of whose rules are to go, and their defaults with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clear: Vec<FlowPort>,
    /// New rules. Their numbers are not in use when the rest is done: to change a rule, delete it in
    /// the same request. One that is the same as before goes on counting.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<FlowRule>,
    /// What becomes of what no rule matches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub defaults: Vec<FlowDefault>,
    /// This is a part of a change that is too long for a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<FlowPart>,
}

/// Which part of a change. Parts are kept until the last one comes, and then done as one; a change that
/// is begun drops one that was begun before. So does whatever is refused of it, and the end of the
/// session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowPart {
    /// A number of the change, the same in all its parts: any, so that two who speak by one agent do
    /// not take their parts for those of the other.
    pub batch: u64,
    /// Which part it is, from 0.
    pub number: u32,
    /// There are no more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
}

/// Asks for the flow rules of a PF and its VFs, and what they did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListFlows {
    /// The PF, by its address.
    pub pf: Mac,
    /// Only what is behind this: to go on where an answer ended ([`Flows::next`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FlowCursor>,
}

/// A place in the list: functions come first, then rules.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum FlowCursor {
    /// Behind this function.
    Function(FlowPort),
    /// Behind the rule of this number.
    Rule(u64),
}

/// Answer to [`ListFlows`]: as much as fits a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Flows {
    /// What is allowed.
    pub limits: FlowLimits,
    /// Functions that have rules or a default, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FlowFunction>,
    /// Rules, by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<CountedRule>,
    /// There is more: ask again, after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<FlowCursor>,
}

/// How much a PF may have, all its functions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FlowLimits {
    /// Rules.
    pub rules: u32,
    /// Rules added or deleted in a second, over time.
    pub rate: u32,
    /// Rules with a meter.
    pub meters: u32,
    /// Connections that are remembered.
    pub connections: u32,
}

/// What became of frames of a function that no rule matched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FlowFunction {
    /// Which.
    pub on: FlowPort,
    /// Of those that came from it.
    pub from: FlowRest,
    /// Of those that were to be delivered to it.
    pub to: FlowRest,
}

/// What becomes of frames that no rule matches, and how many there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FlowRest {
    /// What becomes of them.
    pub action: FlowVerdict,
    /// How many there were.
    #[serde(flatten)]
    pub count: FlowCount,
}

/// A rule and what it did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CountedRule {
    /// The rule.
    pub rule: FlowRule,
    /// The frames it decided on.
    #[serde(flatten)]
    pub count: FlowCount,
}

/// Frames that were counted, since the rule is there or the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FlowCount {
    /// Frames.
    pub packets: u64,
    /// Their bytes, with the Ethernet header.
    pub bytes: u64,
    /// Milliseconds since the last of them; absent: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
}

impl SetFlows {
    /// No change of a PF yet.
    pub fn new(pf: Mac) -> Self {
        Self {
            pf,
            del: Vec::new(),
            clear: Vec::new(),
            add: Vec::new(),
            defaults: Vec::new(),
            part: None,
        }
    }
}
