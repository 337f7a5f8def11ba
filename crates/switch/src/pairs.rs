//! A worker's memory of verdicts on frames from one address to another.
//!
//! Each is in one cache line that follows from addresses, in-port and VLAN, with those of three others. So
//! that four fit, in-port, VLAN and verdict are numbered together: a *way*, of which there are few. A way is
//! as old as the generation of the network's configuration and MAC table (the crate's essay, 3): under
//! another one its verdicts are forgotten, which is a number in the way, and in each verdict.

use std::collections::HashMap;

use crate::fdb::REFRESH_MS;
use crate::key::{Key, Packed};
use crate::table::Seed;

/// See the module.
#[derive(Debug)]
pub(crate) struct Pairs {
    sets: Box<[Set]>,
    /// See [`Pairs::stay_ms`], in units of [`What::UNIT_MS`].
    stay_units: u32,
    seed: Seed,
    /// The first is none.
    ways: Vec<Way>,
    /// The number of each, by lane and verdict: for when a verdict is remembered.
    numbers: HashMap<(u32, Packed), u16>,
    /// The number asked for last, as the next one often is the same.
    recent: u16,
    /// Which of four verdicts makes room for another the next time.
    turn: usize,
}

/// What is looked for of a frame, and where: as long as there is no other room.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// See [`Key::thirds`].
    thirds: [u32; 3],
    /// See [`Key::lane`].
    lane: u32,
    at: usize,
}

/// What is known under one generation, at one time.
pub(crate) struct Under<'a> {
    sets: &'a [Set],
    ways: &'a [Way],
    generation: u64,
    /// See [`What::is_fresh`].
    next: u32,
    units: u32,
}

/// Which places there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    seed: Seed,
    mask: usize,
}

/// One cache line: addresses, in thirds, and what is known about them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Set {
    thirds: [[u32; Set::PLACES]; 3],
    what: [u32; Set::PLACES],
}

/// What frames of one port and VLAN have in common that get one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    /// See [`Key::lane`].
    lane: u32,
    verdict: Packed,
    /// Under which that is so; 0 never is one.
    generation: u64,
    /// How often that changed.
    epoch: u32,
}

/// Of a remembered verdict, packed: the number of its way (16 bits), the way's epoch (8 bits), and the source's
/// stamp (8 bits, in units of [`What::UNIT_MS`]). 0: nothing is known.
///
/// Stamps come round after 65 s: what was not asked for longer than that may count as new once more, if
/// nothing in its network has changed. Its verdict is right then; the source is stamped a little later.
#[derive(Clone, Copy, Debug)]
struct What(u32);

/// What remembering a verdict took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// It was known before a change, or some time ago.
    Again,
    /// A place that was free.
    Room,
    /// The place of another that counted still.
    Instead,
}

/// Room for the verdicts that a [`Cache`](crate::Cache) remembers: 16 bytes for each.
#[derive(Debug)]
pub struct Room(Box<[Set]>);

impl Room {
    /// Most verdicts there is room for.
    pub const MOST: usize = 1 << 22;

    /// Room for so many verdicts, rounded up to a power of two, at least 4 and at most [`Room::MOST`]. All
    /// of its memory is there when this returns, for which large ones take some milliseconds.
    pub fn new(verdicts: usize) -> Self {
        let sets = verdicts.min(Self::MOST).div_ceil(Set::PLACES).max(1).next_power_of_two();
        let mut empty = Vec::with_capacity(sets);
        sys::prefer_huge_pages(empty.spare_capacity_mut());
        empty.resize(sets, Set::default());
        Self(empty.into())
    }
}

impl Spot {
    /// Of a frame that nobody announced, and of those that are always worked out. Nothing is known there.
    pub const NONE: Self = Self { thirds: [0; 3], lane: 0, at: usize::MAX };

    /// There is one.
    #[inline(always)]
    pub fn is_some(&self) -> bool {
        self.at != Self::NONE.at
    }

    #[inline(always)]
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The first half of the key.
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        let [a, b, _] = self.thirds;
        u64::from(a) | u64::from(b) << 32
    }
}

impl Under<'_> {
    /// The verdict, if it is known.
    #[inline(always)]
    pub(crate) fn get(&self, spot: &Spot) -> Option<Packed> {
        let what = self.sets.get(spot.at)?.find(&spot.thirds);
        let way = self.ways.get(what.way())?;
        let is = way.lane == spot.lane
            && way.generation == self.generation
            && way.epoch == what.epoch()
            && what.is_fresh(self.next, self.units);
        is.then_some(way.verdict)
    }
}

impl Plan {
    #[inline(always)]
    pub(crate) fn spot(&self, key: Key) -> Spot {
        let (first, second) = key.halves();
        let at = self.seed.hash(first, second) & self.mask;
        Spot { thirds: key.thirds(), lane: key.lane(), at }
    }
}

impl Set {
    const PLACES: usize = 4;

    /// What is known about these addresses. They are compared with all at once: written so that the compiler
    /// takes vectors, and no branch for each.
    #[inline(always)]
    fn find(&self, [a, b, c]: &[u32; 3]) -> What {
        let same = |column: [u32; Self::PLACES], part: &u32| {
            column.map(|word| if word == *part { u32::MAX } else { 0 })
        };
        let [first, second, third] = self.thirds;
        let [[p, q, r, s], [e, f, g, h], [i, j, k, l]] =
            [same(first, a), same(second, b), same(third, c)];
        let [w, x, y, z] = self.what;
        What(w & p & e & i | x & q & f & j | y & r & g & k | z & s & h & l)
    }

    /// The place of these addresses.
    fn place(&self, [a, b, c]: [u32; 3]) -> Option<usize> {
        let [first, second, third] = &self.thirds;
        let mut places = first.iter().zip(second).zip(third);
        places.position(|((first, second), third)| (*first, *second, *third) == (a, b, c))
    }

    fn put(&mut self, place: usize, thirds: [u32; 3], What(what): What) {
        let columns = self.thirds.iter_mut().chain([&mut self.what]);
        for (column, word) in columns.zip(thirds.into_iter().chain([what])) {
            if let Some(at) = column.get_mut(place) {
                *at = word;
            }
        }
    }
}

const _: () = assert!(REFRESH_MS.is_multiple_of(What::UNIT_MS));

impl What {
    const UNIT_MS: u64 = 256;
    const STAMPS: u32 = 1 << 8;
    const EPOCHS: u32 = 1 << 8;
    const WAYS: usize = 1 << 16;

    fn new(way: u16, epoch: u32, stamp: u32) -> Self {
        Self(u32::from(way) << 16 | epoch << 8 | stamp)
    }

    #[inline]
    fn way(self) -> usize {
        (self.0 >> 16) as usize
    }

    #[inline]
    fn epoch(self) -> u32 {
        self.0 / Self::STAMPS % Self::EPOCHS
    }

    /// Whether the stamp is less than so many units old: it was rounded up, so what is not fresh is at least as old, and
    /// its source is stamped anew.
    #[inline]
    fn is_fresh(self, next: u32, units: u32) -> bool {
        next.wrapping_sub(self.0) % Self::STAMPS <= units
    }

    /// The stamp of the unit after this time, and more: for [`What::is_fresh`].
    #[inline]
    fn next(now_ms: u64) -> u32 {
        ((now_ms / Self::UNIT_MS) as u32).wrapping_add(1)
    }

    fn stamp(ms: u64) -> u32 {
        (ms.div_ceil(Self::UNIT_MS) % u64::from(Self::STAMPS)) as u32
    }
}

impl Pairs {
    /// Up to so many verdicts, each is looked up anew after a second; of more, after half a minute.
    pub(crate) const FEW: usize = 8192;

    pub(crate) fn new(Room(sets): Room) -> Self {
        let way = Way { lane: 0, verdict: Packed::DEFAULT, generation: 0, epoch: 0 };
        let (seed, numbers) = (Seed::random(), HashMap::new());
        let mut pairs =
            Self { sets, stay_units: 0, seed, ways: vec![way], numbers, recent: 0, turn: 0 };
        pairs.stay_units = (pairs.stay_ms() / What::UNIT_MS) as u32;
        pairs
    }

    /// How many verdicts there is room for.
    pub(crate) fn room(&self) -> usize {
        self.sets.len() * Set::PLACES
    }

    /// How long a verdict counts without looking at the source, milliseconds, and up to two units more: a
    /// multiple of them.
    pub(crate) fn stay_ms(&self) -> u64 {
        if self.room() > Self::FEW { 32 * REFRESH_MS } else { REFRESH_MS }
    }

    /// Another room for them, which is empty; returns the one there was.
    pub(crate) fn furnish(&mut self, Room(sets): Room) -> Room {
        let before = std::mem::replace(&mut self.sets, sets);
        self.stay_units = (self.stay_ms() / What::UNIT_MS) as u32;
        Room(before)
    }

    /// As long as there is no other room.
    #[inline(always)]
    pub(crate) fn plan(&self) -> Plan {
        Plan { seed: self.seed, mask: self.sets.len() - 1 }
    }

    /// Has what is known there fetched.
    #[inline(always)]
    pub(crate) fn fetch(&self, spot: &Spot) {
        sys::prefetch::read(self.sets.as_ptr().wrapping_add(spot.at));
    }

    /// To read verdicts that are known under this generation.
    #[inline(always)]
    pub(crate) fn under(&self, generation: u64, now_ms: u64) -> Under<'_> {
        let Self { sets, ways, stay_units, .. } = self;
        Under { sets, ways, generation, next: What::next(now_ms), units: *stay_units }
    }

    /// The verdict, if it is known under this generation.
    #[inline(always)]
    pub(crate) fn get(&self, spot: &Spot, generation: u64, now_ms: u64) -> Option<Packed> {
        self.under(generation, now_ms).get(spot)
    }

    /// Remembers a verdict that was worked out under this generation.
    pub(crate) fn remember(
        &mut self,
        Spot { thirds, lane, at }: Spot,
        generation: u64,
        verdict: Packed,
        (stamp_ms, now_ms): (u64, u64),
    ) -> Kept {
        let way = self.way(lane, verdict, generation);
        let epoch = self.ways.get(usize::from(way)).map_or(0, |way| way.epoch);
        let what = What::new(way, epoch, What::stamp(stamp_ms));
        let Some(set) = self.sets.get(at) else { return Kept::Instead };
        let counts = |what: &u32| self.counts(What(*what), lane, generation, now_ms);
        let free = set.what.iter().position(|what| !counts(what));
        let (place, kept) = match (set.place(thirds), free) {
            (Some(same), _) if set.what.get(same) != Some(&0) => (same, Kept::Again),
            (_, Some(free)) => (free, Kept::Room),
            (_, None) => {
                self.turn += 1;
                (self.turn % Set::PLACES, Kept::Instead)
            }
        };
        if let Some(set) = self.sets.get_mut(at) {
            set.put(place, thirds, what);
        }
        kept
    }

    /// Whether that may count still.
    fn counts(&self, what: What, lane: u32, generation: u64, now_ms: u64) -> bool {
        let Some(way) = self.ways.get(what.way()) else { return false };
        way.generation != 0
            && (way.generation == generation || way.lane != lane)
            && way.epoch == what.epoch()
            && what.is_fresh(What::next(now_ms), self.stay_units)
    }

    /// The number of a way under this generation.
    fn way(&mut self, lane: u32, verdict: Packed, generation: u64) -> u16 {
        let is = |way: &&Way| (way.lane, way.verdict, way.generation != 0) == (lane, verdict, true);
        let number = match self.ways.get(usize::from(self.recent)).filter(is) {
            Some(_) => Some(self.recent),
            None => self.numbers.get(&(lane, verdict)).copied(),
        };
        if let Some(number) = number
            && let Some(way) = self.ways.get_mut(usize::from(number))
        {
            self.recent = number;
            if way.generation == generation {
                return number;
            }
            if way.epoch + 1 < What::EPOCHS {
                (way.generation, way.epoch) = (generation, way.epoch + 1);
                return number;
            }
        }
        if self.ways.len() == What::WAYS {
            // None of them are known by a number any more.
            self.ways.truncate(1);
            self.numbers.clear();
            self.sets.fill(Set::default());
        }
        let number = self.ways.len() as u16;
        self.ways.push(Way { lane, verdict, generation, epoch: 0 });
        self.numbers.insert((lane, verdict), number);
        self.recent = number;
        number
    }
}

#[cfg(test)]
mod tests;
