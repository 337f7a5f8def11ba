//! Connections of a router that filters or translates: which are told, and by which way.
//!
//! A connection is told as a whole, both directions, or not at all. Each direction goes where the
//! kernel's routes lead its packets, and is expected from where the other one goes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::channel::{
    Connection, Connections as Request, CountedConnections, Ends, Flow, NextHops, Prefix, To,
};

use super::numbers::Numbers;
use super::ways::Way;
use super::{Call, LINE_ROOM, Mode, Plan};
use crate::state::{Family, Ifindex, State, last};

/// Longest entries as they are written, bytes.
const END_LEN: usize = "\"[0000:0000:0000:0000:0000:0000:0000:0000]:65535\"".len();
const FLOW_LEN: usize = "{\"protocol\":\"tcp\",\"source\":,\"destination\":},".len() + 2 * END_LEN;
const CONNECTION_LEN: usize = FLOW_LEN
    + "{\"flow\":,\"interface\":4294967295,\"to\":{\"source\":,\"destination\":},".len()
    + "\"nexthop\":4294967295},".len()
    + 2 * END_LEN;

/// What was told of connections, and which to look at. All are by their original direction.
#[derive(Debug, Default)]
pub(super) struct Connections {
    told: BTreeMap<Flow, Told>,
    /// Of the other direction of those.
    originals: BTreeMap<Flow, Flow>,
    /// Those that are known, with the addresses that their ways depend on.
    known: BTreeMap<Flow, [IpAddr; 2]>,
    addresses: BTreeMap<IpAddr, BTreeSet<Flow>>,
    /// Those that are gone are before all others.
    gone: BTreeSet<Flow>,
    look_at: BTreeSet<Flow>,
    /// Those of the last call that pass the router by once it is answered.
    begun: BTreeSet<Flow>,
}

/// A connection that was told.
#[derive(Debug)]
struct Told {
    ways: [Connection; 2],
    /// Packets that were counted last.
    counted: [u64; 2],
}

impl Connections {
    /// Nothing is told.
    pub(super) fn new(state: &State) -> Self {
        let mut new = Self::default();
        state.connections().for_each(|(original, _)| new.changed(state, *original));
        new
    }

    /// All there are are to be looked at.
    pub(super) fn look_at_all(&mut self) {
        self.look_at.extend(self.known.keys());
    }

    /// Those that no way was found for.
    pub(super) fn look_at_untold(&mut self) {
        let untold = self.known.keys().filter(|original| !self.told.contains_key(original));
        self.look_at.extend(untold);
    }

    /// Those whose way depends on addresses of this prefix.
    pub(super) fn look_at(&mut self, prefix: Prefix) {
        let addresses = self.addresses.range(prefix.address()..=last(prefix));
        self.look_at.extend(addresses.flat_map(|(_, originals)| originals));
    }

    /// A connection that is new, or gone.
    pub(super) fn changed(&mut self, state: &State, original: Flow) {
        for address in self.known.remove(&original).into_iter().flatten() {
            if let Some(originals) = self.addresses.get_mut(&address) {
                originals.remove(&original);
                if originals.is_empty() {
                    self.addresses.remove(&address);
                }
            }
        }
        let Some(reply) = state.connection(&original) else {
            self.look_at.remove(&original);
            if self.told.contains_key(&original) {
                self.gone.insert(original);
            }
            return;
        };
        let addresses = [original.source.ip(), reply.source.ip()];
        for address in addresses {
            self.addresses.entry(address).or_default().insert(original);
        }
        self.known.insert(original, addresses);
        self.look_at.insert(original);
    }

    /// How many are told, each direction for itself.
    pub(super) fn told(&self) -> usize {
        2 * self.told.len()
    }

    /// How many are to be looked at.
    pub(super) fn pending(&self) -> usize {
        self.gone.len() + self.look_at.len()
    }

    /// Notes what was counted: those that were used since the last time.
    pub(super) fn counted(&mut self, counted: &CountedConnections) -> BTreeSet<Flow> {
        let mut used = BTreeSet::new();
        for one in &counted.connections {
            let original = self.originals.get(&one.flow).copied().unwrap_or(one.flow);
            let Some(told) = self.told.get_mut(&original) else { continue };
            for (way, counted) in told.ways.iter().zip(&mut told.counted) {
                if way.flow == one.flow && *counted != one.count.packets {
                    *counted = one.count.packets;
                    used.insert(original);
                }
            }
        }
        used
    }

    /// The last call was answered: connections that pass the router by from now on.
    pub(super) fn begun(&mut self) -> BTreeSet<Flow> {
        std::mem::take(&mut self.begun)
    }

    /// Notes what is told of a connection from now on; returns what was told.
    fn tell(&mut self, original: Flow, ways: Option<[Connection; 2]>) -> Option<[Connection; 2]> {
        let old = self.told.remove(&original);
        if let Some(Told { ways: [_, reply], .. }) = &old {
            self.originals.remove(&reply.flow);
        }
        if let Some(ways) = ways {
            let [_, reply] = ways;
            self.originals.insert(reply.flow, original);
            let mut counted = [0; 2];
            for ((way, count), old) in ways.iter().zip(&mut counted).zip(&old) {
                let same = old.ways.iter().zip(old.counted).find(|(old, _)| *old == way);
                *count = same.map_or(0, |(_, count)| count);
            }
            self.told.insert(original, Told { ways, counted });
        }
        old.map(|old| old.ways)
    }
}

impl Plan {
    /// Connections that are gone, new, or go elsewhere, with the next hops they need before them.
    pub(super) fn next_connections(&mut self, state: &State) -> Option<Call> {
        let mut request = Request::default();
        let mut room = LINE_ROOM;
        self.connections.begun.clear();
        while room > 2 * (FLOW_LEN + CONNECTION_LEN) {
            let list = &mut self.connections;
            let Some(original) = list.gone.pop_first().or_else(|| list.look_at.pop_first()) else {
                break;
            };
            let reply = state.connection(&original);
            let new = reply.and_then(|reply| self.both_ways(state, original, reply));
            for way in new.iter().flatten() {
                self.numbers.take(way.nexthop);
            }
            let old = self.connections.tell(original, new);
            for way in old.iter().flatten() {
                self.numbers.leave(way.nexthop);
            }
            let (old, new) = (old.as_slice().as_flattened(), new.as_slice().as_flattened());
            for way in old.iter().filter(|old| new.iter().all(|new| new.flow != old.flow)) {
                room -= FLOW_LEN;
                request.del.push(way.flow);
            }
            for way in new.iter().filter(|new| !old.contains(new)) {
                room -= CONNECTION_LEN;
                request.set.push(*way);
                self.connections.begun.insert(original);
            }
        }
        if request == Request::default() {
            return None;
        }
        while let Some(set) = self.numbers.changed(|way| self.places.resolve(state, way)) {
            self.ready.push_back(Call::NextHops(NextHops { set, del: Vec::new() }));
        }
        self.ready.push_back(Call::Connections(request));
        self.ready.pop_front()
    }

    /// Both directions of a connection; none if it is not clear where they go.
    fn both_ways(&mut self, state: &State, original: Flow, reply: Flow) -> Option<[Connection; 2]> {
        let family = Family::of(original.source.ip());
        if !matches!(self.frame.mode(family), Mode::Stateful(_)) {
            return None;
        }
        let (near, inside) = self.single(state, original.source.ip())?;
        let (far, outside) = self.single(state, reply.source.ip())?;
        let forwards = |index| state.links.get(&index).is_some_and(|l| state.forwards(l, family));
        // Back to where it came from: that is the router's to remark on.
        if inside == outside || !forwards(inside) || !forwards(outside) {
            return None;
        }
        let (near, far) = (self.numbers.of(near), self.numbers.of(far));
        if near == Numbers::ROUTER || far == Numbers::ROUTER {
            return None;
        }
        let back = |flow: Flow| Ends { source: flow.destination, destination: flow.source };
        Some([
            Connection { flow: original, interface: inside, to: back(reply), nexthop: far },
            Connection { flow: reply, interface: outside, to: back(original), nexthop: near },
        ])
    }

    /// The way of packets to an address, if there is only one, and the interface they leave by.
    fn single<'a>(&self, state: &'a State, address: IpAddr) -> Option<(Way<'a>, Ifindex)> {
        let way = self.way_to(state, address)?;
        match self.places.resolve(state, &way).to {
            To::Via(hops) => match *hops {
                [hop] => Some((way, hop.interface)),
                _ => None,
            },
            To::Own => None,
        }
    }
}
