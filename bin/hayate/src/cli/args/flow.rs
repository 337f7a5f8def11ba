//! `hayate flow`.

use api::Name;
use clap::{Args, Subcommand};

use super::Output;

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
