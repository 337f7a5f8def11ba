//! Workers, sums and the daemon itself.

use crate::{Name, PortStats, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerState {
    /// All its queues were quiet: it waits for a notification and uses no CPU.
    Asleep,
    /// It looks at its queues without pause.
    Polling,
    /// It lets frames gather for some microseconds.
    Napping,
}

/// A queue that a worker serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WorkerQueue {
    /// The port it belongs to.
    pub port: Name,
    /// Index of the queue pair in that port, from 0.
    pub queue: u16,
    /// The operator chose this worker; the daemon moves all others as needed.
    pub pinned: bool,
    /// NUMA node of its memory; absent when the machine has one node, or it is not known.
    pub node: Option<u16>,
    /// Its part of the worker's load over the last seconds, in percent of the worker's time; an
    /// estimate from its frames and bytes.
    pub load_percent: u8,
    /// Frames a second it took, lately.
    pub frames_per_second: u64,
}

/// Where a port's queues are to be served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// Index of one queue pair; absent: all of the port.
    pub queue: Option<u16>,
    /// The worker that serves it from now on; absent: the daemon places it, and moves it as needed.
    pub worker: Option<u16>,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queue {
            Some(queue) => write!(f, "queue {queue} ")?,
            None => f.write_str("all queues ")?,
        }
        match self.worker {
            Some(worker) => write!(f, "on worker {worker}"),
            None => f.write_str("where there is room"),
        }
    }
}

/// One data-plane thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Worker {
    /// Its number, from 0.
    pub id: u16,
    /// The CPU it is pinned to; absent when it is not pinned.
    pub cpu: Option<usize>,
    /// NUMA node of that CPU; absent when the machine has one node.
    pub node: Option<u16>,
    /// What it is doing.
    pub state: WorkerState,
    /// Share of the last seconds in which it had something to do, in percent.
    pub load_percent: u8,
    /// Frames a second it took from ports, lately.
    pub frames_per_second: u64,
    /// The queues it takes frames from; it delivers to any.
    pub queues: Vec<WorkerQueue>,
    /// Times it looked at its queues.
    pub polls: u64,
    /// Of these, times it found something to do.
    pub busy_polls: u64,
    /// Microseconds in which it had something to do.
    pub busy_us: u64,
    /// Times it let frames gather for some microseconds.
    pub naps: u64,
    /// Times it went to sleep until it was notified.
    pub sleeps: u64,
    /// Frames it took from ports.
    pub frames: u64,
}

/// All counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Stats {
    /// Microseconds since the daemon started, of a clock that never goes back: rates are
    /// differences of counters over differences of this.
    pub uptime_us: u64,
    /// Every port's counters, by name.
    pub ports: Vec<PortStats>,
    /// Every worker.
    pub workers: Vec<Worker>,
}

/// Which program answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Version {
    /// Always `hayate`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Version of the interface: first component of its paths.
    pub api: String,
}

/// How the daemon is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Health {
    /// `ok`, or `degraded` when a port could not be opened.
    pub status: String,
    /// Its process.
    pub pid: u32,
    /// When it started.
    pub since: Timestamp,
    /// Directory of its sockets.
    pub run_dir: String,
    /// Directory of its saved state.
    pub state_dir: String,
    /// Configuration file it was started with.
    pub config: Option<String>,
    /// Number of networks.
    pub networks: usize,
    /// Number of ports.
    pub ports: usize,
    /// Ports that could not be opened; each says why in its `failure`.
    pub failed_ports: Vec<Name>,
}
