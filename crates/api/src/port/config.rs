//! What a port is made with.

use super::{Moderation, Offload, PortPolicy};
use crate::{Mac, Name, SOCKET_PATH_MAX, VLAN_MAX, VlanSet};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Queue pairs a vhost port offers when nothing was said: QEMU asks for as many as its
/// `queues=` says, so offering more costs nothing.
pub const DEFAULT_QUEUES: u16 = 8;

/// Most queue pairs of a port.
pub const MAX_QUEUES: u16 = 32;

/// Longest name of a network interface in bytes (`IFNAMSIZ` less its NUL).
const IFNAME_MAX: usize = 15;

/// Largest MTU the kernel gives a TAP interface, in bytes.
const TAP_MTU_MAX: u16 = 65_521;

/// A field with a value that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Wrong {
    /// The field.
    pub field: &'static str,
    /// What is allowed.
    pub message: String,
}

impl Wrong {
    pub(crate) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }
}

/// What a port is.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    utoipa::ToSchema,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum PortKind {
    /// A VM's network card: a vhost-user socket that QEMU connects to.
    Vhost,
    /// A network interface of the host, or of a network namespace (container).
    Tap,
}

/// Who listens on the socket of a vhost port.
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
pub enum SocketMode {
    /// The daemon listens, QEMU connects (and connects again after the daemon was restarted).
    #[default]
    Server,
    /// QEMU listens (`server=on`), the daemon connects, again and again until QEMU is there.
    Client,
}

impl SocketMode {
    /// Its name, as written in requests and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

impl PortKind {
    /// Its name, as written in requests and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Vhost => "vhost",
            Self::Tap => "tap",
        }
    }
}

/// What a port is made with. Which fields may be given depends on `kind`.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// The network it belongs to.
    pub network: Name,
    /// `vhost` for a VM, `tap` for the host or a network namespace.
    pub kind: PortKind,
    /// The VM it belongs to. A network namespace with tap ports is one too, if it has a guest channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<Name>,
    /// Absolute path of the vhost-user socket, at most 107 bytes (vhost). Default: `ports/NAME.sock`
    /// below the run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub socket: Option<PathBuf>,
    /// Who listens on the socket: `server` (the daemon, default) or `client` (QEMU does).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SocketMode>,
    /// Name of the network interface to create, at most 15 bytes (tap).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// Network namespace the interface is made in: a name as in `ip netns`, or an absolute path
    /// like `/proc/1234/ns/net` (tap). Default: that of the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Queue pairs, 1 to 32. For vhost the most that QEMU may ask for (default 8), for tap the
    /// number the interface gets (default 1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 32)]
    #[schemars(range(min = 1, max = 32))]
    pub queues: Option<u16>,
    /// Access port: untagged frames of the port belong to this VLAN, 1 to 4094. Not together
    /// with `trunk`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4094)]
    #[schemars(range(min = 1, max = 4094))]
    pub vlan: Option<u16>,
    /// Trunk port: the VLANs whose tagged frames may pass, like `10,20-30`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<VlanSet>,
    /// Trunk port: the VLAN of untagged frames, 1 to 4094. Without it they are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4094)]
    #[schemars(range(min = 1, max = 4094))]
    pub native: Option<u16>,
    /// Largest IP packet the port carries, 68 to 65535 bytes; told to the guest, set on the
    /// interface (tap: at most 65521). Default: 1500 on an interface, whatever the guest uses on
    /// vhost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 68, maximum = 65535)]
    #[schemars(range(min = 68, max = 65535))]
    pub mtu: Option<u16>,
    /// Worker that serves all its queues. Default: the daemon spreads queues over its workers, by
    /// load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u16>,
    /// When the guest is interrupted for frames it received (vhost): `off`, `adaptive` (default), or
    /// `FRAMES,MICROSECONDS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moderation: Option<Moderation>,
    /// Addresses learned behind the port at most, 1 to 1048576. Default: the network's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_048_576)]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub mac_limit: Option<u32>,
    /// Offloads and ring features not to offer (vhost).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_offload: Vec<Offload>,
    /// What is enforced on it.
    #[serde(default, skip_serializing_if = "PortPolicy::is_default")]
    pub policy: PortPolicy,
}

impl PortConfig {
    /// A port of `kind` in `network` with nothing else said.
    pub fn new(network: Name, kind: PortKind) -> Self {
        Self {
            network,
            kind,
            vm: None,
            socket: None,
            mode: None,
            ifname: None,
            netns: None,
            queues: None,
            vlan: None,
            trunk: None,
            native: None,
            mtu: None,
            worker: None,
            moderation: None,
            mac_limit: None,
            no_offload: Vec::new(),
            policy: PortPolicy::default(),
        }
    }

    /// Checks what a type cannot say: ranges, and which fields go together.
    ///
    /// # Errors
    /// The first field that is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), Wrong> {
        match self.kind {
            PortKind::Vhost => self.check_vhost()?,
            PortKind::Tap => self.check_tap()?,
        }
        in_range("queues", self.queues, 1, MAX_QUEUES, "queue pairs")?;
        let mtu_max = if self.kind == PortKind::Tap { TAP_MTU_MAX } else { u16::MAX };
        in_range("mtu", self.mtu, 68, mtu_max, "bytes")?;
        in_range("mac_limit", self.mac_limit, 1, 1 << 20, "addresses")?;
        self.check_vlan()?;
        // Any address will do here: whether there is one.
        let derived =
            self.vm.as_ref().filter(|_| self.kind == PortKind::Vhost).map(|_| Mac([2; 6]));
        self.policy.check(self.policy.mac.or(derived), self.vlan.is_some())
    }

    /// Address of the card behind it, if that is known: the one that was said, or that of a VM's card.
    pub fn card(&self, name: &Name) -> Option<Mac> {
        let of_vm = |vm: &Name| Mac::of_port(vm.as_str(), name.as_str());
        let vm = self.vm.as_ref().filter(|_| self.kind == PortKind::Vhost);
        self.policy.mac.or_else(|| vm.map(of_vm))
    }

    fn check_vhost(&self) -> Result<(), Wrong> {
        let only_tap = "is for ports of kind tap; a vhost port has a socket";
        absent("ifname", self.ifname.is_some(), only_tap)?;
        absent("netns", self.netns.is_some(), only_tap)?;
        self.socket.as_deref().map_or(Ok(()), |socket| check_socket("socket", socket))
    }

    fn check_tap(&self) -> Result<(), Wrong> {
        let only_vhost = "is for ports of kind vhost";
        absent("socket", self.socket.is_some(), only_vhost)?;
        absent("mode", self.mode.is_some(), only_vhost)?;
        absent("moderation", self.moderation.is_some(), only_vhost)?;
        absent("no_offload", !self.no_offload.is_empty(), only_vhost)?;
        let Some(ifname) = &self.ifname else {
            return Err(Wrong::new("ifname", "a port of kind tap needs the name of its interface"));
        };
        let allowed = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'%');
        let good = (1..=IFNAME_MAX).contains(&ifname.len())
            && ifname.bytes().all(allowed)
            && !matches!(ifname.as_str(), "." | ".." | "all" | "default");
        if !good {
            let shown: String = ifname.chars().take(32).collect();
            return Err(Wrong::new(
                "ifname",
                format!(
                    "{shown:?} is not a name of an interface: 1 to 15 letters, digits or signs without '/', ':', '%' and blanks"
                ),
            ));
        }
        match &self.netns {
            Some(netns) if !good_netns(netns) => Err(Wrong::new(
                "netns",
                "the name of a namespace as in `ip netns`, or an absolute path, is allowed",
            )),
            _ => Ok(()),
        }
    }

    fn check_vlan(&self) -> Result<(), Wrong> {
        in_range("vlan", self.vlan, 1, VLAN_MAX, "VLAN identifier")?;
        in_range("native", self.native, 1, VLAN_MAX, "VLAN identifier")?;
        if self.vlan.is_some() && self.trunk.is_some() {
            return Err(Wrong::new("vlan", "a port is either access (vlan) or trunk, not both"));
        }
        if self.native.is_some() && self.trunk.is_none() {
            return Err(Wrong::new("native", "goes with trunk; an access port has vlan instead"));
        }
        Ok(())
    }

    /// Queue pairs, with the default of the kind.
    pub fn queue_pairs(&self) -> u16 {
        self.queues.unwrap_or(match self.kind {
            PortKind::Vhost => DEFAULT_QUEUES,
            PortKind::Tap => 1,
        })
    }
}

/// Whether a Unix socket can be at this path.
pub(crate) fn check_socket(field: &'static str, socket: &Path) -> Result<(), Wrong> {
    let Some(text) = socket.to_str() else {
        return Err(Wrong::new(field, "the path must be UTF-8"));
    };
    if !socket.is_absolute() || text.ends_with('/') || text.contains('\0') {
        return Err(Wrong::new(field, format!("{text:?} is not an absolute path of a file")));
    }
    if text.len() > SOCKET_PATH_MAX {
        let found = text.len();
        return Err(Wrong::new(
            field,
            format!("the path has {found} bytes, a Unix socket allows {SOCKET_PATH_MAX}"),
        ));
    }
    Ok(())
}

fn good_netns(netns: &str) -> bool {
    if netns.starts_with('/') {
        return netns.len() < 4096 && !netns.contains('\0');
    }
    let allowed = |b: u8| b.is_ascii_graphic() && b != b'/';
    (1..=255).contains(&netns.len()) && netns.bytes().all(allowed) && netns != "." && netns != ".."
}

fn absent(field: &'static str, given: bool, why: &str) -> Result<(), Wrong> {
    if given { Err(Wrong::new(field, why)) } else { Ok(()) }
}

pub(crate) fn in_range<N: PartialOrd + std::fmt::Display + Copy>(
    field: &'static str,
    value: Option<N>,
    low: N,
    high: N,
    what: &str,
) -> Result<(), Wrong> {
    match value {
        Some(value) if value < low || value > high => Err(Wrong::new(
            field,
            format!("{value} is out of range, {low} to {high} ({what}) is allowed"),
        )),
        _ => Ok(()),
    }
}
