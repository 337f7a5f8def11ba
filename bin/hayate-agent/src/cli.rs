//! What can be typed, and what comes of it.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::channel::LEASE_MS;
use clap::{Args, CommandFactory, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use crate::{agent, desk, flow, status, vf};

const STATUS_SOCKET: &str = "/run/hayate-agent.sock";

const EXAMPLES: &str = "\
In a virtual machine that routes:
  hayate-agent run --channel /dev/virtio-ports/org.hayate.0

In a network namespace of the host that routes, each agent with a status socket of its own:
  ip netns exec edge hayate-agent run --channel /run/hayate/vm/edge.channel \\
      --status-socket /run/hayate-agent-edge.sock

See what is delegated, and why not more:
  hayate-agent status

See the virtual functions of this VM, or of the PF eth0:
  hayate-agent vf show
  hayate-agent vf show eth0 --json

Set VF 3 of the PF eth0, as `ip link set eth0 vf 3` does where the PF is hardware:
  hayate-agent vf set eth0 3 mac 02:00:5e:10:00:03 vlan 10 qos 3 spoofchk on
  hayate-agent vf set eth0 3 trust off rate 1000 state enable
  hayate-agent vf set eth0 3 mac 00:00:00:00:00:00 vlan 0

Drop what comes to VF 0 but web traffic, in the switch of the host:
  hayate-agent flow add eth0 vf0 to proto tcp dst-port 80 accept
  hayate-agent flow default eth0 vf0 to drop

Exit status:
  0  done
  1  the machine refused: the kernel cannot be read, a socket cannot be had
  2  the command line is wrong
  3  no agent answers";

const RUN_HELP: &str = "\
The agent needs the rights of root (CAP_NET_ADMIN) in the network namespace it runs in. It changes \
nothing there but this: it tells the kernel which neighbours and connections are in use, so that \
those that packets bypass the kernel to are not forgotten, and has conntrack take the windows of \
these TCP connections less seriously (be_liberal).

Delegated is what the kernel would do with packets that it only routes. If rules of nf_tables filter or \
translate them by connection, established connections of TCP and UDP are delegated instead. For \
that, each chain that forwarded packets pass has to accept packets of established connections, and \
do nothing else to them: no rule in front of `ct state established accept` may concern them but by \
accepting, not even by counting. Chains of type nat are always fine.

Nothing is delegated while something else is done to packets; `hayate-agent status` says what it is:
  * other rules of nf_tables, or iptables, where forwarded packets pass
  * policy rules other than the three that are always there, VRFs, source-specific IPv6 routes
  * traffic control: filters, or disciplines that shape
  * XDP programs, IPsec policies, MPLS

Interfaces that are not Ethernet (tunnels, bridges, bonds) take no part: packets to them go through \
the router. So do packets to a neighbour that the kernel has not resolved yet.

While the daemon cannot be reached the agent tries again, from 0.1 to 1 s apart. SIGTERM and SIGINT \
withdraw everything and end it.";

const STATUS_HELP: &str = "\
What it says:
  connected  to which daemon, under which name; or why not
  delegates  plain (all that is routed), stateful (established connections) or nothing
  because    why not more
  kernel     what the kernel has
  told       what the daemon was told of it, and what it is still to be told
  bypassed   what the switch sent past this router in this session
  interface  the port of the switch it is behind; or why it is not delegated";

/// The agent of hayate inside a router.
///
/// It mirrors the kernel's routes and neighbours to the daemon of the hypervisor, so that the switch
/// there forwards packets as this router would have, without going through it. What only the router
/// can do stays with it.
#[derive(Debug, Parser)]
#[command(name = "hayate-agent", version, after_long_help = EXAMPLES)]
#[command(arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent, in the foreground until SIGTERM
    #[command(after_long_help = RUN_HELP)]
    Run(Run),
    /// Show what the running agent does
    #[command(after_long_help = STATUS_HELP)]
    Status {
        #[command(flatten)]
        socket: Socket,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Virtual functions of this VM, as the host has them
    #[command(subcommand)]
    Vf(Vf),
    /// Flow rules of virtual functions, in the switch of the host
    #[command(subcommand)]
    Flow(flow::Flow),
    /// Print the version
    Version,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages into a directory
    Man {
        /// The directory; it is made if need be
        directory: PathBuf,
    },
}

const SET_HELP: &str = "\
What can be set, several at once; either all of it is or nothing:
  mac MAC                    the card's address; 00:00:00:00:00:00: the one it has by itself
  vlan VLAN [qos PRIORITY]   the VLAN it is in, untagged; 0: none
  spoofchk on|off            whether frames from other addresses are dropped
  trust on|off               whether it may be learned under other addresses, and gets frames to unknown ones
  rate MBIT                  what it may send at most (max_tx_rate); 0: all it can
  state auto|enable|disable  its link

The host's operator decides how far that goes: what takes away from what he allows is always possible. What
is set ends when this VM is booted. The address of the interface itself is not changed by it: that of the VF
is set with `ip link set`, as ever.";

#[derive(Debug, Subcommand)]
enum Vf {
    /// Set a VF up, at the host
    #[command(after_long_help = SET_HELP)]
    Set {
        /// The PF, by the name of its interface in this VM
        pf: String,
        /// Number of the VF
        vf: u16,
        /// What to set: mac, vlan, qos, spoofchk, trust, rate or state, and to what
        #[arg(required = true, num_args = 2.., value_name = "WHAT TO")]
        what: Vec<String>,
        #[command(flatten)]
        socket: Socket,
        /// Print what holds then, as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show functions: number, address, whether the host sees a carrier, counters, and what is set
    Show {
        /// The PF, by the name of its interface in this VM [default: all PFs]
        pf: Option<String>,
        #[command(flatten)]
        socket: Socket,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct Run {
    /// The channel to the daemon: a virtio-serial port in a guest, a Unix socket on the host
    #[arg(long, value_name = "PATH")]
    channel: PathBuf,
    /// The daemon ends the delegation so long after it heard the agent last, 300ms to 60s
    /// [default: as the daemon likes, 3s]
    #[arg(long, value_name = "TIME", value_parser = lease)]
    lease: Option<u32>,
    #[command(flatten)]
    socket: Socket,
    /// How much to log: error, warn, info, debug, trace or off
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log: LevelFilter,
}

#[derive(Debug, Args)]
pub(crate) struct Socket {
    /// Where the agent is asked. Several agents run side by side, each with its own
    #[arg(long = "status-socket", value_name = "PATH", default_value = STATUS_SOCKET)]
    path: PathBuf,
}

impl Socket {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Parses the command line and does what it says.
pub(crate) fn main() -> ExitCode {
    let (exit, message) = match run(Cli::parse().command) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(failure) => failure,
    };
    // Whoever closed standard error does not want to know.
    let _ = writeln!(io::stderr(), "error: {message}");
    ExitCode::from(exit)
}

fn run(command: Command) -> Result<(), (u8, String)> {
    match command {
        Command::Run(options) => {
            tracing_subscriber::fmt()
                .with_max_level(options.log)
                .with_writer(io::stderr)
                .with_ansi(io::stderr().is_terminal())
                .with_target(false)
                .init();
            let Run { channel, lease, socket, .. } = options;
            let options = agent::Options { channel, status: socket.path, lease_ms: lease };
            agent::run(options).map_err(|error| (1, error.to_string()))
        }
        Command::Status { socket, json } => {
            let report = desk::report(&socket.path).map_err(|error| {
                (3, format!("no agent answers at {}: {error}", socket.path.display()))
            })?;
            if json {
                let json = serde_json::to_string_pretty(&report);
                print(&json.map_err(|error| (1, error.to_string()))?)
            } else {
                print(&status::text(&report))
            }
        }
        Command::Vf(Vf::Set { pf, vf, what, socket, json }) => {
            let change = vf::change(&what).map_err(|why| (2, why))?;
            let settings = vf::set(&socket.path, &pf, vf, change)?;
            if json {
                let json = serde_json::to_string_pretty(&settings);
                print(&json.map_err(|error| (1, error.to_string()))?)
            } else {
                Ok(())
            }
        }
        Command::Vf(Vf::Show { pf, socket, json }) => {
            let functions = vf::list(&socket.path, pf.as_deref())?;
            if json {
                let json = serde_json::to_string_pretty(&functions);
                print(&json.map_err(|error| (1, error.to_string()))?)
            } else {
                print(&vf::text(&functions))
            }
        }
        Command::Flow(command) => {
            let text = flow::run(command)?;
            if text.is_empty() { Ok(()) } else { print(&text) }
        }
        Command::Version => print(concat!("hayate-agent ", env!("CARGO_PKG_VERSION"))),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "hayate-agent", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Man { directory } => std::fs::create_dir_all(&directory)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), &directory))
            .map_err(|error| (1, format!("{}: {error}", directory.display()))),
    }
}

/// Prints a text, with a newline at its end.
fn print(text: &str) -> Result<(), (u8, String)> {
    let written = writeln!(io::stdout(), "{}", text.trim_end());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err((1, format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Milliseconds of a time like `3s`.
fn lease(text: &str) -> Result<u32, String> {
    let time: Duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let ms = u32::try_from(time.as_millis()).ok().filter(|ms| LEASE_MS.contains(ms));
    ms.ok_or_else(|| "from 300ms to 60s is allowed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn leases_are_bounded() {
        assert_eq!(lease("3s"), Ok(3000));
        assert_eq!(lease("300ms"), Ok(300));
        for bad in ["299ms", "61s", "", "3", "-1s"] {
            assert!(lease(bad).is_err(), "{bad}");
        }
    }
}
