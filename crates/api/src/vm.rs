//! VMs: names that ports belong to.

use crate::port::config::{check_socket, in_range};
use crate::{MemorySize, Name, Origin};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is known of a VM. Memory and CPUs are for the arguments that are printed for QEMU and
/// libvirt; the daemon itself needs neither.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields, default)]
pub struct VmConfig {
    /// Size of the VM's memory. It must be shared memory, and QEMU must be given the same size
    /// twice; `hayate vm qemu` prints both.
    pub memory: MemorySize,
    /// Number of virtual CPUs, 1 to 1024.
    #[schema(minimum = 1, maximum = 1024)]
    #[schemars(range(min = 1, max = 1024))]
    pub vcpus: u16,
    /// Path of the socket of its guest channel, on which an agent in the VM says what its router
    /// delegates. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub channel: Option<PathBuf>,
    /// Next hops its router may delegate at most, 1 to 16384.
    #[serde(skip_serializing_if = "is_nexthops_default")]
    #[schema(minimum = 1, maximum = 16_384)]
    #[schemars(range(min = 1, max = 16_384))]
    pub nexthops_max: u32,
    /// Prefixes its router may delegate at most, 1 to 1048576.
    #[serde(skip_serializing_if = "is_prefixes_default")]
    #[schema(minimum = 1, maximum = 1_048_576)]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub prefixes_max: u32,
    /// Connections its router may delegate at most, each direction for itself, 1 to 1048576.
    #[serde(skip_serializing_if = "is_connections_default")]
    #[schema(minimum = 1, maximum = 1_048_576)]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub connections_max: u32,
}

const NEXTHOPS_DEFAULT: u32 = 4096;
const PREFIXES_DEFAULT: u32 = 131_072;
const CONNECTIONS_DEFAULT: u32 = 65_536;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_nexthops_default(value: &u32) -> bool {
    *value == NEXTHOPS_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_prefixes_default(value: &u32) -> bool {
    *value == PREFIXES_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_connections_default(value: &u32) -> bool {
    *value == CONNECTIONS_DEFAULT
}

impl Default for VmConfig {
    fn default() -> Self {
        Self {
            memory: MemorySize::default(),
            vcpus: 1,
            channel: None,
            nexthops_max: NEXTHOPS_DEFAULT,
            prefixes_max: PREFIXES_DEFAULT,
            connections_max: CONNECTIONS_DEFAULT,
        }
    }
}

impl VmConfig {
    /// Checks what a type cannot say.
    ///
    /// # Errors
    /// The field that is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), crate::Wrong> {
        if !(1..=1024).contains(&self.vcpus) {
            return Err(crate::Wrong::new("vcpus", "1 to 1024 virtual CPUs are allowed"));
        }
        self.channel.as_deref().map_or(Ok(()), |socket| check_socket("channel", socket))?;
        in_range("nexthops_max", Some(self.nexthops_max), 1, 16_384, "next hops")?;
        in_range("prefixes_max", Some(self.prefixes_max), 1, 1 << 20, "prefixes")?;
        in_range("connections_max", Some(self.connections_max), 1, 1 << 20, "connections")
    }
}

/// A VM as the daemon shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Vm {
    /// Its name.
    pub name: Name,
    /// Size of its memory.
    pub memory: MemorySize,
    /// Number of virtual CPUs.
    pub vcpus: u16,
    /// Path of the socket of its guest channel, if it has one.
    #[schema(value_type = Option<String>)]
    pub channel: Option<PathBuf>,
    /// Names of its ports, in order.
    pub ports: Vec<Name>,
    /// Where it was declared.
    pub origin: Origin,
}
