//! What lies outside of the virtual machine, set through the agent in it.
//!
//! The agent listens on a Unix socket, where it takes one question a connection, a line of JSON, and passes those
//! about VFs on to the daemon. `vf.show` with `pf` (the address of its interface) and `vf` (its number) answers the
//! settings, `vf.set` sets those that it names besides, `flow.set` says which frames pass. It is asked only when the configuration wants one of these
//! settings, so that the plugin works without it otherwise.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use packet::Mac;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Code, Error};
use crate::policy::flow::FlowRules;
use crate::state;

/// Longest answer, bytes.
const ANSWER_MAX: u64 = 1 << 20;
/// An agent that takes longer is taken for dead.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rules of one request, bytes: with what is around them it is less than the agent takes.
const PART_MAX: usize = 24 << 10;
/// Rules are said so often, so far apart.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);

/// Settings of a VF that the host has. `None`: as it is, or not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The address the VF may send from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The VLAN its frames are in, 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The priority in that VLAN's tags, 0 to 7.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<u8>,
    /// Are frames from other addresses dropped?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spoofchk: Option<bool>,
    /// May it change its address, and be promiscuous?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// What it may send, Mbit/s, 0 for all it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// What it sees of the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LinkState>,
}

/// What a VF sees of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// As the PF has it.
    Auto,
    /// Always up.
    Enable,
    /// Always down.
    Disable,
}

impl Settings {
    /// Is nothing set?
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Those of `before` that this one changes: what undoes it.
    #[must_use]
    pub fn undone_by(&self, before: &Self) -> Self {
        Self {
            mac: self.mac.as_ref().and(before.mac.clone()),
            vlan: self.vlan.and(Some(before.vlan.unwrap_or(0))),
            // It goes with a VLAN. Another one has none of before.
            qos: self.vlan.and(before.qos).filter(|_| before.vlan.unwrap_or(0) != 0),
            spoofchk: self.spoofchk.and(Some(before.spoofchk.unwrap_or(false))),
            trust: self.trust.and(Some(before.trust.unwrap_or(false))),
            rate: self.rate.and(Some(before.rate.unwrap_or(0))),
            state: self.state.and(Some(before.state.unwrap_or(LinkState::Auto))),
        }
    }

    /// Does `now` have all that this one sets?
    pub fn hold_in(&self, now: &Self) -> bool {
        fn held<T: PartialEq>(wanted: Option<&T>, now: Option<&T>) -> bool {
            wanted.is_none() || wanted == now
        }
        held(self.mac.as_ref(), now.mac.as_ref())
            && held(self.vlan.as_ref(), now.vlan.as_ref())
            && held(self.qos.as_ref(), now.qos.as_ref())
            && held(self.spoofchk.as_ref(), now.spoofchk.as_ref())
            && held(self.trust.as_ref(), now.trust.as_ref())
            && held(self.rate.as_ref(), now.rate.as_ref())
            && held(self.state.as_ref(), now.state.as_ref())
    }
}

/// The agent that listens somewhere.
#[derive(Debug)]
pub struct Agent {
    path: PathBuf,
}

/// What is to be said: as one request, or, if that is too long for a line, in parts, which are done as one.
fn parts(pf: Mac, rules: &FlowRules, batch: u64) -> Vec<Value> {
    let begin = |clear: bool| {
        let mut part = json!({ "pf": pf.to_string(), "add": [] });
        if clear {
            part["clear"] = json!([rules.on]);
        }
        part
    };
    let (mut parts, mut length) = (vec![begin(true)], 0);
    for rule in &rules.rules {
        let size = rule.to_string().len() + 1;
        if length + size > PART_MAX {
            parts.push(begin(false));
            length = 0;
        }
        length += size;
        if let Some(Value::Array(add)) = parts.last_mut().and_then(|part| part.get_mut("add")) {
            add.push(rule.clone());
        }
    }
    let count = parts.len();
    for (number, part) in parts.iter_mut().enumerate() {
        let last = number + 1 == count;
        if last {
            part["defaults"] = json!(rules.defaults);
        }
        if count > 1 {
            part["part"] = json!({ "batch": batch, "number": number, "last": last });
        }
    }
    parts
}

/// What it answers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Said {
    Result(Value),
    Error(String),
}

impl Agent {
    /// Looks whether somebody listens there.
    ///
    /// # Errors
    /// [`Code::Agent`], when nobody does.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        UnixStream::connect(path).map_err(|error| {
            let path = path.display();
            let text = format!(
                "no agent at {path}: {error}; vlan, max_tx_rate, spoofchk, trust, link_state and \
                 hostMac need `hayate-agent run` in this virtual machine"
            );
            Error::new(Code::Agent, text)
        })?;
        Ok(Self { path: path.to_owned() })
    }

    /// What is set.
    ///
    /// # Errors
    /// [`Code::Agent`].
    pub fn show(&self, pf: Mac, vf: u32) -> Result<Settings, Error> {
        let result = self.ask("vf.show", &json!({ "pf": pf.to_string(), "vf": vf }))?;
        Settings::deserialize(result).map_err(|error| self.refuse(&format!("vf.show: {error}")))
    }

    /// Sets what `settings` has.
    ///
    /// # Errors
    /// [`Code::Agent`].
    pub fn set(&self, pf: Mac, vf: u32, settings: &Settings) -> Result<(), Error> {
        let mut parameters = json!(settings);
        parameters["pf"] = json!(pf.to_string());
        parameters["vf"] = json!(vf);
        self.ask("vf.set", &parameters).map(drop)
    }

    /// Has a VF these flow rules and no others, at once.
    ///
    /// # Errors
    /// [`Code::Agent`]; then it has those of before.
    pub fn set_rules(&self, pf: Mac, rules: &FlowRules) -> Result<(), Error> {
        let mut tries = 1;
        loop {
            let parts = parts(pf, rules, state::token()? >> 11);
            let set = parts.iter().try_for_each(|part| self.ask("flow.set", part).map(drop));
            match set {
                // Somebody else was saying parts, or there were too many changes just now.
                Err(_) if tries < TRIES => std::thread::sleep(PAUSE),
                other => return other,
            }
            tries += 1;
        }
    }

    /// Asks in a connection of its own, as the agent has it.
    fn ask(&self, method: &str, parameters: &Value) -> Result<Value, Error> {
        let question = json!({ "ask": "daemon", "method": method, "params": parameters });
        let asked = || -> io::Result<Vec<u8>> {
            let mut stream = UnixStream::connect(&self.path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.write_all(format!("{question}\n").as_bytes())?;
            let mut answer = Vec::new();
            stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
            Ok(answer)
        };
        let answer = asked().map_err(|error| self.refuse(&format!("{method}: {error}")))?;
        match serde_json::from_slice(&answer) {
            Ok(Said::Result(result)) => Ok(result),
            Ok(Said::Error(said)) => {
                let said = crate::call::shortened(&said, 500);
                Err(self.refuse(&format!("{method}: {said}")))
            }
            Err(_) => {
                let text = "no answer to it; is this agent too old for virtual functions?";
                Err(self.refuse(&format!("{method}: {text}")))
            }
        }
    }

    fn refuse(&self, text: &str) -> Error {
        Error::new(Code::Agent, format!("agent at {}: {text}", self.path.display()))
    }
}
