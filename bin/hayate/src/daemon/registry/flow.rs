//! What becomes of a packet, by name.

use super::{Registry, host, not_found};
use crate::daemon::channel::Router;
use crate::daemon::frame;
use crate::plane::{Bypassed, PortHandle, RouterHandle, Seen};
use api::{Error, ErrorCode, Flow, Mac, Name, PortKind, Step, Why};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Registry {
    /// Follows a packet through the switch.
    pub(crate) fn why(&self, mut flow: Flow) -> Result<Why, Error> {
        flow.check()?;
        let name = flow.from.clone();
        let (handle, network) = {
            let tables = self.tables.read();
            let port = tables.ports.get(&name).ok_or_else(|| not_found("port", &name))?;
            let handle = port.handle().ok_or_else(|| {
                Error::new(ErrorCode::Host, format!("port {name} is not open"))
                    .hint(format!("`hayate port show {name}` says why"))
            })?;
            (handle, port.config.network.clone())
        };
        let smac = match flow.smac {
            Some(smac) => smac,
            None => self.behind(&name, handle, &network)?,
        };
        let dmac = match flow.dmac {
            Some(dmac) => dmac,
            None => self.only_router(&network)?,
        };
        (flow.smac, flow.dmac) = (Some(smac), Some(dmac));
        let frame = frame::build(&flow, smac, dmac);
        let seen = self.plane.explain(handle, &frame).map_err(|error| host(&error))?;
        let mut steps = vec![Step::Arrived { port: name, network, vlan: flow.vlan }];
        for one in seen {
            // What is gone by now has no name.
            steps.extend(self.step(one));
        }
        Ok(Why { flow, steps })
    }

    /// The address that was seen behind a port last, or that its card has.
    fn behind(&self, name: &Name, handle: PortHandle, network: &Name) -> Result<Mac, Error> {
        let tables = self.tables.read();
        let network = tables.networks.get(network).map(|network| network.handle);
        let learned = network.map(|handle| self.plane.learned(handle)).unwrap_or_default();
        let behind = learned.iter().filter(|entry| entry.port == handle);
        if let Some(entry) = behind.min_by_key(|entry| entry.age) {
            return Ok(entry.mac);
        }
        let config = tables.ports.get(name).map(|port| &port.config);
        let card = config.and_then(|config| match config.kind {
            PortKind::Vhost => config.card(name),
            PortKind::Tap => self.plane.live(handle)?.mac,
        });
        card.ok_or_else(|| {
            let message = format!("smac: no address was seen behind port {name} yet");
            Error::new(ErrorCode::Invalid, message).hint("say which: smac=02:00:5e:10:00:01")
        })
    }

    /// The address of the only interface of a router in a network.
    fn only_router(&self, network: &Name) -> Result<Mac, Error> {
        let there: BTreeSet<Name> = {
            let tables = self.tables.read();
            tables.ports_where(|port| port.network == *network).into_iter().collect()
        };
        let mut found: BTreeSet<Mac> = BTreeSet::new();
        for (_, router) in self.router_handles() {
            let state = router.state();
            let interfaces = state.session.delegation().interfaces().iter();
            let in_network = interfaces
                .filter(|known| known.port.as_ref().is_some_and(|(_, port)| there.contains(port)));
            found.extend(in_network.map(|known| known.interface.mac));
        }
        let mut found = found.into_iter();
        match (found.next(), found.len()) {
            (Some(only), 0) => Ok(only),
            (first, others) => {
                let count = others + usize::from(first.is_some());
                let message = format!("dmac: network {network} has {count} interfaces of routers");
                let hint = "say for whom the frame is: dmac=02:00:5e:10:00:01";
                Err(Error::new(ErrorCode::Invalid, message).hint(hint))
            }
        }
    }

    fn step(&self, seen: Seen) -> Option<Step> {
        Some(match seen {
            Seen::Forward(port) => Step::Forward { port: self.port_name(port)? },
            Seen::Flood(ports) => {
                let mut ports: Vec<Name> =
                    ports.into_iter().filter_map(|port| self.port_name(port)).collect();
                ports.sort();
                Step::Flood { ports }
            }
            Seen::Dropped { reason, meaning } => {
                Step::Dropped { reason: reason.to_owned(), meaning: meaning.to_owned() }
            }
            Seen::ToRouter { router, reason } => {
                Step::ToRouter { router: self.router_named(router)?.0, reason }
            }
            Seen::Bypassed(bypassed) => self.bypassed(&bypassed)?,
        })
    }

    fn bypassed(&self, bypassed: &Bypassed) -> Option<Step> {
        let port = self.port_name(bypassed.port)?;
        let (vm, router) = self.router_named(bypassed.router)?;
        let state = router.state();
        let interfaces = state.session.delegation().interfaces().iter();
        let placed: Vec<&str> = interfaces
            .filter(|known| known.port.is_some())
            .map(|known| known.interface.name.as_str())
            .collect();
        let name = |place: usize| placed.get(place).copied().unwrap_or_default().to_owned();
        Some(Step::Bypassed {
            router: vm,
            ingress: name(bypassed.ingress),
            prefix: bypassed.prefix.clone(),
            connection: bypassed.connection.clone(),
            nexthop: state.router.nexthop(bypassed)?,
            egress: name(bypassed.egress),
            smac: bypassed.smac,
            dmac: bypassed.dmac,
            port,
        })
    }

    fn port_name(&self, handle: PortHandle) -> Option<Name> {
        let tables = self.tables.read();
        let mut ports = tables.ports.iter();
        ports.find(|(_, port)| port.handle() == Some(handle)).map(|(name, _)| name.clone())
    }

    fn router_named(&self, handle: RouterHandle) -> Option<(Name, Arc<Router>)> {
        let mut routers = self.router_handles().into_iter();
        routers.find(|(_, router)| router.state().router.is(handle))
    }
}
