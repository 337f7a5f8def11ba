//! What exists, as the interface shows it.

use super::{Network, Port, Registry, Tables, Vm, not_found};
use crate::plane::Live;
use api::{Error, ErrorCode, FdbEntry, Name, PortKind, PortState, PortStats, feature};

impl Tables {
    /// Names of the ports for which `test` holds.
    pub(super) fn ports_where(&self, test: impl Fn(&api::PortConfig) -> bool) -> Vec<Name> {
        let ports = self.ports.iter().filter(|(_, port)| test(&port.config));
        ports.map(|(name, _)| name.clone()).collect()
    }
}

impl Registry {
    pub(crate) fn networks(&self) -> Vec<api::Network> {
        let tables = self.tables.read();
        let networks = tables.networks.iter();
        networks.map(|(name, network)| self.view_network(&tables, name, network)).collect()
    }

    pub(crate) fn network(&self, name: &Name) -> Result<api::Network, Error> {
        let tables = self.tables.read();
        let network = tables.networks.get(name).ok_or_else(|| not_found("network", name))?;
        Ok(self.view_network(&tables, name, network))
    }

    fn view_network(&self, tables: &Tables, name: &Name, network: &Network) -> api::Network {
        api::Network {
            name: name.clone(),
            mac_limit: network.config.mac_limit,
            mac_age: network.config.mac_age,
            macs: self.plane.learned(network.handle).len(),
            ports: tables.ports_where(|port| port.network == *name),
            origin: network.origin,
        }
    }

    /// The MAC table of a network, by address.
    pub(crate) fn fdb(&self, name: &Name) -> Result<Vec<FdbEntry>, Error> {
        let tables = self.tables.read();
        let network = tables.networks.get(name).ok_or_else(|| not_found("network", name))?;
        let learned = self.plane.learned(network.handle).into_iter();
        let mut entries: Vec<FdbEntry> = learned
            .filter_map(|entry| {
                // An address behind a port that is being closed is about to go.
                let (port, _) =
                    tables.ports.iter().find(|(_, port)| port.handle() == Some(entry.port))?;
                Some(FdbEntry {
                    mac: entry.mac,
                    vlan: entry.vlan,
                    port: port.clone(),
                    age: entry.age.as_secs(),
                    fixed: entry.fixed,
                })
            })
            .collect();
        entries.sort_by_key(|entry| (entry.mac, entry.vlan));
        Ok(entries)
    }

    pub(crate) fn vms(&self) -> Vec<api::Vm> {
        let tables = self.tables.read();
        tables.vms.iter().map(|(name, vm)| view_vm(&tables, name, vm)).collect()
    }

    pub(crate) fn vm(&self, name: &Name) -> Result<api::Vm, Error> {
        let tables = self.tables.read();
        let vm = tables.vms.get(name).ok_or_else(|| not_found("vm", name))?;
        Ok(view_vm(&tables, name, vm))
    }

    pub(crate) fn ports(&self) -> Vec<api::Port> {
        let tables = self.tables.read();
        tables.ports.iter().map(|(name, port)| self.view_port(&tables, name, port)).collect()
    }

    pub(crate) fn port(&self, name: &Name) -> Result<api::Port, Error> {
        let tables = self.tables.read();
        let port = tables.ports.get(name).ok_or_else(|| not_found("port", name))?;
        Ok(self.view_port(&tables, name, port))
    }

    pub(super) fn failed_ports(&self) -> Vec<Name> {
        let tables = self.tables.read();
        let failed = tables.ports.iter().filter(|(_, port)| port.open.is_err());
        failed.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn live(&self, port: &Port) -> Live {
        let live = match &port.open {
            Ok(handle) => self.plane.live(*handle),
            Err(_) => None,
        };
        live.unwrap_or_else(|| {
            let failure = port.open.as_ref().err();
            Live {
                state: PortState::Failed,
                since: failure.map_or(self.started.0.into(), |failure| failure.since),
                failure: failure.map(|failure| failure.reason.clone()),
                last_fault: None,
                sessions: 0,
                features: 0,
                mtu: None,
                mac: None,
                page_size: None,
                from_port: api::Traffic::default(),
                to_port: api::Traffic::default(),
                flood_copies: 0,
                interrupts: 0,
                deferred: 0,
                drops: Vec::new(),
                queues: Vec::new(),
            }
        })
    }

    fn view_port(&self, tables: &Tables, name: &Name, port: &Port) -> api::Port {
        let (config, live) = (&port.config, self.live(port));
        let vhost = config.kind == PortKind::Vhost;
        api::Port {
            name: name.clone(),
            kind: config.kind,
            network: config.network.clone(),
            vm: config.vm.clone(),
            function: port.function.clone(),
            origin: port.origin,
            state: live.state,
            since: live.since,
            failure: live.failure,
            last_fault: live.last_fault,
            sessions: live.sessions,
            socket: vhost.then(|| self.paths.vhost_socket(name, config)),
            mode: vhost.then(|| config.mode.unwrap_or_default()),
            ifname: config.ifname.clone(),
            netns: config.netns.clone(),
            vlan: config.vlan,
            trunk: config.trunk.clone(),
            native: config.native,
            mtu: config.mtu.or(live.mtu),
            worker: config.worker,
            moderation: vhost.then(|| config.moderation.unwrap_or_default()),
            queue_pairs: config.queue_pairs(),
            config: tables.declared(name, port),
            policy: config.policy.clone(),
            mac: live.mac,
            page_size: live.page_size,
            features: feature::names(live.features),
            features_hex: feature::hex(live.features),
            from_port: live.from_port,
            to_port: live.to_port,
            flood_copies: live.flood_copies,
            drops: drops(live.drops),
            queues: live.queues,
        }
    }

    pub(crate) fn workers(&self) -> Vec<api::Worker> {
        self.plane.workers()
    }

    pub(crate) fn worker(&self, id: u16) -> Result<api::Worker, Error> {
        let found = self.plane.workers().into_iter().find(|worker| worker.id == id);
        found.ok_or_else(|| {
            Error::new(ErrorCode::NotFound, format!("there is no worker {id}"))
                .hint("`hayate worker list` shows what there is")
        })
    }

    pub(crate) fn stats(&self) -> api::Stats {
        let tables = self.tables.read();
        let ports = tables.ports.iter().map(|(name, port)| {
            let live = self.live(port);
            PortStats {
                name: name.clone(),
                network: port.config.network.clone(),
                state: live.state,
                from_port: live.from_port,
                to_port: live.to_port,
                flood_copies: live.flood_copies,
                interrupts: live.interrupts,
                deferred: live.deferred,
                drops: drops(live.drops),
            }
        });
        let uptime = self.started.1.elapsed().as_micros();
        api::Stats {
            uptime_us: u64::try_from(uptime).unwrap_or(u64::MAX),
            ports: ports.collect(),
            workers: self.plane.workers(),
        }
    }

    pub(crate) fn health(&self) -> api::Health {
        let failed_ports = self.failed_ports();
        let tables = self.tables.read();
        api::Health {
            status: if failed_ports.is_empty() { "ok" } else { "degraded" }.to_owned(),
            pid: std::process::id(),
            since: self.started.0.into(),
            run_dir: self.paths.run.display().to_string(),
            state_dir: self.paths.state.display().to_string(),
            config: self.config_file.as_ref().map(|file| file.display().to_string()),
            networks: tables.networks.len(),
            ports: tables.ports.len(),
            failed_ports,
        }
    }
}

fn view_vm(tables: &Tables, name: &Name, vm: &Vm) -> api::Vm {
    api::Vm {
        name: name.clone(),
        memory: vm.config.memory,
        vcpus: vm.config.vcpus,
        channel: vm.config.channel.clone(),
        ports: tables.ports_where(|port| port.vm.as_ref() == Some(name)),
        origin: vm.origin,
    }
}

fn drops(drops: Vec<(&'static str, u64)>) -> std::collections::BTreeMap<String, u64> {
    drops.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect()
}
