//! `hayate stats`.

use clap::Args;

use super::Output;

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
