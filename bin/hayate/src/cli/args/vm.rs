//! `hayate vm`.

use std::path::PathBuf;

use api::{MemorySize, Name};
use clap::{Args, Subcommand};

use super::Output;
use crate::render::qemu;

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
    #[command(flatten)]
    pub(crate) form: QemuForm,
}

/// For which QEMU arguments are, and in what form they are printed.
#[derive(Debug, Args)]
pub(crate) struct QemuForm {
    /// Version of QEMU the arguments are for, like 9.2 [default: that of the installed one, else
    /// the newest known]
    #[arg(long, value_name = "VERSION")]
    pub(crate) qemu_version: Option<qemu::Version>,
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

impl QemuForm {
    /// The version to write for.
    pub(crate) fn version(&self) -> qemu::Version {
        self.qemu_version.or_else(qemu::installed).unwrap_or(qemu::NEWEST)
    }
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
