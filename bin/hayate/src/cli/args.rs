//! What can be typed. Help, man pages and completions are made from these definitions.
//!
//! Here: all commands, and what several of them take. The options of each are in a file that is named as
//! the one that carries it out. What cannot be parsed is told, with exit status 2, before anything is done.

mod daemon;
mod disk;
mod fabric;
mod flow;
mod image;
mod network;
mod port;
mod router;
mod stats;
mod store;
mod vf;
mod vm;
mod worker;

use super::fail::EXIT_HELP;
use api::Name;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::str::FromStr;

pub(crate) use daemon::{ConfigCommand, DaemonArgs};
pub(crate) use disk::{DiskAdd, DiskCommand, DiskLimit, DiskQemu};
pub(crate) use fabric::FabricCommand;
pub(crate) use flow::{FlowCommand, FlowWhy};
pub(crate) use image::{ImageCommand, ImageMount};
pub(crate) use network::{NetworkAdd, NetworkCommand};
pub(crate) use port::{PortAdd, PortCommand, PortSet};
pub(crate) use router::RouterCommand;
pub(crate) use stats::StatsArgs;
pub(crate) use store::{StoreCert, StoreCommand, StoreServe};
pub(crate) use vf::{VfCommand, VfCreate, VfSet};
pub(crate) use vm::{LibvirtArgs, QemuArgs, QemuForm, VmAdd, VmCommand};
pub(crate) use worker::{Destination, PortQueue, WorkerCommand};

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
