//! Ports: what is known of each, and how control changes them.

use std::sync::Arc;

use packet::Mac;
use packet::eth::Eth;

use super::{PortConfig, Snapshot, Switch, free_place};
use crate::domain::Domain;
use crate::error::SwitchError;
use crate::fdb::{self, Fdb, Held, Observed, PortShared, Source};
use crate::router::RouterId;
use crate::rules::PortRules;
use crate::table::Table;
use crate::vlan::{Class, VlanMode};
use crate::{Guard, LinkState, NetworkId, Policy, PortId};

#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) network: NetworkId,
    pub(crate) up: bool,
    /// Whoever is behind it is there.
    running: bool,
    link: LinkState,
    pub(crate) vlan: VlanMode,
    /// Priority of frames from here if it is an access port, where it stands in a TCI.
    qos: Option<u16>,
    /// The only address that is learned behind it.
    pub(super) only: Option<Mac>,
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) rules: Option<Arc<PortRules>>,
    mac_limit: Option<usize>,
    shared: Arc<PortShared>,
    pub(crate) fdb: Arc<Fdb>,
    /// Of its network.
    pub(crate) domain: Arc<Domain>,
    /// Whose it is.
    pub(crate) router: Option<RouterId>,
}

/// What a change of a port means for what was learned behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// There is none.
    Nothing,
    /// It stays.
    Keep,
    /// It is forgotten.
    Relearn,
}

impl Port {
    /// Up or down, by what is known now; returns whether that is new.
    fn set_up(&mut self) -> bool {
        let up = match self.link {
            LinkState::Auto => self.running,
            LinkState::Enable => true,
            LinkState::Disable => false,
        };
        std::mem::replace(&mut self.up, up) != up
    }

    /// Class of a frame that comes in here; `None`: not allowed.
    #[inline]
    pub(crate) fn classify(&self, eth: &Eth) -> Option<Class> {
        Some(self.vlan.classify(eth)?.with_priority(self.priority()))
    }

    /// Priority that frames from here get, whatever the guest says; where it stands in a TCI.
    #[inline]
    pub(crate) fn priority(&self) -> Option<u16> {
        self.qos.filter(|_| matches!(self.vlan, VlanMode::Access(_)))
    }

    /// Notes the source of a frame from here, unless it is only asked about; `id` is this port's.
    /// With the table as it was before.
    #[inline]
    pub(crate) fn observe<'h>(
        &self,
        id: PortId,
        held: &'h mut Held,
        key: u64,
        now_ms: u64,
    ) -> (&'h Table, Observed) {
        let only_asks = held.only_asks;
        let table = held.table(&self.fdb);
        if only_asks {
            return (table, Observed::Known(now_ms as u32));
        }
        if self.only.is_some_and(|only| only != fdb::mac_of(key)) {
            return (table, Observed::Refused);
        }
        let most = self.mac_limit.map_or(u32::MAX, |limit| limit.min(u32::MAX as usize) as u32);
        let source = Source { port: id, mac_limit: most, shared: &self.shared };
        (table, self.fdb.observe(table, key, &source, now_ms))
    }
}

impl Switch {
    /// A new port, **down**: see [`Switch::set_link`].
    pub fn add_port(&self, settings: PortConfig) -> Result<PortId, SwitchError> {
        settings.vlan.check().map_err(SwitchError::BadVlan)?;
        let mut control = self.control.lock();
        let fdb = self.fdb_of(settings.network)?;
        let mut config = self.next_config();
        let index = free_place(&mut config.ports, &mut control.next_port, Self::PORTS_MAX)
            .ok_or(SwitchError::TooManyPorts)?;
        let port = Port {
            network: settings.network,
            up: false,
            running: false,
            link: LinkState::default(),
            vlan: settings.vlan,
            qos: None,
            only: None,
            guard: None,
            rules: None,
            mac_limit: settings.mac_limit,
            shared: Arc::default(),
            domain: fdb.domain(),
            fdb,
            router: None,
        };
        let id = PortId(index as u16);
        self.publish(config, id, Some(port), Change::Relearn);
        Ok(id)
    }

    /// The rules of a port from now on, if it has any; what was decided before they hold stays.
    pub fn set_rules(&self, id: PortId, rules: Option<Arc<PortRules>>) -> Result<(), SwitchError> {
        self.set_all_rules([(id, rules)])
    }

    /// The rules of several ports from now on: no frame is judged by the new ones of one port and the
    /// old ones of another. Nothing is changed if one of the ports does not exist.
    pub fn set_all_rules(
        &self,
        all: impl IntoIterator<Item = (PortId, Option<Arc<PortRules>>)>,
    ) -> Result<(), SwitchError> {
        let _control = self.control.lock();
        let mut config = self.next_config();
        for (id, rules) in all {
            let port = config.ports.get_mut(id.index()).and_then(Option::as_mut);
            port.ok_or(SwitchError::NoSuchPort(id))?.rules = rules;
        }
        // Nothing that workers remember of ways depends on rules.
        config.judges = config.ports.iter().flatten().any(|port| port.rules.is_some());
        self.put_into_force(config);
        Ok(())
    }

    /// Removes a port with everything learned and pinned behind it. Workers may still send to it
    /// until they have finished the burst they are in.
    pub fn remove_port(&self, id: PortId) -> Result<(), SwitchError> {
        let _control = self.control.lock();
        let mut config = self.next_config();
        config.port(id).ok_or(SwitchError::NoSuchPort(id))?;
        config.disown_port(id);
        for port in config.ports.iter_mut().flatten() {
            if let Some(rules) = port.rules.as_ref().and_then(|rules| rules.without(id)) {
                port.rules = Some(Arc::new(rules));
            }
        }
        self.publish(config, id, None, Change::Relearn);
        Ok(())
    }

    /// Says whether whoever is behind a port is there. If not, the port is down (as its
    /// [`LinkState`] has it): nothing is sent to it, frames from it are dropped (`port-down`), and
    /// what was learned behind it is forgotten. A router's is bypassed again when the router was
    /// confirmed ([`Switch::confirm_router`]).
    pub fn set_link(&self, id: PortId, running: bool) -> Result<(), SwitchError> {
        self.change_port(id, |port| {
            let before = std::mem::replace(&mut port.running, running);
            if port.set_up() {
                Change::Relearn
            } else if before != running {
                Change::Keep
            } else {
                Change::Nothing
            }
        })
    }

    /// What is enforced on a port from now on. What was learned behind it is forgotten if it may not
    /// be, or the port is up or down now; a meter starts anew.
    pub fn set_policy(&self, id: PortId, policy: &Policy) -> Result<(), SwitchError> {
        policy.check()?;
        self.change_port(id, |port| {
            let before = std::mem::replace(&mut port.only, policy.only());
            port.link = policy.link;
            port.qos = policy.qos.map(|qos| u16::from(qos) << 13);
            port.guard = policy.guard().map(Arc::new);
            if port.set_up() || before != port.only { Change::Relearn } else { Change::Keep }
        })
    }

    /// Another VLAN mode; what was learned behind the port is forgotten.
    pub fn set_vlan(&self, id: PortId, vlan: VlanMode) -> Result<(), SwitchError> {
        vlan.check().map_err(SwitchError::BadVlan)?;
        self.change_port(id, |port| {
            if port.vlan == vlan {
                return Change::Nothing;
            }
            port.vlan = vlan;
            Change::Relearn
        })
    }

    /// Another limit of addresses; what was learned behind the port is forgotten.
    pub fn set_mac_limit(&self, id: PortId, limit: Option<usize>) -> Result<(), SwitchError> {
        self.change_port(id, |port| {
            let before = std::mem::replace(&mut port.mac_limit, limit);
            if before == limit { Change::Nothing } else { Change::Relearn }
        })
    }

    fn change_port(
        &self,
        id: PortId,
        change: impl FnOnce(&mut Port) -> Change,
    ) -> Result<(), SwitchError> {
        let _control = self.control.lock();
        let mut config = self.next_config();
        let mut port = config.port(id).cloned().ok_or(SwitchError::NoSuchPort(id))?;
        let change = change(&mut port);
        if change == Change::Nothing {
            return Ok(());
        }
        if !port.up || !port.running {
            config.lose_port(id);
        }
        if change == Change::Relearn {
            port.shared = Arc::default();
        }
        self.publish(config, id, Some(port), change);
        Ok(())
    }

    /// Puts a port into its place (or nothing) and the configuration into force: first workers can
    /// see it, then what the old one learned goes, then what they remember of it counts no more.
    fn publish(&self, mut config: Snapshot, id: PortId, port: Option<Port>, change: Change) {
        let Some(place) = config.ports.get_mut(id.index()) else { return };
        let shared = port.as_ref().map(|port| Arc::clone(&port.shared));
        let old = std::mem::replace(place, port);
        let Some(Port { network, fdb, .. }) = place.clone().or(old) else { return };
        config.rebuild(network, &fdb);
        let version = config.version;
        config.judges = config.ports.iter().flatten().any(|port| port.rules.is_some());
        self.put_into_force(config);
        if change == Change::Relearn {
            fdb.configured(version, id, shared.as_ref());
        } else {
            fdb.reconfigured(version);
        }
    }
}
