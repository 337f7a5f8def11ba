//! `hayate daemon`, and `hayate config` for its configuration file.

use std::path::PathBuf;

use api::CpuList;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  hayate daemon
  hayate daemon --config /etc/hayate.toml --cpus 2-3
  hayate daemon --run-dir /tmp/mine      (a second daemon, with everything below /tmp/mine)

Networks, VMs and ports made while it runs are kept in the state directory and are there again after
a restart. Guests stay connected: QEMU reconnects by itself.")]
pub(crate) struct DaemonArgs {
    /// Directory of what survives a restart [default: RUN_DIR/state if --run-dir was given,
    /// else /var/lib/hayate]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Configuration file; see `hayate config`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// CPUs of the workers, one pinned worker for each, like 2-3 or 0,4
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,
    /// Directory of ca.pem, cert.pem and key.pem, by which stores are known and know this host
    #[arg(long, value_name = "DIR")]
    pub(crate) tls_dir: Option<PathBuf>,
    /// What is logged to standard error: error, warn, info, debug, trace, off, or PART=LEVEL
    /// [default: info]
    #[arg(long, value_name = "LEVEL", env = "HAYATE_LOG", hide_env_values = true)]
    pub(crate) log: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file; mistakes are shown with line and column
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print a commented example
    Example,
    /// Print the reference of all keys (Markdown)
    Doc,
}
