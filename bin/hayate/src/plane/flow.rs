//! What becomes of a frame, in words that are not the data plane's.

use super::{Plane, PlaneError, PlaneRouter, PortHandle, RouterHandle};
use api::Mac;
use api::channel::{Prefix, Selector};
use dataplane::{By, RouteId, Step, Tuple, Verdict};
use std::net::{IpAddr, SocketAddr};

/// One thing that happens to a frame.
pub(crate) enum Seen {
    Forward(PortHandle),
    Flood(Vec<PortHandle>),
    Dropped { reason: &'static str, meaning: &'static str },
    Bypassed(Bypassed),
    ToRouter { router: RouterHandle, reason: String },
}

/// A router that a frame bypassed. Interfaces are places in the list that the router was given.
pub(crate) struct Bypassed {
    pub(crate) router: RouterHandle,
    pub(crate) ingress: usize,
    /// What was delegated, a prefix or a connection.
    pub(crate) prefix: Option<String>,
    pub(crate) connection: Option<String>,
    pub(crate) egress: usize,
    pub(crate) smac: Mac,
    pub(crate) dmac: Mac,
    pub(crate) port: PortHandle,
    route: RouteId,
}

impl Plane {
    /// What would become of this frame from a port.
    pub(crate) fn explain(&self, from: PortHandle, frame: &[u8]) -> Result<Vec<Seen>, PlaneError> {
        let steps = self.host.explain(from, frame)?;
        let last = steps.len().saturating_sub(1);
        let mut dst = frame.first_chunk().map_or(packet::Mac::BROADCAST, |dst| packet::Mac(*dst));
        let seen = |(place, step)| {
            if let Step::Bypassed { addresses, .. } = &step {
                dst = addresses.1;
            }
            self.seen(&step, place == last, dst)
        };
        Ok(steps.into_iter().enumerate().filter_map(seen).collect())
    }

    fn seen(&self, step: &Step, last: bool, dst: packet::Mac) -> Option<Seen> {
        Some(match *step {
            Step::Switched(_, Verdict::Forward { port, .. }) => Seen::Forward(port),
            // What the router does is what follows.
            Step::Switched(_, Verdict::Router { port, .. }) => {
                return last.then_some(Seen::Forward(port));
            }
            Step::Switched(_, Verdict::Flood(flood)) => Seen::Flood(self.host.flooded(flood, dst)),
            Step::Switched(_, Verdict::Drop(reason)) => {
                Seen::Dropped { reason: reason.name(), meaning: reason.help() }
            }
            Step::Bypassed { router, ingress, by, route, egress, addresses, port, .. } => {
                let (prefix, connection) = match by {
                    By::Prefix(prefix) => (Some(prefix.to_string()), None),
                    By::Exact(to, from) => (exact(to, Mac(from.0)), None),
                    By::Connection(tuple) => (None, Some(connection(&tuple))),
                };
                Seen::Bypassed(Bypassed {
                    router,
                    ingress,
                    prefix,
                    connection,
                    egress,
                    smac: Mac(addresses.0.0),
                    dmac: Mac(addresses.1.0),
                    port,
                    route,
                })
            }
            Step::ToRouter(router, reason) => Seen::ToRouter { router, reason: reason.to_string() },
            Step::Leaves(port) => Seen::Forward(port),
        })
    }
}

/// As the router delegated it.
fn exact(to: IpAddr, from: Mac) -> Option<String> {
    let length = if to.is_ipv4() { 32 } else { 128 };
    Some(Selector::exact(Prefix::new(to, length)?, from)?.to_string())
}

/// Addresses and ports, as they are written for people.
fn connection(tuple: &Tuple) -> String {
    let source = SocketAddr::new(tuple.source, tuple.source_port);
    let destination = SocketAddr::new(tuple.destination, tuple.destination_port);
    format!("{source} > {destination}")
}

impl PlaneRouter {
    /// Whether this is the router.
    pub(crate) fn is(&self, router: RouterHandle) -> bool {
        self.id == Some(router)
    }

    /// The agent's number for the next hop that was taken.
    pub(crate) fn nexthop(&self, bypassed: &Bypassed) -> Option<u32> {
        let mut routes = self.routes.iter();
        routes.find(|(_, route)| **route == bypassed.route).map(|(number, _)| *number)
    }
}
