//! What can be typed.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use hayate_cni::error::{Code, Error};
use serde::Deserialize;
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
    Policy {
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
        Some(Command::Policy { files }) => match policy(&files) {
            Ok(rules) => {
                let _ = writeln!(io::stdout(), "{rules:#}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                let _ = writeln!(io::stderr(), "error: {error}");
                ExitCode::FAILURE
            }
        },
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

/// The rules of what is in these files.
fn policy(files: &[PathBuf]) -> Result<Value, String> {
    let (mut policies, mut pods, mut namespaces) = (Vec::new(), Vec::new(), Vec::new());
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
        let objects = match value {
            Value::Object(mut list) if list.contains_key("items") => list["items"].take(),
            other => Value::Array(vec![other]),
        };
        for object in objects.as_array().into_iter().flatten() {
            let failed = |error| format!("{name}: {}: {error}", object["metadata"]["name"]);
            match object["kind"].as_str() {
                Some("NetworkPolicy") => {
                    policies.push(Deserialize::deserialize(object).map_err(failed)?);
                }
                Some("Pod") => pods.push(Deserialize::deserialize(object).map_err(failed)?),
                Some("Namespace") => {
                    namespaces.push(Deserialize::deserialize(object).map_err(failed)?);
                }
                // Whatever else was asked for.
                _ => {}
            }
        }
    }
    let rules = hayate_cni::policy::compile(&policies, &pods, &namespaces);
    Ok(json!(rules.map_err(|refused| refused.to_string())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
