//! The configuration file `hayate.toml`.
//!
//! Read once, at start. Every mistake is reported with file, line, column and what is allowed; a
//! file with a mistake is not used in part. What it declares cannot be changed over the interface
//! and is not part of the saved state, so that the file stays the truth.

mod locate;
mod reference;
#[cfg(test)]
mod tests;

pub(crate) use reference::reference;

use api::{CpuList, DiskConfig, Name, NetworkConfig, PfConfig, PortConfig, PortKind, VmConfig};
use locate::Source;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A commented example, accepted as it stands.
pub(crate) const EXAMPLE: &str = include_str!("example.toml");

/// The file `hayate.toml`, given with `hayate daemon --config FILE`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// CPUs of the workers, one pinned worker for each. `--cpus` overrides it. Default: workers
    /// that are not pinned, one for every eight CPUs of the machine.
    pub(crate) cpus: Option<CpuList>,
    /// What workers save, time or CPU: `always` polls without end, `latency` polls for a millisecond
    /// after the last frame, `balanced` naps for up to 100 microseconds while frames come steadily,
    /// `power` for up to 250. All but `power` also poll for a disk of which more is asked than it takes
    /// at a time, if it answers within 4 milliseconds. In all but the first a quiet worker sleeps.
    /// Default: `balanced`.
    #[serde(default)]
    pub(crate) polling: Polling,
    /// Whether a queue moves by itself from a worker that has too much to do to one that has room.
    /// What `worker` or `hayate worker move` placed stays where it is.
    #[serde(default = "yes")]
    pub(crate) balance: bool,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace` or `off`, or such a level for a
    /// part of the program, like `info,dataplane=debug`. `--log` and `HAYATE_LOG` override it.
    /// Default: `info`.
    pub(crate) log: Option<String>,
    /// Group that may connect to the sockets of vhost ports, by name or number; libvirt runs QEMU
    /// as a user of its own. Default: only the daemon's own user.
    pub(crate) vhost_group: Option<String>,
    /// Directory of images, made if need be. Default: `images` in the state directory.
    pub(crate) images: Option<PathBuf>,
    /// Directory of `ca.pem`, `cert.pem` and `key.pem`, by which stores are known and know this host.
    /// `--tls-dir` overrides it. Default: neither is asked for, and nothing is encrypted.
    #[schemars(with = "Option<String>")]
    pub(crate) tls_dir: Option<PathBuf>,
    /// Networks, by name: `[networks.NAME]`.
    #[serde(default)]
    pub(crate) networks: BTreeMap<Name, NetworkConfig>,
    /// VMs, by name: `[vms.NAME]`.
    #[serde(default)]
    pub(crate) vms: BTreeMap<Name, VmConfig>,
    /// Ports, by name: `[ports.NAME]`. Which keys may be given depends on `kind`.
    #[serde(default)]
    pub(crate) ports: BTreeMap<Name, PortConfig>,
    /// Virtual functions, by the name of their PF: `[pfs.NAME]`.
    #[serde(default)]
    pub(crate) pfs: BTreeMap<Name, PfConfig>,
    /// Disks, by name: `[disks.NAME]`. Their images are made with `hayate image`.
    #[serde(default)]
    pub(crate) disks: BTreeMap<Name, DiskConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cpus: None,
            polling: Polling::default(),
            balance: yes(),
            log: None,
            vhost_group: None,
            images: None,
            tls_dir: None,
            networks: BTreeMap::new(),
            vms: BTreeMap::new(),
            ports: BTreeMap::new(),
            pfs: BTreeMap::new(),
            disks: BTreeMap::new(),
        }
    }
}

fn yes() -> bool {
    true
}

/// What workers save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Polling {
    Always,
    Latency,
    #[default]
    Balanced,
    Power,
}

impl From<Polling> for pace::Profile {
    fn from(polling: Polling) -> Self {
        match polling {
            Polling::Always => Self::Always,
            Polling::Latency => Self::Latency,
            Polling::Balanced => Self::Balanced,
            Polling::Power => Self::Power,
        }
    }
}

/// Why a configuration was refused: one line of text, or several for several mistakes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(String);

/// A mistake: the keys that lead to the value, and what is allowed.
type Mistake = (Vec<String>, String);

/// Reads and checks a file.
pub(crate) fn load(file: &Path) -> Result<Config, ConfigError> {
    match std::fs::read_to_string(file) {
        Ok(text) => parse(file, &text),
        Err(error) => {
            let hint = match error.kind() {
                ErrorKind::NotFound => {
                    "\nhint: `hayate config example` prints one; it may be empty"
                }
                _ => "",
            };
            Err(ConfigError(format!("{}: {error}{hint}", file.display())))
        }
    }
}

/// Checks a text; `file` is its name in messages.
pub(crate) fn parse(file: &Path, text: &str) -> Result<Config, ConfigError> {
    let source = Source::new(file, text);
    let config: Config = toml::from_str(text).map_err(|error| {
        ConfigError(source.report(error.span().unwrap_or(0..0), error.message()))
    })?;
    let mistakes = config.mistakes();
    if mistakes.is_empty() {
        return Ok(config);
    }
    let reports = mistakes.iter().map(|(keys, message)| {
        source.report(source.span_of(keys), &format!("{}: {message}", keys.join(".")))
    });
    Err(ConfigError(reports.collect::<Vec<_>>().join("\n")))
}

impl Config {
    /// What types cannot say: ranges, references, and things wanted twice.
    fn mistakes(&self) -> Vec<Mistake> {
        let mut found = Vec::new();
        if let Some(Err(message)) = self.log.as_deref().map(crate::daemon::check_log) {
            found.push((vec!["log".to_owned()], message));
        }
        let tables = [
            ("networks", failures(&self.networks, NetworkConfig::check)),
            ("vms", failures(&self.vms, VmConfig::check)),
            ("ports", failures(&self.ports, PortConfig::check)),
            ("pfs", failures(&self.pfs, PfConfig::check)),
            ("disks", failures(&self.disks, DiskConfig::check)),
        ];
        for (table, wrongs) in tables {
            let keys = |name: &Name, field| vec![table.to_owned(), name.to_string(), field];
            let wrongs = wrongs.into_iter();
            found.extend(wrongs.map(|(name, w)| (keys(&name, w.field.to_owned()), w.message)));
        }
        self.check_references(&mut found);
        found
    }

    fn check_references(&self, found: &mut Vec<Mistake>) {
        let mut taken: HashMap<String, String> = HashMap::new();
        for (name, vm) in &self.vms {
            let place = vm.channel.as_ref().map(|path| path.display().to_string());
            if let Some(other) = place.and_then(|place| taken.insert(place, format!("vm {name}"))) {
                let keys = ["vms", name.as_str(), "channel"].map(str::to_owned).to_vec();
                found.push((keys, format!("{other} has the same")));
            }
        }
        for (name, disk) in &self.disks {
            let mut wrong = |field: &str, message: String| {
                found.push((vec!["disks".to_owned(), name.to_string(), field.to_owned()], message));
            };
            if let Some(vm) = disk.vm.as_ref().filter(|vm| !self.vms.contains_key(*vm)) {
                wrong("vm", format!("there is no [vms.{vm}] in this file"));
            }
            let place = disk.socket.as_ref().map(|path| path.display().to_string());
            if let Some(other) = place.and_then(|place| taken.insert(place, format!("disk {name}")))
            {
                wrong("socket", format!("{other} has the same"));
            }
        }
        self.check_pfs(found);
        for (name, port) in &self.ports {
            let mut wrong = |field: &str, message: String| {
                found.push((vec!["ports".to_owned(), name.to_string(), field.to_owned()], message));
            };
            if !self.networks.contains_key(&port.network) {
                let message = format!("there is no [networks.{}] in this file", port.network);
                wrong("network", message);
            }
            if let Some(vm) = port.vm.as_ref().filter(|vm| !self.vms.contains_key(*vm)) {
                wrong("vm", format!("there is no [vms.{vm}] in this file"));
            }
            let (field, place) = match port.kind {
                PortKind::Vhost => {
                    ("socket", port.socket.as_ref().map(|p| p.display().to_string()))
                }
                PortKind::Tap => {
                    let netns = port.netns.as_deref().unwrap_or_default();
                    ("ifname", port.ifname.as_ref().map(|ifname| format!("{netns} {ifname}")))
                }
            };
            if let Some(other) = place.and_then(|place| taken.insert(place, format!("port {name}")))
            {
                wrong(field, format!("{other} has the same"));
            }
        }
    }
}

impl Config {
    /// What PFs refer to, and that the names of their ports are free.
    fn check_pfs(&self, found: &mut Vec<Mistake>) {
        let mut taken = HashMap::new();
        for (name, pf) in &self.pfs {
            let mut wrong = |field: Option<&str>, message: String| {
                let keys = ["pfs", name.as_str()].into_iter().chain(field);
                found.push((keys.map(str::to_owned).collect(), message));
            };
            if !self.networks.contains_key(&pf.network) {
                let message = format!("there is no [networks.{}] in this file", pf.network);
                wrong(Some("network"), message);
            }
            if !self.vms.contains_key(&pf.vm) {
                wrong(Some("vm"), format!("there is no [vms.{}] in this file", pf.vm));
            }
            // More VFs than there may be are reported as such.
            match pf.check().and_then(|()| pf.functions(name)) {
                Ok(functions) => {
                    for (port, _) in functions {
                        if self.ports.contains_key(&port) {
                            wrong(None, format!("[ports.{port}] has the name of its port"));
                        } else if let Some(other) = taken.insert(port.clone(), name) {
                            wrong(None, format!("{other} has a port {port} too"));
                        }
                    }
                }
                Err(error) if error.field == "name" => wrong(None, error.message),
                Err(_) => {}
            }
        }
    }
}

fn failures<C>(
    table: &BTreeMap<Name, C>,
    check: impl Fn(&C) -> Result<(), api::Wrong>,
) -> Vec<(Name, api::Wrong)> {
    let entries = table.iter();
    entries.filter_map(|(name, entry)| Some((name.clone(), check(entry).err()?))).collect()
}
