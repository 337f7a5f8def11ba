//! Routers that are bypassed: what they delegate, and what took it.
//!
//! A change is in force for every frame that a worker takes up afterwards. Frames it is dealing with
//! may still go the old way: [`Host::settle`] waits until there are none.

use std::net::IpAddr;
use std::sync::Arc;

use packet::route::Packet;
use packet::tuple::Tuple;
use packet::{Checked, Mac};
use switch::{
    Flood, HopCount, PortId, Prefix, Route, RouteCounts, RouteId, RouterId, RouterInterface, Step,
    SwitchError,
};
use tokio::sync::oneshot;

use super::Host;
use crate::error::HostError;
use crate::worker::{Command, Shared};

impl Host {
    /// A router without interfaces and routes, bypassed where it delegates.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub fn add_router(&self) -> Result<RouterId, HostError> {
        Ok(self.0.switch.add_router()?)
    }

    /// Removes a router with all it delegated. No frame goes past it any more when this returns.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub async fn remove_router(&self, id: RouterId) -> Result<(), HostError> {
        self.0.switch.remove_router(id)?;
        self.settle().await
    }

    /// Whether it is bypassed.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub fn set_bypass(&self, id: RouterId, bypass: bool) -> Result<(), HostError> {
        Ok(self.0.switch.set_bypass(id, bypass)?)
    }

    /// Its interfaces, in place of those before, by the numbers that hops name.
    ///
    /// # Errors
    ///
    /// It or a port does not exist, a port is another router's, an address is not a station's, or
    /// there are too many.
    pub fn set_interfaces(
        &self,
        id: RouterId,
        interfaces: Vec<RouterInterface>,
    ) -> Result<(), HostError> {
        Ok(self.0.switch.set_interfaces(id, interfaces)?)
    }

    /// It is still there, and knows what it delegated: ports of it that lost their link are bypassed
    /// again.
    ///
    /// # Errors
    ///
    /// It does not exist.
    pub fn confirm_router(&self, id: RouterId) -> Result<(), HostError> {
        Ok(self.0.switch.confirm_router(id)?)
    }

    /// A new route, which no prefix takes yet.
    ///
    /// # Errors
    ///
    /// There is no such router, an address is not a station's, or there are too many.
    pub fn add_route(&self, id: RouterId, route: Route) -> Result<RouteId, HostError> {
        Ok(self.0.switch.add_route(id, route)?)
    }

    /// Another way for all prefixes that take a route. It counts from zero again.
    ///
    /// # Errors
    ///
    /// There is no such router or route, or an address is not a station's.
    pub fn change_route(&self, id: RouterId, route: RouteId, new: Route) -> Result<(), HostError> {
        Ok(self.0.switch.change_route(id, route, new)?)
    }

    /// Removes a route.
    ///
    /// # Errors
    ///
    /// There is no such router or route, or prefixes take it.
    pub fn remove_route(&self, id: RouterId, route: RouteId) -> Result<(), HostError> {
        Ok(self.0.switch.remove_route(id, route)?)
    }

    /// Delegates a prefix, by this route from now on.
    ///
    /// # Errors
    ///
    /// There is no such router or route, or the table is full.
    pub fn delegate(&self, id: RouterId, prefix: Prefix, route: RouteId) -> Result<(), HostError> {
        Ok(self.0.switch.delegate(id, prefix, route)?)
    }

    /// Withdraws a prefix; returns whether it was delegated.
    ///
    /// # Errors
    ///
    /// There is no such router.
    pub fn withdraw(&self, id: RouterId, prefix: Prefix) -> Result<bool, HostError> {
        Ok(self.0.switch.withdraw(id, prefix)?)
    }

    /// Delegates what the machine `from` sends to one address, before all prefixes.
    ///
    /// # Errors
    ///
    /// There is no such router or route, or `from` is not a station's address.
    pub fn delegate_exact(
        &self,
        id: RouterId,
        to: IpAddr,
        from: Mac,
        route: RouteId,
    ) -> Result<(), HostError> {
        Ok(self.0.switch.delegate_exact(id, to, from, route)?)
    }

    /// Withdraws it; returns whether it was delegated.
    ///
    /// # Errors
    ///
    /// There is no such router.
    pub fn withdraw_exact(&self, id: RouterId, to: IpAddr, from: Mac) -> Result<bool, HostError> {
        Ok(self.0.switch.withdraw_exact(id, to, from)?)
    }

    /// Delegates one direction of a connection: packets with `tuple` that come by this interface
    /// become `to` and take the route. How many there may be is the caller's to limit.
    ///
    /// # Errors
    ///
    /// There is no such router or route, or both are not of one protocol and version of IP.
    pub fn add_connection(
        &self,
        id: RouterId,
        tuple: Tuple,
        interface: usize,
        to: Tuple,
        route: RouteId,
    ) -> Result<(), HostError> {
        Ok(self.0.switch.add_connection(id, tuple, interface, to, route)?)
    }

    /// Withdraws one direction of a connection; returns whether it was delegated.
    ///
    /// # Errors
    ///
    /// There is no such router.
    pub fn remove_connection(&self, id: RouterId, tuple: &Tuple) -> Result<bool, HostError> {
        Ok(self.0.switch.remove_connection(id, tuple)?)
    }

    /// What was of one direction of a connection, up to a tenth of a second ago; `None` if it is not
    /// delegated.
    pub fn connection_count(&self, id: RouterId, tuple: &Tuple) -> Option<HopCount> {
        self.0.switch.connection_count(id, tuple)
    }

    /// What went past a router, up to a tenth of a second ago.
    ///
    /// # Errors
    ///
    /// There is no such router.
    pub fn route_counts(&self, id: RouterId) -> Result<RouteCounts, HostError> {
        Ok(self.0.switch.route_counts(id)?)
    }

    /// What would become of this frame from a port, step by step. Nothing is learned from it.
    ///
    /// # Errors
    ///
    /// There is no such port.
    pub fn explain(&self, from: PortId, frame: &[u8]) -> Result<Vec<Step>, HostError> {
        if self.0.tables.lock().ports.get_arc(from).is_none() {
            return Err(SwitchError::NoSuchPort(from).into());
        }
        let packet = Packet::parse(frame, frame.len(), &Checked::PLAIN);
        Ok(self.0.switch.snapshot().explain(from, frame, packet, &Checked::PLAIN))
    }

    /// The ports of a flood that [`Host::explain`] told of, of a frame to `dst`.
    pub fn flooded(&self, flood: Flood, dst: Mac) -> Vec<PortId> {
        self.0.switch.snapshot().flood(flood, dst).map(|member| member.port).collect()
    }

    /// Waits until no worker deals with a frame that it took up before.
    ///
    /// # Errors
    ///
    /// The data plane is shutting down.
    pub async fn settle(&self) -> Result<(), HostError> {
        let post = |worker: &Arc<Shared>| {
            let (done, settled) = oneshot::channel();
            worker.mailbox.post(Command::Settle(done));
            settled
        };
        for one in self.0.workers.iter().map(post).collect::<Vec<_>>() {
            one.await.map_err(|_| HostError::ShuttingDown)?;
        }
        Ok(())
    }
}
