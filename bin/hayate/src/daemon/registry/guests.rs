//! What a guest sees of its ports, and what it sets on its virtual functions.
//!
//! What the guest sets is kept beside the PF's configuration, which is the operator's; what holds for the
//! port of a function follows from both ([`PfConfig::port_with`]) and is computed anew whenever one of them
//! changes. It is saved before it holds, and ends with the boot of the machine in which it was set.

use super::checks::{invalid, not_static};
use super::{Pf, Port, Registry, Tables, host, not_found, save};
use crate::daemon::channel::{Changed, Ports};
use crate::plane::{Plane, PortHandle};
use crate::state::{Books, StateFile};
use api::channel::{ChannelFunction, Failed, FlowCursor, Flows, HopCount, Refusal};
use api::{
    Error, Function, GuestLimits, GuestSettings, Mac, Name, NotSet, PfConfig, PortConfig, PortKind,
    PortState,
};
use channel::{FlowPf, Later};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Mutex;
use tracing::{info, warn};

/// What the guest has set on the VFs of a PF.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GuestPf {
    /// Boot of the machine in which it did, if its agent said that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<String>,
    /// By number of the VF, those on which it has set anything.
    vfs: BTreeMap<u16, GuestSettings>,
}

impl GuestPf {
    pub(super) fn is_empty(&self) -> bool {
        self.vfs.is_empty()
    }

    /// On the PF itself a guest sets nothing.
    pub(super) fn settings(&self, function: &Function) -> GuestSettings {
        function.vf.and_then(|vf| self.vfs.get(&vf)).copied().unwrap_or_default()
    }

    /// Only what it has set on VFs that there are.
    pub(super) fn of(mut self, config: &PfConfig) -> Self {
        self.vfs.retain(|vf, _| *vf < config.vfs);
        self
    }
}

/// A port whose configuration is another now.
struct Reconfigured {
    port: Name,
    open: Option<PortHandle>,
    before: PortConfig,
    after: PortConfig,
}

impl Tables {
    /// Computes anew what holds for the ports of a PF.
    fn reconfigure_pf(&mut self, name: &Name) -> Vec<Reconfigured> {
        let Some(Pf { config, guest, .. }) = self.pfs.get(name) else { return Vec::new() };
        let mut changed = Vec::new();
        for (port, entry) in &mut self.ports {
            let Some(function) = entry.function.as_ref().filter(|one| one.pf == *name) else {
                continue;
            };
            let after = config.port_with(port, &guest.settings(function));
            if after != entry.config {
                let before = std::mem::replace(&mut entry.config, after.clone());
                changed.push(Reconfigured {
                    port: port.clone(),
                    open: entry.handle(),
                    before,
                    after,
                });
            }
        }
        changed
    }

    /// Another port in the network of this one whose card has that address, or had it before its guest gave it
    /// another.
    fn owner_of(&self, mac: Mac, port: &Name, network: &Name) -> Option<&Name> {
        let others = self.ports.iter().filter(|(name, _)| *name != port);
        let mut same = others.filter(|(_, other)| other.config.network == *network);
        let has = |name: &Name, other: &Port| {
            let cards = [other.config.card(name), self.declared(name, other).card(name)];
            cards.contains(&Some(mac))
        };
        same.find(|(name, other)| has(name, other)).map(|(name, _)| name)
    }
}

/// Has the data plane do what was decided.
async fn enforce(plane: &Plane, changed: Vec<Reconfigured>) -> Result<(), Error> {
    for Reconfigured { port, open, before, after } in changed {
        if let Some(handle) = open {
            let done = plane.configure(handle, &port, &before, &after).await;
            done.map_err(|error| host(&error))?;
        }
    }
    Ok(())
}

impl Registry {
    /// How far the guest of a PF may go from now on; what it has set and may no longer does not count.
    pub(crate) async fn set_guest_limits(
        &self,
        name: &Name,
        limits: GuestLimits,
    ) -> Result<api::Pf, Error> {
        limits.check().map_err(|wrong| invalid(&wrong))?;
        let _changing = self.changing.lock().await;
        let (before, changed) = {
            let mut tables = self.tables.write();
            let pf = tables.pfs.get_mut(name).ok_or_else(|| not_found("vf", name))?;
            not_static(self, "vf", name, pf.origin)?;
            let before = std::mem::replace(&mut pf.config.guest, limits);
            (before, tables.reconfigure_pf(name))
        };
        if let Err(error) = self.save().await {
            let mut tables = self.tables.write();
            if let Some(pf) = tables.pfs.get_mut(name) {
                pf.config.guest = before;
            }
            tables.reconfigure_pf(name);
            return Err(error);
        }
        enforce(&self.plane, changed).await?;
        info!("pf {name}: its guest has other limits");
        self.pf(name)
    }
}

/// The ports of one VM, for its channel.
#[derive(Clone)]
pub(super) struct VmPorts {
    pub(super) vm: Name,
    pub(super) plane: Plane,
    pub(super) tables: Arc<RwLock<Tables>>,
    pub(super) changing: Arc<Mutex<()>>,
    pub(super) store: StateFile,
    pub(super) books: Books,
}

impl Ports for VmPorts {
    fn ports(&self) -> Vec<channel::Port<PortHandle>> {
        let tables = self.tables.read();
        let ports = tables.ports.iter();
        let own = ports.filter(|(_, port)| port.config.vm.as_ref() == Some(&self.vm));
        own.map(|(name, port)| channel::Port {
            name: name.clone(),
            network: port.config.network.clone(),
            mac: match port.config.kind {
                PortKind::Vhost => port.config.card(name),
                PortKind::Tap => port.handle().and_then(|handle| self.plane.live(handle)?.mac),
            },
            handle: port.handle(),
        })
        .collect()
    }

    fn functions(&self) -> Vec<ChannelFunction> {
        let tables = self.tables.read();
        let functions = tables.ports.iter().filter_map(|(name, port)| {
            let function = port.function.clone()?;
            if port.config.vm.as_ref() != Some(&self.vm) {
                return None;
            }
            let live = port.handle().and_then(|handle| self.plane.live(handle));
            let count =
                |traffic: &api::Traffic| HopCount { packets: traffic.frames, bytes: traffic.bytes };
            let settings = tables.pfs.get(&function.pf)?.settings(name, &function);
            Some(ChannelFunction {
                function,
                settings,
                network: port.config.network.clone(),
                mac: tables.declared(name, port).card(name)?,
                carrier: live.as_ref().is_some_and(|live| live.state == PortState::Running),
                sent: live.as_ref().map(|live| count(&live.from_port)).unwrap_or_default(),
                received: live.as_ref().map(|live| count(&live.to_port)).unwrap_or_default(),
                dropped: live.iter().flat_map(|live| &live.drops).map(|(_, count)| count).sum(),
            })
        });
        let mut functions: Vec<ChannelFunction> = functions.collect();
        functions.sort_by(|a, b| a.function.cmp(&b.function));
        functions
    }

    fn learned(&self, wanted: &BTreeSet<Mac>) -> Vec<(Mac, PortHandle)> {
        let tables = self.tables.read();
        let own = |port: &&Port| port.config.vm.as_ref() == Some(&self.vm);
        let own: Vec<&Port> = tables.ports.values().filter(own).collect();
        let handles: Vec<PortHandle> = own.iter().filter_map(|port| port.handle()).collect();
        let networks: BTreeSet<&Name> = own.iter().map(|port| &port.config.network).collect();
        let networks = networks.into_iter().filter_map(|name| tables.networks.get(name));
        let learned = networks.flat_map(|network| self.plane.learned(network.handle));
        learned
            .filter(|entry| wanted.contains(&entry.mac) && handles.contains(&entry.port))
            .map(|entry| (entry.mac, entry.port))
            .collect()
    }

    fn flow_pf(&self, mac: Mac) -> Option<FlowPf> {
        self.pf_at(mac)
    }

    fn flows(&self, pf: &Name, after: Option<FlowCursor>) -> Flows {
        self.rules(pf, after)
    }

    fn concerns(&self, later: &Later) -> bool {
        let Later::Booted(boot) = later else { return true };
        let tables = self.tables.read();
        tables.pfs.values().any(|pf| pf.config.vm == self.vm && pf.is_of_another(boot))
    }

    fn change(&self, later: Later) -> Pin<Box<dyn Future<Output = Changed> + Send>> {
        let own = self.clone();
        Box::pin(async move {
            match later {
                Later::Booted(boot) => own.booted(&boot).await.map(|()| None),
                Later::Set { function, change, boot } => own.set(&function, &change, boot).await,
                Later::Flows { pf, change, boot } => {
                    own.set_rules(&pf, &change, boot.as_deref()).await.map(|()| None)
                }
            }
        })
    }
}

impl Pf {
    /// What holds for a function.
    pub(super) fn settings(&self, port: &Name, function: &Function) -> api::FunctionSettings {
        self.config.settings(port, &self.guest.settings(function))
    }

    fn is_of_another(&self, boot: &str) -> bool {
        let guest = !self.guest.is_empty() && self.guest.boot.as_deref() != Some(boot);
        guest || self.rules.is_of_another(boot)
    }
}

impl VmPorts {
    /// Ends what was set in another boot of the machine.
    async fn booted(&self, boot: &str) -> Result<(), Failed> {
        let _changing = self.changing.lock().await;
        self.end_rules(boot).await?;
        let stale: Vec<Name> = {
            let tables = self.tables.read();
            let own = tables.pfs.iter().filter(|(_, pf)| pf.config.vm == self.vm);
            own.filter(|(_, pf)| pf.is_of_another(boot)).map(|(name, _)| name.clone()).collect()
        };
        for pf in stale {
            self.put(&pf, GuestPf::default()).await?;
            info!("pf {pf}: the machine was booted, what its guest had set ended");
        }
        Ok(())
    }

    /// Sets something on a VF, and says what holds then.
    async fn set(
        &self,
        function: &Function,
        change: &GuestSettings,
        boot: Option<String>,
    ) -> Changed {
        let _changing = self.changing.lock().await;
        let (port, guest, same) = {
            let tables = self.tables.read();
            let (port, pf) = self.find(&tables, function)?;
            let before = pf.guest.settings(function);
            let after = pf.config.ask(port, &before, change).map_err(refusal)?;
            let config = pf.config.port_with(port, &after);
            if let Some(mac) = after.mac
                && let Some(owner) = tables.owner_of(mac, port, &config.network)
            {
                warn!("vm {}: port {port} may not have the address {mac} of {owner}", self.vm);
                let message = format!("mac: {mac} is the address of another card of this network");
                return Err(Failed::new(Refusal::NotAllowed, message));
            }
            let mut guest = pf.guest.clone();
            if let Some(vf) = function.vf {
                guest.vfs.insert(vf, after);
            }
            guest.vfs.retain(|_, settings| !settings.is_default());
            let same = guest.vfs == pf.guest.vfs;
            (port.clone(), GuestPf { boot, ..guest }, same)
        };
        if !same {
            self.put(&function.pf, guest).await?;
            info!("port {port}: its guest has set it up");
        }
        let tables = self.tables.read();
        let (port, pf) = self.find(&tables, function)?;
        Ok(Some(pf.settings(port, function)))
    }

    /// The port of a function of this VM, and its PF. Meanwhile it may be gone.
    fn find<'t>(
        &self,
        tables: &'t Tables,
        function: &Function,
    ) -> Result<(&'t Name, &'t Pf), Failed> {
        let pf = tables.pfs.get(&function.pf).filter(|pf| pf.config.vm == self.vm);
        let mut ports = tables.ports.iter();
        let port = ports.find(|(_, port)| port.function.as_ref() == Some(function));
        pf.and_then(|pf| Some((port?.0, pf)))
            .ok_or_else(|| Failed::new(Refusal::UnknownFunction, "this function is gone"))
    }

    /// Keeps and enforces what the guest of a PF has set. `changing` is held.
    async fn put(&self, name: &Name, guest: GuestPf) -> Result<(), Failed> {
        let put = |guest: GuestPf| {
            let mut tables = self.tables.write();
            let before = tables.pfs.get_mut(name).map(|pf| std::mem::replace(&mut pf.guest, guest));
            (before.unwrap_or_default(), tables.reconfigure_pf(name))
        };
        let not_done = |error: Error| Failed::new(Refusal::NotDone, error.message);
        let (before, changed) = put(guest);
        if let Err(error) = save(&self.tables, &self.store).await {
            put(before);
            return Err(not_done(error));
        }
        enforce(&self.plane, changed).await.map_err(not_done)
    }
}

fn refusal(why: NotSet) -> Failed {
    match why {
        NotSet::Wrong(wrong) => Failed::new(Refusal::BadParams, wrong.to_string()),
        NotSet::NotUnicast => {
            Failed::new(Refusal::NotUnicast, "mac: the address of one station is allowed")
        }
        NotSet::NotAllowed(why) => Failed::new(Refusal::NotAllowed, why),
    }
}
