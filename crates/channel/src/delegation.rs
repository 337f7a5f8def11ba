//! What a VM delegated: interfaces, next hops, prefixes and connections, and how they change.
//!
//! Each change is checked first and then done as a whole; it returns what the host has to do. Next
//! hops by an interface that is behind no port lead to the router, and connections that come by one do
//! not count, so that a delegation counts for what is known of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use api::channel::{
    self, Connection, Connections, Ends, Failed, Flow, HOPS_MAX, Hop, Interface, Interfaces,
    Limits, NextHops, Refusal, Routes, Selector, To,
};
use api::{Mac, Name, VLAN_MAX};

use crate::{Action, PlacedInterface, Port, Target, World};

/// Shortest longest packet (RFC 791).
const MTU_MIN: u32 = 68;
/// Longest name of an interface that is kept, bytes.
const NAME_MAX: usize = 32;

/// See the module.
#[derive(Clone, Debug)]
pub struct Delegation<P> {
    interfaces: Vec<KnownInterface<P>>,
    nexthops: BTreeMap<u32, KnownNextHop>,
    prefixes: BTreeMap<Selector, u32>,
    connections: BTreeMap<Flow, KnownConnection>,
}

/// An interface of the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownInterface<P> {
    /// As the agent described it.
    pub interface: Interface,
    /// The port it is behind, as far as that is known.
    pub port: Option<(P, Name)>,
}

/// A next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNextHop {
    /// As the agent described it.
    pub to: To,
    /// Prefixes that take it.
    pub prefixes: u32,
    /// Connections that take it.
    pub connections: u32,
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownConnection {
    /// The agent's number of the interface that its packets come by.
    pub interface: u32,
    /// What becomes of their addresses and ports.
    pub to: Ends,
    /// Number of its next hop.
    pub nexthop: u32,
}

impl<P> Default for Delegation<P> {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            nexthops: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            connections: BTreeMap::new(),
        }
    }
}

impl<P: Copy + Eq> Delegation<P> {
    /// In the order of the agent.
    pub fn interfaces(&self) -> &[KnownInterface<P>] {
        &self.interfaces
    }

    /// By number.
    pub fn nexthops(&self) -> &BTreeMap<u32, KnownNextHop> {
        &self.nexthops
    }

    /// Each with the number of its next hop.
    pub fn prefixes(&self) -> &BTreeMap<Selector, u32> {
        &self.prefixes
    }

    /// Each direction of a connection by its packets, as they come.
    pub fn connections(&self) -> &BTreeMap<Flow, KnownConnection> {
        &self.connections
    }

    /// Whether there is nothing at all.
    pub fn is_empty(&self) -> bool {
        self.interfaces.is_empty() && self.nexthops.is_empty() && !self.in_force()
    }

    /// Whether packets may go past the router.
    pub(crate) fn in_force(&self) -> bool {
        !self.prefixes.is_empty() || !self.connections.is_empty()
    }

    /// Other interfaces; those without a port are placed as far as possible.
    pub(crate) fn set_interfaces(
        &mut self,
        request: Interfaces,
        limits: &Limits,
        world: &impl World<Port = P>,
    ) -> Result<Vec<Action<P>>, Failed> {
        if request.interfaces.len() > limits.interfaces as usize {
            let message = format!("a router has at most {} interfaces", limits.interfaces);
            return Err(Failed::new(Refusal::TooManyInterfaces, message));
        }
        let mut ids = BTreeSet::new();
        for interface in &request.interfaces {
            check_interface(interface)?;
            if !ids.insert(interface.id) {
                let message = format!("interface {} is there twice", interface.id);
                return Err(Failed::new(Refusal::BadParams, message));
            }
        }
        let known = |mut interface: Interface| {
            interface.name = crate::session::clean(&interface.name);
            // What is still the same is where it was.
            let same = |old: &&KnownInterface<P>| card(&old.interface) == card(&interface);
            let port = self.interfaces.iter().find(same).and_then(|old| old.port.clone());
            KnownInterface { interface, port }
        };
        let interfaces = request.interfaces.into_iter().map(known).collect();
        Ok(self.place(interfaces, world))
    }

    /// Looks again where the interfaces are. No actions: nothing has changed.
    pub(crate) fn look_again(&mut self, world: &impl World<Port = P>) -> Vec<Action<P>> {
        self.place(self.interfaces.clone(), world)
    }

    /// Finds the ports of interfaces, and puts them in place of those before.
    fn place(
        &mut self,
        mut interfaces: Vec<KnownInterface<P>>,
        world: &impl World<Port = P>,
    ) -> Vec<Action<P>> {
        let ports = if interfaces.is_empty() { Vec::new() } else { world.ports() };
        let ports: Vec<(P, &Port<P>)> =
            ports.iter().filter_map(|port| Some((port.handle?, port))).collect();
        let mut wanted = BTreeSet::new();
        for known in &mut interfaces {
            let mac = card(&known.interface);
            let own = ports.iter().find(|(_, port)| port.mac == Some(mac));
            let before = known.port.take();
            let before = before.and_then(|(old, _)| ports.iter().find(|(new, _)| *new == old));
            known.port = own.or(before).map(|(handle, port)| (*handle, port.name.clone()));
            if known.port.is_none() {
                wanted.insert(mac);
            }
        }
        if !wanted.is_empty() && !ports.is_empty() {
            let learned = world.learned(&wanted);
            for known in interfaces.iter_mut().filter(|known| known.port.is_none()) {
                let mac = card(&known.interface);
                let mut behind = learned.iter().filter(|(seen, _)| *seen == mac).map(|(_, p)| *p);
                // Behind two of them it could be either.
                let first = behind.next().filter(|first| behind.all(|other| other == *first));
                let found = first.and_then(|first| ports.iter().find(|(p, _)| *p == first));
                known.port = found.map(|(handle, port)| (*handle, port.name.clone()));
            }
        }
        self.replace(interfaces)
    }

    fn replace(&mut self, interfaces: Vec<KnownInterface<P>>) -> Vec<Action<P>> {
        if interfaces == self.interfaces {
            return Vec::new();
        }
        let (placed_before, targets) = (placed(&self.interfaces), self.targets());
        let places_before = self.places();
        self.interfaces = interfaces;
        let mut actions = Vec::new();
        let placed = placed(&self.interfaces);
        if placed != placed_before {
            actions.push(Action::Interfaces(placed));
        }
        let changed = self.targets().into_iter().filter(|(n, to)| targets.get(n) != Some(to));
        actions.extend(changed.map(|(number, to)| Action::NextHop { number, to }));
        let places = self.places();
        for (flow, known) in &self.connections {
            let place = places.get(&known.interface);
            if place != places_before.get(&known.interface) {
                let gone = Action::Disconnect(*flow);
                actions.push(place.map_or(gone, |place| connect(*flow, *known, *place)));
            }
        }
        actions
    }

    /// Sets next hops, then gives numbers up.
    pub(crate) fn set_nexthops(
        &mut self,
        request: NextHops,
        limits: &Limits,
    ) -> Result<Vec<Action<P>>, Failed> {
        for hop in &request.set {
            if hop.id >= limits.nexthops {
                let message =
                    format!("numbers of next hops are below {}, not {}", limits.nexthops, hop.id);
                return Err(Failed::new(Refusal::TooManyNextHops, message));
            }
            if let To::Via(hops) = &hop.to {
                self.check_hops(hop.id, hops)?;
            }
        }
        let del: BTreeSet<u32> = request.del.into_iter().collect();
        for number in &del {
            match self.nexthops.get(number) {
                Some(KnownNextHop { prefixes, connections, .. }) if prefixes + connections > 0 => {
                    let message = format!(
                        "{prefixes} prefixes and {connections} connections take next hop {number}"
                    );
                    return Err(Failed::new(Refusal::NextHopInUse, message));
                }
                None if request.set.iter().all(|hop| hop.id != *number) => {
                    return Err(unknown_next_hop(*number));
                }
                _ => {}
            }
        }
        let places = self.places();
        let mut actions = Vec::new();
        for hop in request.set {
            let to = target(&hop.to, &places);
            let old = self.nexthops.get(&hop.id);
            let (prefixes, connections) = old.map_or((0, 0), |old| (old.prefixes, old.connections));
            if old.is_none_or(|old| target(&old.to, &places) != to) {
                actions.push(Action::NextHop { number: hop.id, to });
            }
            self.nexthops.insert(hop.id, KnownNextHop { to: hop.to, prefixes, connections });
        }
        for number in del {
            self.nexthops.remove(&number);
            actions.push(Action::RemoveNextHop(number));
        }
        Ok(actions)
    }

    fn check_hops(&self, number: u32, hops: &[Hop]) -> Result<(), Failed> {
        if hops.len() > HOPS_MAX {
            let message = format!("next hop {number} has more than {HOPS_MAX} neighbours");
            return Err(Failed::new(Refusal::BadParams, message));
        }
        for hop in hops {
            check_unicast(hop.mac)?;
            if !self.interfaces.iter().any(|known| known.interface.id == hop.interface) {
                return Err(unknown_interface(hop.interface));
            }
        }
        Ok(())
    }

    /// Withdraws prefixes, then delegates some.
    pub(crate) fn set_routes(
        &mut self,
        request: &Routes,
        limits: &Limits,
    ) -> Result<Vec<Action<P>>, Failed> {
        // What becomes of each prefix in the end.
        let mut changes: BTreeMap<Selector, Option<u32>> = BTreeMap::new();
        changes.extend(request.del.iter().map(|prefix| (*prefix, None)));
        for via in &request.set {
            if !self.nexthops.contains_key(&via.nexthop) {
                return Err(unknown_next_hop(via.nexthop));
            }
            for prefix in &via.prefixes {
                prefix.from().map_or(Ok(()), check_unicast)?;
                changes.insert(*prefix, Some(via.nexthop));
            }
        }
        changes.retain(|prefix, new| self.prefixes.get(prefix) != new.as_ref());
        let (mut more, mut less) = (0, 0);
        for (prefix, new) in &changes {
            match (self.prefixes.contains_key(prefix), new) {
                (false, _) => more += 1,
                (true, None) => less += 1,
                (true, Some(_)) => {}
            }
        }
        if self.prefixes.len() + more - less > limits.prefixes as usize {
            let message = format!("a router has at most {} prefixes", limits.prefixes);
            return Err(Failed::new(Refusal::TooManyPrefixes, message));
        }
        let mut actions = Vec::with_capacity(changes.len());
        for (prefix, new) in changes {
            let old = match new {
                Some(nexthop) => {
                    self.with_nexthop(nexthop, |known| known.prefixes += 1);
                    actions.push(Action::Delegate { prefix, nexthop });
                    self.prefixes.insert(prefix, nexthop)
                }
                None => {
                    actions.push(Action::Withdraw(prefix));
                    self.prefixes.remove(&prefix)
                }
            };
            if let Some(old) = old {
                self.with_nexthop(old, |known| known.prefixes -= 1);
            }
        }
        Ok(actions)
    }

    /// Withdraws connections, then delegates some.
    pub(crate) fn set_connections(
        &mut self,
        request: Connections,
        limits: &Limits,
    ) -> Result<Vec<Action<P>>, Failed> {
        let ids: BTreeSet<u32> = self.interfaces.iter().map(|known| known.interface.id).collect();
        // What becomes of each connection in the end.
        let mut changes: BTreeMap<Flow, Option<KnownConnection>> = BTreeMap::new();
        for flow in request.del {
            check_ends(flow.source, flow.destination)?;
            changes.insert(flow, None);
        }
        for Connection { flow, interface, to, nexthop } in request.set {
            check_ends(flow.source, flow.destination)?;
            check_ends(to.source, to.destination)?;
            if flow.source.is_ipv4() != to.source.is_ipv4() {
                return Err(bad_connection("a connection stays one of its version of IP"));
            }
            if !ids.contains(&interface) {
                return Err(unknown_interface(interface));
            }
            if !self.nexthops.contains_key(&nexthop) {
                return Err(unknown_next_hop(nexthop));
            }
            changes.insert(flow, Some(KnownConnection { interface, to, nexthop }));
        }
        changes.retain(|flow, new| self.connections.get(flow) != new.as_ref());
        let (mut more, mut less) = (0, 0);
        for (flow, new) in &changes {
            match (self.connections.contains_key(flow), new) {
                (false, _) => more += 1,
                (true, None) => less += 1,
                (true, Some(_)) => {}
            }
        }
        if self.connections.len() + more - less > limits.connections as usize {
            let message = format!("a router has at most {} connections", limits.connections);
            return Err(Failed::new(Refusal::TooManyConnections, message));
        }
        let places = self.places();
        let mut actions = Vec::with_capacity(changes.len());
        for (flow, new) in changes {
            let place = new.and_then(|new| Some((new, *places.get(&new.interface)?)));
            let old = match new {
                Some(new) => self.connections.insert(flow, new),
                None => self.connections.remove(&flow),
            };
            let was = old.is_some_and(|old| places.contains_key(&old.interface));
            match place {
                Some((new, place)) => actions.push(connect(flow, new, place)),
                None if was => actions.push(Action::Disconnect(flow)),
                None => {}
            }
            if let Some(new) = new {
                self.with_nexthop(new.nexthop, |known| known.connections += 1);
            }
            if let Some(old) = old {
                self.with_nexthop(old.nexthop, |known| known.connections -= 1);
            }
        }
        Ok(actions)
    }

    fn with_nexthop(&mut self, nexthop: u32, change: impl FnOnce(&mut KnownNextHop)) {
        if let Some(known) = self.nexthops.get_mut(&nexthop) {
            change(known);
        }
    }

    fn targets(&self) -> BTreeMap<u32, Target> {
        let places = self.places();
        let nexthops = self.nexthops.iter();
        nexthops.map(|(number, known)| (*number, target(&known.to, &places))).collect()
    }

    /// Places of interfaces in the host's list, by the agent's number.
    fn places(&self) -> BTreeMap<u32, usize> {
        let placed = self.interfaces.iter().filter(|known| known.port.is_some());
        placed.enumerate().map(|(place, known)| (known.interface.id, place)).collect()
    }
}

/// As the host is told it.
fn target(to: &To, places: &BTreeMap<u32, usize>) -> Target {
    let To::Via(hops) = to else { return Target::Own };
    let hops = hops.iter().map(|hop| Some((*places.get(&hop.interface)?, hop.mac)));
    Target::Via(hops.collect::<Option<_>>().unwrap_or_default())
}

/// The address by which an interface's port is found.
fn card(interface: &Interface) -> Mac {
    interface.card.unwrap_or(interface.mac)
}

fn placed<P: Copy>(interfaces: &[KnownInterface<P>]) -> Vec<PlacedInterface<P>> {
    let placed = |known: &KnownInterface<P>| {
        let channel::Interface { mac, vlan, mtu, source_check, source_check_v6, .. } =
            known.interface;
        let (port, _) = known.port.as_ref()?;
        Some(PlacedInterface { port: *port, mac, vlan, mtu, source_check, source_check_v6 })
    };
    interfaces.iter().filter_map(placed).collect()
}

fn check_interface(interface: &Interface) -> Result<(), Failed> {
    let bad = |what: String| {
        Err(Failed::new(Refusal::BadParams, format!("interface {}: {what}", interface.id)))
    };
    check_unicast(interface.mac)?;
    interface.card.map_or(Ok(()), check_unicast)?;
    if interface.name.len() > NAME_MAX {
        return bad(format!("a name has at most {NAME_MAX} bytes"));
    }
    if interface.mtu < MTU_MIN {
        return bad(format!("an mtu is at least {MTU_MIN}, not {}", interface.mtu));
    }
    match interface.vlan {
        Some(vlan) if !(1..=VLAN_MAX).contains(&vlan) => {
            bad(format!("a VLAN id is 1 to {VLAN_MAX}, not {vlan}"))
        }
        _ => Ok(()),
    }
}

fn check_unicast(mac: Mac) -> Result<(), Failed> {
    if mac.0[0] & 1 == 0 && mac.0 != [0; 6] {
        return Ok(());
    }
    Err(Failed::new(Refusal::NotUnicast, format!("{mac} is not the address of one station")))
}

fn connect<P>(flow: Flow, known: KnownConnection, interface: usize) -> Action<P> {
    Action::Connect { flow, interface, to: known.to, nexthop: known.nexthop }
}

/// Both ends have to be of one version of IP. A scope is not part of a packet.
fn check_ends(source: SocketAddr, destination: SocketAddr) -> Result<(), Failed> {
    let scoped = |end: SocketAddr| matches!(end, SocketAddr::V6(v6) if v6.scope_id() != 0);
    if source.is_ipv4() != destination.is_ipv4() {
        return Err(bad_connection("both ends are of one version of IP"));
    }
    if scoped(source) || scoped(destination) {
        return Err(bad_connection("an address has no scope"));
    }
    Ok(())
}

fn bad_connection(what: &str) -> Failed {
    Failed::new(Refusal::BadParams, format!("connections: {what}"))
}

fn unknown_interface(id: u32) -> Failed {
    Failed::new(Refusal::UnknownInterface, format!("there is no interface {id}"))
}

fn unknown_next_hop(number: u32) -> Failed {
    Failed::new(Refusal::UnknownNextHop, format!("there is no next hop {number}"))
}
