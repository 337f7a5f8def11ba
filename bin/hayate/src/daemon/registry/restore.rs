//! What was there before comes back: from the configuration file, then from the saved state.

use super::{Failure, Network, Port, RETRY, Registry, Vm};
use crate::config::Config;
use crate::plane::PlaneError;
use crate::state::{State, StateError};
use api::{Function, Name, NetworkConfig, Origin, PortConfig};
use tracing::{info, warn};

/// Why a daemon cannot start with what was declared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("network {name} cannot be made: {source}")]
    Network { name: Name, source: PlaneError },
}

impl Registry {
    /// Brings back everything. What the file declares wins over a saved thing of the same name.
    pub(crate) async fn restore(&self, config: &Config) -> Result<(), RestoreError> {
        let _changing = self.changing.lock().await;
        let state = self.store.load()?;
        self.restore_networks(&config.networks, Origin::Config)?;
        self.restore_networks(&state.networks, Origin::Runtime)?;
        self.restore_vms(config, &state);
        let guest = |pf: &Name| state.guests.get(pf).cloned().unwrap_or_default();
        for (name, port) in &config.ports {
            self.restore_port(name, port, None, Origin::Config).await;
        }
        for (name, pf) in &config.pfs {
            self.restore_pf(name, pf, guest(name), Origin::Config).await?;
        }
        for (name, port) in &state.ports {
            self.restore_port(name, port, None, Origin::Runtime).await;
        }
        for (name, pf) in &state.pfs {
            self.restore_pf(name, pf, guest(name), Origin::Runtime).await?;
        }
        self.tidy_rules();
        for (name, disk) in &config.disks {
            self.restore_disk(name, disk, Origin::Config).await;
        }
        for (name, disk) in &state.disks {
            self.restore_disk(name, disk, Origin::Runtime).await;
        }
        self.restore_channels(&state.bypass_off);
        Ok(())
    }

    fn restore_networks<'c>(
        &self,
        networks: impl IntoIterator<Item = (&'c Name, &'c NetworkConfig)>,
        origin: Origin,
    ) -> Result<(), RestoreError> {
        for (name, config) in networks {
            if self.tables.read().networks.contains_key(name) {
                warn!(
                    "network {name} is declared in the configuration file; the saved one is dropped"
                );
                continue;
            }
            let handle = self
                .plane
                .add_network(name, config)
                .map_err(|source| RestoreError::Network { name: name.clone(), source })?;
            let network = Network { config: config.clone(), origin, handle };
            self.tables.write().networks.insert(name.clone(), network);
        }
        Ok(())
    }

    fn restore_vms(&self, config: &Config, state: &State) {
        let mut tables = self.tables.write();
        for (name, vm) in &state.vms {
            tables.vms.insert(name.clone(), Vm::closed(vm, Origin::Runtime));
        }
        for (name, vm) in &config.vms {
            if tables.vms.insert(name.clone(), Vm::closed(vm, Origin::Config)).is_some() {
                warn!("vm {name} is declared in the configuration file; the saved one is dropped");
            }
        }
    }

    pub(super) async fn restore_port(
        &self,
        name: &Name,
        config: &PortConfig,
        function: Option<Function>,
        origin: Origin,
    ) {
        if self.tables.read().ports.contains_key(name) {
            warn!("port {name} is declared in the configuration file; the saved one is dropped");
            return;
        }
        let open = self.try_open(name, config, function.as_ref()).await;
        let open = open.map_err(|reason| {
            warn!("port {name} cannot be opened and is tried again: {reason}");
            Failure::now(reason)
        });
        let port = Port { config: config.clone(), origin, function, open };
        self.tables.write().ports.insert(name.clone(), port);
    }

    /// Opens a port that was accepted before; what it refers to may be gone meanwhile.
    async fn try_open(
        &self,
        name: &Name,
        config: &PortConfig,
        function: Option<&Function>,
    ) -> Result<crate::plane::PortHandle, String> {
        let (network, socket) = self.check_port(name, config).map_err(|error| error.message)?;
        let rules = function.and_then(|function| self.tables.read().rules_of(function));
        let opened = self.open(name, config, network, socket, rules).await;
        opened.map_err(|error| error.to_string())
    }

    /// Tries failed ports and disks again, forever.
    pub(crate) async fn retry_failed(&self) {
        loop {
            tokio::time::sleep(RETRY).await;
            for name in self.failed_ports() {
                self.retry(&name).await;
            }
            for name in self.failed_disks() {
                self.retry_disk(&name).await;
            }
        }
    }

    async fn retry(&self, name: &Name) {
        let _changing = self.changing.lock().await;
        let failed = match self.tables.read().ports.get(name) {
            Some(Port { config, function, open: Err(failure), .. }) => {
                (config.clone(), function.clone(), failure.clone())
            }
            _ => return,
        };
        let (config, function, failure) = failed;
        let open = match self.try_open(name, &config, function.as_ref()).await {
            Ok(handle) => {
                info!("port {name} is open");
                Ok(handle)
            }
            // The same reason is neither logged again nor newer.
            Err(reason) if reason == failure.reason => Err(failure),
            Err(reason) => {
                warn!("port {name} cannot be opened: {reason}");
                Err(Failure::now(reason))
            }
        };
        let opened = open.is_ok();
        if let Some(port) = self.tables.write().ports.get_mut(name) {
            port.open = open;
        }
        if let Some(Function { pf, .. }) = function.filter(|_| opened) {
            self.enforce_rules(&pf).await;
        }
    }
}
