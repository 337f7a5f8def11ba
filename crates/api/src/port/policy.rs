//! What the owner of a port enforces on it.

use super::config::{Wrong, in_range};
use crate::Mac;
use crate::channel::Prefix;
use serde::{Deserialize, Serialize};

/// Most prefixes of one port.
const ADDRESSES_MAX: usize = 64;

/// Highest rate, Mbit/s.
const RATE_MAX: u32 = 1_000_000;

/// When a port has a link.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum LinkState {
    /// While its guest is there.
    #[default]
    Auto,
    /// Always: addresses learned behind it stay, and frames to them while the guest is away are dropped
    /// at the port.
    Enable,
    /// Never: nothing comes from it or goes to it. (The guest is not told.)
    Disable,
}

impl LinkState {
    /// Its name, as written in requests and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Enable => "enable",
            Self::Disable => "disable",
        }
    }
}

/// What is enforced on a port, as on a VF of an SR-IOV card. By default nothing is.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields, default)]
pub struct PortPolicy {
    /// Address of the card behind the port. Default: as `hayate vm qemu` prints it, derived from the
    /// names of VM and port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// Frames from the port must have the card's address as their source.
    #[serde(skip_serializing_if = "is_false")]
    pub spoofchk: bool,
    /// Prefixes of the addresses that packets from the port may have as their source, 64 at most; ARP
    /// and IPv6 neighbour discovery may claim no others, and other protocols are refused. Default: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Prefix>,
    /// Any addresses are learned behind the port, and it gets frames to unknown addresses. With
    /// `false`, only its card's address is learned, and it gets frames to that and to groups.
    #[serde(skip_serializing_if = "is_true")]
    pub trust: bool,
    /// Priority, 0 to 7, in the tags that frames of an access port get. Default: that of the guest's
    /// priority tag, or 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 7)]
    #[schemars(range(max = 7))]
    pub qos: Option<u8>,
    /// Mbit/s that come from the port at most, 1 to 1000000; what is over it, after a burst of 20 ms, is
    /// dropped. Default: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_tx_rate: Option<u32>,
    /// Link of the port: `auto` (while its guest is there), `enable` or `disable`.
    #[serde(skip_serializing_if = "is_auto")]
    pub link: LinkState,
}

impl Default for PortPolicy {
    fn default() -> Self {
        Self {
            mac: None,
            spoofchk: false,
            addresses: Vec::new(),
            trust: true,
            qos: None,
            max_tx_rate: None,
            link: LinkState::Auto,
        }
    }
}

impl PortPolicy {
    /// Whether nothing is enforced, or said.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks what a type cannot say, on a port whose card has this address and that may be an
    /// access port.
    pub(super) fn check(&self, card: Option<Mac>, access: bool) -> Result<(), Wrong> {
        if self.mac.is_some_and(|mac| mac.0[0] & 1 == 1 || mac.0 == [0; 6]) {
            return Err(Wrong::new("mac", "the address of one card is allowed, not of a group"));
        }
        for (needs, what) in [(self.spoofchk, "spoofchk"), (!self.trust, "a port without trust")] {
            if needs && card.is_none() {
                let why = format!("{what} needs it, as the port belongs to no VM");
                return Err(Wrong::new("mac", why));
            }
        }
        if self.addresses.len() > ADDRESSES_MAX {
            return Err(Wrong::new(
                "addresses",
                format!("at most {ADDRESSES_MAX} prefixes are allowed"),
            ));
        }
        in_range("qos", self.qos, 0, 7, "priority")?;
        if self.qos.is_some() && !access {
            return Err(Wrong::new("qos", "goes with vlan: it is the priority of that tag"));
        }
        in_range("max_tx_rate", self.max_tx_rate, 1, RATE_MAX, "Mbit/s")
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_true(value: &bool) -> bool {
    *value
}

fn is_auto(link: &LinkState) -> bool {
    *link == LinkState::Auto
}
