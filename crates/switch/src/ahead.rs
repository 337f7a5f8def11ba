//! Verdicts on frames that were announced.
//!
//! Among more addresses than the processor's caches hold, each look-up waits for main memory. A
//! caller that sees the next frames early announces them: where their addresses are in the table is
//! worked out then, once, and fetched while the frames before them are dealt with.
//!
//! An announcement is a hint. It counts if the frame that comes is from the same port and has the
//! same addresses and VLAN, under the same configuration; its places in the table count if its
//! addresses are found there.

use packet::eth::Eth;

use crate::PortId;
use crate::cache::{Key, Packed};
use crate::config::{Port, Snapshot};
use crate::fdb::{self, Held};
use crate::table::Place;
use crate::vlan::Class;

/// The announcements, in a ring.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    notes: [Note; 2 * Ahead::FRAMES],
    /// Frames that came.
    turn: usize,
}

/// What is known about a frame that was announced: one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Note {
    key: Key,
    /// The configuration that `class` follows from.
    version: u64,
    class: Class,
    source: Place,
    destination: Place,
}

impl Ahead {
    /// How many frames before its turn a frame is announced.
    pub(crate) const FRAMES: usize = 8;

    /// Notes the frame that comes [`Ahead::FRAMES`] after the next.
    #[inline]
    pub(crate) fn announce(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        front: &[u8],
        held: &mut Held,
    ) {
        let (Some(key), Some(port)) = (Key::of(in_port, front), snapshot.port(in_port)) else {
            return;
        };
        if !port.up {
            return;
        }
        let (dst, src, tag) = (key.dst(), key.src(), key.tag());
        let Some(class) = port.classify(&Eth { dst, src, tag, ethertype: 0 }) else { return };
        let table = held.table(&port.fdb);
        let source = table.place(fdb::key(class.fid, src));
        let destination = table.place(fdb::key(class.fid, dst));
        table.prefetch(source);
        table.prefetch(destination);
        let place = self.turn.wrapping_add(Self::FRAMES) % self.notes.len();
        if let Some(note) = self.notes.get_mut(place) {
            *note = Note { key, version: snapshot.version(), class, source, destination };
        }
    }

    /// The verdict on the next frame, from `port` and with this key: `None` if it was not announced,
    /// or there is something to learn, or an address is not where it was looked for.
    #[inline(never)]
    pub(crate) fn verdict(
        &mut self,
        snapshot: &Snapshot,
        in_port: PortId,
        port: &Port,
        key: Key,
        now_ms: u64,
        held: &mut Held,
    ) -> Option<Packed> {
        let note = self.notes.get(self.turn % self.notes.len())?;
        self.turn = self.turn.wrapping_add(1);
        if note.key != key || note.version != snapshot.version() {
            return None;
        }
        let table = held.table(&port.fdb);
        let to = fdb::port_of(table.at(note.destination)?)?;
        let fresh = fdb::is_fresh(table.at(note.source)?, in_port, now_ms);
        let verdict = if fresh { snapshot.unicast(in_port, port, note.class, to) } else { None };
        Packed::pack(verdict?)
    }
}
