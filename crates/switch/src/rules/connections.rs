//! Connections of one port: those of which a frame was let through.
//!
//! A table of a size that never changes: sets of eight, each behind a lock that is held while one
//! of them is looked at. What was silent for too long is gone without anybody tidying up. In a full
//! set a connection that nobody has answered yet gives way; if all were answered, the new one is
//! refused. So a flood of beginnings costs other beginnings, and never a connection.

use std::fmt;

use parking_lot::Mutex;

use super::State;
use crate::table::Seed;

/// How long a connection may be silent, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP that nobody has answered yet.
    pub opening_ms: u64,
    /// TCP.
    pub open_ms: u64,
    /// TCP after an RST, or a FIN from both.
    pub closing_ms: u64,
    /// UDP, SCTP and ICMP echo that nobody has answered yet.
    pub datagram_ms: u64,
    /// UDP, SCTP and ICMP echo.
    pub stream_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            opening_ms: 30_000,
            open_ms: 7_200_000,
            closing_ms: 60_000,
            datagram_ms: 30_000,
            stream_ms: 180_000,
        }
    }
}

/// See the module.
pub struct Connections {
    sets: Box<[Mutex<Set>]>,
    seed: Seed,
    timeouts: Timeouts,
}

type Set = [Entry; Connections::WAYS];

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// All zero: none.
    key: [u64; 5],
    /// It is there before this time.
    until_ms: u64,
    stage: Stage,
    /// Whether it was begun by the second of its ends.
    by_second: bool,
    /// Which ends have sent a FIN.
    fins: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Opening,
    Open,
    Closing,
    Datagram,
    Stream,
}

/// A frame of a connection, in one of its directions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// The same in both directions.
    key: [u64; 5],
    /// From the second of its ends.
    by_second: bool,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// With these flags.
    Tcp(u8),
    Datagram,
    Echo {
        asks: bool,
    },
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// There is no room for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Flow {
    /// Of a packet from one address and port to another.
    pub(super) fn new(protocol: u8, from: (u128, u16), to: (u128, u16), kind: Kind) -> Self {
        let by_second = from > to;
        let ((first, one), (second, two)) = if by_second { (to, from) } else { (from, to) };
        let numbers = u64::from(protocol) << 32 | u64::from(one) << 16 | u64::from(two);
        let [a, b] = [(first >> 64) as u64, first as u64];
        let [c, d] = [(second >> 64) as u64, second as u64];
        // Never zero as a whole: a protocol that has connections is not 0.
        Self { key: [a, b, c, d, numbers], by_second, kind }
    }

    /// A connection begins anew with it, whatever was before.
    fn begins(&self) -> bool {
        matches!(self.kind, Kind::Tcp(flags) if flags & (SYN | ACK | RST | FIN) == SYN)
    }

    /// One that begins with it, unless it ends one or answers.
    fn first_stage(&self) -> Option<Stage> {
        match self.kind {
            Kind::Tcp(flags) if flags & (RST | FIN) != 0 => None,
            Kind::Tcp(_) if self.begins() => Some(Stage::Opening),
            // One that was there before anybody looked.
            Kind::Tcp(_) => Some(Stage::Open),
            Kind::Datagram | Kind::Echo { asks: true } => Some(Stage::Datagram),
            Kind::Echo { asks: false } => None,
        }
    }
}

impl Connections {
    const WAYS: usize = 8;
    /// Most there can be room for.
    pub const MOST: usize = 1 << 20;

    /// Room for `most` connections (to [`Connections::MOST`]), in all but the worst of cases: a little
    /// over one cache line for each.
    #[must_use]
    pub fn new(most: usize, timeouts: Timeouts) -> Self {
        let sets = (most.clamp(1, Self::MOST) * 2).div_ceil(Self::WAYS).next_power_of_two();
        let sets = (0..sets).map(|_| Mutex::new(Set::default())).collect();
        Self { sets, seed: Seed::random(), timeouts }
    }

    /// Whether a frame is of a connection that is known; notes what it does to it.
    pub(super) fn look(&self, flow: &Flow, now_ms: u64) -> State {
        let Some(set) = self.set(flow) else { return State::New };
        let mut set = set.lock();
        let Some(entry) = set.iter_mut().find(|entry| entry.is(flow, now_ms)) else {
            return State::New;
        };
        if flow.begins() && entry.stage == Stage::Closing {
            *entry = Entry::default();
            return State::New;
        }
        entry.advance(flow);
        entry.until_ms = now_ms.saturating_add(self.timeouts.of(entry.stage));
        State::Established
    }

    /// Remembers that a frame of a connection was let through.
    pub(super) fn open(&self, flow: &Flow, now_ms: u64) -> Result<(), Full> {
        let Some(stage) = flow.first_stage() else { return Ok(()) };
        let mut set = self.set(flow).ok_or(Full)?.lock();
        // Another worker may have been here since.
        if set.iter().any(|entry| entry.is(flow, now_ms)) {
            return Ok(());
        }
        let free = set.iter().position(|entry| entry.until_ms <= now_ms);
        let unanswered = || {
            let entries = set.iter().enumerate();
            let weak = entries.filter(|(_, entry)| entry.is_unanswered());
            weak.min_by_key(|(_, entry)| entry.until_ms).map(|(place, _)| place)
        };
        let place = free.or_else(unanswered).ok_or(Full)?;
        let until_ms = now_ms.saturating_add(self.timeouts.of(stage));
        let entry = Entry { key: flow.key, until_ms, stage, by_second: flow.by_second, fins: 0 };
        if let Some(place) = set.get_mut(place) {
            *place = entry;
        }
        Ok(())
    }

    /// How many there are now. Looks at all of them.
    pub fn count(&self, now_ms: u64) -> usize {
        let live =
            |set: &Mutex<Set>| set.lock().iter().filter(|entry| entry.until_ms > now_ms).count();
        self.sets.iter().map(live).sum()
    }

    /// Forgets all of them: whatever comes next is of a new one.
    pub fn flush(&self) {
        for set in &self.sets {
            *set.lock() = Set::default();
        }
    }

    fn set(&self, flow: &Flow) -> Option<&Mutex<Set>> {
        let [a, b, c, d, e] = flow.key;
        let hash = self.seed.hash(a, b) ^ self.seed.hash(c ^ e.rotate_left(32), d).rotate_left(17);
        self.sets.get(hash & (self.sets.len() - 1))
    }
}

impl Timeouts {
    fn of(&self, stage: Stage) -> u64 {
        match stage {
            Stage::Opening => self.opening_ms,
            Stage::Open => self.open_ms,
            Stage::Closing => self.closing_ms,
            Stage::Datagram => self.datagram_ms,
            Stage::Stream => self.stream_ms,
        }
    }
}

impl Entry {
    fn is(&self, flow: &Flow, now_ms: u64) -> bool {
        self.until_ms > now_ms && self.key == flow.key
    }

    fn is_unanswered(&self) -> bool {
        matches!(self.stage, Stage::Opening | Stage::Datagram)
    }

    fn advance(&mut self, flow: &Flow) {
        let answers = match flow.kind {
            // Both ends of an echo may have the same address.
            Kind::Echo { asks } => !asks,
            _ => flow.by_second != self.by_second,
        };
        let Kind::Tcp(flags) = flow.kind else {
            if answers {
                self.stage = Stage::Stream;
            }
            return;
        };
        if flags & FIN != 0 {
            self.fins |= 1 << u8::from(flow.by_second);
        }
        if flags & RST != 0 || self.fins == 0b11 {
            self.stage = Stage::Closing;
        } else if self.stage == Stage::Opening && answers {
            self.stage = Stage::Open;
        }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("sets", &self.sets.len()).finish_non_exhaustive()
    }
}
