//! What can be typed.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use hayate_cni::error::{Code, Error};
use hayate_cni::policy::{self, apply::Objects};
use serde_json::{Value, json};

const HELP: &str = "\
This is a plugin of the Container Network Interface, versions 0.3.1 to 1.1.0. A container runtime runs it, \
with what to do in variables of the environment and the network on standard input:

  CNI_COMMAND      ADD, DEL, CHECK, GC, STATUS or VERSION
  CNI_CONTAINERID  the container
  CNI_NETNS        the path of its network namespace
  CNI_IFNAME       the name of the interface it gets
  CNI_ARGS         MAC=02:00:00:00:00:01;IgnoreUnknown=1
  CNI_PATH         where plugins are that manage addresses

A network, as /etc/cni/net.d/10-vf.conflist:
  {\"cniVersion\": \"1.1.0\", \"name\": \"vf\", \"plugins\": [
     {\"type\": \"hayate-cni\", \"pf\": \"eth0\",
      \"ipam\": {\"type\": \"host-local\", \"ranges\": [[{\"subnet\": \"10.0.0.0/24\"}]]}}]}

Before, the PF has to have VFs:
  echo 8 > /sys/class/net/eth0/device/../sriov_numvfs

By hand, as root, for a namespace that `ip netns add pod` made:
  echo '{\"cniVersion\": \"1.1.0\", \"name\": \"vf\", \"type\": \"hayate-cni\", \"pf\": \"eth0\"}' |
     CNI_COMMAND=ADD CNI_CONTAINERID=pod CNI_NETNS=/run/netns/pod CNI_IFNAME=net1 hayate-cni

Who has which VF is in /run/hayate-cni, unless stateDir says otherwise.

Exit status:
  0  done; ADD and VERSION print their result
  1  not done; an error is on standard output: code, msg, details
  2  the command line is wrong";

/// Gives containers inside a virtual machine functions of its virtual PF.
///
/// The plugin moves the network interface of a VF into a container, and brings it back. The container's frames
/// then go from the VF straight to the switch of the hypervisor.
#[derive(Debug, Parser)]
#[command(name = "hayate-cni", version, after_long_help = HELP, after_help = HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compile NetworkPolicy objects of Kubernetes to rules for each pod
    ///
    /// Reads lists of objects as `kubectl get networkpolicies,pods,namespaces -A -o json` prints them, and prints, for
    /// each pod, whether it is isolated and which addresses and ports it may be reached from and may reach. Nothing is
    /// changed anywhere.
    #[command(args_conflicts_with_subcommands = true)]
    Policy {
        #[command(subcommand)]
        what: Option<Policy>,
        /// Files with JSON, `-` for standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Write man pages into a directory
    Man {
        /// The directory; it is made if need be
        directory: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum Policy {
    /// Put policies in force for the pods of this node
    ///
    /// To be called with all objects whenever one of them has changed. The switch of the hypervisor then enforces
    /// the policies on the VFs of this node's pods, through the agent. They are remembered, so that a pod that comes later has its
    /// rules from the beginning. Prints what was done, for each pod.
    Apply {
        /// Files with JSON, `-` for standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Where it is remembered who has which VF: `stateDir` of the network
        #[arg(long, value_name = "DIR", default_value = hayate_cni::conf::STATE)]
        state_dir: PathBuf,
        /// Where the agent listens: `agent` of the network
        #[arg(long, value_name = "SOCKET", default_value = hayate_cni::conf::AGENT)]
        agent: PathBuf,
    },
}

/// What to do when no runtime asks.
pub(crate) fn main() -> ExitCode {
    match Cli::parse().command {
        Some(Command::Man { directory }) => {
            let made = std::fs::create_dir_all(&directory)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), &directory));
            match made {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    let _ = writeln!(io::stderr(), "error: {}: {error}", directory.display());
                    ExitCode::FAILURE
                }
            }
        }
        Some(Command::Policy { what: None, files }) => say(compiled(&files)),
        Some(Command::Policy { what: Some(Policy::Apply { files, state_dir, agent }), .. }) => {
            say(apply(&files, &state_dir, &agent))
        }
        None => {
            let _ = write!(io::stderr(), "{}", Cli::command().render_long_help());
            if !io::stdout().is_terminal() {
                // A runtime that forgot what it wants is told in its own way.
                let text = "required env variables [CNI_COMMAND] missing";
                let answer = Error::new(Code::Environment, text).answer(None);
                let _ = writeln!(io::stdout(), "{answer:#}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Prints what was done, or what was not.
fn say(done: Result<Value, String>) -> ExitCode {
    match done {
        Ok(value) => {
            let _ = writeln!(io::stdout(), "{value:#}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What is in these files.
fn objects(files: &[PathBuf]) -> Result<Objects, String> {
    let mut objects = Objects::default();
    for file in files {
        let name = file.display();
        let text = if file.as_os_str() == "-" {
            io::read_to_string(io::stdin())
        } else {
            std::fs::read_to_string(file)
        };
        let text = text.map_err(|error| format!("{name}: {error}"))?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
        objects.add(value).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(objects)
}

/// The rules of what is in these files.
fn compiled(files: &[PathBuf]) -> Result<Value, String> {
    let Objects { policies, pods, namespaces } = objects(files)?;
    let rules = hayate_cni::policy::compile(&policies, &pods, &namespaces);
    Ok(json!(rules.map_err(|refused| refused.to_string())?))
}

/// Puts what is in these files in force.
fn apply(files: &[PathBuf], state: &Path, agent: &Path) -> Result<Value, String> {
    let objects = objects(files)?;
    let machine = hayate_cni::Machine::default();
    let done = policy::apply::apply(&machine, state, agent, &objects);
    let done = done.map_err(|error| error.to_string())?;
    let failed = done.iter().find_map(|one| Some((one, one.failed.as_ref()?)));
    match failed {
        Some((one, why)) => Err(format!("pod {}, VF {}: {why}", one.pod, one.vf)),
        None => Ok(json!(done)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
