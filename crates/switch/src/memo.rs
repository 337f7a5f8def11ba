//! A worker's memory of ways through routers, and its account of what took them.
//!
//! Exact match on the frame's addresses, port and VLAN, the packet's addresses and, where a router
//! has several ways for one prefix or delegates connections, the flow; two places per hash value,
//! the older one goes. That a packet is *not* to bypass the router is remembered, too. An entry
//! counts under the generation of the networks and routers that are connected with its port (module
//! `domain`) and for a second at most, so that the routers' addresses stay learned. A packet like the one before it in
//! the same pass takes that one's entry without looking for it, under the same generation.
//!
//! What bypasses routers is counted in the entry, and given to each router on the way when the entry
//! goes, or [`Memo::settle`] is called. The counters of routers are the only thing here that workers
//! share.

use packet::ip::Version;
use packet::route::{Packet, Usual};
use packet::tuple::Tuple;
use packet::{Checked, VlanEdit};

use crate::PortId;
use crate::cache::NOBODY;
use crate::config::Snapshot;
use crate::domain::{Domain, Tells};
use crate::fdb::{Held, REFRESH_MS};
use crate::key::Key;
use crate::router::HopCount;
use crate::table::Seed;
use crate::way::{Flow, Path, Routed};
use crate::worth::Worth;

/// See the module. Has no memory until a packet comes for a router.
#[derive(Debug)]
pub(crate) struct Memo {
    entries: Box<[Entry]>,
    /// Of each entry, what is seldom needed.
    details: Box<[Details]>,
    /// What was worked out last and is not remembered.
    passed_by: (Routed, Option<Tuple>),
    seed: Seed,
    worth: Worth,
    /// Entries that may have counted something, each once.
    counted: Vec<u32>,
    /// Destination of the last frame that bypassed a router, first six bytes shifted up; or
    /// [`NO_GATEWAY`].
    gateway: u64,
    last: Last,
}

/// Shifted up, no address is this.
const NO_GATEWAY: u64 = u64::MAX;

/// The packet that took a remembered way last, if it was of this pass and [usual](Usual).
#[derive(Clone, Copy, Debug)]
struct Last {
    /// The first 16 bytes of its frame.
    front: [u64; 2],
    addresses: u64,
    generation: u64,
    /// Where it came in; [`NOBODY`]: there is none.
    in_port: u32,
    /// The place of its way.
    number: u32,
}

/// Two cache lines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(128))]
struct Entry {
    about: About,
    /// 0 never is a generation.
    generation: u64,
    /// When it was worked out, low half.
    stamp: u32,
    /// It is among `Memo::counted`.
    listed: bool,
    /// The packet's addresses and ports change.
    translates: bool,
    /// Past no router: to the port where it was to go.
    routed: Routed,
    count: HopCount,
}

#[derive(Clone, Debug, Default)]
struct Details {
    /// For when it is counted.
    path: Path,
    /// What becomes of the packet's addresses and ports.
    translated: Option<Tuple>,
}

/// What a way depends on.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct About {
    key: Key,
    /// Of its flow, if that matters, and the version of IP.
    flow: u64,
    /// Its addresses: of IPv4 both in the first.
    addresses: [u64; 4],
}

/// A packet for a router.
pub(crate) struct Arrival<'a> {
    /// The port it is to go to, and what is to become of its frame's tag.
    pub(crate) to: (PortId, VlanEdit),
    /// The beginning of its frame, as it came.
    pub(crate) head: &'a [u8],
    pub(crate) packet: Packet,
    pub(crate) offload: &'a Checked,
    /// Of its frame, if that is one to be remembered.
    pub(crate) key: Option<Key>,
    /// Of the domain of the port it came by.
    pub(crate) generation: u64,
    pub(crate) tells: Tells,
}

/// A way, and what becomes of the packet's addresses and ports.
pub(crate) type Found<'m> = (&'m Routed, Option<&'m Tuple>);

impl Default for Memo {
    fn default() -> Self {
        Self {
            entries: Box::default(),
            details: Box::default(),
            passed_by: (Routed::default(), None),
            seed: Seed::random(),
            worth: Worth::default(),
            counted: Vec::new(),
            gateway: NO_GATEWAY,
            last: Last { front: [0; 2], addresses: 0, generation: 0, in_port: NOBODY, number: 0 },
        }
    }
}

impl Memo {
    const ENTRIES: usize = 4096;

    /// The way past the router of a packet that may take it; counts it then.
    #[inline]
    pub(crate) fn way(
        &mut self,
        snapshot: &Snapshot,
        arrival: &Arrival<'_>,
        now_ms: u64,
        held: &mut Held,
    ) -> Option<Found<'_>> {
        let Some(key) = arrival.key.filter(|_| !self.worth.passes_by()) else {
            return self.pass_by(snapshot, arrival, now_ms, held);
        };
        let number = match self.find(&About::new(key, arrival), arrival.generation, now_ms) {
            Some(number) => number,
            None => self.work_out(snapshot, arrival, key, now_ms, held)?,
        };
        self.gateway = gateway(arrival.head);
        self.count(number, arrival.packet)?;
        Some((&self.entries.get(number)?.routed, self.translated(number)))
    }

    /// Whether a frame is to the same router as the last one that bypassed one.
    #[inline(always)]
    pub(crate) fn expects(&self, head: &[u8]) -> bool {
        gateway(head) == self.gateway
    }

    /// The way of a packet in such a frame, if it is remembered and the packet's addresses do not change. Of one like
    /// the one before it is not even looked up.
    #[inline(always)]
    pub(crate) fn again(
        &mut self,
        domain: &Domain,
        in_port: PortId,
        packet: &Usual,
        now_ms: u64,
    ) -> Option<&Routed> {
        let generation = domain.generation();
        let number = if self.last.is(in_port, packet, generation) {
            self.worth.hit(1);
            self.last.number as usize
        } else {
            self.find_again(domain.tells(), generation, in_port, packet, now_ms)?
        };
        self.count(number, packet.packet())
    }

    /// Where it is remembered; the next one like it is not looked up.
    #[inline(never)]
    fn find_again(
        &mut self,
        tells: Tells,
        generation: u64,
        in_port: PortId,
        packet: &Usual,
        now_ms: u64,
    ) -> Option<usize> {
        let (front, addresses) = (packet.front(), packet.addresses());
        let key = Key::untagged(in_port, front);
        let about = About { key, flow: 0, addresses: [addresses, 0, 0, 0] };
        let found = if tells.nothing() { self.find(&about, generation, now_ms) } else { None };
        let found = found.filter(|&number| self.translated(number).is_none());
        match found {
            Some(number) => {
                let (in_port, number) = (in_port.0.into(), number as u32);
                self.last = Last { front, addresses, generation, in_port, number };
            }
            None => self.gateway = NO_GATEWAY,
        }
        found
    }

    /// Forgets which packet was the last. For the end of each pass.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.last.in_port = NOBODY;
    }

    /// The way that is remembered there, for a packet that may take it; counts it then.
    #[inline(always)]
    fn count(&mut self, number: usize, packet: Packet) -> Option<&Routed> {
        let entry = self.entries.get_mut(number)?;
        if !entry.routed.takes(packet) {
            return None;
        }
        entry.count.add(HopCount::one(packet));
        if !entry.listed {
            entry.listed = true;
            self.counted.push(number as u32);
        }
        Some(&entry.routed)
    }

    /// What becomes of the addresses and ports of a packet that takes that way.
    #[inline]
    fn translated(&self, number: usize) -> Option<&Tuple> {
        self.entries.get(number).filter(|entry| entry.translates)?;
        self.details.get(number)?.translated.as_ref()
    }

    /// The place of what is remembered.
    #[inline(always)]
    fn find(&mut self, about: &About, generation: u64, now_ms: u64) -> Option<usize> {
        let place = self.place(about);
        let stamp = now_ms as u32;
        let found = if self.is_at(place, about, generation, stamp) {
            Some(place)
        } else if self.is_at(place + 1, about, generation, stamp) {
            Some(place + 1)
        } else {
            None
        };
        if found.is_some() {
            self.worth.hit(1);
        }
        found
    }

    #[inline(always)]
    fn is_at(&self, number: usize, about: &About, generation: u64, now: u32) -> bool {
        self.entries.get(number).is_some_and(|entry| {
            entry.about.is(about)
                && entry.generation == generation
                && now.wrapping_sub(entry.stamp) < REFRESH_MS as u32
        })
    }

    #[inline(always)]
    fn place(&self, about: &About) -> usize {
        2 * (about.hash(self.seed) % (Self::ENTRIES / 2))
    }

    /// Without being asked.
    #[inline(never)]
    fn pass_by(
        &mut self,
        snapshot: &Snapshot,
        arrival: &Arrival<'_>,
        now_ms: u64,
        held: &mut Held,
    ) -> Option<Found<'_>> {
        let way = snapshot.way(arrival, now_ms, held);
        self.gateway = NO_GATEWAY;
        if !way.routed.takes(arrival.packet) {
            return None;
        }
        snapshot.count(&way.path, HopCount::one(arrival.packet));
        self.passed_by = (way.routed, way.translated);
        let (routed, translated) = &self.passed_by;
        Some((routed, translated.as_ref()))
    }

    /// Works a way out and remembers it; returns where. `None` also if the configuration is of the
    /// past: for the rest of this pass its packets go to their routers.
    #[inline(never)]
    fn work_out(
        &mut self,
        snapshot: &Snapshot,
        arrival: &Arrival<'_>,
        key: Key,
        now_ms: u64,
        held: &mut Held,
    ) -> Option<usize> {
        let about = About::new(key, arrival);
        let place = self.place(&about);
        let is_about =
            |number: usize| self.entries.get(number).is_some_and(|one| one.about.is(&about));
        if is_about(place) || is_about(place + 1) {
            self.worth.renewed();
        } else {
            self.worth.missed();
        }
        let way = snapshot.way(arrival, now_ms, held);
        if !snapshot.is_latest() {
            return None;
        }
        if self.entries.is_empty() {
            self.entries = vec![Entry::default(); Self::ENTRIES].into();
            self.details = vec![Details::default(); Self::ENTRIES].into();
        }
        // Where it was before, or else in place of the older one.
        let age = |number: usize| match self.entries.get(number) {
            Some(entry) if entry.about.is(&about) => u32::MAX,
            entry => entry.map_or(0, |entry| (now_ms as u32).wrapping_sub(entry.stamp)),
        };
        let number = if age(place) >= age(place + 1) { place } else { place + 1 };
        self.settle_entry(snapshot, number);
        self.release();
        let entry = self.entries.get_mut(number)?;
        *entry = Entry {
            about,
            generation: arrival.generation,
            stamp: now_ms as u32,
            listed: entry.listed,
            translates: way.translated.is_some(),
            routed: way.routed,
            count: HopCount::default(),
        };
        *self.details.get_mut(number)? = Details { path: way.path, translated: way.translated };
        Some(number)
    }

    /// Whether it is put aside.
    #[cfg(test)]
    pub(crate) fn is_bypassed(&self) -> bool {
        self.worth.is_bypassed()
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

impl Last {
    #[inline(always)]
    fn is(&self, in_port: PortId, packet: &Usual, generation: u64) -> bool {
        let ([a, b], [c, d]) = (self.front, packet.front());
        let differs = (a ^ c) | (b ^ d) | (self.addresses ^ packet.addresses());
        differs | (self.generation ^ generation) == 0 && self.in_port == u32::from(in_port.0)
    }
}

impl About {
    /// The version of IP, in `flow`.
    const V6: u64 = 1 << 62;

    #[inline]
    fn new(key: Key, arrival: &Arrival<'_>) -> Self {
        let version = match arrival.packet.version() {
            Version::V4 => 0,
            Version::V6 => Self::V6,
        };
        let flow = if arrival.tells.nothing() { 0 } else { flow(arrival) };
        Self { key, flow: version | flow, addresses: arrival.packet.address_words(arrival.head) }
    }

    /// Whether it is the same: word by word, as it lies in registers.
    #[inline(always)]
    fn is(&self, other: &About) -> bool {
        let [a, b, c, d] = self.addresses;
        let [e, f, g, h] = other.addresses;
        let first = self.key.difference(other.key) | (self.flow ^ other.flow) | (a ^ e);
        first == 0 && (other.flow & Self::V6 == 0 || (b ^ f) | (c ^ g) | (d ^ h) == 0)
    }

    #[inline(always)]
    fn hash(&self, seed: Seed) -> usize {
        let [a, b, c, d] = self.addresses;
        let rest =
            if self.flow & Self::V6 == 0 { 0 } else { b ^ c.rotate_left(21) ^ d.rotate_left(42) };
        seed.hash(a ^ self.flow.rotate_left(16), self.key.word() ^ rest)
    }
}

/// The destination of a frame, shifted up.
#[inline(always)]
fn gateway(head: &[u8]) -> u64 {
    head.first_chunk().map_or(0, |begin| u64::from_le_bytes(*begin) << 16)
}

/// Of a connection exactly; else what decides between several ways.
#[inline(never)]
fn flow(arrival: &Arrival<'_>) -> u64 {
    let flow = Flow::of(arrival.tells, arrival.head, arrival.packet, arrival.offload);
    match flow.tuple {
        Some(Tuple { protocol, source_port, destination_port, .. }) => {
            1 << 63
                | u64::from(protocol) << 32
                | u64::from(source_port) << 16
                | u64::from(destination_port)
        }
        None => flow.hash.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the seed: hosts are numbered in a row.
    #[test]
    fn addresses_in_a_row_do_not_share_places() {
        for _ in 0..1000 {
            let memo = Memo::default();
            let mut used = vec![0; Memo::ENTRIES];
            for host in 0..200 {
                let about = About {
                    key: Key::default(),
                    flow: 0,
                    addresses: [0x0a00_0000_0a00_0100 | host << 32, 0, 0, 0],
                };
                used[memo.place(&about)] += 1;
            }
            let without: u32 = used.iter().map(|used: &u32| used.saturating_sub(2)).sum();
            assert!(without < 10, "{without} of 200 have no place: {:?}", memo.seed);
        }
    }
}
