//! What a change must satisfy.

use super::{Registry, Tables, not_found};
use crate::plane::NetworkHandle;
use api::{
    DiskConfig, Error, ErrorCode, Name, Origin, PortConfig, PortKind, SOCKET_PATH_MAX, VmConfig,
    Wrong,
};
use std::path::{Path, PathBuf};

/// A value that is out of range or does not go with another.
pub(super) fn invalid(wrong: &Wrong) -> Error {
    Error::new(ErrorCode::Invalid, wrong.to_string())
}

/// Something of that name exists and is different.
pub(super) fn exists(kind: &str, name: &Name) -> Error {
    Error::new(ErrorCode::Exists, format!("{kind} {name} exists already, made differently")).hint(
        format!(
            "`hayate {kind} show {name}` says how; `hayate {kind} del {name}` first, or choose \
             another name"
        ),
    )
}

/// Refuses to touch what the configuration file declares.
pub(super) fn not_static(
    registry: &Registry,
    kind: &str,
    name: &Name,
    origin: Origin,
) -> Result<(), Error> {
    if origin == Origin::Runtime {
        return Ok(());
    }
    let file = match &registry.config_file {
        Some(file) => file.display().to_string(),
        None => "the configuration file".to_owned(),
    };
    Err(Error::new(ErrorCode::Static, format!("{kind} {name} is declared in {file}"))
        .hint("remove it there, then restart the daemon"))
}

/// Refuses to delete what ports still need.
pub(super) fn unused(kind: &str, name: &Name, ports: &[Name]) -> Result<(), Error> {
    if ports.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = ports.iter().map(Name::as_str).collect();
    let names = names.join(", ");
    Err(Error::new(ErrorCode::InUse, format!("{kind} {name} still has ports: {names}"))
        .hint("delete them first: `hayate port del NAME`"))
}

impl Registry {
    /// Whether the port may exist beside the others; its network and its socket.
    pub(super) fn check_port(
        &self,
        name: &Name,
        config: &PortConfig,
    ) -> Result<(NetworkHandle, PathBuf), Error> {
        config.check().map_err(|wrong| invalid(&wrong))?;
        let socket = self.paths.vhost_socket(name, config);
        if config.kind == PortKind::Vhost {
            check_length(&socket)?;
        }
        config.worker.map_or(Ok(()), |worker| self.check_worker(worker))?;
        let tables = self.tables.read();
        let network = &config.network;
        let Some(found) = tables.networks.get(network) else {
            return Err(not_found("network", network)
                .hint(format!("`hayate network add {network}` makes it")));
        };
        if let Some(vm) = config.vm.as_ref().filter(|vm| !tables.vms.contains_key(*vm)) {
            return Err(not_found("vm", vm).hint(format!("`hayate vm add {vm}` makes it")));
        }
        if config.kind == PortKind::Vhost
            && let Some((kind, other)) = self.at(&tables, &socket)
            && kind != "port"
        {
            return Err(taken("socket", &socket, kind, other));
        }
        for (other, port) in &tables.ports {
            if other != name && self.collide((name, config), (other, &port.config)) {
                let place = match config.kind {
                    PortKind::Vhost => format!("socket {}", socket.display()),
                    PortKind::Tap => {
                        format!("interface {}", config.ifname.as_deref().unwrap_or_default())
                    }
                };
                return Err(Error::new(
                    ErrorCode::InUse,
                    format!("port {other} has the {place} already"),
                ));
            }
        }
        Ok((found.handle, socket))
    }

    /// Whether the disk may exist beside the others.
    pub(super) fn check_disk(&self, name: &Name, config: &DiskConfig) -> Result<(), Error> {
        config.check().map_err(|wrong| invalid(&wrong))?;
        let socket = self.paths.disk_socket(name, config);
        check_length(&socket)?;
        config.worker.map_or(Ok(()), |worker| self.check_worker(worker))?;
        let tables = self.tables.read();
        if let Some(vm) = config.vm.as_ref().filter(|vm| !tables.vms.contains_key(*vm)) {
            return Err(not_found("vm", vm).hint(format!("`hayate vm add {vm}` makes it")));
        }
        match self.at(&tables, &socket).filter(|(kind, other)| *kind != "disk" || *other != name) {
            Some((kind, other)) => Err(taken("socket", &socket, kind, other)),
            None => Ok(()),
        }
    }

    /// What has this socket: a kind and a name.
    fn at<'t>(&self, tables: &'t Tables, socket: &Path) -> Option<(&'static str, &'t Name)> {
        let vhost = |port: &PortConfig| port.kind == PortKind::Vhost;
        let port = tables.ports.iter().find(|(name, port)| {
            vhost(&port.config) && self.paths.vhost_socket(name, &port.config) == *socket
        });
        let disk = tables
            .disks
            .iter()
            .find(|(name, disk)| self.paths.disk_socket(name, &disk.config) == *socket);
        let channel = tables.channel_at(socket).map(|name| ("vm", name));
        channel.or(port.map(|(name, _)| ("port", name))).or(disk.map(|(name, _)| ("disk", name)))
    }

    /// Whether a VM's channel may be where it is to be.
    pub(super) fn check_channel(&self, name: &Name, config: &VmConfig) -> Result<(), Error> {
        let Some(socket) = &config.channel else { return Ok(()) };
        let tables = self.tables.read();
        match self.at(&tables, socket).filter(|(kind, other)| *kind != "vm" || *other != name) {
            Some((kind, other)) => Err(taken("channel", socket, kind, other)),
            None => Ok(()),
        }
    }

    /// Whether there is a worker of this number.
    pub(super) fn check_worker(&self, worker: u16) -> Result<(), Error> {
        let workers = self.plane.workers().len();
        if usize::from(worker) < workers {
            return Ok(());
        }
        let last = workers.saturating_sub(1);
        let message = format!("worker: there is no worker {worker}, allowed is 0 to {last}");
        Err(Error::new(ErrorCode::Invalid, message)
            .hint("`hayate worker list` shows them; `hayate daemon --cpus` makes them"))
    }

    fn collide(&self, one: (&Name, &PortConfig), two: (&Name, &PortConfig)) -> bool {
        match (one.1.kind, two.1.kind) {
            (PortKind::Vhost, PortKind::Vhost) => {
                self.paths.vhost_socket(one.0, one.1) == self.paths.vhost_socket(two.0, two.1)
            }
            (PortKind::Tap, PortKind::Tap) => {
                one.1.ifname == two.1.ifname && one.1.netns == two.1.netns
            }
            _ => false,
        }
    }
}

impl Tables {
    /// The VM whose channel is at this path.
    fn channel_at(&self, path: &Path) -> Option<&Name> {
        let mut vms = self.vms.iter();
        vms.find(|(_, vm)| vm.config.channel.as_deref() == Some(path)).map(|(name, _)| name)
    }
}

fn taken(field: &str, path: &Path, kind: &str, name: &Name) -> Error {
    let message = format!("{field}: {kind} {name} has the socket {} already", path.display());
    Error::new(ErrorCode::InUse, message)
}

fn check_length(socket: &Path) -> Result<(), Error> {
    let length = socket.as_os_str().len();
    if length <= SOCKET_PATH_MAX {
        return Ok(());
    }
    let message = format!(
        "socket: {} has {length} bytes, a Unix socket allows {SOCKET_PATH_MAX}",
        socket.display()
    );
    Err(Error::new(ErrorCode::Invalid, message).hint("give a shorter one with --socket"))
}
