//! What a caller can see: states and counters of ports, queues and workers.

use std::fmt;
use std::time::{Duration, SystemTime};

use disk::counters::Totals;
use remote::control::Transport;
use serde::{Deserialize, Serialize};
use switch::{DropReason, PortId};

/// State of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortState {
    /// No front end is connected.
    Waiting,
    /// A front end is connected, no queue of it runs (the guest's driver is not up).
    Connected,
    /// At least one queue runs. A TAP port always runs.
    Running,
    /// The last session was ended for this reason; the port waits for the next one.
    Faulted {
        /// The fault's name and what it means.
        reason: String,
    },
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            Self::Connected => "connected",
            Self::Running => "running",
            Self::Faulted { .. } => "faulted",
        })
    }
}

/// Traffic one way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Bytes of frames, without FCS and without the virtio-net header.
    pub bytes: u64,
    /// Of the frames, those above one MTU to be segmented by a later hop (TSO, USO).
    pub gso_frames: u64,
    /// Frames whose checksum hayate completed because the receiver could not.
    pub csum_completed: u64,
    /// GSO frames hayate segmented because the receiver could not take them.
    pub segmented: u64,
    /// Frames made by that segmentation (each counted in `frames` too).
    pub segments: u64,
}

/// Everything to be seen of a port.
#[derive(Debug, Clone)]
pub struct PortStatus {
    /// Its state.
    pub state: PortState,
    /// Since when it is in this state.
    pub since: SystemTime,
    /// Sessions so far (vhost).
    pub sessions: u64,
    /// Why the last faulted session ended.
    pub last_fault: Option<String>,
    /// virtio features negotiated in the running session (vhost).
    pub features: u64,
    /// Effective MTU: of the specification, or told by the front end.
    pub mtu: Option<u16>,
    /// MAC address of the interface (TAP).
    pub mac: Option<[u8; 6]>,
    /// Smallest page size that backs the guest's memory, in bytes (vhost).
    pub page_size: Option<usize>,
    /// Frames that entered the switch here.
    pub from_port: Traffic,
    /// Frames that left the switch here.
    pub to_port: Traffic,
    /// Additional copies made of frames that entered here and were flooded to several ports.
    ///
    /// Over all ports of a network: `from_port.frames + flood_copies + to_port.segments -
    /// to_port.segmented = to_port.frames + drops`.
    pub flood_copies: u64,
    /// Interrupts sent to the guest for frames it received, since the port was made.
    pub interrupts: u64,
    /// Times such an interrupt was put off so that more frames gather.
    pub deferred: u64,
    /// Frames not delivered, by reason; only those that happened.
    pub drops: Vec<(DropReason, u64)>,
    /// Its queues.
    pub queues: Vec<QueueStatus>,
}

/// Direction of a queue, named from the guest's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The guest sends on it (transmitq).
    Tx,
    /// The guest receives on it (receiveq).
    Rx,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tx => "tx",
            Self::Rx => "rx",
        })
    }
}

/// One queue of a port.
#[derive(Debug, Clone)]
pub struct QueueStatus {
    /// Index of the pair it belongs to.
    pub index: u16,
    /// Its direction.
    pub dir: Direction,
    /// Whether it runs.
    pub running: bool,
    /// Whether the front end enabled it.
    pub enabled: bool,
    /// Descriptors (vhost), 0 for TAP.
    pub size: u16,
    /// Packed layout (vhost).
    pub packed: bool,
    /// The worker that takes frames from it; `None` for an RX queue, to which every worker delivers.
    pub worker: Option<u16>,
    /// The operator chose that worker.
    pub pinned: bool,
    /// NUMA node of its memory, if the machine has several and it is known.
    pub node: Option<u16>,
    /// Frames through it.
    pub frames: u64,
    /// Wake-ups by the guest's kick.
    pub kicks: u64,
    /// Interrupts sent to the guest.
    pub interrupts: u64,
    /// Times an interrupt was put off so that more frames gather.
    pub deferred: u64,
}

/// Everything to be seen of a disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its state.
    pub state: PortState,
    /// Since when it is in this state.
    pub since: SystemTime,
    /// Sessions so far.
    pub sessions: u64,
    /// Why the last faulted session ended.
    pub last_fault: Option<String>,
    /// What the image reported last.
    pub last_error: Option<String>,
    /// virtio features negotiated in the running session.
    pub features: u64,
    /// Size in bytes.
    pub size: u64,
    /// What the guest has to align to, in bytes.
    pub block_size: u32,
    /// Writes are cached until the guest flushes; otherwise each is stable when it ends.
    pub writeback: bool,
    /// The worker that serves it.
    pub worker: u16,
    /// Requests being carried out.
    pub in_flight: u64,
    /// Operations, bytes, errors and latencies by kind, and requests refused by reason.
    pub operations: Totals,
    /// Wake-ups by the guest's kick.
    pub kicks: u64,
    /// Interrupts sent to the guest.
    pub interrupts: u64,
    /// Requests copied because the file wanted another alignment than the guest's memory had.
    pub bounced: u64,
    /// Its running queues.
    pub queues: Vec<DiskQueue>,
    /// The store that has its image, if one has.
    pub store: Option<StoreStatus>,
}

/// The connection of a disk to its store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Where it was reached last.
    pub address: Option<String>,
    /// Why it is not reached now; none: it is.
    pub away: Option<String>,
    /// Since when that is so.
    pub since: SystemTime,
    /// Connections so far.
    pub connections: u64,
    /// How bytes come and go: `Shm`, `Libfabric` or `Tcp`.
    pub transport: Transport,
    /// By `Libfabric`: which provider of it moves them.
    pub provider: Option<String>,
}

/// A running queue of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskQueue {
    /// Its index.
    pub index: u16,
    /// Descriptors.
    pub size: u16,
    /// Packed layout.
    pub packed: bool,
    /// Whether the front end enabled it.
    pub enabled: bool,
}

/// What a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// It looks at its queues again and again.
    Polling,
    /// It lets frames gather for some microseconds.
    Napping,
    /// Notifications are armed and it sleeps.
    Asleep,
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Polling => "polling",
            Self::Napping => "napping",
            Self::Asleep => "asleep",
        })
    }
}

/// A TX queue that a worker serves.
#[derive(Debug, Clone)]
pub struct WorkerQueue {
    /// Name of its port.
    pub port: String,
    /// Index of its queue pair.
    pub index: u16,
    /// The operator chose this worker.
    pub pinned: bool,
    /// NUMA node of its memory, if the machine has several and it is known.
    pub node: Option<u16>,
    /// Its part of the worker's load, estimated from its frames and bytes: 0 to 1.
    pub load: f64,
    /// Frames a second it took, lately.
    pub frames_per_second: u64,
}

/// One worker.
#[derive(Debug, Clone)]
pub struct WorkerStatus {
    /// Its number.
    pub id: u16,
    /// The CPU it is pinned to.
    pub cpu: Option<usize>,
    /// NUMA node of that CPU, if the machine has several.
    pub node: Option<u16>,
    /// What it is doing.
    pub state: WorkerState,
    /// The queues it polls.
    pub queues: Vec<WorkerQueue>,
    /// Share of the last seconds in which there was something to do: 0 to 1.
    pub load: f64,
    /// Frames a second it took from its queues, lately.
    pub frames_per_second: u64,
    /// Passes over its queues.
    pub polls: u64,
    /// Of these, passes that found a frame.
    pub busy_polls: u64,
    /// How long it had something to do.
    pub busy: Duration,
    /// Times it waited a little for frames to gather.
    pub naps: u64,
    /// Times it went to sleep until it was notified.
    pub sleeps: u64,
    /// Frames it took from its queues.
    pub frames: u64,
}

/// A learned or fixed MAC address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FdbEntry {
    /// The address.
    pub mac: [u8; 6],
    /// Its VLAN; `None` for untagged traffic of ports without VLANs.
    pub vlan: Option<u16>,
    /// The port it is behind.
    pub port: PortId,
    /// Time since it last sent a frame.
    pub age: Duration,
    /// Set by the operator, never aged.
    pub fixed: bool,
}

/// What flow rules have done.
#[derive(Clone, Debug, Default)]
pub struct RulesStatus {
    /// Each of them, those for frames from the port first.
    pub rules: Vec<(switch::rules::RuleId, RuleCount)>,
    /// Frames from the port that no rule matched.
    pub from_rest: RuleCount,
    /// Frames to it that no rule matched.
    pub to_rest: RuleCount,
}

/// Frames that a rule decided on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Frames.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Since the last of them; `None`: there was none.
    pub idle: Option<Duration>,
}
