//! Verdicts on frames that were announced.
//!
//! Among more addresses than the processor's caches hold, each look-up waits for main memory. A
//! caller that sees the next frames early announces them, some together: where their addresses are in
//! the table is worked out then, once, and fetched while the frames before them are dealt with. When it
//! is their turn, the verdicts on a few of them are worked out together, too, so that what is not there
//! yet is waited for together.
//!
//! An announcement is a hint: an address counts if it is found where it was looked for, and a verdict
//! for a frame that begins as the announced one did. What frames of one port in one VLAN have alike is
//! worked out once for all of them, under one configuration: the *lane*.

use packet::eth::Eth;

use crate::cache::{Front, Key, NOBODY, Packed};
use crate::config::Snapshot;
use crate::fdb::{self, Held, LivePort};
use crate::table::{Place, Table};
use crate::vlan::Class;
use crate::{PortId, Verdict};

/// The frames that were announced, in a ring, and the lane of those that came last.
#[derive(Debug)]
pub(crate) struct Ahead {
    notes: [Note; 2 * Ahead::FRAMES],
    /// The place of the next frame.
    turn: usize,
    lane: Lane,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { notes: [Note::NOTHING; _], turn: 0, lane: Lane::default() }
    }
}

/// A frame that was announced.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// It, and when its turn comes the verdict on it.
    frame: Known,
    /// Where it comes in; [`NOBODY`]: nothing was announced.
    in_port: u32,
    /// Where its addresses are, most probably.
    source: Place,
    destination: Place,
}

impl Note {
    const NOTHING: Self = Self {
        frame: Known::NOTHING,
        in_port: NOBODY,
        source: Place::FIRST,
        destination: Place::FIRST,
    };
}

/// A frame on which the verdict is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Its first 16 bytes: of one that has no tag, they say that.
    pub(crate) front: [u64; 2],
    /// Where it came in, and perhaps [`Known::ASIDE`]; [`NOBODY`]: it is not known.
    pub(crate) in_port: u32,
    pub(crate) way: Packed,
    /// The two bytes behind.
    pub(crate) inner: u16,
    /// Another frame like it is so many more that were answered from memory.
    pub(crate) hits: u16,
}

impl Known {
    pub(crate) const NOTHING: Self =
        Self { front: [0; 2], in_port: NOBODY, way: Packed::DEFAULT, inner: 0, hits: 0 };
    /// It has a tag, or more is to be done than to forward it as it is. Of others the first 16 bytes say all.
    pub(crate) const ASIDE: u32 = 1 << 16;
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

/// Of a lane, what is looked at for each frame.
#[derive(Clone, Copy)]
struct Common<'h> {
    table: Option<&'h Table>,
    rest: u64,
    plain: u64,
}

impl Common<'_> {
    /// Whether it is that of such a frame: seen at a glance, if that has no tag.
    #[inline(always)]
    fn is_of(self, front: Front) -> bool {
        self.table.is_some() && self.plain == front.plain()
    }
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
    /// How many verdicts are worked out together.
    pub(crate) const TOGETHER: usize = 4;

    /// Notes frames by their beginnings, as far as these are to be seen: those that come after so many,
    /// which with them are not more than twice [`Ahead::FRAMES`].
    #[inline(always)]
    pub(crate) fn announce(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        (after, fronts): (usize, impl Iterator<Item = Option<[u8; 18]>>),
        held: &mut Held,
    ) {
        let Self { notes, turn, lane } = self;
        let mut common = lane.common(snapshot, in_port, held);
        for (n, front) in (turn.wrapping_add(after)..).zip(fronts) {
            let Some(front) = front.map(|front| Front::of(&front)) else { continue };
            if !common.is_of(front) {
                lane.enter(snapshot, in_port, front, held);
                common = lane.common(snapshot, in_port, held);
            }
            // It may be that of another network: a hint, too.
            let Common { table: Some(table), rest, .. } = common else { return };
            if let Some(note) = notes.get_mut(n % (2 * Self::FRAMES)) {
                note.in_port = in_port.0.into();
                note.frame = Known { front: front.words(), inner: front.inner(), ..Known::NOTHING };
                note.source = table.fetch(front.src_bits() | rest);
                note.destination = table.fetch(front.dst_bits() | rest);
            }
        }
    }

    /// Works out the verdicts on the next [`Ahead::TOGETHER`] frames, as they were announced. There is none if
    /// there is something to learn, or an address is not where it was looked for. Returns how many there are.
    #[inline(always)]
    pub(crate) fn expect(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        now_ms: u64,
        held: &mut Held,
    ) -> u32 {
        let Self { notes, turn, lane } = self;
        let mut common = lane.common(snapshot, in_port, held);
        let mut known = 0;
        for n in 0..Self::TOGETHER {
            let Some(note) = notes.get_mut(turn.wrapping_add(n) % (2 * Self::FRAMES)) else {
                break;
            };
            // Another port's, or nobody's: addresses that are not sent are not to be stamped.
            if note.in_port != u32::from(in_port.0) {
                continue;
            }
            // What was expected before may be so no more.
            note.frame.in_port = NOBODY;
            let front = Front::new(note.frame.front, note.frame.inner);
            if !common.is_of(front) {
                let entered = lane.enter(snapshot, in_port, front, held);
                common = lane.common(snapshot, in_port, held);
                if !entered {
                    continue;
                }
            }
            let Common { table: Some(table), rest, plain } = common else { continue };
            // Whatever was announced: an address counts if it is there.
            if let Some(from) = table.at(note.source, front.src_bits() | rest)
                && let Some(to) = table.at(note.destination, front.dst_bits() | rest)
                && fdb::is_seen(from, in_port, now_ms)
                && let Some(way) = lane.way(snapshot, in_port, fdb::port_of(to))
            {
                known += 1;
                let aside = if way.is_keep() && front.plain() == plain { 0 } else { Known::ASIDE };
                note.frame.in_port = u32::from(in_port.0) | aside;
                note.frame.way = way;
            }
        }
        known
    }

    /// The next frame, if the verdict on it is known.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Known {
        let Some(note) = self.notes.get_mut(self.turn % (2 * Self::FRAMES)) else {
            return Known::NOTHING;
        };
        self.turn = self.turn.wrapping_add(1);
        let frame = note.frame;
        note.frame.in_port = NOBODY;
        note.in_port = NOBODY;
        frame
    }

    /// How often that was asked.
    pub(crate) fn turns(&self) -> usize {
        self.turn
    }

    /// Whether there have been as many turns, and the last of the next [`Ahead::FRAMES`] frames was announced.
    pub(crate) fn has_announced(&self, turns: usize) -> bool {
        let last = self.notes.get((turns.wrapping_add(Self::FRAMES - 1)) % (2 * Self::FRAMES));
        turns == self.turn && last.is_some_and(|note| note.in_port != NOBODY)
    }

    /// What was expected of the next frames may be wrong.
    pub(crate) fn forget(&mut self) {
        self.notes.iter_mut().for_each(|note| note.frame.in_port = NOBODY);
    }
}

impl Lane {
    /// A power of two.
    const WAYS: usize = 16;
    /// No [`Front::plain`].
    const NOTHING: u64 = 1;

    /// Whether it is that of frames with this key.
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

    /// What its frames without a tag, and the frame for which it was entered, have in common.
    #[inline(always)]
    fn common<'h>(&self, snapshot: &Snapshot, in_port: PortId, held: &'h Held) -> Common<'h> {
        let is = self.in_port == in_port.0.into() && self.version == snapshot.version();
        let table = if is { held.numbered(self.table) } else { None };
        Common { table, rest: self.rest, plain: self.plain }
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
