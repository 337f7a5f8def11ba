//! What can be typed. Help, man pages and completions are made from these definitions.

mod disk;
mod port;
mod store;
mod vf;

use super::fail::EXIT_HELP;
use api::{CpuList, MemorySize, Name};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

pub(crate) use disk::{DiskAdd, DiskCommand, DiskLimit, DiskQemu, ImageCommand, ImageMount};
pub(crate) use port::{PortAdd, PortCommand, PortSet};
pub(crate) use store::{StoreCert, StoreCommand, StoreServe};
pub(crate) use vf::{VfCommand, VfCreate, VfSet};

const EXAMPLES: &str = "\
A VM on a network:
  hayate daemon &
  hayate network add lan
  hayate vm add web --memory 2G --vcpus 2
  hayate port add web0 --network lan --kind vhost --vm web
  qemu-system-x86_64 ... $(hayate vm qemu web)
  hayate port list

A disk for it, a thin clone of an image:
  hayate image import debian.qcow2 debian --format qcow2
  hayate image clone debian web
  hayate disk add web --image web --vm web

The host joins in by an interface of its own:
  hayate port add host --network lan --kind tap --ifname hayate0
  ip address add 192.0.2.1/24 dev hayate0

`hayate COMMAND --help` explains each command, with examples.";

/// The I/O daemon for virtual machines, and its command.
///
/// One daemon runs on a host, carries the network frames of its virtual machines and serves their
/// disks. VMs connect to it by vhost-user sockets, the host and its containers by TAP interfaces. The other commands
/// tell the daemon what to do and show what it does.
#[derive(Debug, Parser)]
#[command(name = "hayate", version, after_long_help = format!("{EXAMPLES}\n\n{EXIT_HELP}"))]
#[command(arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// Directory of the daemon's sockets. Several daemons run side by side, each with its own
    /// [default: /run/hayate]
    #[arg(long, global = true, value_name = "DIR", env = "HAYATE_RUN_DIR", hide_env_values = true)]
    #[arg(display_order = 900)]
    pub(crate) run_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the daemon, in the foreground until SIGTERM
    Daemon(DaemonArgs),
    /// Show everything at a glance
    Show(Output),
    /// Networks: isolated layer-2 segments
    #[command(subcommand)]
    Network(NetworkCommand),
    /// Ports: where frames enter and leave a network
    #[command(subcommand)]
    Port(PortCommand),
    /// VMs: names that ports belong to, and what to give to QEMU and libvirt
    #[command(subcommand)]
    Vm(VmCommand),
    /// Virtual functions: a PF of a VM, and VFs that its guest enables itself (SR-IOV)
    #[command(subcommand)]
    Vf(VfCommand),
    /// Images: what disks are made of
    #[command(subcommand)]
    Image(Box<ImageCommand>),
    /// Disks of VMs, served from images
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Stores: images for disks on other hosts
    #[command(subcommand)]
    Store(StoreCommand),
    /// Remote memory access: what of libfabric can be used on this host
    #[command(subcommand)]
    Fabric(FabricCommand),
    /// Routers in VMs, and what bypasses them
    #[command(subcommand)]
    Router(RouterCommand),
    /// Follow a packet through the switch
    #[command(subcommand)]
    Flow(FlowCommand),
    /// Counters of all ports, once or as rates
    Stats(StatsArgs),
    /// Workers: the threads that move frames
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// The MAC addresses a network knows
    Fdb {
        /// The network
        network: Name,
        #[command(flatten)]
        output: Output,
    },
    /// The configuration file: check one, show an example or the reference
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the description of the REST interface (OpenAPI, JSON)
    Openapi,
    /// Print a completion script for a shell
    #[command(after_long_help = "For bash, for all users:\n  \
        hayate completions bash > /usr/share/bash-completion/completions/hayate")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Measure hayate beside other switches, on this machine
    Bench(Box<bench::Options>),
    /// Write the man pages of all commands into a directory
    #[command(after_long_help = "Install them:\n  hayate man /usr/local/share/man/man1")]
    Man {
        /// The directory; it is made if need be
        directory: PathBuf,
    },
}

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  hayate daemon
  hayate daemon --config /etc/hayate.toml --cpus 2-3
  hayate daemon --run-dir /tmp/mine      (a second daemon, with everything below /tmp/mine)

Networks, VMs and ports made while it runs are kept in the state directory and are there again after
a restart. Guests stay connected: QEMU reconnects by itself.")]
pub(crate) struct DaemonArgs {
    /// Directory of what survives a restart [default: RUN_DIR/state if --run-dir was given,
    /// else /var/lib/hayate]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Configuration file; see `hayate config`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// CPUs of the workers, one pinned worker for each, like 2-3 or 0,4
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,
    /// Directory of ca.pem, cert.pem and key.pem, by which stores are known and know this host
    #[arg(long, value_name = "DIR")]
    pub(crate) tls_dir: Option<PathBuf>,
    /// What is logged to standard error: error, warn, info, debug, trace, off, or PART=LEVEL
    /// [default: info]
    #[arg(long, value_name = "LEVEL", env = "HAYATE_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FabricCommand {
    /// List providers and where they can be used, or why they cannot
    #[command(after_long_help = "\
Two providers of libfabric are used:
  tcp    over TCP, on every interface
  verbs  InfiniBand, RoCE and iWARP: the network card moves the bytes. It needs a device
         (/sys/class/infiniband), the kernel module rdma_ucm, and an IP address on the device's interface

DOMAIN is the interface or device, ADDRESS the local address to use it by. No daemon is needed.

A program that was built without libfabric says so. To have it: apt-get install libfabric-dev pkg-config,
and build again.")]
    List(Output),
}

#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Make a network
    Add(NetworkAdd),
    /// Remove a network that has no ports
    Del {
        /// Its name
        name: Name,
    },
    /// List all networks
    List(Output),
    /// Show one network
    Show {
        /// Its name
        name: Name,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(crate) struct NetworkAdd {
    /// Its name: 1 to 63 letters, digits, '.', '_', '-'
    pub(crate) name: Name,
    /// Addresses it learns at most [default: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) mac_limit: Option<u32>,
    /// Seconds after which a silent address is forgotten [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) mac_age: Option<u32>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VmCommand {
    /// Make a VM known
    Add(VmAdd),
    /// Forget a VM that has no ports
    Del {
        /// Its name
        name: Name,
    },
    /// List all VMs
    List(Output),
    /// Show one VM
    Show {
        /// Its name
        name: Name,
        #[command(flatten)]
        output: Output,
    },
    /// Print the arguments QEMU needs for a VM's memory and ports
    Qemu(QemuArgs),
    /// Print the XML libvirt needs for a VM's memory and ports
    Libvirt(LibvirtArgs),
}

#[derive(Debug, Args)]
pub(crate) struct VmAdd {
    /// Its name: 1 to 63 letters, digits, '.', '_', '-'
    pub(crate) name: Name,
    /// Size of its memory, like 512M or 4G [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<MemorySize>,
    /// Number of its virtual CPUs [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) vcpus: Option<u16>,
    /// Path of the socket of its guest channel, for the agent of a router
    #[arg(long, value_name = "PATH")]
    pub(crate) channel: Option<PathBuf>,
    /// Next hops its router may delegate at most [default: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) nexthops_max: Option<u32>,
    /// Prefixes its router may delegate at most [default: 131072]
    #[arg(long, value_name = "N")]
    pub(crate) prefixes_max: Option<u32>,
    /// Connections its router may delegate at most, each direction for itself [default: 65536]
    #[arg(long, value_name = "N")]
    pub(crate) connections_max: Option<u32>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  qemu-system-x86_64 -accel kvm -drive file=web.qcow2 $(hayate vm qemu web)
  hayate vm qemu web --shell             (with quotes and backslashes, to paste)
  hayate vm qemu web --qemu-version 7.2  (for a QEMU that is elsewhere)

The MAC addresses are derived from the names of VM and port: they stay the same.
Virtual functions (`hayate vf`) need QEMU 10.1 or later and a machine with PCI Express (q35).")]
pub(crate) struct QemuArgs {
    /// Its name
    pub(crate) name: Name,
    /// Version of QEMU the arguments are for, like 9.2 [default: that of the installed one, else
    /// the newest known]
    #[arg(long, value_name = "VERSION")]
    pub(crate) qemu_version: Option<crate::render::qemu::Version>,
    /// Use packed rings instead of split ones
    #[arg(long)]
    pub(crate) packed: bool,
    /// Quote the arguments and end lines with backslashes, to paste into a shell
    #[arg(long, conflicts_with = "json")]
    pub(crate) shell: bool,
    /// Print a JSON array of arguments
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
`virsh edit NAME` and put the parts where the comments say. libvirt runs QEMU as a user of its own:
`vhost_group` in hayate.toml lets its group connect (docs/networks.md).

libvirt has no words for virtual functions (`hayate vf`): they are given to QEMU by <qemu:commandline>, and
need QEMU 10.1 or later.")]
pub(crate) struct LibvirtArgs {
    /// Its name
    pub(crate) name: Name,
    /// Use packed rings instead of split ones
    #[arg(long)]
    pub(crate) packed: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RouterCommand {
    /// List all VMs with a guest channel, and what their routers delegate
    List(Output),
    /// Show all of one router: interfaces, next hops, counters, what was refused
    Show {
        /// Name of its VM
        name: Name,
        /// Show the prefixes it delegates instead
        #[arg(long)]
        routes: bool,
        /// Show the connections it delegates instead
        #[arg(long, conflicts_with = "routes")]
        connections: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Let a router be bypassed where it delegates, or have it get all packets itself
    #[command(after_long_help = "\
Examples:
  hayate router bypass edge off   (as if the router had no agent)
  hayate router bypass edge on

With `off` the router gets every packet itself. What it delegates is kept meanwhile and counts again
with `on`. It holds over restarts of the daemon.")]
    Bypass {
        /// Name of its VM
        name: Name,
        /// on or off
        #[arg(value_parser = words([Switch::On, Switch::Off], Switch::as_str))]
        to: Switch,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum FlowCommand {
    /// Say what becomes of a packet, step by step, and why
    Why(Box<FlowWhy>),
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  hayate flow why --from web0 src=10.0.1.2 dst=10.0.9.9
  hayate flow why --from web0 '10.0.1.2:1234 > 10.0.9.9:80 tcp' ttl=1
  hayate flow why --from web0 src=2001:db8::2 dst=2001:db8:9::9 proto=udp size=1400

Keys: src, dst, proto (tcp, udp, icmp or a number), sport, dport, ttl, size (of the IP packet), vlan
(tag of the frame), smac, dmac. Unless said, the frame comes from the address that was seen behind
the port last, and is for the only interface of a router in the port's network.

A TCP packet is one of an established connection. Nothing is sent or learned.")]
pub(crate) struct FlowWhy {
    /// The port the packet comes from
    #[arg(long, value_name = "PORT")]
    pub(crate) from: Name,
    /// The packet: KEY=VALUE words, or SOURCE[:PORT] > DESTINATION[:PORT] PROTOCOL
    #[arg(required = true)]
    pub(crate) description: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Switch {
    On,
    Off,
}

impl Switch {
    fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  hayate stats                           (counters since the daemon started)
  hayate stats --watch                   (rates, once a second, until Ctrl-C)
  hayate stats --watch --count 10 --json (ten lines of JSON with all counters)")]
pub(crate) struct StatsArgs {
    /// Show rates, again and again
    #[arg(long)]
    pub(crate) watch: bool,
    /// Print all counters in the text form of Prometheus
    #[arg(long, conflicts_with_all = ["watch", "json"])]
    pub(crate) prometheus: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", requires = "watch")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) interval: u32,
    /// End after so many looks
    #[arg(long, value_name = "N", requires = "watch")]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// List all workers with their load and the queues they serve
    List(Output),
    /// Show all of one worker: its counters, and the load and rate of each queue
    Show {
        /// Its number
        id: u16,
        #[command(flatten)]
        output: Output,
    },
    /// Have another worker serve a port or one queue of it, while frames flow
    #[command(after_long_help = "\
Examples:
  hayate worker move web0 1       (all queues of port web0, to worker 1)
  hayate worker move web0:2 0     (one of them, elsewhere)
  hayate worker move web0 auto    (all of them as the daemon sees fit)

No frame is lost, and those of a flow keep their order. A queue that was moved stays until it
is moved again or the daemon restarts; `worker` in the port's configuration holds for longer.
The daemon moves the other queues by itself when a worker has too much to do (`balance` in
hayate.toml).")]
    Move {
        /// The port, or one TX queue of it: PORT:QUEUE, as `hayate worker list` shows them
        #[arg(value_name = "PORT[:QUEUE]")]
        queue: PortQueue,
        /// Number of the worker, or `auto`: the daemon places it
        #[arg(value_name = "WORKER")]
        to: Destination,
        #[command(flatten)]
        output: Output,
    },
}

/// A port, or one queue of it.
#[derive(Clone, Debug)]
pub(crate) struct PortQueue {
    pub(crate) port: Name,
    pub(crate) queue: Option<u16>,
}

impl FromStr for PortQueue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, queue) = match text.split_once(':') {
            Some((port, queue)) => (port, Some(queue)),
            None => (text, None),
        };
        let number = |queue: &str| {
            let wrong = |_| format!("`{queue}` is not the number of a queue: try {port}:0");
            queue.parse().map_err(wrong)
        };
        Ok(Self {
            port: port.parse().map_err(|error: api::BadName| error.to_string())?,
            queue: queue.map(number).transpose()?,
        })
    }
}

/// Where a queue goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination {
    Worker(u16),
    Auto,
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let worker = text.parse().map_err(|_| "neither the number of a worker nor `auto`");
        Ok(Self::Worker(worker?))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file; mistakes are shown with line and column
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print a commented example
    Example,
    /// Print the reference of all keys (Markdown)
    Doc,
}

/// A value, or the word for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OrOff<T>(pub(crate) Option<T>);

impl<T: FromStr> FromStr for OrOff<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "off" { Ok(Self(None)) } else { text.parse().map(|value| Self(Some(value))) }
    }
}

/// Accepts the words of `choices` and nothing else, and lists them in help and completions.
fn words<T: Copy + Send + Sync + 'static, const N: usize>(
    choices: [T; N],
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(choices.map(word)).try_map(move |text| {
        choices.into_iter().find(|choice| word(*choice) == text).ok_or("not one of these")
    })
}
