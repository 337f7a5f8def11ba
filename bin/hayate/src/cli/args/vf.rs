//! `hayate vf`.

use super::port::TrafficArgs;
use super::{OrOff, Output};
use api::{GuestLimits, GuestRight, Name};
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
    /// Say how far the guest of a PF may go when it sets up its VFs by itself
    Set(VfSet),
    /// List all PFs, and how many of their VFs are in use
    List(Output),
    /// Show the flow rules that the guest of a PF has, and what they did; or delete all of them
    Rules {
        /// Name of the PF
        name: Name,
        /// Delete all of them; the guest may set others
        #[arg(long, conflicts_with = "json")]
        clear: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Show a PF and each of its VFs: port, address, carrier, counters, and what is set
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
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    /// Flow rules its guest may have at most, on all functions together, 0 to 16384 [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) rules_max: Option<u32>,
    /// Flow rules its guest may add or delete in a second, over time [default: 1000]
    #[arg(long, value_name = "N")]
    pub(crate) rule_rate: Option<u32>,
    /// Flow rules with a meter its guest may have at most, 0 to 16384 [default: 256]
    #[arg(long, value_name = "N")]
    pub(crate) meters_max: Option<u32>,
    /// Connections that are remembered for flow rules, each function an equal part, 256 to 1048576
    /// [default: 131072]
    #[arg(long, value_name = "N")]
    pub(crate) connections_max: Option<u32>,
    #[command(flatten)]
    pub(crate) guest: GuestArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Example:
  hayate vf set web-pf0 --guest-may mac,rate --guest-max-rate 2000

By `hayate-agent vf set` the guest may always take away from what the operator set (hayate port set), and
give that back: have source addresses checked, be in one VLAN, send less. These rights let it go beyond
that. What it has set and may no longer does not count any more; `hayate vf show` says what does.")]
pub(crate) struct VfSet {
    /// Name of the PF
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) guest: GuestArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// How far a guest may go. What was not said stays as it is.
#[derive(Debug, Args)]
pub(crate) struct GuestArgs {
    /// In what the guest may go beyond what is set here, by itself: mac, vlan, spoofchk, trust, rate, state,
    /// with commas between; or off [default: off]
    #[arg(long, value_name = "LIST", value_parser = rights)]
    pub(crate) guest_may: Option<Rights>,
    /// Mbit/s that it may give a VF at most when it may set the rate, or off [default: off]
    #[arg(long, value_name = "MBIT")]
    pub(crate) guest_max_rate: Option<OrOff<u32>>,
}

/// A list of rights.
#[derive(Clone, Debug)]
pub(crate) struct Rights(Vec<GuestRight>);

fn rights(text: &str) -> Result<Rights, String> {
    if text == "off" {
        return Ok(Rights(Vec::new()));
    }
    let right = |word: &str| {
        let found = GuestRight::ALL.iter().find(|right| right.as_str() == word);
        found.copied().ok_or_else(|| {
            let all: Vec<&str> = GuestRight::ALL.iter().map(|right| right.as_str()).collect();
            format!("{word:?} is none of {}, or off", all.join(", "))
        })
    };
    text.split(',').map(right).collect::<Result<_, _>>().map(Rights)
}

impl GuestArgs {
    /// The limits with what was said in place of what was there.
    pub(crate) fn over(self, mut limits: GuestLimits) -> GuestLimits {
        if let Some(Rights(rights)) = self.guest_may {
            limits.may = rights.into_iter().collect();
        }
        if let Some(OrOff(rate)) = self.guest_max_rate {
            limits.max_rate = rate;
        }
        if !limits.may.contains(&GuestRight::Rate) && self.guest_max_rate.is_none() {
            limits.max_rate = None;
        }
        limits
    }
}
