//! The network configuration, as it comes on standard input.

use std::path::{Path, PathBuf};

use ipnet::IpNet;
use packet::Mac;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::VERSIONS;
use crate::agent::{LinkState, Settings};
use crate::call::{self, Args, Command, is_ifname, is_name, is_path, shortened};
use crate::error::{Code, Error};
use crate::result::{Dns, Route};
use crate::sysfs::Address;

/// Longest configuration, bytes.
pub const CONF_MAX: usize = 1 << 20;
/// Where records are kept unless the configuration says otherwise.
pub const STATE: &str = "/run/hayate-cni";
/// Where the agent listens unless the configuration says otherwise.
pub const AGENT: &str = "/run/hayate-agent.sock";
/// Addresses an interface may be given, and attachments a runtime may list.
const MANY: usize = 65536;

/// How the PF is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pf {
    /// By its interface.
    Name(String),
    /// By where it is on the bus.
    Address(Address),
    /// By its interface's address.
    Mac(Mac),
}

/// An attachment that a runtime still has.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Valid {
    /// The container.
    #[serde(rename = "containerID")]
    pub container: String,
    /// The interface in it.
    pub ifname: String,
}

/// What is configured.
#[derive(Clone, Debug)]
pub struct Conf {
    /// The version it is in, and the answers have to be in.
    pub version: String,
    /// The name of the network.
    pub name: String,
    /// The PF whose VFs are taken.
    pub pf: Option<Pf>,
    /// The VF to take.
    pub device: Option<Address>,
    /// The address its interface gets.
    pub mac: Option<Mac>,
    /// The same, unless the call says another.
    pub mac_otherwise: Option<Mac>,
    /// The MTU its interface gets.
    pub mtu: Option<u32>,
    /// What the agent is to set outside of the virtual machine.
    pub settings: Settings,
    /// Is the address to be set there as well?
    pub host_mac: bool,
    /// Where the agent listens.
    pub agent: PathBuf,
    /// Was that said?
    pub agent_named: bool,
    /// Where records are kept.
    pub state: PathBuf,
    /// The plugin that manages addresses.
    pub ipam: Option<String>,
    /// Addresses for a container when no plugin manages them.
    pub ips: Vec<IpNet>,
    /// Resolvers, unless the plugin that manages addresses names some.
    pub dns: Dns,
    /// Routes, when no plugin manages addresses.
    pub routes: Vec<Route>,
    /// What the plugins before this one answered, or all did when the container was added.
    pub previous: Option<Value>,
    /// Attachments that are not stale.
    pub valid: Vec<Valid>,
    /// All of it, as plugins that are asked next get it.
    pub raw: Vec<u8>,
}

/// It as it is written. Keys that are not known are of others.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    cni_version: Option<String>,
    name: Option<String>,
    pf: Option<String>,
    #[serde(rename = "deviceID")]
    device: Option<String>,
    #[serde(rename = "pciBusID")]
    bus_id: Option<String>,
    mac: Option<String>,
    mtu: Option<u64>,
    vlan: Option<u64>,
    #[serde(rename = "vlanQoS")]
    vlan_qos: Option<u64>,
    vlan_proto: Option<String>,
    #[serde(rename = "min_tx_rate")]
    min_tx_rate: Option<u64>,
    #[serde(rename = "max_tx_rate")]
    max_tx_rate: Option<u64>,
    spoofchk: Option<String>,
    trust: Option<String>,
    #[serde(rename = "link_state")]
    link_state: Option<String>,
    host_mac: Option<bool>,
    agent: Option<String>,
    state_dir: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    ipam: Ipam,
    #[serde(default, deserialize_with = "or_default")]
    dns: Dns,
    #[serde(default, deserialize_with = "or_default")]
    routes: Vec<Route>,
    prev_result: Option<Value>,
    #[serde(default, deserialize_with = "or_default")]
    runtime_config: Runtime,
    #[serde(default, deserialize_with = "or_default")]
    args: WrittenArgs,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid: Option<Vec<Valid>>,
    /// The name that the specification had for it at first.
    #[serde(rename = "cni.dev/attachments")]
    attachments: Option<Vec<Valid>>,
}

#[derive(Debug, Default, Deserialize)]
struct Ipam {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Runtime {
    #[serde(rename = "deviceID")]
    device: Option<String>,
    mac: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    ips: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct WrittenArgs {
    #[serde(default, deserialize_with = "or_default")]
    cni: Runtime,
}

/// Programs write `null` for what is not there.
pub(crate) fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Conf {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// When it is of a version that is not spoken, no JSON, or asks for what cannot be.
    pub fn read(input: &[u8]) -> Result<Self, Error> {
        if input.len() > CONF_MAX {
            return Err(Error::new(
                Code::Io,
                format!("standard input: more than {CONF_MAX} bytes"),
            ));
        }
        let decode = |error| Error::decode("network configuration", &error);
        // The version first: what follows is read as that version has it.
        let whole: Value = serde_json::from_slice(input).map_err(decode)?;
        let version = match whole.get("cniVersion") {
            None | Some(Value::Null) => "0.1.0",
            Some(Value::String(text)) => text,
            Some(_) => return Err(Error::new(Code::Decode, "cniVersion is no text")),
        };
        if !VERSIONS.contains(&version) {
            return Err(Error::new(
                Code::Version,
                format!("config is {:?}, plugin supports {VERSIONS:?}", shortened(version, 32)),
            ));
        }
        let written: Written = serde_json::from_value(whole).map_err(decode)?;
        written.checked(input)
    }

    /// Does its version have this command?
    ///
    /// # Errors
    /// [`Code::Version`].
    pub fn allows(&self, command: Command) -> Result<(), Error> {
        let since = match command {
            Command::Check => "0.4.0",
            Command::Gc | Command::Status => "1.1.0",
            Command::Add | Command::Del | Command::Version => return Ok(()),
        };
        let place = |version: &str| VERSIONS.iter().position(|one| *one == version);
        if place(&self.version) < place(since) {
            let version = &self.version;
            let text = format!("config is {version:?}, which has no such command; {since:?} has");
            return Err(Error::new(Code::Version, text));
        }
        Ok(())
    }

    /// The address the VF gets in a container.
    pub fn mac_for(&self, args: &Args) -> Option<Mac> {
        self.mac.or(args.mac).or(self.mac_otherwise)
    }

    /// What the agent is to set for such an address.
    pub fn settings_for(&self, mac: Option<Mac>) -> Settings {
        let mut settings = self.settings.clone();
        if self.host_mac || !settings.is_empty() {
            settings.mac = mac.map(|mac| mac.to_string());
        }
        settings
    }

    /// Does ADD need the agent?
    pub fn needs_agent(&self) -> bool {
        self.host_mac || !self.settings.is_empty()
    }
}

impl Written {
    fn checked(self, input: &[u8]) -> Result<Conf, Error> {
        let settings = self.settings()?;
        let name = self.name.unwrap_or_default();
        if !is_name(&name) {
            return Err(config("name", &name, "no name of a network"));
        }
        let device =
            self.runtime_config.device.or(self.args.cni.device).or(self.device).or(self.bus_id);
        let device = device.filter(|text| !text.is_empty());
        let device = device
            .map(|text| {
                text.parse().map_err(|()| config("deviceID", &text, "no address of a PCI function"))
            })
            .transpose()?;
        let mac = |text: Option<String>| {
            let text = text.filter(|text| !text.is_empty());
            text.map(|text| call::mac("mac", &text)).transpose()
        };
        let mac_otherwise = mac(self.mac)?;
        let mac = mac(self.runtime_config.mac.or(self.args.cni.mac))?;
        let mtu = self
            .mtu
            .map(|mtu| {
                let fits = u32::try_from(mtu).ok().filter(|mtu| (68..=65535).contains(mtu));
                fits.ok_or_else(|| config("mtu", &mtu.to_string(), "from 68 to 65535 is allowed"))
            })
            .transpose()?;
        let path = |key: &str, text: Option<String>, default: &str| match text {
            Some(text) if !is_path(&text) => Err(config(key, &text, "no absolute path")),
            Some(text) => Ok(PathBuf::from(text)),
            None => Ok(Path::new(default).to_owned()),
        };
        let ipam = self.ipam.kind.filter(|kind| !kind.is_empty());
        if let Some(kind) = &ipam
            && (kind.contains(['/', '\0']) || kind.starts_with('.') || kind.len() > 255)
        {
            return Err(config("ipam.type", kind, "no name of a program"));
        }
        let ips = if self.runtime_config.ips.is_empty() {
            self.args.cni.ips
        } else {
            self.runtime_config.ips
        };
        let ips: Result<Vec<IpNet>, Error> = ips
            .iter()
            .map(|text| text.parse().map_err(|_| config("ips", text, "no address with a prefix")))
            .collect();
        let ips = ips?;
        // No list is one with nothing in it: what runtimes that are written in Go say, and cnitool.
        let valid = self.valid.or(self.attachments).unwrap_or_default();
        if ips.len() > MANY || valid.len() > MANY || self.routes.len() > MANY {
            return Err(Error::new(Code::Config, "a list is too long"));
        }
        let agent_named = self.agent.is_some();
        let agent = path("agent", self.agent, AGENT)?;
        if agent.as_os_str().len() > 107 {
            return Err(Error::new(Code::Config, "agent: too long for the path of a socket"));
        }
        Ok(Conf {
            version: self.cni_version.unwrap_or_default(),
            name,
            pf: self.pf.map(|text| pf(&text)).transpose()?,
            device,
            mac,
            mac_otherwise,
            mtu,
            settings,
            host_mac: self.host_mac.unwrap_or_default(),
            agent,
            agent_named,
            state: path("stateDir", self.state_dir, STATE)?,
            ipam,
            ips,
            dns: self.dns,
            routes: self.routes,
            previous: self.prev_result,
            valid,
            raw: input.to_vec(),
        })
    }

    fn settings(&self) -> Result<Settings, Error> {
        let switch = |key: &str, text: &Option<String>| match text.as_deref() {
            None | Some("") => Ok(None),
            Some("on") => Ok(Some(true)),
            Some("off") => Ok(Some(false)),
            Some(other) => Err(config(key, other, "on or off is allowed")),
        };
        let small = |key: &str, value: Option<u64>, max: u32| {
            let refuse = || config(key, &value.unwrap_or(0).to_string(), &format!("at most {max}"));
            let fits = |value| u32::try_from(value).ok().filter(|value| *value <= max);
            value.map(|value| fits(value).ok_or_else(refuse)).transpose()
        };
        // What the switch of hayate has not is refused, rather than silently left out.
        if let Some(rate) = self.min_tx_rate.filter(|rate| *rate != 0) {
            return Err(unsupported("min_tx_rate", &rate.to_string()));
        }
        if let Some(protocol) = self.vlan_proto.as_deref()
            && !protocol.is_empty()
            && !protocol.eq_ignore_ascii_case("802.1q")
        {
            return Err(unsupported("vlanProto", protocol));
        }
        let state = match self.link_state.as_deref() {
            None | Some("") => None,
            Some("auto") => Some(LinkState::Auto),
            Some("enable") => Some(LinkState::Enable),
            Some("disable") => Some(LinkState::Disable),
            Some(other) => {
                return Err(config("link_state", other, "auto, enable or disable is allowed"));
            }
        };
        let vlan = small("vlan", self.vlan, 4094)?.map(|vlan| vlan as u16);
        let tagged = vlan.is_some_and(|vlan| vlan != 0);
        let qos = small("vlanQoS", self.vlan_qos, 7)?.map(|qos| qos as u8);
        if let Some(qos) = qos.filter(|qos| *qos != 0 && !tagged) {
            let why = "goes with vlan: it is the priority of that tag";
            return Err(config("vlanQoS", &qos.to_string(), why));
        }
        Ok(Settings {
            mac: None,
            vlan,
            qos: qos.filter(|_| tagged),
            spoofchk: switch("spoofchk", &self.spoofchk)?,
            trust: switch("trust", &self.trust)?,
            rate: small("max_tx_rate", self.max_tx_rate, u32::MAX)?,
            state,
        })
    }
}

fn pf(text: &str) -> Result<Pf, Error> {
    if let Ok(address) = text.parse() {
        Ok(Pf::Address(address))
    } else if let Ok(mac) = text.parse() {
        Ok(Pf::Mac(mac))
    } else if is_ifname(text) {
        Ok(Pf::Name(text.to_owned()))
    } else {
        Err(config("pf", text, "no interface, PCI address or MAC address"))
    }
}

fn config(key: &str, value: &str, why: &str) -> Error {
    Error::new(Code::Config, format!("{key}: {:?}: {why}", shortened(value, 64)))
}

fn unsupported(key: &str, value: &str) -> Error {
    Error::new(Code::Unsupported, format!("{key}: {:?}", shortened(value, 64)))
}

#[cfg(test)]
mod tests;
