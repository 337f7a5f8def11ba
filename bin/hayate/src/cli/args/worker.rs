//! `hayate worker`, and the words for a queue and a place of it.

use std::str::FromStr;

use api::Name;
use clap::Subcommand;

use super::Output;

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
