//! Ports come and go.

use super::checks::{exists, invalid, not_static};
use super::pfs::no_function;
use super::{Failure, Port, Registry, host, not_found};
use crate::plane::{NetworkHandle, PlaneError, PortHandle, RuleSet};
use api::{
    Error, ErrorCode, Name, Origin, Placement, PortConfig, PortKind, PortPolicy, SocketMode,
};
use std::io;
use std::path::{Path, PathBuf};
use tracing::{info, warn};

impl Registry {
    /// Makes a port and opens it; `false` if it was there already, made the same way.
    pub(crate) async fn add_port(
        &self,
        name: &Name,
        config: PortConfig,
    ) -> Result<(api::Port, bool), Error> {
        let _changing = self.changing.lock().await;
        let same = match self.tables.read().ports.get(name) {
            Some(port) => {
                no_function(name, port)?;
                Some(self.same(name, &port.config, &config))
            }
            None => None,
        };
        match same {
            Some(true) => return Ok((self.port(name)?, false)),
            Some(false) => return Err(exists("port", name)),
            None => {}
        }
        let (network, socket) = self.check_port(name, &config)?;
        // A new port has no past, whatever an old one of its name left behind.
        self.forget_rings(name);
        let handle =
            self.open(name, &config, network, socket, None).await.map_err(|error| host(&error))?;
        let port = Port { config, origin: Origin::Runtime, function: None, open: Ok(handle) };
        self.tables.write().ports.insert(name.clone(), port);
        if let Err(error) = self.save().await {
            self.tables.write().ports.remove(name);
            self.close(name, handle).await;
            self.forget_rings(name);
            return Err(error);
        }
        info!("port {name} added");
        Ok((self.port(name)?, true))
    }

    /// Closes a port and forgets it.
    pub(crate) async fn remove_port(&self, name: &Name) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        let port = {
            let mut tables = self.tables.write();
            let port = tables.ports.get(name).ok_or_else(|| not_found("port", name))?;
            no_function(name, port)?;
            not_static(self, "port", name, port.origin)?;
            tables.ports.remove(name).ok_or_else(|| not_found("port", name))?
        };
        if let Err(error) = self.save().await {
            self.tables.write().ports.insert(name.clone(), port);
            return Err(error);
        }
        if let Some(handle) = port.handle() {
            self.close(name, handle).await;
        }
        self.forget_rings(name);
        info!("port {name} removed");
        Ok(())
    }

    /// Whether two descriptions of a port mean the same: a default that is said is still one.
    fn same(&self, name: &Name, one: &PortConfig, two: &PortConfig) -> bool {
        let full = |config: &PortConfig| {
            let vhost = config.kind == PortKind::Vhost;
            PortConfig {
                socket: vhost.then(|| self.paths.vhost_socket(name, config)),
                mode: vhost.then(|| config.mode.unwrap_or_default()),
                queues: Some(config.queue_pairs()),
                ..config.clone()
            }
        };
        full(one) == full(two)
    }

    /// Opens a port, which has these flow rules from its first frame; a socket that it listens on is then
    /// opened to the configured group.
    pub(super) async fn open(
        &self,
        name: &Name,
        config: &PortConfig,
        network: NetworkHandle,
        socket: PathBuf,
        rules: Option<RuleSet>,
    ) -> Result<PortHandle, PlaneError> {
        let files = (socket.clone(), self.rings(name));
        let handle = self.plane.open_port(name, config, network, files, rules).await?;
        let listens =
            config.kind == PortKind::Vhost && config.mode.unwrap_or_default() == SocketMode::Server;
        if let Some(group) = self.vhost_group.filter(|_| listens)
            && let Err(error) = share(&socket, group)
        {
            warn!("port {name}: the group cannot be given {}: {error}", socket.display());
        }
        Ok(handle)
    }

    /// Enforces something else on a port from now on.
    pub(crate) async fn set_policy(
        &self,
        name: &Name,
        policy: PortPolicy,
    ) -> Result<api::Port, Error> {
        let _changing = self.changing.lock().await;
        let (handle, declared, before, after) = {
            let mut tables = self.tables.write();
            let port = tables.ports.get(name).ok_or_else(|| not_found("port", name))?;
            not_static(self, "port", name, port.origin)?;
            let (handle, before) = (port.handle(), port.config.clone());
            let declared = tables.declared(name, port);
            let config = PortConfig { policy, ..declared.clone() };
            config.check().map_err(|wrong| invalid(&wrong))?;
            let after = tables.reconfigure(name, config);
            (handle, declared, before, after)
        };
        if let Err(error) = self.save().await {
            self.tables.write().reconfigure(name, declared);
            return Err(error);
        }
        if let (Some(handle), Some(after)) = (handle, after) {
            let done = self.plane.configure(handle, name, &before, &after).await;
            done.map_err(|error| host(&error))?;
        }
        info!("port {name} has another policy");
        self.port(name)
    }

    /// Has a worker serve a port's queues; nothing is saved, as queues are placed anew at a start.
    pub(crate) async fn place_port(
        &self,
        name: &Name,
        placement: &Placement,
    ) -> Result<api::Port, Error> {
        let _changing = self.changing.lock().await;
        let (handle, pairs) = {
            let tables = self.tables.read();
            let port = tables.ports.get(name).ok_or_else(|| not_found("port", name))?;
            let failed = |failure: &Failure| {
                let message = format!("port {name} is not open: {}", failure.reason);
                Error::new(ErrorCode::Host, message)
            };
            (port.open.as_ref().copied().map_err(failed)?, port.config.queue_pairs())
        };
        placement.worker.map_or(Ok(()), |worker| self.check_worker(worker))?;
        if let Some(queue) = placement.queue.filter(|queue| *queue >= pairs) {
            let last = pairs.saturating_sub(1);
            let message =
                format!("queue: port {name} has no queue {queue}, allowed is 0 to {last}");
            return Err(Error::new(ErrorCode::Invalid, message)
                .hint(format!("`hayate port show {name}` shows its queues")));
        }
        self.plane.move_port(handle, placement).await.map_err(|error| host(&error))?;
        info!("port {name} placed: {placement}");
        self.port(name)
    }

    fn rings(&self, name: &Name) -> PathBuf {
        self.paths.rings().join(name.as_str())
    }

    pub(super) fn forget_rings(&self, name: &Name) {
        let rings = self.rings(name);
        match std::fs::remove_file(&rings) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!("{} cannot be removed: {error}", rings.display());
            }
            _ => {}
        }
    }

    pub(super) async fn close(&self, name: &Name, handle: PortHandle) {
        if let Err(error) = self.plane.close_port(handle).await {
            warn!("port {name} cannot be closed: {error}");
        }
    }
}

pub(super) fn share(socket: &Path, group: rustix::fs::Gid) -> rustix::io::Result<()> {
    rustix::fs::chown(socket, None, Some(group))?;
    rustix::fs::chmod(socket, rustix::fs::Mode::from_raw_mode(0o660))
}
