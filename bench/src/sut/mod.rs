//! Switches under test: how each is installed, started on one CPU, and ended.
//!
//! All of them get the same: one polling thread alone on the switch's CPU, everything else on the
//! generator's, ports that listen on vhost-user sockets. Processes are ended by their id when what
//! started them is dropped, also when a measurement fails or is interrupted.

pub mod hayate;
pub mod install;
pub mod ovs;
pub mod process;
pub mod testpmd;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::place::Place;
use crate::sched::Thread;
use process::Process;

/// What can be measured.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    clap::ValueEnum,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// hayate, this program
    Hayate,
    /// dpdk-testpmd forwarding between pairs of vhost ports: neither parses nor looks up
    Testpmd,
    /// Open vSwitch with DPDK, as a MAC-learning switch
    Ovs,
    /// a device that does nothing: the generator's own limit
    Limit,
}

impl System {
    /// Its name in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            System::Hayate => "hayate",
            System::Testpmd => "dpdk-testpmd io",
            System::Ovs => "OVS-DPDK",
            System::Limit => "generator's limit",
        }
    }

    /// The Debian packages it comes in.
    #[must_use]
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            System::Hayate | System::Limit => &[],
            System::Testpmd => &["dpdk"],
            System::Ovs => &["openvswitch-switch-dpdk"],
        }
    }

    /// Huge pages of 2 MiB it takes.
    #[must_use]
    pub fn hugepages(self) -> u64 {
        match self {
            System::Hayate | System::Limit => 0,
            System::Testpmd => 256,
            System::Ovs => 512,
        }
    }
}

/// What a switch is to offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    /// Ports, in pairs.
    pub ports: u16,
    /// Queue pairs of each.
    pub queues: u16,
    /// Largest IP packet, if it is not what everyone has.
    pub mtu: Option<u16>,
    /// MAC addresses it has to remember.
    pub macs: u32,
    /// Segments larger than the MTU pass in one piece.
    pub offloads: bool,
}

/// A switch that runs.
pub struct Running {
    /// One vhost-user socket for each port; the switch listens.
    pub sockets: Vec<PathBuf>,
    /// Its data thread.
    pub thread: Thread,
    /// Its processes: ended in this order.
    _processes: Vec<Process>,
    /// Its files: removed after the processes ended.
    _dir: TempDir,
}

/// Why a switch could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SutError {
    /// Something of the system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The reason.
        source: io::Error,
    },
    /// A program ended with a failure.
    #[error("{what} failed; it said:\n{said}")]
    Failed {
        /// The command.
        what: String,
        /// The end of its output.
        said: String,
    },
    /// A program did not get ready.
    #[error("{what} was not ready within {seconds}s; it said:\n{said}")]
    Late {
        /// The program.
        what: String,
        /// How long it had.
        seconds: u64,
        /// The end of its log.
        said: String,
    },
}

impl SutError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> SutError {
        let what = what.into();
        move |source| SutError::Io { what, source }
    }
}

/// Starts a switch; none for [`System::Limit`].
///
/// # Errors
/// See [`SutError`].
pub fn start(
    system: System,
    topology: &Topology,
    place: Place,
) -> Result<Option<Running>, SutError> {
    match system {
        System::Hayate => hayate::start(topology, place).map(Some),
        System::Testpmd => testpmd::start(topology, place).map(Some),
        System::Ovs => ovs::start(topology, place).map(Some),
        System::Limit => Ok(None),
    }
}

/// Its version, in its own words.
#[must_use]
pub fn version(system: System) -> String {
    match system {
        System::Hayate => env!("CARGO_PKG_VERSION").to_owned(),
        System::Limit => String::new(),
        System::Testpmd | System::Ovs => {
            install::version(system.packages()).unwrap_or_else(|| "not installed".to_owned())
        }
    }
}

/// A directory for sockets and logs.
fn directory() -> Result<TempDir, SutError> {
    tempfile::Builder::new()
        .prefix("hayate-bench-")
        .tempdir()
        .map_err(SutError::io("a temporary directory cannot be made"))
}
