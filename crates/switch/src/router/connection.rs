//! Connections that a router delegated: it filters or translates, and lets those pass that it knows.
//!
//! One table for each router, written by control and read by workers without locks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use packet::tuple::Tuple;

use super::{Count, HopCount, Router};
use crate::config::Switch;
use crate::error::SwitchError;
use crate::{RouteId, RouterId};

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Number of the interface that its packets come by.
    pub(crate) interface: usize,
    /// What becomes of its addresses and ports.
    pub(crate) to: Tuple,
    /// Where it goes.
    pub(crate) route: RouteId,
    pub(crate) count: Count,
}

/// By its packets' addresses and ports as they come. Keyed with random numbers: routers choose them.
#[derive(Debug, Default)]
pub(crate) struct Connections(papaya::HashMap<Tuple, Arc<Connection>>);

impl Connections {
    pub(crate) fn get(&self, tuple: &Tuple) -> Option<Arc<Connection>> {
        self.0.pin().get(tuple).map(Arc::clone)
    }

    /// Returns the one that was there.
    pub(crate) fn insert(&self, tuple: Tuple, new: Connection) -> Option<Arc<Connection>> {
        self.0.pin().insert(tuple, Arc::new(new)).map(Arc::clone)
    }

    pub(crate) fn remove(&self, tuple: &Tuple) -> Option<Arc<Connection>> {
        self.0.pin().remove(tuple).map(Arc::clone)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Router {
    /// A connection of packets that come by this interface.
    pub(crate) fn connection(&self, tuple: &Tuple, interface: usize) -> Option<Arc<Connection>> {
        let found = self.connections.get(tuple)?;
        (found.interface == interface).then_some(found)
    }
}

impl Switch {
    /// Delegates a connection, in one direction, from now on. The number of connections is the
    /// caller's to limit.
    pub fn add_connection(
        &self,
        id: RouterId,
        tuple: Tuple,
        interface: usize,
        to: Tuple,
        route: RouteId,
    ) -> Result<(), SwitchError> {
        let version = |tuple: &Tuple| (tuple.source.is_ipv4(), tuple.destination.is_ipv4());
        let (old, new) = (version(&tuple), version(&to));
        if tuple.protocol != to.protocol || old != new || old.0 != old.1 {
            return Err(SwitchError::BadTranslation);
        }
        self.with_connections(id, |router| {
            let entry = router.entry(route).ok_or(SwitchError::NoSuchRoute)?;
            entry.users.fetch_add(1, Ordering::Relaxed);
            let new = Connection { interface, to, route, count: Count::default() };
            router.left(router.connections.insert(tuple, new).map(|old| old.route));
            Ok(())
        })
    }

    /// Withdraws a connection; returns whether it was delegated. Workers may still use it until they
    /// have finished the burst they are in.
    pub fn remove_connection(&self, id: RouterId, tuple: &Tuple) -> Result<bool, SwitchError> {
        self.with_connections(id, |router| {
            let old = router.connections.remove(tuple);
            router.left(old.as_ref().map(|old| old.route));
            Ok(old.is_some())
        })
    }

    /// What was of a connection, as far as workers have given account of it; `None` if it is not
    /// delegated.
    pub fn connection_count(&self, id: RouterId, tuple: &Tuple) -> Option<HopCount> {
        let config = self.config.load();
        Some(config.router(id)?.connections.get(tuple)?.count.get())
    }

    /// Changes connections, and says to workers whether there are any.
    fn with_connections<T>(
        &self,
        id: RouterId,
        change: impl FnOnce(&Router) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        let _control = self.control.lock();
        let config = self.config.load();
        let router = config.router(id).ok_or(SwitchError::NoSuchRouter(id))?;
        let before = router.connections.is_empty();
        let done = change(router)?;
        if router.connections.is_empty() == before {
            self.forget_ways(&config, id);
        } else {
            self.put_router_into_force(self.next_config(), id);
        }
        Ok(done)
    }
}
