//! Verdicts on frames that were announced.
//!
//! Among more addresses than the processor's caches hold, each look-up waits for main memory. A
//! caller that sees the next frames early announces them: where their addresses are in the table is
//! worked out then, once, and fetched while the frames before them are dealt with.
//!
//! An announcement is a hint: an address counts if it is found where it was looked for. What frames
//! of one port in one VLAN have alike is worked out once for all of them, under one configuration:
//! the *lane*.

use packet::eth::Eth;

use crate::cache::{Front, Key, NOBODY, Packed};
use crate::config::Snapshot;
use crate::fdb::{self, Held, LivePort};
use crate::table::Place;
use crate::vlan::Class;
use crate::{PortId, Verdict};

/// The announcements, in a ring, and the lane of the frames that came last.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    notes: [Note; 2 * Ahead::FRAMES],
    /// Frames that came.
    turn: usize,
    lane: Lane,
}

/// Where the addresses of a frame that was announced are, most probably.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    source: Place,
    destination: Place,
}

/// See the module.
#[derive(Debug)]
struct Lane {
    /// The configuration that all of it follows from; 0 is none that has a port.
    version: u64,
    /// Its port; [`NOBODY`]: there is none.
    in_port: u32,
    /// [`Front::plain`] of its last frame that had no tag, or [`Lane::NOTHING`].
    plain: u64,
    /// See [`Key::lane`].
    number: u32,
    /// Number of its MAC table, as it was taken hold of last.
    table: u64,
    /// `None`: the port is down, or not in this VLAN.
    class: Option<Class>,
    /// What keys of addresses have in common; 0: there is no class.
    rest: u64,
    /// Verdicts on frames to some ports, each in the place of its number.
    ways: [(LivePort, Packed); Lane::WAYS],
}

impl Default for Lane {
    fn default() -> Self {
        let ways = [(LivePort::NOBODY, Packed::default()); Self::WAYS];
        let (version, in_port, plain, number, table) = (0, NOBODY, Self::NOTHING, 0, 0);
        Self { version, in_port, plain, number, table, class: None, rest: 0, ways }
    }
}

impl Ahead {
    /// How many frames before its turn a frame is announced.
    pub(crate) const FRAMES: usize = 8;

    /// Notes the frame that comes `later` frames after the next, less than twice [`Ahead::FRAMES`].
    #[inline(always)]
    pub(crate) fn announce(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        (front, later): (&[u8; 18], usize),
        held: &mut Held,
    ) {
        let Self { notes, turn, lane } = self;
        let front = Front::of(front);
        if !(held.is_some() && lane.is(snapshot, in_port, front)) {
            lane.enter(snapshot, in_port, front, held);
        }
        // It may be that of another network: a hint, too.
        let (rest, Some(table)) = (lane.rest, held.get()) else { return };
        let source = table.place(front.src_bits() | rest);
        let destination = table.place(front.dst_bits() | rest);
        table.prefetch(source);
        table.prefetch(destination);
        let place = turn.wrapping_add(later) % notes.len();
        if let Some(note) = notes.get_mut(place) {
            *note = Note { source, destination };
        }
    }

    /// The verdict on the next frame, from `in_port` and with this beginning: `None` if it was not
    /// announced, or there is something to learn, or an address is not where it was looked for.
    #[inline(always)]
    pub(crate) fn verdict(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        head: &[u8],
        now_ms: u64,
        held: &mut Held,
    ) -> Option<Packed> {
        let Self { notes, turn, lane } = self;
        let note = *notes.get(*turn % notes.len())?;
        *turn = turn.wrapping_add(1);
        let front = Front::of(head.first_chunk()?);
        if !lane.is(snapshot, in_port, front) && !lane.enter(snapshot, in_port, front, held) {
            return None;
        }
        // Whatever was announced: an address counts if it is there.
        let table = held.numbered(lane.table)?;
        let from = table.at(note.source, front.src_bits() | lane.rest)?;
        let to = table.at(note.destination, front.dst_bits() | lane.rest)?;
        if !fdb::is_seen(from, in_port, now_ms) {
            return None;
        }
        lane.way(snapshot, in_port, fdb::port_of(to))
    }
}

impl Lane {
    /// A power of two.
    const WAYS: usize = 16;
    /// No [`Front::plain`].
    const NOTHING: u64 = 1;

    /// Whether it is that of such frames: seen at a glance, if they have no tag.
    #[inline(always)]
    fn is(&self, snapshot: &Snapshot, in_port: PortId, front: Front) -> bool {
        self.plain == front.plain()
            && self.in_port == in_port.0.into()
            && self.version == snapshot.version()
    }

    /// The same of frames with this key.
    fn has(&self, snapshot: &Snapshot, key: Key) -> bool {
        self.number == key.lane() && self.version == snapshot.version()
    }

    /// Becomes that of such a frame, and takes hold of its MAC table; false if there is none.
    #[inline(never)]
    fn enter(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        front: Front,
        held: &mut Held,
    ) -> bool {
        let Some(key) = front.key(in_port) else { return false };
        if !(held.is_some() && self.has(snapshot, key)) {
            self.change(snapshot, in_port, key, held);
        }
        if key.tag().is_none() {
            self.plain = front.plain();
        }
        true
    }

    /// Takes hold of the MAC table of frames with this key, and becomes their lane.
    #[cold]
    fn change(&mut self, snapshot: &Snapshot, in_port: PortId, key: Key, held: &mut Held) {
        let Some(port) = snapshot.port(in_port) else { return *self = Self::default() };
        held.table(&port.fdb);
        let table = held.number();
        if self.has(snapshot, key) {
            return self.table = table;
        }
        let (dst, src, tag) = (key.dst(), key.src(), key.tag());
        // Frames whose class depends on more than that have no key.
        let class = port.classify(&Eth { dst, src, tag, ethertype: 0 }).filter(|_| port.up);
        let rest = class.map_or(0, |class| fdb::rest_of_key(class.fid));
        let (version, number) = (snapshot.version(), key.lane());
        let in_port = in_port.0.into();
        *self = Self { version, in_port, number, table, class, rest, ..Self::default() };
    }

    /// The verdict on frames of this lane to a port.
    #[inline(always)]
    fn way(&mut self, snapshot: &Snapshot, in_port: PortId, to: LivePort) -> Option<Packed> {
        match self.ways.get(to.place(Self::WAYS)) {
            Some((known, way)) if *known == to => Some(*way),
            _ => self.find_way(snapshot, in_port, to),
        }
    }

    #[cold]
    fn find_way(&mut self, snapshot: &Snapshot, in_port: PortId, to: LivePort) -> Option<Packed> {
        let from = snapshot.port(in_port)?;
        let verdict: Verdict = snapshot.unicast(in_port, from, self.class?, to.port()?)?;
        let way = Packed::pack(verdict)?;
        if let Some(place) = self.ways.get_mut(to.place(Self::WAYS)) {
            *place = (to, way);
        }
        Some(way)
    }
}

#[cfg(test)]
mod tests;
