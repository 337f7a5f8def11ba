//! What a guest may know of its virtual functions, and what it sets on them.

use serde::{Deserialize, Serialize};

use super::HopCount;
use crate::{Function, FunctionSettings, GuestSettings, Mac, Name};

/// Asks for the functions of the VM, by the name of their PF, each PF before its VFs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListFunctions {
    /// Only those of the PF with this address: that of the interface in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pf: Option<Mac>,
    /// Only those behind this one: to go on where an answer with [`Functions::more`] ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Function>,
}

/// Answer to [`ListFunctions`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Functions {
    /// As many as fit a line.
    pub functions: Vec<ChannelFunction>,
    /// There are more: ask again, after the last one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// A function of the VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelFunction {
    /// Its PF, and which VF of it this is.
    #[serde(flatten)]
    pub function: Function,
    /// The network it is in.
    pub network: Name,
    /// Its address, as QEMU was given it.
    pub mac: Mac,
    /// The guest enabled it and its driver is ready.
    pub carrier: bool,
    /// What holds for it.
    pub settings: FunctionSettings,
    /// Frames that came from it.
    pub sent: HopCount,
    /// Frames that went to it.
    pub received: HopCount,
    /// Frames from it or to it that were not delivered, for whatever reason.
    pub dropped: u64,
}

/// Asks what holds for a VF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowFunction {
    /// Address of its PF: that of the interface in the guest.
    pub pf: Mac,
    /// Its number.
    pub vf: u16,
}

/// Sets what it names on a VF, all of it or nothing. The answer is what holds then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetFunction {
    /// Address of its PF: that of the interface in the guest.
    pub pf: Mac,
    /// Its number.
    pub vf: u16,
    /// What is to be set, see [`PfConfig::ask`](crate::PfConfig::ask); a name that is none of its is refused.
    #[serde(flatten)]
    pub change: GuestSettings,
}
