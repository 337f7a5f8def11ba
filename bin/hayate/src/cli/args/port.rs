//! `hayate port`, and what is enforced on ports.

use std::path::PathBuf;

use api::channel::Prefix;
use api::{LinkState, Mac, Moderation, Name, Offload, PortKind, PortPolicy, SocketMode, VlanSet};
use clap::{Args, Subcommand};

use super::{OrOff, Output, Switch, words};

#[derive(Debug, Subcommand)]
pub(crate) enum PortCommand {
    /// Make a port and open it
    Add(Box<PortAdd>),
    /// Close a port and forget it
    Del {
        /// Its name
        name: Name,
    },
    /// Change what is enforced on a port; what is not said stays as it is
    #[command(after_long_help = "\
Examples:
  Only its own address, no others behind it, and so much traffic:
    hayate port set web0 --spoofchk on --trust off --max-tx-rate 1000
  Only these IP addresses:
    hayate port set web0 --addresses 10.0.0.5/32,2001:db8::5/128
  No longer:
    hayate port set web0 --addresses off --max-tx-rate off")]
    Set(Box<PortSet>),
    /// List all ports with their state and counters
    List(Output),
    /// Show all of one port: features, queues, counters, drops by reason
    Show {
        /// Its name
        name: Name,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  A VM's card:
    hayate port add web0 --network lan --kind vhost --vm web
  QEMU listens instead of the daemon:
    hayate port add web0 --network lan --kind vhost --socket /run/web0.sock --mode client
  The host, or a container or namespace:
    hayate port add host --network lan --kind tap --ifname hayate0
    hayate port add blue --network lan --kind tap --ifname eth0 --netns blue
  VLANs: an access port, and a trunk port with untagged frames in VLAN 5:
    hayate port add a --network lan --kind vhost --vlan 10
    hayate port add r --network lan --kind vhost --trunk 10,20-30 --native 5
  Jumbo frames:
    hayate port add db0 --network lan --kind vhost --vm db --mtu 9000
  As strict as with a VF of an SR-IOV card:
    hayate port add vf0 --network lan --kind vhost --vm web --spoofchk on --trust off")]
pub(crate) struct PortAdd {
    /// Its name: 1 to 63 letters, digits, '.', '_', '-'
    pub(crate) name: Name,
    /// The network it belongs to
    #[arg(long, value_name = "NET")]
    pub(crate) network: Name,
    /// A VM's card (vhost) or an interface of the host or a namespace (tap)
    #[arg(long, value_parser = words([PortKind::Vhost, PortKind::Tap], PortKind::as_str))]
    pub(crate) kind: PortKind,
    /// vhost: path of the vhost-user socket [default: RUN_DIR/ports/NAME.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// vhost: who listens on the socket, the daemon (server) or QEMU (client) [default: server]
    #[arg(long, value_parser = words([SocketMode::Server, SocketMode::Client], SocketMode::as_str))]
    pub(crate) mode: Option<SocketMode>,
    /// The VM it belongs to
    #[arg(long, value_name = "VM")]
    pub(crate) vm: Option<Name>,
    /// tap: name of the interface to make, at most 15 bytes
    #[arg(long, value_name = "IF")]
    pub(crate) ifname: Option<String>,
    /// tap: namespace the interface is made in, by name (`ip netns`) or path
    #[arg(long, value_name = "NS")]
    pub(crate) netns: Option<String>,
    #[command(flatten)]
    pub(crate) traffic: TrafficArgs,
    /// Worker that serves all its queues, by number [default: spread by load]
    #[arg(long, value_name = "N")]
    pub(crate) worker: Option<u16>,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// How frames pass a port, be it one by itself or each of a PF's functions.
#[derive(Debug, Args)]
pub(crate) struct TrafficArgs {
    /// Queue pairs, 1 to 32 [default: as many as the VM has CPUs, at most 8; tap: 1]
    #[arg(long, value_name = "N")]
    pub(crate) queues: Option<u16>,
    /// Access port: its untagged frames belong to this VLAN, and it gets no tags
    #[arg(long, value_name = "VLAN", conflicts_with = "trunk")]
    pub(crate) vlan: Option<u16>,
    /// Trunk port: VLANs whose tagged frames may pass, like 10,20-30 [default: all]
    #[arg(long, value_name = "VLANS")]
    pub(crate) trunk: Option<VlanSet>,
    /// Trunk port: VLAN of untagged frames; without it they are dropped
    #[arg(long, value_name = "VLAN", requires = "trunk")]
    pub(crate) native: Option<u16>,
    /// Largest IP packet in bytes; told to the guest, set on the interface (tap)
    #[arg(long, value_name = "BYTES")]
    pub(crate) mtu: Option<u16>,
    /// When the guest is interrupted for frames it received (vhost): off, adaptive, or
    /// FRAMES,MICROSECONDS [default: adaptive]
    #[arg(long, value_name = "HOW")]
    pub(crate) moderation: Option<Moderation>,
    /// Addresses learned behind the port at most [default: the network's limit]
    #[arg(long, value_name = "N")]
    pub(crate) mac_limit: Option<u32>,
    /// Offloads and ring features not to offer (vhost), with commas between
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = words(Offload::ALL, Offload::as_str))]
    pub(crate) no_offload: Vec<Offload>,
}

#[derive(Debug, Args)]
pub(crate) struct PortSet {
    /// Its name
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What is enforced on a port.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    /// Address of its card, or off: that which `hayate vm qemu` prints [default: off]
    #[arg(long, value_name = "MAC")]
    pub(crate) mac: Option<OrOff<Mac>>,
    /// Whether its frames must have its card's address as their source [default: off]
    #[arg(long, value_parser = words([Switch::On, Switch::Off], Switch::as_str))]
    pub(crate) spoofchk: Option<Switch>,
    /// Prefixes its packets must be from, like 10.0.0.5/32, with commas between; or off [default: off]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) addresses: Option<Vec<OrOff<Prefix>>>,
    /// Whether other addresses than its card's are learned behind it, and it gets frames to unknown
    /// ones [default: on]
    #[arg(long, value_parser = words([Switch::On, Switch::Off], Switch::as_str))]
    pub(crate) trust: Option<Switch>,
    /// Access port: priority of its frames' tags, 0 to 7, or off: the guest's [default: off]
    #[arg(long, value_name = "N")]
    pub(crate) qos: Option<OrOff<u8>>,
    /// Mbit/s that come from it at most, or off [default: off]
    #[arg(long, value_name = "MBIT")]
    pub(crate) max_tx_rate: Option<OrOff<u32>>,
    /// Its link: while its guest is there, always, or never [default: auto]
    #[arg(long, value_parser = words(LINKS, LinkState::as_str))]
    pub(crate) link: Option<LinkState>,
}

const LINKS: [LinkState; 3] = [LinkState::Auto, LinkState::Enable, LinkState::Disable];

impl PolicyArgs {
    /// The policy with what was said in place of what was there.
    pub(crate) fn over(self, mut policy: PortPolicy) -> PortPolicy {
        if let Some(OrOff(mac)) = self.mac {
            policy.mac = mac;
        }
        if let Some(to) = self.spoofchk {
            policy.spoofchk = to == Switch::On;
        }
        if let Some(addresses) = self.addresses {
            policy.addresses = addresses.into_iter().filter_map(|OrOff(prefix)| prefix).collect();
        }
        if let Some(to) = self.trust {
            policy.trust = to == Switch::On;
        }
        if let Some(OrOff(qos)) = self.qos {
            policy.qos = qos;
        }
        if let Some(OrOff(rate)) = self.max_tx_rate {
            policy.max_tx_rate = rate;
        }
        policy.link = self.link.unwrap_or(policy.link);
        policy
    }
}
