//! PFs and their VFs: ports of a VM that come and go together.
//!
//! A function is a port like any other, which knows its PF ([`api::Function`]). Only the PF is saved, with
//! what is enforced on its functions, and its ports are derived from it.

use super::checks::{exists, invalid, not_static};
use super::rules::Rules;
use super::{GuestPf, Pf, Port, Registry, Tables, host, not_found};
use crate::state::StateError;
use api::{Error, ErrorCode, Function, Name, Origin, PfConfig, PfFunction, PortConfig, PortState};
use channel::FlowBook;
use tracing::{info, warn};

impl Registry {
    /// Makes a PF and opens the ports of its functions; `false` if it was there already, made the
    /// same way.
    pub(crate) async fn add_pf(
        &self,
        name: &Name,
        config: PfConfig,
    ) -> Result<(api::Pf, bool), Error> {
        config.check().map_err(|wrong| invalid(&wrong))?;
        let functions = config.functions(name).map_err(|wrong| invalid(&wrong))?;
        let _changing = self.changing.lock().await;
        // What is enforced may have been changed since.
        let made = |of: &PfConfig| PfConfig {
            policies: config.policies.clone(),
            guest: config.guest.clone(),
            ..of.clone()
        };
        let same = self.tables.read().pfs.get(name).map(|pf| made(&pf.config) == config);
        match same {
            Some(true) => return Ok((self.pf(name)?, false)),
            Some(false) => return Err(exists("vf", name)),
            None => {}
        }
        // A new PF has no past.
        self.forget_rules(name).await;
        let mut opened = Vec::new();
        for (port, function) in functions {
            match self.open_function(&port, function, &config).await {
                Ok(open) => opened.push((port, open)),
                Err(error) => {
                    self.close_ports(opened).await;
                    return Err(error);
                }
            }
        }
        {
            let mut tables = self.tables.write();
            tables.ports.extend(opened);
            let (guest, rules) = (GuestPf::default(), Rules::new(FlowBook::default()));
            tables.pfs.insert(name.clone(), Pf { config, origin: Origin::Runtime, guest, rules });
        }
        if let Err(error) = self.save().await {
            let (_, ports) = self.tables.write().take_pf(name);
            self.close_ports(ports).await;
            return Err(error);
        }
        info!("pf {name} added");
        Ok((self.pf(name)?, true))
    }

    /// Opens the port of a new function.
    async fn open_function(
        &self,
        name: &Name,
        function: Function,
        config: &PfConfig,
    ) -> Result<Port, Error> {
        if self.tables.read().ports.contains_key(name) {
            let message = format!("port {name} exists already, and is no function of this PF");
            return Err(Error::new(ErrorCode::Exists, message)
                .hint("choose another name for the PF with --name"));
        }
        let config = config.port(name);
        let (network, socket) = self.check_port(name, &config)?;
        // A new port has no past, whatever an old one of its name left behind.
        self.forget_rings(name);
        let opened = self.open(name, &config, network, socket, None).await;
        let open = Ok(opened.map_err(|error| host(&error))?);
        Ok(Port { config, origin: Origin::Runtime, function: Some(function), open })
    }

    /// Closes the ports of a PF and forgets it.
    pub(crate) async fn remove_pf(&self, name: &Name) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        let (pf, ports) = {
            let mut tables = self.tables.write();
            let pf = tables.pfs.get(name).ok_or_else(|| not_found("vf", name))?;
            not_static(self, "vf", name, pf.origin)?;
            tables.take_pf(name)
        };
        if let Err(error) = self.save().await {
            let mut tables = self.tables.write();
            tables.ports.extend(ports);
            tables.pfs.extend(pf.map(|pf| (name.clone(), pf)));
            return Err(error);
        }
        self.close_ports(ports).await;
        self.forget_rules(name).await;
        info!("pf {name} removed");
        Ok(())
    }

    async fn close_ports(&self, ports: Vec<(Name, Port)>) {
        for (name, port) in &ports {
            if let Some(handle) = port.handle() {
                self.close(name, handle).await;
            }
            self.forget_rings(name);
        }
    }

    /// Opens a PF that was there before.
    pub(super) async fn restore_pf(
        &self,
        name: &Name,
        config: &PfConfig,
        guest: GuestPf,
        origin: Origin,
    ) -> Result<(), StateError> {
        let functions = match config.functions(name) {
            Ok(functions) => functions,
            Err(wrong) => {
                warn!("pf {name} is dropped: {wrong}");
                return Ok(());
            }
        };
        let taken = {
            let tables = self.tables.read();
            functions.iter().find(|(port, _)| tables.ports.contains_key(port)).cloned()
        };
        if let Some((port, _)) = taken {
            warn!(
                "port {port} is declared in the configuration file; the saved pf {name} is dropped"
            );
            return Ok(());
        }
        let guest = guest.of(config);
        let mut book = self.books.load(name)?;
        let gone = book.cut(config.vfs);
        if gone > 0 {
            warn!("pf {name}: {gone} flow rules are of VFs that there are not any more");
        }
        // The rules are there before the ports are.
        let pf =
            Pf { config: config.clone(), origin, guest: guest.clone(), rules: Rules::new(book) };
        self.tables.write().pfs.insert(name.clone(), pf);
        for (port, function) in functions {
            let holds = config.port_with(&port, &guest.settings(&function));
            self.restore_port(&port, &holds, Some(function), origin).await;
        }
        self.enforce_rules(name).await;
        Ok(())
    }

    /// All PFs, by name.
    pub(crate) fn pfs(&self) -> Vec<api::Pf> {
        let tables = self.tables.read();
        tables.pfs.iter().map(|(name, pf)| self.view_pf(&tables, name, pf)).collect()
    }

    /// One PF.
    pub(crate) fn pf(&self, name: &Name) -> Result<api::Pf, Error> {
        let tables = self.tables.read();
        let pf = tables.pfs.get(name).ok_or_else(|| not_found("vf", name))?;
        Ok(self.view_pf(&tables, name, pf))
    }

    fn view_pf(&self, tables: &Tables, name: &Name, pf: &Pf) -> api::Pf {
        let Pf { config, origin, guest, rules } = pf;
        // A name that leaves no room for its functions was refused.
        let functions = config.functions(name).unwrap_or_default().into_iter();
        let functions: Vec<PfFunction> = functions
            .filter_map(|(port, function)| {
                let (settings, guest) = (pf.settings(&port, &function), guest.settings(&function));
                let it = tables.ports.get(&port)?;
                let live = self.live(it);
                let mac = config.port(&port).card(&port)?;
                Some(PfFunction {
                    vf: function.vf,
                    port,
                    mac,
                    settings,
                    guest,
                    carrier: live.state == PortState::Running,
                    state: live.state,
                    since: live.since,
                    from_port: live.from_port,
                    to_port: live.to_port,
                    dropped: live.drops.iter().map(|(_, count)| count).sum(),
                })
            })
            .collect();
        api::Pf {
            name: name.clone(),
            vm: config.vm.clone(),
            network: config.network.clone(),
            vfs: config.vfs,
            running: functions.iter().filter(|one| one.vf.is_some() && one.carrier).count(),
            rules: rules.len(),
            origin: *origin,
            config: config.clone(),
            functions,
        }
    }
}

impl Tables {
    /// Takes a PF and its ports out.
    fn take_pf(&mut self, name: &Name) -> (Option<Pf>, Vec<(Name, Port)>) {
        let own = |port: &Port| port.function.as_ref().is_some_and(|own| own.pf == *name);
        let names: Vec<Name> =
            self.ports.iter().filter(|(_, port)| own(port)).map(|(name, _)| name.clone()).collect();
        let ports = names.into_iter().filter_map(|name| self.ports.remove_entry(&name)).collect();
        (self.pfs.remove(name), ports)
    }

    /// What was declared for a port; of a function, by the operator.
    pub(super) fn declared(&self, name: &Name, port: &Port) -> PortConfig {
        let pf = port.function.as_ref().and_then(|function| self.pfs.get(&function.pf));
        pf.map_or_else(|| port.config.clone(), |pf| pf.config.port(name))
    }

    /// Has something else declared for a port, of which only what is enforced is another; that of a function
    /// is saved with its PF. Returns what holds now.
    pub(super) fn reconfigure(&mut self, name: &Name, config: PortConfig) -> Option<PortConfig> {
        let port = self.ports.get_mut(name)?;
        port.config = match &port.function {
            None => config,
            Some(function) => {
                let pf = self.pfs.get_mut(&function.pf)?;
                if config.policy.is_default() {
                    pf.config.policies.remove(name);
                } else {
                    pf.config.policies.insert(name.clone(), config.policy);
                }
                pf.config.port_with(name, &pf.guest.settings(function))
            }
        };
        Some(port.config.clone())
    }

    /// A PF for which `test` holds.
    pub(super) fn pf_where(&self, test: impl Fn(&PfConfig) -> bool) -> Option<&Name> {
        self.pfs.iter().find(|(_, pf)| test(&pf.config)).map(|(name, _)| name)
    }
}

/// Refuses to change a port that is a function of a PF.
pub(super) fn no_function(name: &Name, port: &Port) -> Result<(), Error> {
    let Some(Function { pf, .. }) = &port.function else { return Ok(()) };
    let message = format!("port {name} is a function of {pf}: it is made and removed with it");
    Err(Error::new(ErrorCode::InUse, message)
        .hint(format!("`hayate vf show {pf}` shows all of them")))
}

/// Refuses to delete what a PF still needs.
pub(super) fn without_pf(kind: &str, name: &Name, pf: Option<&Name>) -> Result<(), Error> {
    let Some(pf) = pf else { return Ok(()) };
    let message = format!("{kind} {name} still has virtual functions: {pf}");
    Err(Error::new(ErrorCode::InUse, message)
        .hint(format!("delete them first: `hayate vf delete {pf}`")))
}
