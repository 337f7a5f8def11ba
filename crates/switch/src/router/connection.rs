//! Connections that a router delegated: it filters or translates, and lets those pass that it knows.
//!
//! One table for each router, written by control and read by workers without locks.

use std::sync::Arc;

use packet::tuple::Tuple;

use super::Count;
use crate::RouteId;

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
