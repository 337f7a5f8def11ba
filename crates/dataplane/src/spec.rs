//! What a caller asks for: the specifications of networks, ports and workers.

use std::path::PathBuf;
use std::time::Duration;

use disk::qos::Rate;
use pace::{Moderation, Profile};
use serde::{Deserialize, Serialize};
use switch::{NetworkId, Policy, VlanMode};
use sys::numa::Topology;

use crate::disk::DiskImage;

/// How the data plane runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// One pinned worker per CPU named here; `None`: unpinned workers, one for every eight CPUs
    /// this process may use and at least one.
    pub cpus: Option<Vec<usize>>,
    /// When workers poll, nap and sleep.
    pub polling: Profile,
    /// Whether queues move from a worker that has too much to do to one that has room.
    pub balance: bool,
    /// Where the machine's NUMA nodes are described, as in `/sys/devices/system/node`.
    pub topology: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cpus: None,
            polling: Profile::default(),
            balance: true,
            topology: Topology::ROOT.into(),
        }
    }
}

/// An isolated layer-2 segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSpec {
    /// The name, for messages.
    pub name: String,
    /// Most MAC addresses learned on all its ports together.
    pub mac_limit: usize,
    /// A learned address that sent nothing for this long is forgotten.
    pub mac_age: Duration,
}

/// A port to create.
#[derive(Debug, Clone)]
pub struct PortSpec {
    /// The name, for messages and statistics.
    pub name: String,
    /// The network it belongs to.
    pub network: NetworkId,
    /// How VLAN tags are treated.
    pub vlan: VlanMode,
    /// Most MAC addresses learned on it; `None`: only the network's limit applies.
    pub mac_limit: Option<usize>,
    /// What is enforced on it.
    pub policy: Policy,
    /// Largest layer-3 packet in bytes that leaves through this port; `None`: no limit of its own.
    pub mtu: Option<u16>,
    /// The worker that serves it; `None`: each queue goes where there is room.
    pub worker: Option<u16>,
    /// What it is connected to.
    pub kind: PortKind,
}

/// The kinds of port.
#[derive(Debug, Clone)]
pub enum PortKind {
    /// A virtio-net device of a VM, over vhost-user.
    Vhost(VhostSpec),
    /// A TAP interface of the host or of a network namespace.
    Tap(TapSpec),
}

/// A vhost-user port.
#[derive(Debug, Clone)]
pub struct VhostSpec {
    /// The Unix socket.
    pub socket: PathBuf,
    /// Who listens on it.
    pub mode: SocketMode,
    /// Most queue pairs offered, 1 to 32.
    pub queues: u16,
    /// virtio feature bits not to offer.
    pub features_off: u64,
    /// When the guest is interrupted for frames it received.
    pub moderation: Moderation,
    /// File that keeps the positions of packed rings for the next process; made if it is not there,
    /// replaced if it is of no use. `None`: a guest with packed rings is lost to the next process.
    pub rings: Option<PathBuf>,
}

/// Who listens on a vhost-user socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketMode {
    /// hayate listens, QEMU connects (with `reconnect-ms`, it survives restarts of hayate).
    Server,
    /// QEMU listens (`server=on`), hayate connects and tries again until it succeeds.
    Client,
}

/// A TAP port.
#[derive(Debug, Clone)]
pub struct TapSpec {
    /// Interface name, at most 15 bytes; it must not exist yet.
    pub ifname: String,
    /// Network namespace: a name under `/run/netns` or a path; `None`: the daemon's own.
    pub netns: Option<String>,
    /// Queues of the interface, 1 to 32.
    pub queues: u16,
}

/// A disk to make.
#[derive(Debug, Clone)]
pub struct DiskSpec {
    /// The name, for messages and statistics; its first 20 bytes are what the guest is told
    /// (`/dev/disk/by-id/virtio-NAME`).
    pub name: String,
    /// The Unix socket.
    pub socket: PathBuf,
    /// Who listens on it.
    pub mode: SocketMode,
    /// Most virtqueues, 1 to 64.
    pub queues: u16,
    /// Where its bytes are.
    pub image: DiskImage,
    /// Size in bytes; what is less than a sector of 512 is not used.
    pub size: u64,
    /// The guest cannot write.
    pub read_only: bool,
    /// How much it may do.
    pub limits: DiskLimits,
    /// virtio feature bits not to offer.
    pub features_off: u64,
    /// File that says, by being there, that the guest asked for writethrough: front ends do not say
    /// it again to the next process. `None`: it is forgotten.
    pub writethrough: Option<PathBuf>,
    /// The worker that serves it; `None`: the one with the most room.
    pub worker: Option<u16>,
}

/// How much a disk may do; `None`: as much as it can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskLimits {
    /// Operations of any kind.
    pub operations: Option<Rate>,
    /// Bytes read and written.
    pub bytes: Option<Rate>,
}
