//! Networks: isolated layer-2 segments.

use crate::{Mac, Name, Origin};
use serde::{Deserialize, Serialize};

/// What a network is made with.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// Addresses the network learns at most, 1 to 1048576. Frames to addresses beyond that are
    /// flooded, as those to any unknown address.
    #[schema(minimum = 1, maximum = 1_048_576)]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub mac_limit: u32,
    /// Seconds after which an address that sent nothing is forgotten, 1 to 86400.
    #[schema(minimum = 1, maximum = 86_400)]
    #[schemars(range(min = 1, max = 86_400))]
    pub mac_age: u32,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self { mac_limit: 4096, mac_age: 300 }
    }
}

impl NetworkConfig {
    /// Checks what a type cannot say.
    ///
    /// # Errors
    /// The field that is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), crate::Wrong> {
        if !(1..=1_048_576).contains(&self.mac_limit) {
            return Err(crate::Wrong::new("mac_limit", "1 to 1048576 addresses are allowed"));
        }
        if !(1..=86_400).contains(&self.mac_age) {
            return Err(crate::Wrong::new("mac_age", "1 to 86400 seconds are allowed"));
        }
        Ok(())
    }
}

/// A network as the daemon shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Network {
    /// Its name.
    pub name: Name,
    /// Addresses it learns at most.
    pub mac_limit: u32,
    /// Seconds after which a silent address is forgotten.
    pub mac_age: u32,
    /// Addresses it knows now.
    pub macs: usize,
    /// Names of its ports, in order.
    pub ports: Vec<Name>,
    /// Where it was declared.
    pub origin: Origin,
}

/// One line of a network's MAC table (forwarding data base).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FdbEntry {
    /// The address.
    pub mac: Mac,
    /// VLAN it was seen in; absent when untagged.
    pub vlan: Option<u16>,
    /// Port behind which it is.
    pub port: Name,
    /// Seconds since it last sent a frame. Where thousands of pairs of addresses talk, one that sends may show up to 8.
    pub age: u64,
    /// Entered by hand: never forgotten, never moved.
    pub fixed: bool,
}
