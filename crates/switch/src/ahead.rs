//! Verdicts on frames that were announced.
//!
//! Among more addresses than the processor's caches hold, each look-up waits for main memory. A
//! caller that sees the next frames early announces them: where their addresses are in the table is
//! worked out then, once, and fetched while the frames before them are dealt with.
//!
//! An announcement is a hint: what it says counts if the addresses of the frame that comes are found
//! there. What frames of one port in one VLAN have alike is worked out once for all of them, under
//! one configuration: the *lane*.

use packet::eth::Eth;

use crate::cache::{Key, Packed};
use crate::config::{Port, Snapshot};
use crate::fdb::{self, Held};
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
#[derive(Debug, Default)]
struct Lane {
    /// The configuration that all of it follows from; 0 is none that has a port.
    version: u64,
    /// See [`Key::lane`].
    number: u32,
    /// `None`: the port is down, or not in this VLAN.
    class: Option<Class>,
    /// Verdicts on frames to some ports, each in the place of its number.
    ways: [Option<(PortId, Packed)>; Lane::WAYS],
}

impl Ahead {
    /// How many frames before its turn a frame is announced.
    pub(crate) const FRAMES: usize = 8;

    /// Notes the frame that comes `later` frames after the next, at most [`Ahead::FRAMES`].
    #[inline]
    pub(crate) fn announce(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        (front, later): (&[u8], usize),
        held: &mut Held,
    ) {
        let Self { notes, turn, lane } = self;
        let (Some(key), Some(port)) = (Key::of(in_port, front), snapshot.port(in_port)) else {
            return;
        };
        let Some(class) = lane.of(snapshot, port, key) else { return };
        let table = held.table(&port.fdb);
        let source = table.place(fdb::key(class.fid, key.src()));
        let destination = table.place(fdb::key(class.fid, key.dst()));
        table.prefetch(source);
        table.prefetch(destination);
        let place = turn.wrapping_add(later) % notes.len();
        if let Some(note) = notes.get_mut(place) {
            *note = Note { source, destination };
        }
    }

    /// The verdict on the next frame, from `port` and with this key: `None` if it was not announced,
    /// or there is something to learn, or an address is not where it was looked for.
    #[inline(always)]
    pub(crate) fn verdict(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        port: &Port,
        key: Key,
        now_ms: u64,
        held: &mut Held,
    ) -> Option<Packed> {
        let Self { notes, turn, lane } = self;
        let Note { source, destination } = *notes.get(*turn % notes.len())?;
        *turn = turn.wrapping_add(1);
        let class = lane.of(snapshot, port, key)?;
        let table = held.table(&port.fdb);
        let from = table.at(source, fdb::key(class.fid, key.src()))?;
        let to = fdb::port_of(table.at(destination, fdb::key(class.fid, key.dst()))?)?;
        if !fdb::is_seen(from, in_port, now_ms) {
            return None;
        }
        lane.way(snapshot, in_port, port, to)
    }
}

impl Lane {
    /// A power of two.
    const WAYS: usize = 16;

    /// The class of frames with this key.
    #[inline(always)]
    fn of(&mut self, snapshot: &Snapshot, port: &Port, key: Key) -> Option<Class> {
        if self.number != key.lane() || self.version != snapshot.version() {
            self.change(snapshot, port, key);
        }
        self.class
    }

    #[cold]
    fn change(&mut self, snapshot: &Snapshot, port: &Port, key: Key) {
        let (dst, src, tag) = (key.dst(), key.src(), key.tag());
        // Frames whose class depends on more than that have no key.
        let class = port.classify(&Eth { dst, src, tag, ethertype: 0 }).filter(|_| port.up);
        let (version, number) = (snapshot.version(), key.lane());
        *self = Self { version, number, class, ..Self::default() };
    }

    /// The verdict on frames of this lane to a port.
    #[inline(always)]
    fn way(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        port: &Port,
        to: PortId,
    ) -> Option<Packed> {
        match self.ways.get(to.index() % Self::WAYS) {
            Some(Some((known, way))) if *known == to => Some(*way),
            _ => self.find_way(snapshot, in_port, port, to),
        }
    }

    #[cold]
    fn find_way(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        port: &Port,
        to: PortId,
    ) -> Option<Packed> {
        let verdict: Verdict = snapshot.unicast(in_port, port, self.class?, to)?;
        let way = Packed::pack(verdict)?;
        if let Some(place) = self.ways.get_mut(to.index() % Self::WAYS) {
            *place = Some((to, way));
        }
        Some(way)
    }
}
