//! Networks that routers connect, and what is remembered about ways between them.
//!
//! A way through routers depends on the networks it leads through and the routers between those, and
//! on nothing that no router connects with them. So the networks are parted into domains, and ways are
//! remembered under the number of their domain: what happens in another one costs nobody here anything.
//! Without routers each network is a domain of its own.
//!
//! Control parts them anew when routers change (a router's port that goes leaves its domain as it is
//! until then). A domain that is split or joined with another one, or whose packets are to be told
//! apart in another way, ends, and new ones take its place. It is renewed once no worker takes up its
//! configuration any more: with an old one workers remember nothing new, so none finds anything then.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::Snapshot;
use crate::{PortId, RouterId};

/// See the module.
#[derive(Debug)]
pub(crate) struct Domain {
    generation: AtomicU64,
    tells: Tells,
}

/// What a way depends on here, beside the packet's addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tells {
    /// A router has several ways for one prefix: a flow keeps to one of them.
    pub(crate) flows: bool,
    /// A router has delegated connections.
    pub(crate) connections: bool,
}

impl Tells {
    /// Neither.
    #[inline]
    pub(crate) fn nothing(self) -> bool {
        !(self.flows | self.connections)
    }
}

impl Domain {
    /// `number`: one that no domain had before.
    pub(crate) fn new(number: u64, tells: Tells) -> Self {
        Self { generation: AtomicU64::new(number), tells }
    }

    /// What a way is remembered under; read before it is worked out.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What ways depend on.
    #[inline]
    pub(crate) fn tells(&self) -> Tells {
        self.tells
    }

    /// What was remembered counts no more. `number` as for [`Domain::new`].
    pub(crate) fn renew(&self, number: u64) {
        self.generation.store(number, Ordering::Release);
    }
}

/// Networks of which some belong together.
struct Parts(Vec<usize>);

impl Parts {
    /// The first of those that one belongs to.
    fn of(&self, mut network: usize) -> usize {
        while let Some(&next) = self.0.get(network)
            && next != network
        {
            network = next;
        }
        network
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.of(one), self.of(other));
        if let Some(place) = self.0.get_mut(one.max(other)) {
            *place = one.min(other);
        }
    }
}

impl Snapshot {
    /// The domain of what comes from a port.
    #[inline]
    pub(crate) fn domain(&self, port: PortId) -> Option<&Domain> {
        self.port(port).map(|port| &*port.domain)
    }

    /// Parts the networks by the routers there are. New domains are noted where networks and ports are;
    /// those that are over are returned: they are to be renewed when this configuration is in force.
    pub(crate) fn part(&mut self, mut number: impl FnMut() -> u64) -> Vec<Arc<Domain>> {
        let mut parts = Parts((0..self.networks.len()).collect());
        let network = |port| Some(usize::from(self.port(port)?.network.0));
        let mut homes = Vec::with_capacity(self.routers.len());
        for router in self.routers.iter().flatten() {
            let mut links = router.interfaces.iter().filter_map(|one| network(one.port));
            let Some(home) = links.next() else { continue };
            links.for_each(|link| parts.join(home, link));
            homes.push((home, router.tells()));
        }
        let mut tells: HashMap<usize, Tells> = HashMap::new();
        for (home, of_router) in homes {
            let all = tells.entry(parts.of(home)).or_default();
            all.flows |= of_router.flows;
            all.connections |= of_router.connections;
        }
        // Members of each part, and how many networks each domain has.
        let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut sizes: HashMap<*const Domain, usize> = HashMap::new();
        for (index, network) in self.networks.iter().enumerate() {
            if let Some(network) = network {
                members.entry(parts.of(index)).or_default().push(index);
                *sizes.entry(Arc::as_ptr(&network.fdb.domain())).or_default() += 1;
            }
        }
        let mut over: Vec<Arc<Domain>> = Vec::new();
        for (part, members) in members {
            let networks =
                || members.iter().filter_map(|&index| self.networks.get(index)?.as_ref());
            let tells = tells.get(&part).copied().unwrap_or_default();
            let before: Vec<Arc<Domain>> = networks().map(|network| network.fdb.domain()).collect();
            let stays = before.first().is_some_and(|first| {
                before.iter().all(|one| Arc::ptr_eq(one, first))
                    && sizes.get(&Arc::as_ptr(first)) == Some(&before.len())
                    && first.tells == tells
            });
            if !stays {
                let new = Arc::new(Domain::new(number(), tells));
                networks().for_each(|network| network.fdb.set_domain(&new));
                over.extend(before);
            }
        }
        if !over.is_empty() {
            for port in self.ports.iter_mut().flatten() {
                port.domain = port.fdb.domain();
            }
        }
        over
    }

    /// The domain of a router: that of all its interfaces.
    pub(crate) fn domain_of(&self, router: RouterId) -> Option<&Domain> {
        let mut ports = self.router(router)?.interfaces.iter().map(|one| one.port);
        ports.find_map(|port| self.domain(port))
    }
}

#[cfg(test)]
mod tests;
