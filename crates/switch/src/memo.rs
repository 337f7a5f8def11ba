//! A worker's memory of ways through routers, and its account of what took them.
//!
//! Exact match on the frame's addresses, port and VLAN, the packet's addresses and, where a router
//! has several ways for one prefix or delegates connections, the flow; two places per hash value, the older one goes. That a
//! packet is *not* to bypass the router is remembered, too. An entry counts under the generation of
//! all networks and routers ([`crate::Switch::generation`]) and for a second at most, so that the
//! routers' addresses stay learned.
//!
//! What bypasses routers is counted in the entry, and given to each router on the way when the entry
//! goes, or [`Memo::settle`] is called. The counters of routers are the only thing here that workers
//! share.

use std::net::IpAddr;

use packet::route::Packet;
use packet::tuple::Tuple;

use crate::cache::Key;
use crate::config::Snapshot;
use crate::fdb::{Held, REFRESH_MS};
use crate::router::HopCount;
use crate::table::Seed;
use crate::way::{At, Flow, Path, Routed, WayOut};
use crate::worth::Worth;

/// See the module. Has no memory until a packet comes for a router.
#[derive(Debug)]
pub(crate) struct Memo {
    entries: Box<[Entry]>,
    /// Of each entry, what is seldom needed.
    details: Box<[Details]>,
    seed: Seed,
    worth: Worth,
    /// Entries that may have counted something, each once.
    counted: Vec<u32>,
}

/// Two cache lines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(128))]
struct Entry {
    about: About,
    /// 0 never is a generation.
    generation: u64,
    /// When it was worked out, low half.
    stamp: u32,
    way: Option<Routed>,
    translates: bool,
    count: HopCount,
    /// It is among `Memo::counted`.
    listed: bool,
}

#[derive(Clone, Debug, Default)]
struct Details {
    /// For when it is counted.
    path: Path,
    /// What becomes of the packet's addresses and ports.
    translated: Option<Tuple>,
}

/// What a way depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    key: Key,
    source: u128,
    destination: u128,
    flow: u64,
}

/// A packet, and where it is.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) at: At,
    /// Whether its frame came with a tag.
    pub(crate) tagged: bool,
    /// Of its frame, if that is one to be remembered.
    pub(crate) key: Option<Key>,
    pub(crate) packet: &'a Packet,
    pub(crate) flow: Flow,
}

impl Default for Memo {
    fn default() -> Self {
        Self {
            entries: Box::default(),
            details: Box::default(),
            seed: Seed::random(),
            worth: Worth::default(),
            counted: Vec::new(),
        }
    }
}

impl Memo {
    const ENTRIES: usize = 4096;

    /// The way past the router that it is at, for a packet that may take it, and what becomes of its
    /// addresses and ports; counts it then.
    #[inline]
    pub(crate) fn way(
        &mut self,
        snapshot: &Snapshot,
        arrival: &Arrival<'_>,
        now_ms: u64,
        held: &mut Held,
    ) -> Option<(Routed, Option<Tuple>)> {
        let Some(key) = arrival.key.filter(|_| !self.worth.passes_by()) else {
            let way = snapshot.way(arrival, now_ms, held);
            let routed = way.routed.filter(|routed| routed.takes(arrival.packet))?;
            snapshot.count(&way.path, HopCount::one(arrival.packet));
            return Some((routed, way.translated));
        };
        let about = About::new(key, &arrival.flow);
        let generation = snapshot.generation();
        let place = 2 * (about.hash(self.seed) % (Self::ENTRIES / 2));
        let found = [place, place + 1].into_iter().find_map(|number| {
            let entry = self.entries.get(number).filter(|entry| {
                entry.about == about
                    && entry.generation == generation
                    && (now_ms as u32).wrapping_sub(entry.stamp) < REFRESH_MS as u32
            })?;
            Some((number, entry.way, entry.translates))
        });
        let Some((number, routed, translates)) = found else {
            return self.work_out(snapshot, arrival, about, (place, generation), now_ms, held);
        };
        self.worth.hit();
        let routed = routed.filter(|routed| routed.takes(arrival.packet))?;
        self.note(number, arrival.packet);
        let details = self.details.get(number).filter(|_| translates);
        Some((routed, details.and_then(|details| details.translated)))
    }

    #[inline(never)]
    fn work_out(
        &mut self,
        snapshot: &Snapshot,
        arrival: &Arrival<'_>,
        about: About,
        (place, generation): (usize, u64),
        now_ms: u64,
        held: &mut Held,
    ) -> Option<(Routed, Option<Tuple>)> {
        self.worth.missed();
        let WayOut { routed: way, translated, path } = snapshot.way(arrival, now_ms, held);
        let taken = way.filter(|routed| routed.takes(arrival.packet));
        let taken = taken.map(|routed| (routed, translated));
        if !snapshot.is_latest() {
            taken.inspect(|_| snapshot.count(&path, HopCount::one(arrival.packet)));
            return taken;
        }
        if self.entries.is_empty() {
            self.entries = vec![Entry::default(); Self::ENTRIES].into();
            self.details = vec![Details::default(); Self::ENTRIES].into();
        }
        // Where it was before, or else in place of the older one.
        let age = |number: usize| match self.entries.get(number) {
            Some(entry) if entry.about == about => u32::MAX,
            entry => entry.map_or(0, |entry| (now_ms as u32).wrapping_sub(entry.stamp)),
        };
        let number = if age(place) >= age(place + 1) { place } else { place + 1 };
        self.settle_entry(snapshot, number);
        if let (Some(entry), Some(details)) =
            (self.entries.get_mut(number), self.details.get_mut(number))
        {
            let (stamp, count) = (now_ms as u32, HopCount::default());
            let (translates, listed) = (translated.is_some(), entry.listed);
            *entry = Entry { about, generation, stamp, way, translates, count, listed };
            *details = Details { path, translated };
        }
        if taken.is_some() {
            self.note(number, arrival.packet);
        }
        taken
    }

    #[inline(always)]
    fn note(&mut self, number: usize, packet: &Packet) {
        if let Some(entry) = self.entries.get_mut(number) {
            entry.count.add(HopCount::one(packet));
            if !entry.listed {
                entry.listed = true;
                self.counted.push(number as u32);
            }
        }
    }

    /// Gives routers what was counted.
    pub(crate) fn settle(&mut self, snapshot: &Snapshot) {
        while let Some(number) = self.counted.pop() {
            self.settle_entry(snapshot, number as usize);
            if let Some(entry) = self.entries.get_mut(number as usize) {
                entry.listed = false;
            }
        }
    }

    /// Nothing is left to give.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.counted.is_empty()
    }

    fn settle_entry(&mut self, snapshot: &Snapshot, number: usize) {
        if let (Some(entry), Some(details)) =
            (self.entries.get_mut(number), self.details.get(number))
            && entry.count.packets > 0
        {
            snapshot.count(&details.path, std::mem::take(&mut entry.count));
        }
    }
}

impl About {
    #[inline]
    fn new(key: Key, flow: &Flow) -> Self {
        let Flow { source, destination, hash, .. } = *flow;
        // Of a connection exactly; else what decides between several ways.
        let flow = match flow.tuple {
            Some(Tuple { protocol, source_port, destination_port, .. }) => {
                1 << 63
                    | u64::from(protocol) << 32
                    | u64::from(source_port) << 16
                    | u64::from(destination_port)
            }
            None => hash.into(),
        };
        Self { key, source: bits(source), destination: bits(destination), flow }
    }

    #[inline]
    fn hash(&self, seed: Seed) -> usize {
        let fold = |bits: u128| (bits as u64) ^ ((bits >> 64) as u64).rotate_left(32);
        let rest = self.key.word() ^ self.flow.rotate_left(16);
        seed.hash(fold(self.source) ^ rest, fold(self.destination))
    }
}

#[inline]
fn bits(address: IpAddr) -> u128 {
    match address {
        // No IPv6 packet has a source like this (Packet::parse).
        IpAddr::V4(v4) => u128::from(v4.to_bits()) | 0xffff << 32,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
