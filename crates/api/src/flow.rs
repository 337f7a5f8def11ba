//! `hayate flow why`: what becomes of a packet, and why.

use crate::{Error, ErrorCode, Mac, Name};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Shortest and longest IP packet that can be asked about, bytes.
pub const PACKET_SIZE: std::ops::RangeInclusive<u32> = 20..=65_535;

/// A packet that comes from a port. What is not said is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// The port it comes from.
    pub from: Name,
    /// Its source address.
    #[schema(value_type = String, example = "10.0.1.2")]
    pub src: IpAddr,
    /// Its destination address, of the same version.
    #[schema(value_type = String, example = "10.0.9.9")]
    pub dst: IpAddr,
    /// Protocol number: 6 is TCP, 17 UDP. TCP, unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proto: Option<u8>,
    /// Source port, for protocols that have ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<u16>,
    /// Destination port, for protocols that have ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dport: Option<u16>,
    /// TTL or hop limit; 64, unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Length of the IP packet, bytes; headers only, unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u32>,
    /// Tag of its frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Source address of its frame: unless said, the one that is behind the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smac: Option<Mac>,
    /// Destination address of its frame: unless said, that of the only router in the port's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dmac: Option<Mac>,
}

impl Flow {
    /// Checks what a type cannot say.
    ///
    /// # Errors
    /// What is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::new(ErrorCode::Invalid, text));
        if self.src.is_ipv4() != self.dst.is_ipv4() {
            return wrong(format!("src {} and dst {} are of two versions", self.src, self.dst));
        }
        match (self.size, self.vlan) {
            (Some(size), _) if !PACKET_SIZE.contains(&size) => {
                let (low, high) = (PACKET_SIZE.start(), PACKET_SIZE.end());
                wrong(format!("size: {low} to {high} bytes are allowed, not {size}"))
            }
            (_, Some(vlan)) if !(1..=crate::VLAN_MAX).contains(&vlan) => {
                wrong(format!("vlan: 1 to {} is allowed, not {vlan}", crate::VLAN_MAX))
            }
            _ => Ok(()),
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Why {
    /// The packet, with what was chosen.
    pub flow: Flow,
    /// What happens to it, in order.
    pub steps: Vec<Step>,
}

/// One thing that happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "step", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Step {
    /// It came in.
    Arrived {
        /// By this port.
        port: Name,
        /// Into this network.
        network: Name,
        /// With this tag.
        vlan: Option<u16>,
    },
    /// It leaves by one port.
    Forward {
        /// The port.
        port: Name,
    },
    /// Nobody has been seen with its destination address: it leaves by all ports of the network.
    Flood {
        /// The ports.
        ports: Vec<Name>,
    },
    /// It ends here.
    Dropped {
        /// Name of the reason, as it is counted.
        reason: String,
        /// What that means.
        meaning: String,
    },
    /// It goes past a router, as if the router had sent it on.
    Bypassed {
        /// The router's VM.
        router: Name,
        /// The interface it would have come to.
        ingress: String,
        /// The prefix that the router delegated, or the address and the machine it comes from, if it was
        /// that.
        prefix: Option<String>,
        /// Or the connection that it did: its addresses and ports behind the router.
        connection: Option<String>,
        /// Number of the next hop.
        nexthop: u32,
        /// The interface it would have been sent from.
        egress: String,
        /// Source address of the frame then.
        smac: Mac,
        /// Destination address of the frame then.
        dmac: Mac,
        /// The port where that is.
        port: Name,
    },
    /// It goes to a router.
    ToRouter {
        /// The router's VM.
        router: Name,
        /// Why it does not go past it.
        reason: String,
    },
}
