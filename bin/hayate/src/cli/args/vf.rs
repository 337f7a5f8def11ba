//! `hayate vf`.

use super::{Output, words};
use api::{Moderation, Name, Offload};
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum VfCommand {
    /// Make a PF of a VM, with VFs for its guest to enable
    #[command(visible_alias = "add")]
    Create(Box<VfCreate>),
    /// Remove a PF and all of its VFs
    #[command(visible_alias = "del")]
    Delete {
        /// Name of the PF
        name: Name,
    },
    /// List all PFs, and how many of their VFs are in use
    List(Output),
    /// Show a PF and each of its VFs: port, address, carrier, counters
    Show {
        /// Name of the PF
        name: Name,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  hayate vf create --vm web --vfs 4 --network lan
  hayate vm qemu web                     (has the card from now on)
  In the guest:
    echo 4 > /sys/class/net/eth0/device/../sriov_numvfs

QEMU 10.1 or later is needed, with a machine that has PCI Express (q35). The functions are vhost ports:
`hayate port list` shows them, as NAME, NAMEvf0, NAMEvf1 ... They come and go with the PF only.")]
pub(crate) struct VfCreate {
    /// The VM
    #[arg(long, value_name = "VM")]
    pub(crate) vm: Name,
    /// VFs its guest may enable at most, 1 to 255
    #[arg(long, value_name = "N")]
    pub(crate) vfs: u16,
    /// The network that all functions are in [default: the only one there is]
    #[arg(long, value_name = "NET")]
    pub(crate) network: Option<Name>,
    /// Name of the PF and of its port [default: VM-pf0]
    #[arg(long, value_name = "PF")]
    pub(crate) name: Option<Name>,
    /// Queue pairs of each function, 1 to 32 [default: as many as the VM has CPUs, at most 8]
    #[arg(long, value_name = "N")]
    pub(crate) queues: Option<u16>,
    /// Largest IP packet in bytes, told to the guest
    #[arg(long, value_name = "BYTES")]
    pub(crate) mtu: Option<u16>,
    /// When the guest is interrupted for frames it received: off, adaptive, or
    /// FRAMES,MICROSECONDS [default: adaptive]
    #[arg(long, value_name = "HOW")]
    pub(crate) moderation: Option<Moderation>,
    /// Addresses learned behind each function at most [default: the network's limit]
    #[arg(long, value_name = "N")]
    pub(crate) mac_limit: Option<u32>,
    /// Offloads and ring features not to offer, with commas between
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = words(Offload::ALL, Offload::as_str))]
    pub(crate) no_offload: Vec<Offload>,
    #[command(flatten)]
    pub(crate) output: Output,
}
