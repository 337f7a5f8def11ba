//! Workers, sums and the daemon itself.

use crate::{Name, PortStats, Timestamp};
use serde::{Deserialize, Serialize};

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
}

/// One data-plane thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Worker {
    /// Its number, from 0.
    pub id: u16,
    /// The CPU it is pinned to; absent when it is not pinned.
    pub cpu: Option<usize>,
    /// What it is doing.
    pub state: WorkerState,
    /// The queues it serves.
    pub queues: Vec<WorkerQueue>,
    /// Times it looked at its queues.
    pub polls: u64,
    /// Of these, times it found something to do.
    pub busy_polls: u64,
    /// Microseconds in which it had something to do, up to when it last had not.
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
