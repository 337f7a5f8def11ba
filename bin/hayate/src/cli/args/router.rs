//! `hayate router`.

use api::Name;
use clap::Subcommand;

use super::{Output, Switch, words};

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
