//! VMs: names that ports belong to.

use crate::{MemorySize, Name, Origin};
use serde::{Deserialize, Serialize};

/// What is known of a VM. The daemon needs none of it: it is for the arguments it prints for
/// QEMU and libvirt.
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct VmConfig {
    /// Size of the VM's memory. It must be shared memory, and QEMU must be given the same size
    /// twice; `hayate vm qemu` prints both.
    #[serde(default)]
    pub memory: MemorySize,
    /// Number of virtual CPUs, 1 to 1024.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1024)]
    #[schemars(range(min = 1, max = 1024))]
    pub vcpus: u16,
}

fn one() -> u16 {
    1
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
        Ok(())
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
    /// Names of its ports, in order.
    pub ports: Vec<Name>,
    /// Where it was declared.
    pub origin: Origin,
}
