//! Virtual functions: a PF of a VM and the VFs its guest may enable on it.

mod guest;

pub use guest::{FunctionSettings, GuestLimits, GuestRight, GuestSettings, NotSet};

use crate::channel::FlowLimits;
use crate::port::config::in_range;
use crate::{
    Mac, Moderation, Name, Offload, Origin, PortConfig, PortKind, PortPolicy, PortState, Timestamp,
    Traffic, VlanSet, Wrong,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most VFs of a PF: with the PF itself, so many functions has a device (PCIe 6.0, 6.13, ARI).
pub const MAX_VFS: u16 = 255;

/// A PF and its VFs: the virtual functions of one network card that a VM is given.
///
/// Each function is a vhost port of the VM, made and removed with the PF. The port of the PF has the
/// PF's name, that of VF 3 has `vf3` after it.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct PfConfig {
    /// The VM it belongs to.
    pub vm: Name,
    /// The network all its functions are in: it is the switch of the card.
    pub network: Name,
    /// VFs the guest may enable at most, 1 to 255.
    #[schema(minimum = 1, maximum = 255)]
    #[schemars(range(min = 1, max = 255))]
    pub vfs: u16,
    /// Queue pairs of each function, 1 to 32. Default: as many as the VM has CPUs, at most 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 32)]
    #[schemars(range(min = 1, max = 32))]
    pub queues: Option<u16>,
    /// Every function is in this VLAN, 1 to 4094, and its guest sees no tags. Not together with `trunk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4094)]
    #[schemars(range(min = 1, max = 4094))]
    pub vlan: Option<u16>,
    /// The VLANs whose tagged frames each function carries, like `10,20-30`. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<VlanSet>,
    /// With `trunk`: the VLAN of untagged frames, 1 to 4094. Without it they are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4094)]
    #[schemars(range(min = 1, max = 4094))]
    pub native: Option<u16>,
    /// Largest IP packet each function carries, 68 to 65535 bytes; told to the guest. Default:
    /// whatever the guest uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 68, maximum = 65535)]
    #[schemars(range(min = 68, max = 65535))]
    pub mtu: Option<u16>,
    /// When the guest is interrupted for frames that a function received: `off`, `adaptive`
    /// (default), or `FRAMES,MICROSECONDS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moderation: Option<Moderation>,
    /// Addresses learned behind each function at most, 1 to 1048576. Default: the network's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_048_576)]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub mac_limit: Option<u32>,
    /// Offloads and ring features not to offer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_offload: Vec<Offload>,
    /// Flow rules its guest may have on all its functions together, 0 to 16384.
    #[serde(default = "rules_default", skip_serializing_if = "is_rules_default")]
    #[schema(maximum = 16_384)]
    #[schemars(range(min = 0, max = 16_384))]
    pub rules_max: u32,
    /// Flow rules its guest may add or delete in a second, 1 to 1000000, over time; twice `rules_max` at
    /// once.
    #[serde(default = "rate_default", skip_serializing_if = "is_rate_default")]
    #[schema(minimum = 1, maximum = 1_000_000)]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub rule_rate: u32,
    /// Flow rules with a meter its guest may have, 0 to 16384.
    #[serde(default = "meters_default", skip_serializing_if = "is_meters_default")]
    #[schema(maximum = 16_384)]
    #[schemars(range(min = 0, max = 16_384))]
    pub meters_max: u32,
    /// Connections that are remembered for flow rules that ask for their state, 256 to 1048576: each
    /// function has an equal part. One takes 128 to 256 bytes.
    #[serde(default = "connections_default", skip_serializing_if = "is_connections_default")]
    #[schema(minimum = 256, maximum = 1_048_576)]
    #[schemars(range(min = 256, max = 1_048_576))]
    pub connections_max: u32,
    /// What is enforced on functions, by the names of their ports. By default nothing is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<Name, PortPolicy>,
    /// How far the guest may go beyond that when it sets up its VFs by itself.
    #[serde(default, skip_serializing_if = "GuestLimits::is_default")]
    pub guest: GuestLimits,
}

const RULES_DEFAULT: u32 = 1024;
const RATE_DEFAULT: u32 = 1000;
const METERS_DEFAULT: u32 = 256;
const CONNECTIONS_DEFAULT: u32 = 131_072;

fn rules_default() -> u32 {
    RULES_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_rules_default(value: &u32) -> bool {
    *value == RULES_DEFAULT
}

fn rate_default() -> u32 {
    RATE_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_rate_default(value: &u32) -> bool {
    *value == RATE_DEFAULT
}

fn meters_default() -> u32 {
    METERS_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_meters_default(value: &u32) -> bool {
    *value == METERS_DEFAULT
}

fn connections_default() -> u32 {
    CONNECTIONS_DEFAULT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_connections_default(value: &u32) -> bool {
    *value == CONNECTIONS_DEFAULT
}

impl PfConfig {
    /// A PF of `vm` with this many VFs and nothing else said.
    pub fn new(vm: Name, network: Name, vfs: u16) -> Self {
        Self {
            vm,
            network,
            vfs,
            queues: None,
            vlan: None,
            trunk: None,
            native: None,
            mtu: None,
            moderation: None,
            mac_limit: None,
            no_offload: Vec::new(),
            rules_max: RULES_DEFAULT,
            rule_rate: RATE_DEFAULT,
            meters_max: METERS_DEFAULT,
            connections_max: CONNECTIONS_DEFAULT,
            policies: BTreeMap::new(),
            guest: GuestLimits::default(),
        }
    }

    /// Checks what a type cannot say.
    ///
    /// # Errors
    /// The first field that is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), Wrong> {
        in_range("vfs", Some(self.vfs), 1, MAX_VFS, "VFs")?;
        in_range("rules_max", Some(self.rules_max), 0, 16_384, "rules")?;
        in_range("rule_rate", Some(self.rule_rate), 1, 1_000_000, "rules in a second")?;
        in_range("meters_max", Some(self.meters_max), 0, 16_384, "meters")?;
        in_range("connections_max", Some(self.connections_max), 256, 1 << 20, "connections")?;
        self.general().check()?;
        self.guest.check()?;
        self.policies.keys().try_for_each(|port| self.port(port).check())
    }

    /// How much of flow rules there may be.
    pub fn flow_limits(&self) -> FlowLimits {
        FlowLimits {
            rules: self.rules_max,
            rate: self.rule_rate,
            meters: self.meters_max,
            connections: self.connections_max,
        }
    }

    /// What the port of this function is made with.
    pub fn port(&self, port: &Name) -> PortConfig {
        PortConfig {
            policy: self.policies.get(port).cloned().unwrap_or_default(),
            ..self.general()
        }
    }

    fn general(&self) -> PortConfig {
        PortConfig {
            vm: Some(self.vm.clone()),
            queues: self.queues,
            vlan: self.vlan,
            trunk: self.trunk.clone(),
            native: self.native,
            mtu: self.mtu,
            moderation: self.moderation,
            mac_limit: self.mac_limit,
            no_offload: self.no_offload.clone(),
            ..PortConfig::new(self.network.clone(), PortKind::Vhost)
        }
    }

    /// All functions of the PF `pf` and the names of their ports: the PF, then the VFs.
    ///
    /// # Errors
    /// The name of the PF is so long that a VF's would be no [`Name`], or there is a policy for no function.
    pub fn functions(&self, pf: &Name) -> Result<Vec<(Name, Function)>, Wrong> {
        let function = |vf| Function { pf: pf.clone(), vf };
        let mut all = vec![(pf.clone(), function(None))];
        for vf in 0..self.vfs {
            let port = format!("{pf}vf{vf}").parse().map_err(|_| {
                let most = 63 - format!("vf{}", self.vfs.saturating_sub(1)).len();
                let message = format!("{pf} is too long: {most} bytes leave room for its VFs");
                Wrong::new("name", message)
            })?;
            all.push((port, function(Some(vf))));
        }
        let known = |port: &Name| all.iter().any(|(name, _)| name == port);
        if let Some(port) = self.policies.keys().find(|port| !known(port)) {
            return Err(Wrong::new("policies", format!("{port} is no function of {pf}")));
        }
        Ok(all)
    }
}

/// Which function a port is. In order, a PF comes before its VFs.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema,
)]
pub struct Function {
    /// The PF it belongs to, or is.
    pub pf: Name,
    /// Number of the VF, from 0, as in `ip link set PF vf NUMBER`; absent for the PF itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf: Option<u16>,
}

/// A PF as the daemon shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Pf {
    /// Its name.
    pub name: Name,
    /// The VM it belongs to.
    pub vm: Name,
    /// The network its functions are in.
    pub network: Name,
    /// VFs the guest may enable at most.
    pub vfs: u16,
    /// VFs that have carrier.
    pub running: usize,
    /// Flow rules that its guest has.
    pub rules: usize,
    /// Where it was declared.
    pub origin: Origin,
    /// What it was made with: sent again, it makes the same PF.
    pub config: PfConfig,
    /// The PF, then the VFs by number.
    pub functions: Vec<PfFunction>,
}

/// A function of a PF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PfFunction {
    /// Number of the VF, from 0; absent for the PF itself.
    pub vf: Option<u16>,
    /// Name of its port.
    pub port: Name,
    /// Its address, as it is given to QEMU.
    pub mac: Mac,
    /// What holds for it.
    pub settings: FunctionSettings,
    /// Which of that its guest has set.
    #[serde(default, skip_serializing_if = "GuestSettings::is_default")]
    pub guest: GuestSettings,
    /// Its guest enabled it and its driver is ready: frames can pass.
    pub carrier: bool,
    /// What its port is doing.
    pub state: PortState,
    /// Since when.
    pub since: Timestamp,
    /// Frames that came from the function into the switch.
    pub from_port: Traffic,
    /// Frames that went from the switch to the function.
    pub to_port: Traffic,
    /// Frames not delivered, for whatever reason.
    pub dropped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn config(vfs: u16) -> PfConfig {
        PfConfig::new(name("web"), name("lan"), vfs)
    }

    #[test]
    fn functions_are_numbered_from_0_and_named_after_the_pf() {
        let all = config(255).functions(&name("web-pf0")).unwrap();
        assert_eq!(all.len(), 256);
        assert_eq!((all[0].0.as_str(), all[0].1.vf), ("web-pf0", None));
        assert_eq!((all[1].0.as_str(), all[1].1.vf), ("web-pf0vf0", Some(0)));
        assert_eq!((all[255].0.as_str(), all[255].1.vf), ("web-pf0vf254", Some(254)));
        assert!(all.iter().all(|(_, function)| function.pf == name("web-pf0")));
        let names: std::collections::BTreeSet<_> = all.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 256);
        let macs: std::collections::BTreeSet<_> =
            all.iter().map(|(port, _)| Mac::of_port("web", port.as_str())).collect();
        assert_eq!(macs.len(), 256);
    }

    #[test]
    fn a_name_that_leaves_no_room_is_refused() {
        let long = name(&"x".repeat(58));
        assert_eq!(config(255).functions(&long).unwrap().len(), 256);
        let longer = name(&"x".repeat(59));
        assert_eq!(config(100).functions(&longer).unwrap().len(), 101);
        let wrong = config(101).functions(&longer).unwrap_err().to_string();
        assert!(wrong.contains("58 bytes leave room"), "{wrong}");
    }

    #[test]
    fn ranges_are_checked() {
        for good in [1, 255] {
            assert!(config(good).check().is_ok());
        }
        for bad in [0, 256, u16::MAX] {
            assert!(config(bad).check().unwrap_err().to_string().contains("1 to 255"));
        }
        assert!(PfConfig { queues: Some(33), ..config(1) }.check().is_err());
        assert!(PfConfig { mtu: Some(67), ..config(1) }.check().is_err());
        assert!(PfConfig { mac_limit: Some(0), ..config(1) }.check().is_err());
    }
}
