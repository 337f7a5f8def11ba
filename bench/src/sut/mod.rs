//! Switches under test: how each is installed, started on one CPU, and ended.
//!
//! All of them get the same: one polling thread alone on the switch's CPU, everything else on the
//! generator's, ports that listen on vhost-user sockets. The [`bridge`] has none; its ports are TAP
//! interfaces. Processes are ended by their id when what
//! started them is dropped, also when a measurement fails or is interrupted.

pub mod bridge;
pub mod hayate;
pub mod install;
mod meter;
pub mod ovs;
pub mod process;
mod router;
mod stranger;
pub mod testpmd;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::cell::{Cell, Kind, Mischief};
use crate::place::Place;
use crate::sched::{self, Thread};
use bridge::Bridge;
use meter::Meter;
use process::Process;
use router::Namespace;
use stranger::Stranger;

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
    /// hayate with `polling = "latency"`
    HayateLatency,
    /// hayate with `polling = "power"`
    HayatePower,
    /// hayate, but frames go through the routers: Linux, a network namespace for each
    HayateRouted,
    /// dpdk-testpmd forwarding between pairs of vhost ports: neither parses nor looks up
    Testpmd,
    /// Open vSwitch with DPDK, as a MAC-learning switch
    Ovs,
    /// the same, but its polling thread may sleep for 100 microseconds
    OvsSleep,
    /// a Linux bridge between TAP interfaces
    Bridge,
    /// a device that does nothing: the generator's own limit
    Limit,
}

impl System {
    /// Its name in tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            System::Hayate => "hayate",
            System::HayateLatency => "hayate, latency",
            System::HayatePower => "hayate, power",
            System::HayateRouted => "hayate, no bypass",
            System::Testpmd => "dpdk-testpmd io",
            System::Ovs => "OVS-DPDK",
            System::OvsSleep => "OVS-DPDK, sleep",
            System::Bridge => "Linux bridge",
            System::Limit => "generator's limit",
        }
    }

    /// The Debian packages it comes in.
    #[must_use]
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            System::Hayate
            | System::HayateLatency
            | System::HayatePower
            | System::HayateRouted
            | System::Limit => &[],
            System::Testpmd => &["dpdk", "dpdk-dev"],
            System::Ovs | System::OvsSleep => &["openvswitch-switch-dpdk"],
            System::Bridge => &["iproute2"],
        }
    }

    /// Whether it has a place in a cell's table.
    #[must_use]
    pub fn takes_part(self, cell: &Cell) -> bool {
        use Kind::{Cpu, Macs, Pings, PolledRouters, Prefixes, Rtt, Sides, Strangers, Throughput};
        match self {
            System::Hayate => true,
            System::Ovs => !matches!(cell.kind, Prefixes | Strangers),
            System::Testpmd => cell.routers == 0 && !matches!(cell.kind, PolledRouters | Strangers),
            System::HayateRouted => cell.kind == Kind::Routers && cell.routers > 0,
            System::HayateLatency | System::HayatePower => matches!(cell.kind, Rtt | Pings | Cpu),
            System::OvsSleep => matches!(cell.kind, Cpu | Pings | Sides),
            System::Bridge => matches!(cell.kind, Throughput | Rtt),
            // What is forwarded by a machine is nobody's frame; to it, machines are flows.
            System::Limit => {
                cell.machines == 0 && !matches!(cell.kind, Cpu | Macs | Pings | Sides | Strangers)
            }
        }
    }

    /// Why it cannot do a cell of a table that it has a place in.
    #[must_use]
    pub fn cannot(self, cell: &Cell) -> Option<&'static str> {
        let Topology { ports, macs, .. } = cell.topology();
        match self {
            System::Testpmd if ports > 32 => Some("DPDK is built for at most 32 ports"),
            System::Ovs | System::OvsSleep if macs > 1_000_000 => {
                Some("a bridge remembers at most a million addresses (mac-table-size)")
            }
            _ => None,
        }
    }

    /// Huge pages of 2 MiB it takes.
    #[must_use]
    pub fn hugepages(self) -> u64 {
        match self {
            System::Testpmd => 256,
            System::Ovs | System::OvsSleep => 512,
            _ => 0,
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
    /// Routers between the first port and the second.
    pub routers: u16,
    /// Prefixes that each of them has routes for.
    pub prefixes: u32,
    /// What the router of others does.
    pub mischief: Option<Mischief>,
}

impl Topology {
    /// Whether switches can be paused while others have their turns: what else belongs to them has
    /// names that only one of them can have, or goes on by itself.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        self.routers == 0 && self.mischief.is_none()
    }
}

/// A switch that runs.
pub struct Running {
    /// One vhost-user socket for each port.
    pub sockets: Vec<PathBuf>,
    /// The switch connects to them; otherwise it listens there.
    pub connects: bool,
    /// Its data thread.
    pub thread: Thread,
    /// How it says how long it was busy.
    meter: Meter,
    /// Its processes, the switch itself first: ended in this order.
    processes: Vec<Process>,
    /// What the routers are, each with two ports.
    _routers: Vec<Namespace>,
    /// Who does mischief.
    _stranger: Option<Stranger>,
    /// Its files: removed after the processes ended.
    _dir: TempDir,
}

impl Running {
    /// Whether all of its processes are there.
    pub fn alive(&mut self) -> bool {
        self.processes.iter_mut().all(Process::alive)
    }

    /// Keeps its processes from running, until [`Running::go_on`].
    pub fn pause(&mut self) {
        self.processes.iter_mut().for_each(Process::pause);
    }

    /// Lets them run again.
    pub fn go_on(&mut self) {
        self.processes.iter_mut().for_each(Process::go_on);
    }

    /// CPU time of all threads of the switch so far.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        self.processes.first().map_or(Duration::ZERO, |switch| sched::cpu_time(switch.pid()))
    }

    /// How long its data thread had frames to move so far, in seconds, by its own account. None
    /// when it does not say.
    pub fn busy(&mut self) -> Option<f64> {
        self.meter.read(self.processes.first_mut()?)
    }
}

/// What frames go through.
pub enum Rig {
    /// A switch that listens on vhost-user sockets.
    Switch(Running),
    /// A Linux bridge.
    Bridge(Bridge),
    /// A device that does nothing.
    Null,
}

impl Rig {
    /// Whether it is still there.
    pub fn alive(&mut self) -> bool {
        match self {
            Rig::Switch(running) => running.alive(),
            Rig::Bridge(_) | Rig::Null => true,
        }
    }

    /// Leaves the CPUs to others, until [`Rig::go_on`]. Who does nothing without frames does so
    /// anyway.
    pub fn pause(&mut self) {
        if let Rig::Switch(running) = self {
            running.pause();
        }
    }

    /// Is there for frames again.
    pub fn go_on(&mut self) {
        if let Rig::Switch(running) = self {
            running.go_on();
        }
    }
}

/// A problem in one line: what failed, and the end of what was said of it.
#[must_use]
pub fn brief(problem: &str) -> String {
    let mut lines = problem.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    lines.next_back().map_or_else(|| first.to_owned(), |last| format!("{first} {last}"))
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
    /// It has not what is to be measured.
    #[error("{0}")]
    Lacks(&'static str),
}

impl SutError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> SutError {
        let what = what.into();
        move |source| SutError::Io { what, source }
    }
}

/// Starts a system.
///
/// # Errors
/// See [`SutError`].
pub fn start(system: System, topology: &Topology, place: Place) -> Result<Rig, SutError> {
    match system {
        System::Hayate => hayate::start(topology, place, "balanced", true).map(Rig::Switch),
        System::HayateLatency => hayate::start(topology, place, "latency", true).map(Rig::Switch),
        System::HayatePower => hayate::start(topology, place, "power", true).map(Rig::Switch),
        System::HayateRouted => hayate::start(topology, place, "balanced", false).map(Rig::Switch),
        System::Testpmd => testpmd::start(topology, place).map(Rig::Switch),
        System::Ovs => ovs::start(topology, place, 0).map(Rig::Switch),
        System::OvsSleep => ovs::start(topology, place, 100).map(Rig::Switch),
        System::Bridge => Bridge::new(topology.ports).map(Rig::Bridge),
        System::Limit => Ok(Rig::Null),
    }
}

/// Its version, in its own words.
#[must_use]
pub fn version(system: System) -> String {
    match system {
        System::Hayate | System::HayateLatency | System::HayatePower | System::HayateRouted => {
            env!("CARGO_PKG_VERSION").to_owned()
        }
        System::Limit => String::new(),
        System::Testpmd | System::Ovs | System::OvsSleep | System::Bridge => {
            install::version(system.packages()).unwrap_or_else(|| "not installed".to_owned())
        }
    }
}

/// A directory for sockets and logs.
pub(crate) fn directory() -> Result<TempDir, SutError> {
    tempfile::Builder::new()
        .prefix("hayate-bench-")
        .tempdir()
        .map_err(SutError::io("a temporary directory cannot be made"))
}

#[cfg(test)]
mod tests {
    use super::brief;

    #[test]
    fn a_problem_in_one_line_has_its_end() {
        assert_eq!(
            brief("disk add failed; it said:\nsome\n\nno libfabric\n"),
            "disk add failed; it said: no libfabric"
        );
        assert_eq!(brief("gone"), "gone");
        assert_eq!(brief(""), "");
    }
}
