//! Routers that are bypassed: what they delegated.
//!
//! A router says where it would send which packets ([`Switch::delegate`]). A packet for one of
//! these routes, in a frame to one of the router's own addresses, goes on as if the router had sent
//! it, and is looked up again: as often as the next machine is a router as well. What comes out is
//! one rewrite for all of them ([`crate::Routed`], module `way`). Whatever is not delegated ends at
//! the router.
//!
//! Routers, their interfaces and routes are part of the configuration; which prefix takes which
//! route is in tables that change in place ([`Lpm`]). All of it is control's; workers read.

pub(crate) mod connection;
mod exact;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use packet::Mac;
use packet::route::Packet;

use crate::config::{Snapshot, Switch, free_place};
use crate::domain::Tells;
use crate::error::SwitchError;
use crate::fdb::Fdb;
use crate::lpm::{Lpm, Prefix};
use crate::way::Taken;
use crate::{NetworkId, PortId};
use connection::Connections;
use exact::Exact;

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
    pub mtu: u32,
    /// What it asks of the sources of IPv4 packets it gets.
    pub check: SourceCheck,
    /// What it asks of the sources of IPv6 packets it gets.
    pub check_v6: SourceCheck,
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
    /// No source will do: packets of this version of IP go to the router.
    Closed,
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
pub struct RouteId(pub(crate) u32);

impl std::fmt::Display for RouterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopCount {
    /// Packets.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}

/// What went past a router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteCounts {
    /// Ever.
    pub total: HopCount,
    /// By each hop of each of its routes, since that was set.
    pub routes: Vec<(RouteId, Vec<HopCount>)>,
}

/// The same, where workers meet.
#[derive(Debug, Default)]
pub(crate) struct Count {
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// A route as workers see it.
#[derive(Debug)]
pub(crate) struct RouteEntry {
    pub(crate) route: Route,
    /// What took each of its hops.
    counts: Box<[Count]>,
    /// Prefixes and connections that take it.
    users: Arc<AtomicU32>,
}

/// A router as workers see it.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    pub(crate) bypass: bool,
    pub(crate) interfaces: Vec<RouterInterface>,
    /// Ports that lost their link since it said where its interfaces are: whoever is behind them now
    /// may have forgotten everything.
    pub(crate) lost: Vec<PortId>,
    /// By number less one.
    pub(crate) routes: Vec<Option<Arc<RouteEntry>>>,
    /// Where numbers are handed out from next.
    next_route: usize,
    /// Of its routes now and before.
    total: Arc<Count>,
    v4: Arc<Lpm>,
    v6: Arc<Lpm>,
    exact: Arc<Exact>,
    connections: Arc<Connections>,
}

impl HopCount {
    #[inline]
    pub(crate) fn one(packet: Packet) -> Self {
        Self { packets: 1, bytes: packet.frame_len() as u64 }
    }

    #[inline]
    pub(crate) fn add(&mut self, more: Self) {
        self.packets += more.packets;
        self.bytes += more.bytes;
    }
}

impl Count {
    fn add(&self, more: HopCount) {
        self.packets.fetch_add(more.packets, Ordering::Relaxed);
        self.bytes.fetch_add(more.bytes, Ordering::Relaxed);
    }

    fn get(&self) -> HopCount {
        let (packets, bytes) = (&self.packets, &self.bytes);
        HopCount { packets: packets.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
    }
}

impl RouteEntry {
    fn new(route: Route, users: Arc<AtomicU32>) -> Result<Arc<Self>, SwitchError> {
        let hops = match &route {
            Route::Own => 0,
            Route::Via(hops) => hops.len(),
        };
        if hops > Switch::HOPS_MAX {
            return Err(SwitchError::TooManyHops);
        }
        if let Route::Via(hops) = &route
            && let Some(bad) = hops.iter().find(|hop| hop.mac.is_multicast() || hop.mac.is_zero())
        {
            return Err(SwitchError::NotUnicast(bad.mac));
        }
        let counts = (0..hops).map(|_| Count::default()).collect();
        Ok(Arc::new(Self { route, counts, users }))
    }
}

impl Router {
    /// What ways through it depend on.
    pub(crate) fn tells(&self) -> Tells {
        let flows = self.routes.iter().flatten().any(|entry| entry.counts.len() > 1);
        Tells { flows, connections: !self.connections.is_empty() }
    }

    pub(crate) fn table(&self, is_ipv4: bool) -> &Arc<Lpm> {
        if is_ipv4 { &self.v4 } else { &self.v6 }
    }

    fn table_mut(&mut self, is_ipv4: bool) -> &mut Arc<Lpm> {
        if is_ipv4 { &mut self.v4 } else { &mut self.v6 }
    }

    pub(crate) fn entry(&self, route: RouteId) -> Option<&Arc<RouteEntry>> {
        self.routes.get((route.0 as usize).checked_sub(1)?)?.as_ref()
    }

    /// A prefix or connection no longer takes this route.
    fn left(&self, old: Option<RouteId>) {
        if let Some(entry) = old.and_then(|old| self.entry(old)) {
            entry.users.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn entry_mut(&mut self, route: RouteId) -> Option<&mut Option<Arc<RouteEntry>>> {
        let place = self.routes.get_mut((route.0 as usize).checked_sub(1)?)?;
        place.is_some().then_some(place)
    }
}

impl Switch {
    /// Router numbers are below this.
    pub const ROUTERS_MAX: usize = 4096;
    /// Interfaces of one router.
    pub const ROUTER_INTERFACES_MAX: usize = 256;
    /// Routes of one router.
    pub const ROUTES_MAX: usize = 65536;
    /// Hops of one route.
    pub const HOPS_MAX: usize = 256;

    /// A router without interfaces and routes, bypassed where it delegates.
    pub fn add_router(&self) -> Result<RouterId, SwitchError> {
        let router = Router {
            bypass: true,
            interfaces: Vec::new(),
            lost: Vec::new(),
            routes: Vec::new(),
            next_route: 0,
            total: Arc::default(),
            v4: Arc::default(),
            v6: Arc::default(),
            exact: Arc::default(),
            connections: Arc::default(),
        };
        let mut control = self.control.lock();
        let mut config = self.next_config();
        let place = free_place(&mut config.routers, &mut control.next_router, Self::ROUTERS_MAX)
            .ok_or(SwitchError::TooManyRouters)?;
        if let Some(slot) = config.routers.get_mut(place) {
            *slot = Some(Arc::new(router));
        }
        let id = RouterId(place as u16);
        self.put_router_into_force(config, id);
        Ok(id)
    }

    /// Removes a router with all it delegated.
    pub fn remove_router(&self, id: RouterId) -> Result<(), SwitchError> {
        self.change_routers(id, |config| {
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
        self.change_routers(id, |config| {
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
            router.lost.clear();
            Ok(())
        })
    }

    /// It is still there, and knows what it delegated: ports of it that lost their link are bypassed
    /// again once they are up.
    pub fn confirm_router(&self, id: RouterId) -> Result<(), SwitchError> {
        let config = self.config.load();
        if config.router(id).ok_or(SwitchError::NoSuchRouter(id))?.lost.is_empty() {
            return Ok(());
        }
        self.change_router(id, |router| {
            router.lost.clear();
            Ok(())
        })
    }

    /// A new route; no prefix takes it yet. Numbers go round: one does not come back at once.
    pub fn add_route(&self, id: RouterId, route: Route) -> Result<RouteId, SwitchError> {
        let entry = RouteEntry::new(route, Arc::default())?;
        self.change_router(id, |router| {
            let Router { routes, next_route, .. } = router;
            let place = free_place(routes, next_route, Self::ROUTES_MAX);
            let place = place.ok_or(SwitchError::TooManyRoutes)?;
            if let Some(slot) = routes.get_mut(place) {
                *slot = Some(entry);
            }
            Ok(RouteId(place as u32 + 1))
        })
    }

    /// Another way for all prefixes that take a route: when a neighbour changed its address. Counts
    /// from zero again.
    pub fn change_route(
        &self,
        id: RouterId,
        route: RouteId,
        new: Route,
    ) -> Result<(), SwitchError> {
        self.change_router(id, |router| {
            let slot = router.entry_mut(route).ok_or(SwitchError::NoSuchRoute)?;
            let users = slot.as_ref().map(|entry| Arc::clone(&entry.users));
            *slot = Some(RouteEntry::new(new, users.unwrap_or_default())?);
            Ok(())
        })
    }

    /// Removes a route that no prefix takes.
    pub fn remove_route(&self, id: RouterId, route: RouteId) -> Result<(), SwitchError> {
        self.change_router(id, |router| {
            let slot = router.entry_mut(route).ok_or(SwitchError::NoSuchRoute)?;
            if slot.as_ref().is_some_and(|entry| entry.users.load(Ordering::Relaxed) > 0) {
                return Err(SwitchError::RouteInUse);
            }
            *slot = None;
            Ok(())
        })
    }

    /// Delegates a prefix, by this route from now on.
    pub fn delegate(
        &self,
        id: RouterId,
        prefix: Prefix,
        route: RouteId,
    ) -> Result<(), SwitchError> {
        let _control = self.control.lock();
        let config = self.config.load();
        let router = config.router(id).ok_or(SwitchError::NoSuchRouter(id))?;
        let entry = router.entry(route).ok_or(SwitchError::NoSuchRoute)?;
        let old = router.table(prefix.is_ipv4()).insert(prefix, route.0);
        let old = old.map_err(|_| SwitchError::TooManyRoutes)?;
        entry.users.fetch_add(1, Ordering::Relaxed);
        router.left(old.map(RouteId));
        self.forget_ways(&config, id);
        Ok(())
    }

    /// Withdraws a prefix; returns whether it was delegated. Workers may still use it until they
    /// have finished the burst they are in.
    pub fn withdraw(&self, id: RouterId, prefix: Prefix) -> Result<bool, SwitchError> {
        let _control = self.control.lock();
        let config = self.config.load();
        let router = config.router(id).ok_or(SwitchError::NoSuchRouter(id))?;
        let old = router.table(prefix.is_ipv4()).remove(prefix);
        router.left(old.map(RouteId));
        self.forget_ways(&config, id);
        Ok(old.is_some())
    }

    /// What went past a router, as far as workers have given account of it.
    pub fn route_counts(&self, id: RouterId) -> Result<RouteCounts, SwitchError> {
        let config = self.config.load();
        let router = config.router(id).ok_or(SwitchError::NoSuchRouter(id))?;
        let counts = router.routes.iter().zip(1..).filter_map(|(entry, number)| {
            Some((RouteId(number), entry.as_ref()?.counts.iter().map(Count::get).collect()))
        });
        Ok(RouteCounts { total: router.total.get(), routes: counts.collect() })
    }

    /// Whether [`Switch::tidy_routers`] is worth while.
    pub fn is_untidy(&self) -> bool {
        let config = self.config.load();
        let mut routers = config.routers.iter().flatten();
        routers.any(|router| router.v4.is_wasteful() || router.v6.is_wasteful())
    }

    /// Tables of which most is what withdrawals left behind are made anew: takes seconds for a
    /// million prefixes, in which other changes go on.
    pub fn tidy_routers(&self) {
        let config = self.config.load_full();
        let routers = config.routers.iter().zip(0..).filter_map(|(r, id)| Some((r.as_ref()?, id)));
        for ((router, id), is_ipv4) in routers.flat_map(|one| [(one, true), (one, false)]) {
            let old = router.table(is_ipv4);
            let changes = old.changes();
            if !old.is_wasteful() {
                continue;
            }
            let Ok(new) = old.rebuilt() else { continue };
            // If prefixes changed meanwhile, the next time. The router may be gone.
            let _ = self.change_router(RouterId(id), |router| {
                let lpm = router.table_mut(is_ipv4);
                if Arc::ptr_eq(lpm, old) && lpm.changes() == changes {
                    *lpm = Arc::new(new);
                }
                Ok(())
            });
        }
    }

    fn change_router<T>(
        &self,
        id: RouterId,
        change: impl FnOnce(&mut Router) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        self.change_routers(id, |config| change(edit(&mut config.routers, id)?))
    }

    /// Puts another router of this number into force.
    fn change_routers<T>(
        &self,
        id: RouterId,
        change: impl FnOnce(&mut Snapshot) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        let _control = self.control.lock();
        let mut config = self.next_config();
        let done = change(&mut config)?;
        self.put_router_into_force(config, id);
        Ok(done)
    }
}

impl Snapshot {
    pub(crate) fn router(&self, id: RouterId) -> Option<&Router> {
        self.routers.get(usize::from(id.0))?.as_deref()
    }

    /// Counts what took a path.
    pub(crate) fn count(&self, path: &[Taken], count: HopCount) {
        for taken in path.iter().filter(|_| count.packets > 0) {
            if let Some(connection) = &taken.connection {
                connection.count.add(count);
            }
            let Some(router) = self.router(taken.router) else { continue };
            router.total.add(count);
            let entry = router.entry(taken.route);
            if let Some(hop) = entry.and_then(|entry| entry.counts.get(usize::from(taken.hop))) {
                hop.add(count);
            }
        }
    }

    /// Notes at each port which router it belongs to. Returns the networks
    /// in which a port became a router's, or is one no longer.
    pub(crate) fn own_ports(&mut self) -> Vec<(NetworkId, Arc<Fdb>)> {
        let mut owners = vec![None; self.ports.len()];
        for (number, router) in self.routers.iter().enumerate() {
            for interface in router.iter().flat_map(|router| &router.interfaces) {
                if let Some(owner) = owners.get_mut(usize::from(interface.port.0)) {
                    *owner = Some(RouterId(number as u16));
                }
            }
        }
        let mut changed: Vec<(NetworkId, Arc<Fdb>)> = Vec::new();
        let ports = self.ports.iter_mut().zip(owners);
        for (port, owner) in ports.filter_map(|(port, owner)| Some((port.as_mut()?, owner))) {
            let is_new = port.router.is_some() != owner.is_some();
            if is_new && changed.iter().all(|(id, _)| *id != port.network) {
                changed.push((port.network, Arc::clone(&port.fdb)));
            }
            port.router = owner;
        }
        changed
    }

    /// A port lost its link: nothing goes past its router there until that says that it is still the
    /// same.
    pub(crate) fn lose_port(&mut self, id: PortId) {
        let owner = self.port(id).and_then(|port| port.router);
        let slot = owner.and_then(|owner| self.routers.get_mut(usize::from(owner.0)));
        if let Some(router) = slot.and_then(Option::as_mut)
            && !router.lost.contains(&id)
        {
            Arc::make_mut(router).lost.push(id);
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

#[cfg(test)]
mod tests;
