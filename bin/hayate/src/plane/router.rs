//! A VM's router in the data plane: what a guest channel asks, in the data plane's words.

use super::{Plane, PlaneError, PortHandle};
use api::channel::{Ends, Flow, HopCount, Prefix, SourceCheck, Transport};
use channel::{Action, PlacedInterface, Target};
use dataplane::{NextHop, Route, RouteId, RouterId, RouterInterface, Tuple};
use packet::ip::{IPPROTO_TCP, IPPROTO_UDP};
use std::collections::BTreeMap;

/// A router that is made when something is delegated, and removed when nothing is.
pub(crate) struct PlaneRouter {
    plane: Plane,
    /// Whether the operator lets it be bypassed.
    bypass: bool,
    pub(super) id: Option<RouterId>,
    /// By the agent's numbers.
    pub(super) routes: BTreeMap<u32, RouteId>,
    /// What bypassed the routers that are gone.
    past: HopCount,
}

/// A router that is not bypassed any more, to be removed.
#[must_use]
pub(crate) struct Gone {
    id: RouterId,
    /// What of its packets was counted as past.
    counted: HopCount,
}

impl PlaneRouter {
    pub(crate) fn new(plane: Plane, bypass: bool) -> Self {
        Self { plane, bypass, id: None, routes: BTreeMap::new(), past: HopCount::default() }
    }

    pub(crate) fn bypass(&self) -> bool {
        self.bypass
    }

    /// Lets the router be bypassed, or not: what it delegated is kept.
    pub(crate) fn set_bypass(&mut self, bypass: bool) -> Result<(), PlaneError> {
        if let Some(id) = self.id {
            self.plane.host.set_bypass(id, bypass)?;
        }
        self.bypass = bypass;
        Ok(())
    }

    /// Carries out what a session decided. What has to be removed is given back.
    pub(crate) fn carry_out(
        &mut self,
        actions: Vec<Action<PortHandle>>,
    ) -> Result<Option<Gone>, PlaneError> {
        let mut gone = None;
        let mut held = false;
        for action in actions {
            if action == Action::Clear {
                gone = self.clear()?;
                continue;
            }
            // Where there is no router nothing was lost.
            if action == Action::Confirm && self.id.is_none() {
                continue;
            }
            // Between new interfaces and the next hops that name them.
            if matches!(action, Action::Interfaces(_)) && !held {
                let id = self.id()?;
                self.plane.host.set_bypass(id, false)?;
                held = true;
            }
            self.change(action)?;
        }
        if held {
            let id = self.id()?;
            self.plane.host.set_bypass(id, self.bypass)?;
        }
        Ok(gone)
    }

    fn change(&mut self, action: Action<PortHandle>) -> Result<(), PlaneError> {
        let id = self.id()?;
        let host = &self.plane.host;
        match action {
            Action::Clear => {}
            Action::Confirm => host.confirm_router(id)?,
            Action::Interfaces(placed) => {
                host.set_interfaces(id, placed.into_iter().map(interface).collect())?;
            }
            Action::NextHop { number, to } => match self.routes.get(&number) {
                Some(known) => host.change_route(id, *known, route(to))?,
                None => {
                    let new = host.add_route(id, route(to))?;
                    self.routes.insert(number, new);
                }
            },
            Action::RemoveNextHop(number) => {
                if let Some(known) = self.routes.remove(&number) {
                    host.remove_route(id, known)?;
                }
            }
            Action::Delegate { prefix, nexthop } => {
                let Some(route) = self.routes.get(&nexthop) else { return Ok(()) };
                let (to, from) = (prefix.prefix(), prefix.from());
                match (from, range(to)) {
                    (Some(from), _) => {
                        let from = dataplane::Mac(from.0);
                        host.delegate_exact(id, to.address(), from, *route)?;
                    }
                    (None, Some(prefix)) => host.delegate(id, prefix, *route)?,
                    (None, None) => {}
                }
            }
            Action::Withdraw(prefix) => {
                let (to, from) = (prefix.prefix(), prefix.from());
                match (from, range(to)) {
                    (Some(from), _) => {
                        host.withdraw_exact(id, to.address(), dataplane::Mac(from.0))?;
                    }
                    (None, Some(prefix)) => {
                        host.withdraw(id, prefix)?;
                    }
                    (None, None) => {}
                }
            }
            Action::Connect { flow, interface, to, nexthop } => {
                if let Some(route) = self.routes.get(&nexthop) {
                    let new = tuple(flow.protocol, to);
                    host.add_connection(id, tuple_of(&flow), interface, new, *route)?;
                }
            }
            Action::Disconnect(flow) => drop(host.remove_connection(id, &tuple_of(&flow))?),
        }
        Ok(())
    }

    /// Nothing bypasses it from now on.
    fn clear(&mut self) -> Result<Option<Gone>, PlaneError> {
        let Some(id) = self.id else { return Ok(None) };
        self.plane.host.set_bypass(id, false)?;
        let counted = self.plane.total(id);
        add(&mut self.past, counted);
        self.routes.clear();
        self.id = None;
        Ok(Some(Gone { id, counted }))
    }

    /// Packets that were on their way past a router when it went.
    pub(crate) fn late(&mut self, late: HopCount) {
        add(&mut self.past, late);
    }

    /// Its number; it is made now if need be.
    fn id(&mut self) -> Result<RouterId, PlaneError> {
        if let Some(id) = self.id {
            return Ok(id);
        }
        let id = self.plane.host.add_router()?;
        self.id = Some(id);
        if !self.bypass {
            self.plane.host.set_bypass(id, false)?;
        }
        Ok(id)
    }

    /// What was sent by each next hop, by the agent's number.
    pub(crate) fn counts(&self) -> BTreeMap<u32, Vec<HopCount>> {
        let counts = self.id.and_then(|id| self.plane.host.route_counts(id).ok());
        let counts: BTreeMap<RouteId, _> = counts.unwrap_or_default().routes.into_iter().collect();
        let of = |(number, route): (&u32, &RouteId)| {
            Some((*number, counts.get(route)?.iter().copied().map(count).collect()))
        };
        self.routes.iter().filter_map(of).collect()
    }

    /// What was sent of one direction of a connection.
    pub(crate) fn connection_count(&self, flow: &Flow) -> HopCount {
        let count = |id| self.plane.host.connection_count(id, &tuple_of(flow));
        self.id.and_then(count).map(self::count).unwrap_or_default()
    }

    /// What bypassed it so far.
    pub(crate) fn total(&self) -> HopCount {
        let mut total = self.past;
        add(&mut total, self.id.map_or(HopCount::default(), |id| self.plane.total(id)));
        total
    }
}

impl Plane {
    /// Removes a router. When this returns no frame bypasses it; gives back what was not yet counted.
    pub(crate) async fn remove_router(
        &self,
        Gone { id, counted }: Gone,
    ) -> Result<HopCount, PlaneError> {
        self.host.settle().await?;
        let HopCount { packets, bytes } = self.total(id);
        self.host.remove_router(id).await?;
        Ok(HopCount {
            packets: packets.saturating_sub(counted.packets),
            bytes: bytes.saturating_sub(counted.bytes),
        })
    }

    /// Returns when no frame takes the way of before.
    pub(crate) async fn settle(&self) -> Result<(), PlaneError> {
        Ok(self.host.settle().await?)
    }

    /// What bypassed a router; nothing, if there is none.
    fn total(&self, id: RouterId) -> HopCount {
        count(self.host.route_counts(id).unwrap_or_default().total)
    }
}

fn count(count: dataplane::HopCount) -> HopCount {
    HopCount { packets: count.packets, bytes: count.bytes }
}

fn add(sum: &mut HopCount, more: HopCount) {
    sum.packets += more.packets;
    sum.bytes += more.bytes;
}

fn interface(placed: PlacedInterface<PortHandle>) -> RouterInterface {
    RouterInterface {
        port: placed.port,
        vlan: placed.vlan,
        mac: dataplane::Mac(placed.mac.0),
        mtu: placed.mtu,
        check: check(placed.source_check),
        check_v6: check(placed.source_check_v6),
    }
}

fn check(check: SourceCheck) -> dataplane::SourceCheck {
    match check {
        SourceCheck::Off => dataplane::SourceCheck::Off,
        SourceCheck::Loose => dataplane::SourceCheck::Loose,
        SourceCheck::Strict => dataplane::SourceCheck::Strict,
        SourceCheck::Closed => dataplane::SourceCheck::Closed,
    }
}

fn route(to: Target) -> Route {
    match to {
        Target::Own => Route::Own,
        Target::Via(hops) => Route::Via(
            hops.into_iter()
                .map(|(interface, mac)| NextHop { interface, mac: dataplane::Mac(mac.0) })
                .collect(),
        ),
    }
}

fn tuple_of(flow: &Flow) -> Tuple {
    tuple(flow.protocol, Ends { source: flow.source, destination: flow.destination })
}

fn tuple(protocol: Transport, Ends { source, destination }: Ends) -> Tuple {
    Tuple {
        protocol: match protocol {
            Transport::Tcp => IPPROTO_TCP,
            Transport::Udp => IPPROTO_UDP,
        },
        source: source.ip(),
        source_port: source.port(),
        destination: destination.ip(),
        destination_port: destination.port(),
    }
}

fn range(prefix: Prefix) -> Option<dataplane::Prefix> {
    dataplane::Prefix::new(prefix.address(), prefix.length())
}
