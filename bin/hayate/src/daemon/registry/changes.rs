//! Networks and VMs come and go.

use super::checks::{exists, invalid, not_static, unused};
use super::pfs::without_pf;
use super::{Network, Registry, Vm, host, not_found};
use api::{Error, ErrorCode, Name, NetworkConfig, Origin, VmConfig};
use tracing::{info, warn};

impl Registry {
    /// Makes a network; `false` if it was there already, made the same way.
    pub(crate) async fn add_network(
        &self,
        name: &Name,
        config: NetworkConfig,
    ) -> Result<(api::Network, bool), Error> {
        config.check().map_err(|wrong| invalid(&wrong))?;
        let _changing = self.changing.lock().await;
        let same = self.tables.read().networks.get(name).map(|network| network.config == config);
        match same {
            Some(true) => return Ok((self.network(name)?, false)),
            Some(false) => return Err(exists("network", name)),
            None => {}
        }
        let handle = self.plane.add_network(name, &config).map_err(|error| host(&error))?;
        let network = Network { config, origin: Origin::Runtime, handle };
        self.tables.write().networks.insert(name.clone(), network);
        if let Err(error) = self.save().await {
            self.tables.write().networks.remove(name);
            if let Err(error) = self.plane.remove_network(handle) {
                warn!("network {name} cannot be removed: {error}");
            }
            return Err(error);
        }
        info!("network {name} added");
        Ok((self.network(name)?, true))
    }

    /// Removes a network that has no ports.
    pub(crate) async fn remove_network(&self, name: &Name) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        let network = {
            let mut tables = self.tables.write();
            let network = tables.networks.get(name).ok_or_else(|| not_found("network", name))?;
            not_static(self, "network", name, network.origin)?;
            without_pf("network", name, tables.pf_where(|pf| pf.network == *name))?;
            unused("network", name, &tables.ports_where(|port| port.network == *name))?;
            tables.networks.remove(name).ok_or_else(|| not_found("network", name))?
        };
        let handle = network.handle;
        if let Err(error) = self.save().await {
            self.tables.write().networks.insert(name.clone(), network);
            return Err(error);
        }
        if let Err(error) = self.plane.remove_network(handle) {
            warn!("network {name} cannot be removed: {error}");
        }
        info!("network {name} removed");
        Ok(())
    }

    /// Makes a VM known; `false` if it was, in the same way.
    pub(crate) async fn add_vm(
        &self,
        name: &Name,
        config: VmConfig,
    ) -> Result<(api::Vm, bool), Error> {
        config.check().map_err(|wrong| invalid(&wrong))?;
        let _changing = self.changing.lock().await;
        let same = self.tables.read().vms.get(name).map(|vm| vm.config == config);
        match same {
            Some(true) => return Ok((self.vm(name)?, false)),
            Some(false) => return Err(exists("vm", name)),
            None => {}
        }
        self.check_channel(name, &config)?;
        let channel = self.new_channel(name, &config)?;
        let vm = Vm { config, origin: Origin::Runtime, bypass: true, channel };
        self.tables.write().vms.insert(name.clone(), vm);
        if let Err(error) = self.save().await {
            let vm = self.tables.write().vms.remove(name);
            if let Some(channel) = vm.and_then(|vm| vm.channel) {
                channel.close().await;
            }
            return Err(error);
        }
        info!("vm {name} added");
        Ok((self.vm(name)?, true))
    }

    /// Forgets a VM that has no ports.
    pub(crate) async fn remove_vm(&self, name: &Name) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        let vm = {
            let mut tables = self.tables.write();
            let vm = tables.vms.get(name).ok_or_else(|| not_found("vm", name))?;
            not_static(self, "vm", name, vm.origin)?;
            without_pf("vm", name, tables.pf_where(|pf| pf.vm == *name))?;
            unused("vm", name, &tables.ports_where(|port| port.vm.as_ref() == Some(name)))?;
            if let Some(disk) = tables.disk_of_vm(name) {
                return Err(Error::new(
                    ErrorCode::InUse,
                    format!("vm {name} still has disk {disk}"),
                )
                .hint("delete it first: `hayate disk del NAME`"));
            }
            tables.vms.remove(name).ok_or_else(|| not_found("vm", name))?
        };
        if let Err(error) = self.save().await {
            self.tables.write().vms.insert(name.clone(), vm);
            return Err(error);
        }
        if let Some(channel) = vm.channel {
            channel.close().await;
        }
        info!("vm {name} removed");
        Ok(())
    }
}
