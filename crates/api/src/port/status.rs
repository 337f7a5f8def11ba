//! What a port is doing.

use super::{Moderation, PortConfig, PortKind, PortPolicy, SocketMode};
use crate::{Function, Mac, Name, Timestamp, VlanSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PortState {
    /// Open, nobody is connected.
    Waiting,
    /// QEMU is connected; the guest's driver has not started a queue.
    Connected,
    /// Frames can pass.
    Running,
    /// The guest broke a rule of virtio; `failure` names it. A new session starts afresh.
    Faulted,
    /// The host could not open it; `failure` says why. It is tried again every few seconds.
    Failed,
}

impl PortState {
    /// Its name, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Connected => "connected",
            Self::Running => "running",
            Self::Faulted => "faulted",
            Self::Failed => "failed",
        }
    }
}

/// Where something was declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// In the configuration file: it can only be changed there.
    Config,
    /// At run time: it is kept in the state directory.
    Runtime,
}

/// Counters of one direction of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Traffic {
    /// Frames; a frame to be segmented counts once.
    pub frames: u64,
    /// Bytes of these frames, without FCS and virtio header.
    pub bytes: u64,
    /// Of the frames, those that passed with their segmentation left to the receiver.
    pub gso_frames: u64,
    /// Frames whose checksum had to be completed here because the receiver cannot do it.
    pub csum_completed: u64,
    /// Frames that had to be segmented here because the receiver cannot do it.
    pub segmented: u64,
    /// Frames made by that segmentation; each is in `frames` too.
    pub segments: u64,
}

/// One queue of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Queue {
    /// Index of the queue pair it belongs to, from 0.
    pub index: u16,
    /// `tx` or `rx`, named from the guest's side.
    pub dir: String,
    /// Descriptors in its ring; 0 on a tap port.
    pub size: u16,
    /// Packed ring; otherwise split.
    pub packed: bool,
    /// It was started.
    pub running: bool,
    /// The front end lets it carry frames.
    pub enabled: bool,
    /// The worker that takes frames from it; absent for an rx queue, to which every worker delivers.
    pub worker: Option<u16>,
    /// The operator chose that worker.
    pub pinned: bool,
    /// NUMA node of its memory; absent when the machine has one node, or it is not known.
    pub node: Option<u16>,
    /// Frames that went through it.
    pub frames: u64,
    /// Notifications from the guest.
    pub kicks: u64,
    /// Notifications to the guest.
    pub interrupts: u64,
    /// Times a notification to the guest was put off so that more frames gather (rx).
    pub deferred: u64,
}

/// A port as the daemon shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Port {
    /// Its name.
    pub name: Name,
    /// What it is.
    pub kind: PortKind,
    /// The network it belongs to.
    pub network: Name,
    /// The VM it belongs to.
    pub vm: Option<Name>,
    /// Which function of the VM it is; absent for all other ports. It comes and goes with its PF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// Where it was declared.
    pub origin: Origin,
    /// What it is doing.
    pub state: PortState,
    /// Since when.
    pub since: Timestamp,
    /// Why it is `faulted` or `failed`.
    pub failure: Option<String>,
    /// What went wrong last, even if all is well again.
    pub last_fault: Option<String>,
    /// Sessions (connections of a front end) since the daemon started.
    pub sessions: u64,
    /// Path of its socket (vhost).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub socket: Option<PathBuf>,
    /// Who listens on the socket (vhost).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SocketMode>,
    /// Its interface (tap).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
    /// Network namespace of the interface (tap).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// VLAN of an access port.
    pub vlan: Option<u16>,
    /// VLANs of a trunk port.
    pub trunk: Option<VlanSet>,
    /// VLAN of untagged frames of a trunk port.
    pub native: Option<u16>,
    /// Largest IP packet, as configured or as negotiated.
    pub mtu: Option<u16>,
    /// Worker it was told to use.
    pub worker: Option<u16>,
    /// When its guest is interrupted for frames it received (vhost).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moderation: Option<Moderation>,
    /// Queue pairs it has (tap) or offers at most (vhost).
    pub queue_pairs: u16,
    /// What it was made with: sent again, it makes the same port.
    pub config: PortConfig,
    /// What is enforced: as `config` says, and on a function as its guest has set besides.
    pub policy: PortPolicy,
    /// Address of the interface (tap).
    pub mac: Option<Mac>,
    /// Smallest page of the memory behind the guest's memory, in bytes (vhost, running).
    pub page_size: Option<usize>,
    /// Negotiated virtio features, by name.
    pub features: Vec<String>,
    /// The same as bits: `0x` and 16 hexadecimal digits.
    pub features_hex: String,
    /// Frames that came from the port into the switch.
    pub from_port: Traffic,
    /// Frames that went from the switch out of the port.
    pub to_port: Traffic,
    /// Additional copies made of frames that came from the port and went to several ports.
    pub flood_copies: u64,
    /// Frames not delivered, by reason; reasons that never happened are left out.
    pub drops: BTreeMap<String, u64>,
    /// Its queues.
    pub queues: Vec<Queue>,
}

impl Port {
    /// Frames not delivered, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}

/// A port's counters alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PortStats {
    /// Its name.
    pub name: Name,
    /// The network it belongs to.
    pub network: Name,
    /// What it is doing.
    pub state: PortState,
    /// Frames that came from the port into the switch.
    pub from_port: Traffic,
    /// Frames that went from the switch out of the port.
    pub to_port: Traffic,
    /// Additional copies made of frames that came from the port and went to several ports.
    pub flood_copies: u64,
    /// Notifications to the guest of frames it received.
    pub interrupts: u64,
    /// Times such a notification was put off so that more frames gather.
    pub deferred: u64,
    /// Frames not delivered, by reason.
    pub drops: BTreeMap<String, u64>,
}
