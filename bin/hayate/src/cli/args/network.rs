//! `hayate network`.

use api::Name;
use clap::{Args, Subcommand};

use super::Output;

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
