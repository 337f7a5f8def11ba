//! Routers that are bypassed: what they delegated, and the way of a packet through them.
//!
//! A router says where it would send which packets ([`Switch::set_route`]). A packet for one of
//! these routes, in a frame to one of the router's own addresses, goes on as if the router had sent
//! it, and is looked up again: as often as the next machine is a router as well. What comes out is
//! one rewrite for all of them ([`Routed`]). Whatever is not delegated ends at the router.
//!
//! Routers, their interfaces and routes are part of the configuration; which prefix takes which
//! route is in tables that change in place ([`Lpm`]). All of it is control's; workers read.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use packet::eth::{ETH_P_IP, Eth};
use packet::route::Packet;
use packet::{Mac, Tci, VlanEdit};

use crate::config::{Snapshot, Switch, SwitchError};
use crate::fdb::{self, Held};
use crate::lpm::{Lpm, Prefix};
use crate::{PortId, Verdict};

/// A router, unique over all networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct RouterId(pub u16);

/// One of a router's own interfaces: where it gets packets, and sends them from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterInterface {
    /// The port it is behind.
    pub port: PortId,
    /// The VLAN tag of its frames (1 to 4094), for an interface like `eth0.10`.
    pub vlan: Option<u16>,
    /// Its address.
    pub mac: Mac,
    /// Longest packet it sends, bytes.
    pub mtu: usize,
    /// What it asks of the sources of packets it gets.
    pub check: SourceCheck,
}

/// Reverse-path filtering (RFC 3704; `rp_filter` of Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// None.
    #[default]
    Off,
    /// The source is in a delegated route.
    Loose,
    /// The source's route leads back to where the packet came from.
    Strict,
}

/// The machine a packet is sent to next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Number of the interface it is sent from.
    pub interface: usize,
    /// The next machine's address.
    pub mac: Mac,
}

/// Where packets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the router: its own addresses, and what it keeps for itself. Nothing from these addresses
    /// is forwarded either.
    Own,
    /// To one of these, the same for all packets of a flow. With none: to the router.
    Via(Vec<NextHop>),
}

/// Number of a route, of one router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(u32);

impl std::fmt::Display for RouterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A router as workers see it.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    bypass: bool,
    interfaces: Vec<RouterInterface>,
    /// By number less one.
    routes: Vec<Arc<Route>>,
    v4: Arc<Lpm>,
    v6: Arc<Lpm>,
}

/// What becomes of a packet that bypasses routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// Where it goes.
    pub port: PortId,
    /// What to do with the tag of the frame as it came.
    pub edit: VlanEdit,
    /// New source address: of the last router.
    pub source: Mac,
    /// New destination address.
    pub destination: Mac,
    /// So many routers were bypassed. A packet with no more hops than that goes to the first.
    pub routers: u8,
    /// Longest packet that all of them would have sent on: a longer one goes to the first.
    pub mtu: usize,
}

/// Where a frame is: behind which port, with which tag, for whom.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) port: PortId,
    pub(crate) tag: Option<u16>,
    pub(crate) mac: Mac,
}

impl Router {
    fn table(&self, address: IpAddr) -> &Lpm {
        if address.is_ipv4() { &self.v4 } else { &self.v6 }
    }

    fn route(&self, address: IpAddr) -> Option<&Route> {
        let number = self.table(address).look_up(address).checked_sub(1)?;
        self.routes.get(number as usize).map(|route| &**route)
    }

    /// Whether it forwards packets from this source that came by this interface.
    fn takes(&self, source: IpAddr, number: usize, check: SourceCheck) -> bool {
        match (check, self.route(source)) {
            (_, Some(Route::Own)) => false,
            (SourceCheck::Off, _) => true,
            (SourceCheck::Loose, route) => route.is_some(),
            (SourceCheck::Strict, Some(Route::Via(hops))) => {
                hops.iter().any(|hop| hop.interface == number)
            }
            (SourceCheck::Strict, None) => false,
        }
    }
}

impl Snapshot {
    /// The most routers that one packet bypasses at once.
    const ROUTERS_MAX: u8 = 16;

    /// The way of a packet from there, in a frame that came with a tag or without (`tagged`): `None`
    /// if it ends there. `hash` is that of its flow.
    pub(crate) fn route(
        &self,
        mut at: At,
        tagged: bool,
        packet: &Packet,
        hash: u32,
        now_ms: u64,
        held: &mut Held,
    ) -> Option<Routed> {
        let mut way = None;
        let mut mtu = usize::MAX;
        for routers in 1..=Self::ROUTERS_MAX {
            let Some((next, interface)) = self.pass(at, packet, hash, now_ms, held) else { break };
            mtu = mtu.min(interface.mtu);
            let edit = match (tagged, next.tag) {
                (false, None) => VlanEdit::Keep,
                (false, Some(vid)) => VlanEdit::Push(Tci(vid)),
                (true, None) => VlanEdit::Pop,
                (true, Some(vid)) => VlanEdit::Set(Tci(vid)),
            };
            let (source, destination) = (interface.mac, next.mac);
            way = Some(Routed { port: next.port, edit, source, destination, routers, mtu });
            at = next;
        }
        way
    }

    /// Through one router: where the packet is then, and the interface it was sent from.
    fn pass(
        &self,
        at: At,
        packet: &Packet,
        hash: u32,
        now_ms: u64,
        held: &mut Held,
    ) -> Option<(At, &RouterInterface)> {
        let router = self.port(at.port)?.router.and_then(|id| self.router(id))?;
        let ours = |interface: &RouterInterface| {
            interface.port == at.port && interface.vlan == at.tag && interface.mac == at.mac
        };
        let ingress = router.interfaces.iter().position(ours).filter(|_| router.bypass)?;
        let check = router.interfaces.get(ingress)?.check;
        if !router.takes(packet.source, ingress, check) {
            return None;
        }
        let Route::Via(hops) = router.route(packet.destination)? else { return None };
        let chosen = (u64::from(hash) * hops.len() as u64) >> 32;
        let hop = hops.get(chosen as usize)?;
        // Back to where it came from: the router may want to tell the sender (ICMP redirect).
        let interface =
            router.interfaces.get(hop.interface).filter(|_| hop.interface != ingress)?;

        // As if it came from the router now.
        let from = self.port(interface.port).filter(|port| port.up)?;
        let (dst, src) = (hop.mac, interface.mac);
        let tag = interface.vlan.map(Tci);
        let class = from.vlan.classify(&Eth { dst, src, tag, ethertype: ETH_P_IP })?;
        let table = held.table(&from.fdb);
        from.observe(interface.port, table, fdb::key(class.fid, src), now_ms);
        let to = fdb::lookup(table, fdb::key(class.fid, dst))?;
        let Verdict::Forward { port, edit } = self.unicast(interface.port, from, class, to)? else {
            return None;
        };
        let tag = match edit {
            VlanEdit::Keep => interface.vlan,
            VlanEdit::Push(tci) | VlanEdit::Set(tci) => Some(tci.vid()),
            VlanEdit::Pop => None,
        };
        Some((At { port, tag, mac: dst }, interface))
    }
}

impl Switch {
    /// Router numbers are below this.
    pub const ROUTERS_MAX: usize = 4096;
    /// Interfaces of one router.
    pub const ROUTER_INTERFACES_MAX: usize = 256;

    /// A router without interfaces and routes, bypassed where it delegates.
    pub fn add_router(&self) -> Result<RouterId, SwitchError> {
        let router = Router {
            bypass: true,
            interfaces: Vec::new(),
            routes: Vec::new(),
            v4: Arc::default(),
            v6: Arc::default(),
        };
        self.change_routers(|config| {
            let routers = &mut config.routers;
            let place = routers.iter().position(Option::is_none).unwrap_or(routers.len());
            if place >= Self::ROUTERS_MAX {
                return Err(SwitchError::TooManyRouters);
            }
            routers.resize_with(routers.len().max(place + 1), || None);
            if let Some(slot) = routers.get_mut(place) {
                *slot = Some(Arc::new(router));
            }
            Ok(RouterId(place as u16))
        })
    }

    /// Removes a router with all it delegated.
    pub fn remove_router(&self, id: RouterId) -> Result<(), SwitchError> {
        self.change_routers(|config| {
            let slot = config.routers.get_mut(usize::from(id.0));
            slot.and_then(Option::take).map(drop).ok_or(SwitchError::NoSuchRouter(id))
        })
    }

    /// Whether it is bypassed.
    pub fn set_bypass(&self, id: RouterId, bypass: bool) -> Result<(), SwitchError> {
        self.change_router(id, |router| {
            router.bypass = bypass;
            Ok(())
        })
    }

    /// Its interfaces, in place of those before, by the numbers that its next hops name. A port
    /// belongs to one router.
    pub fn set_interfaces(
        &self,
        id: RouterId,
        interfaces: Vec<RouterInterface>,
    ) -> Result<(), SwitchError> {
        if interfaces.len() > Self::ROUTER_INTERFACES_MAX {
            return Err(SwitchError::TooManyInterfaces);
        }
        if let Some(bad) = interfaces.iter().find(|one| one.mac.is_multicast() || one.mac.is_zero())
        {
            return Err(SwitchError::NotUnicast(bad.mac));
        }
        self.change_routers(|config| {
            let lost = interfaces.iter().find(|one| config.port(one.port).is_none());
            if let Some(lost) = lost {
                return Err(SwitchError::NoSuchPort(lost.port));
            }
            let routers = &mut config.routers;
            let taken = routers.iter().enumerate().filter(|(n, _)| *n != usize::from(id.0));
            let mut taken = taken.flat_map(|(_, router)| router).flat_map(|one| &one.interfaces);
            if let Some(taken) = taken.find(|one| interfaces.iter().any(|new| new.port == one.port))
            {
                return Err(SwitchError::PortOfRouter(taken.port));
            }
            let router = edit(routers, id)?;
            router.interfaces = interfaces;
            Ok(())
        })
    }

    /// A new route; no prefix takes it yet.
    pub fn add_route(&self, id: RouterId, route: Route) -> Result<RouteId, SwitchError> {
        check(&route)?;
        self.change_router(id, |router| {
            router.routes.push(Arc::new(route));
            let number = router.routes.len() as u32;
            (number < Lpm::ROUTES_MAX).then_some(RouteId(number)).ok_or(SwitchError::TooManyRoutes)
        })
    }

    /// Another way for all prefixes that take a route: when a neighbour changed its address.
    pub fn change_route(
        &self,
        id: RouterId,
        route: RouteId,
        new: Route,
    ) -> Result<(), SwitchError> {
        check(&new)?;
        self.change_router(id, |router| {
            let place = (route.0 as usize).checked_sub(1).and_then(|n| router.routes.get_mut(n));
            *place.ok_or(SwitchError::NoSuchRoute)? = Arc::new(new);
            Ok(())
        })
    }

    /// Delegates a prefix, by this route from now on.
    pub fn set_route(
        &self,
        id: RouterId,
        prefix: Prefix,
        route: RouteId,
    ) -> Result<(), SwitchError> {
        self.with_table(id, prefix, |lpm, routes| {
            if route.0 as usize > routes {
                return Err(SwitchError::NoSuchRoute);
            }
            lpm.insert(prefix, route.0).map(drop).map_err(|_| SwitchError::TooManyRoutes)
        })
    }

    /// Withdraws a prefix; returns whether it was delegated.
    pub fn remove_route(&self, id: RouterId, prefix: Prefix) -> Result<bool, SwitchError> {
        self.with_table(id, prefix, |lpm, _| {
            lpm.remove(prefix).map(|old| old.is_some()).map_err(|_| SwitchError::TooManyRoutes)
        })
    }

    fn with_table<T>(
        &self,
        id: RouterId,
        prefix: Prefix,
        change: impl FnOnce(&Lpm, usize) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        let _control = self.control.lock();
        let config = self.config.load();
        let router = config.router(id).ok_or(SwitchError::NoSuchRouter(id))?;
        let lpm = if prefix.is_ipv4() { &router.v4 } else { &router.v6 };
        let done = change(lpm, router.routes.len());
        self.generations.fetch_add(1, Ordering::AcqRel);
        done
    }

    fn change_router<T>(
        &self,
        id: RouterId,
        change: impl FnOnce(&mut Router) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        self.change_routers(|config| change(edit(&mut config.routers, id)?))
    }

    /// Puts other routers into force, and notes at each port whose it is.
    fn change_routers<T>(
        &self,
        change: impl FnOnce(&mut Snapshot) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        let _control = self.control.lock();
        let mut config = self.next_config();
        let done = change(&mut config)?;
        config.own_ports();
        self.config.store(Arc::new(config));
        self.generations.fetch_add(1, Ordering::AcqRel);
        Ok(done)
    }
}

impl Snapshot {
    pub(crate) fn router(&self, id: RouterId) -> Option<&Router> {
        self.routers.get(usize::from(id.0))?.as_deref()
    }

    /// Notes at each port which router it belongs to.
    fn own_ports(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            port.router = None;
        }
        for (number, router) in self.routers.iter().enumerate() {
            for interface in router.iter().flat_map(|router| &router.interfaces) {
                let port = self.ports.get_mut(usize::from(interface.port.0));
                if let Some(port) = port.and_then(Option::as_mut) {
                    port.router = Some(RouterId(number as u16));
                }
            }
        }
    }

    /// A port is gone: what a router had there is not another's who gets its number.
    pub(crate) fn disown_port(&mut self, id: PortId) {
        for slot in &mut self.routers {
            if let Some(router) = slot
                && router.interfaces.iter().any(|interface| interface.port == id)
            {
                let mut left = Router::clone(router);
                // The numbers of the others stay.
                for interface in left.interfaces.iter_mut().filter(|one| one.port == id) {
                    interface.port = PortId(u16::MAX);
                }
                *slot = Some(Arc::new(left));
            }
        }
    }
}

fn edit(routers: &mut [Option<Arc<Router>>], id: RouterId) -> Result<&mut Router, SwitchError> {
    let slot = routers.get_mut(usize::from(id.0)).and_then(Option::as_mut);
    slot.map(Arc::make_mut).ok_or(SwitchError::NoSuchRouter(id))
}

fn check(route: &Route) -> Result<(), SwitchError> {
    let Route::Via(hops) = route else { return Ok(()) };
    match hops.iter().find(|hop| hop.mac.is_multicast() || hop.mac.is_zero()) {
        Some(bad) => Err(SwitchError::NotUnicast(bad.mac)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
