//! A daemon in the small: the tables that an agent fills, with the daemon's rules for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::channel::{
    Connection, Connections, Flow, Interface, Interfaces, Limits, NextHops, Placed,
    PlacedInterface, Prefix, Refusal, Routes, To,
};

/// What an agent delegated.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) limits: Limits,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) nexthops: BTreeMap<u32, To>,
    pub(crate) prefixes: BTreeMap<Prefix, u32>,
    pub(crate) connections: BTreeMap<Flow, Connection>,
    /// Interfaces that are at no port.
    pub(crate) refused: BTreeSet<u32>,
}

impl Model {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            interfaces: Vec::new(),
            nexthops: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            connections: BTreeMap::new(),
            refused: BTreeSet::new(),
        }
    }

    pub(crate) fn interfaces(&mut self, new: Interfaces) -> Result<Placed, Refusal> {
        let ids: BTreeSet<u32> = new.interfaces.iter().map(|one| one.id).collect();
        if ids.len() != new.interfaces.len() {
            return Err(Refusal::BadParams);
        }
        if ids.len() > self.limits.interfaces as usize {
            return Err(Refusal::TooManyInterfaces);
        }
        for to in self.nexthops.values() {
            if let To::Via(hops) = to
                && hops.iter().any(|hop| !ids.contains(&hop.interface))
            {
                return Err(Refusal::UnknownInterface);
            }
        }
        self.interfaces = new.interfaces;
        Ok(self.placed())
    }

    pub(crate) fn placed(&self) -> Placed {
        let placed = |one: &Interface| {
            let refused = self.refused.contains(&one.id);
            PlacedInterface {
                id: one.id,
                port: (!refused).then(|| format!("p{}", one.id).parse().unwrap()),
                refused: refused.then_some(Refusal::NotYourPort),
            }
        };
        Placed { interfaces: self.interfaces.iter().map(placed).collect() }
    }

    pub(crate) fn next_hops(&mut self, change: NextHops) -> Result<(), Refusal> {
        for number in &change.del {
            if self.prefixes.values().any(|used| used == number)
                || self.connections.values().any(|one| one.nexthop == *number)
            {
                return Err(Refusal::NextHopInUse);
            }
            self.nexthops.remove(number).ok_or(Refusal::UnknownNextHop)?;
        }
        for next in change.set {
            if next.id >= self.limits.nexthops {
                return Err(Refusal::TooManyNextHops);
            }
            if let To::Via(hops) = &next.to {
                for hop in hops {
                    if !self.interfaces.iter().any(|one| one.id == hop.interface) {
                        return Err(Refusal::UnknownInterface);
                    }
                    if hop.mac.0[0] & 1 != 0 || hop.mac.0 == [0; 6] {
                        return Err(Refusal::NotUnicast);
                    }
                }
            }
            self.nexthops.insert(next.id, next.to);
        }
        Ok(())
    }

    pub(crate) fn routes(&mut self, change: Routes) -> Result<(), Refusal> {
        for prefix in &change.del {
            self.prefixes.remove(&prefix.prefix()).ok_or(Refusal::BadParams)?;
        }
        for via in change.set {
            if !self.nexthops.contains_key(&via.nexthop) {
                return Err(Refusal::UnknownNextHop);
            }
            for prefix in via.prefixes {
                self.prefixes.insert(prefix.prefix(), via.nexthop);
            }
        }
        if self.prefixes.len() > self.limits.prefixes as usize {
            return Err(Refusal::TooManyPrefixes);
        }
        Ok(())
    }

    pub(crate) fn connections(&mut self, change: Connections) -> Result<(), Refusal> {
        for flow in &change.del {
            self.connections.remove(flow);
        }
        for one in change.set {
            if !self.interfaces.iter().any(|known| known.id == one.interface) {
                return Err(Refusal::UnknownInterface);
            }
            if !self.nexthops.contains_key(&one.nexthop) {
                return Err(Refusal::UnknownNextHop);
            }
            self.connections.insert(one.flow, one);
        }
        if self.connections.len() > self.limits.connections as usize {
            return Err(Refusal::TooManyConnections);
        }
        Ok(())
    }

    pub(crate) fn withdraw(&mut self) {
        let refused = std::mem::take(&mut self.refused);
        *self = Self { refused, ..Self::new(self.limits) };
    }

    /// Where a packet to that address goes; none if it was not delegated.
    pub(crate) fn look_up(&self, address: IpAddr) -> Option<&To> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        (0..=longest).rev().find_map(|length| {
            let prefix = Prefix::new(address, length)?;
            self.nexthops.get(self.prefixes.get(&prefix)?)
        })
    }
}
