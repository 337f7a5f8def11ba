//! The CNI plugin for virtual VFs: containers inside a virtual machine get functions of its virtual PF.
//!
//! **Purpose.** What a container runtime asks by the Container Network Interface, versions 0.3.1 to 1.1.0:
//! a VF goes into the namespace of a pod and comes back ([`run`]). [`call`] and [`conf`] are what was asked,
//! [`result`] and [`error`] what is answered; [`sysfs`] finds functions, [`link`] and [`netns`] do what the
//! kernel has to do, [`ipam`] asks plugins that manage addresses, [`agent`] sets what lies outside of the
//! virtual machine.
//!
//! [`policy`] is apart: what Kubernetes says about who may talk to whom, as plain rules.
//!
//! **Owner and threads.** One thread, a process for each call; many of them at once. What they must agree on
//! is in [`state`], which opens with how.
//!
//! **Failure.** An answer with a code of the specification. What was begun is undone first; what a process
//! that was killed left behind is ended by the next call that meets it.

pub mod agent;
pub mod call;
pub mod conf;
pub mod error;
pub mod ipam;
pub mod link;
pub mod netns;
pub mod policy;
pub mod result;
pub mod state;
pub mod sysfs;

mod add;
mod check;
mod del;
mod gc;
mod status;
mod vf;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use call::{Call, Command};
use conf::Conf;
use error::{Code, Error};

/// Versions of the specification that are spoken, oldest first.
pub const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Where things of the machine are.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The root of sysfs: `/sys`.
    pub sysfs: PathBuf,
}

impl Default for Machine {
    fn default() -> Self {
        Self { sysfs: "/sys".into() }
    }
}

/// Answers one call: `variables` are those named `CNI_...`, `input` is what came on standard input. The
/// answer, if there is one, is for standard output.
///
/// The calling thread has to be in the network namespace of the host, and is there again afterwards.
///
/// # Errors
/// Those of the specification; [`Error::answer`] is for standard output.
pub fn run(
    machine: &Machine,
    variables: &BTreeMap<String, String>,
    input: &[u8],
) -> Result<Option<Value>, Error> {
    let command = Command::of(variables)?;
    if command == Command::Version {
        return version(input).map(Some);
    }
    let conf = Conf::read(input)?;
    conf.allows(command)?;
    let call = Call::read(command, variables)?;
    let context = Context { machine, call: &call, conf: &conf };
    match command {
        Command::Add => add::add(&context).map(Some),
        Command::Del => del::del(&context).map(|()| None),
        Command::Check => check::check(&context).map(|()| None),
        Command::Gc => gc::gc(&context).map(|()| None),
        Command::Status => status::status(&context).map(|()| None),
        Command::Version => Ok(None),
    }
}

/// What a call is about.
struct Context<'a> {
    machine: &'a Machine,
    call: &'a Call,
    conf: &'a Conf,
}

fn version(input: &[u8]) -> Result<Value, Error> {
    let newest = VERSIONS[VERSIONS.len() - 1];
    let asked = if input.iter().all(u8::is_ascii_whitespace) {
        None
    } else {
        let value: Value = serde_json::from_slice(input)
            .map_err(|error| Error::decode("standard input", &error))?;
        match value.get("cniVersion") {
            None => None,
            Some(Value::String(text)) if text.len() <= 32 => Some(text.clone()),
            Some(_) => {
                return Err(Error::new(Code::Decode, "cniVersion is no version"));
            }
        }
    };
    let version = asked.unwrap_or_else(|| newest.to_owned());
    Ok(json!({ "cniVersion": version, "supportedVersions": VERSIONS }))
}

/// What goes wrong beside the answer, for the log of the runtime.
fn note(text: impl std::fmt::Display) {
    use std::io::Write as _;
    // Whoever closed standard error does not want to know.
    let _ = writeln!(std::io::stderr(), "hayate-cni: {text}");
}

impl Context<'_> {
    /// The key of the attachment that the call is about.
    fn key(&self) -> state::Key {
        state::Key {
            network: self.conf.name.clone(),
            container: self.call.container.clone(),
            ifname: self.call.ifname.clone(),
        }
    }
}
