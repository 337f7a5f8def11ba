//! What lies outside of the virtual machine, set through the agent in it.
//!
//! The agent listens on a Unix socket. What is said there is JSON-RPC 2.0, one message a line, as on the
//! guest channel: `vf.show` with `pf` (its address on the bus) and `vf` (its number) answers the settings,
//! `vf.set` sets those that it names besides. It is asked only when the configuration wants one of these
//! settings, so that the plugin works without it otherwise.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Code, Error};
use crate::sysfs::Address;

/// Longest answer, bytes.
const ANSWER_MAX: u64 = 64 * 1024;
/// An agent that takes longer is taken for dead.
const PATIENCE: Duration = Duration::from_secs(5);

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
            && held(self.spoofchk.as_ref(), now.spoofchk.as_ref())
            && held(self.trust.as_ref(), now.trust.as_ref())
            && held(self.rate.as_ref(), now.rate.as_ref())
            && held(self.state.as_ref(), now.state.as_ref())
    }
}

/// A connection to the agent.
#[derive(Debug)]
pub struct Agent {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    id: u64,
}

impl Agent {
    /// Connects.
    ///
    /// # Errors
    /// [`Code::Agent`], when nobody listens there.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let connected = UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        let stream = connected.map_err(|error| {
            let path = path.display();
            let text = format!(
                "no agent at {path}: {error}; vlan, max_tx_rate, spoofchk, trust, link_state and hostMac need \
                 `hayate-agent run` in this virtual machine"
            );
            Error::new(Code::Agent, text)
        })?;
        Ok(Self { path: path.to_owned(), stream: BufReader::new(stream), id: 0 })
    }

    /// What is set.
    ///
    /// # Errors
    /// [`Code::Agent`].
    pub fn show(&mut self, pf: Address, vf: u32) -> Result<Settings, Error> {
        let result = self.ask("vf.show", json!({ "pf": pf, "vf": vf }))?;
        Settings::deserialize(result).map_err(|error| self.refuse(&format!("vf.show: {error}")))
    }

    /// Sets what `settings` has.
    ///
    /// # Errors
    /// [`Code::Agent`].
    pub fn set(&mut self, pf: Address, vf: u32, settings: &Settings) -> Result<(), Error> {
        let mut parameters = json!(settings);
        parameters["pf"] = json!(pf);
        parameters["vf"] = json!(vf);
        self.ask("vf.set", parameters).map(drop)
    }

    #[expect(clippy::needless_pass_by_value, reason = "made for this call")]
    fn ask(&mut self, method: &str, parameters: Value) -> Result<Value, Error> {
        self.id += 1;
        let request =
            json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": parameters });
        let mut line = Vec::new();
        let said = self
            .stream
            .get_mut()
            .write_all(format!("{request}\n").as_bytes())
            .and_then(|()| self.stream.by_ref().take(ANSWER_MAX).read_until(b'\n', &mut line));
        if let Err(error) = said {
            return Err(self.refuse(&format!("{method}: {error}")));
        }
        let answer: Value = serde_json::from_slice(&line).unwrap_or_default();
        if answer["jsonrpc"] != "2.0" || answer["id"] != self.id {
            let text =
                format!("{method}: no answer to it; is this agent too old for virtual functions?");
            return Err(self.refuse(&text));
        }
        match (&answer["error"], &answer["result"]) {
            (Value::Null, result) => Ok(result.clone()),
            (error, _) => {
                let said = error["message"].as_str().unwrap_or("no message");
                let said = crate::call::shortened(said, 500);
                Err(self.refuse(&format!("{method}: {said}")))
            }
        }
    }

    fn refuse(&self, text: &str) -> Error {
        Error::new(Code::Agent, format!("agent at {}: {text}", self.path.display()))
    }
}
