//! An open-addressing table from 64-bit keys to 32-bit values with a stamp: any number of readers
//! without locks, one writer at a time.
//!
//! A slot's key is written once, after its value, and never changed or cleared; zero in the value
//! means "removed". A reader that finds its key therefore reads a value about that key, in one
//! atomic load. The stamp is everybody's to write, whatever becomes of the value meanwhile. The
//! writer's owner replaces the whole table when [`Table::is_crowded`] says so; that is also where
//! removed keys go.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use sys::Quad;

/// A reader's or writer's place in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'t> {
    pub(crate) value: &'t AtomicU32,
    pub(crate) stamp: &'t AtomicU32,
}

impl Slot<'_> {
    /// Writer only: another value; the stamp first.
    pub(crate) fn store(self, value: u32, stamp: u32) {
        self.stamp.store(stamp, Ordering::Relaxed);
        self.value.store(value, Ordering::Release);
    }
}

/// One cache line: nearly always all that a look-up reads.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Bucket {
    keys: Quad,
    values: [AtomicU32; Quad::KEYS],
    stamps: [AtomicU32; Quad::KEYS],
}

impl Bucket {
    const SLOTS: usize = Quad::KEYS;

    /// The slot with this key. It is compared with all, so that no branch depends on the place.
    #[inline(always)]
    fn find(&self, key: u64) -> Option<Slot<'_>> {
        self.slot(self.keys.find(key)?)
    }

    #[inline(always)]
    fn slot(&self, n: usize) -> Option<Slot<'_>> {
        Some(Slot { value: self.values.get(n)?, stamp: self.stamps.get(n)? })
    }

    /// The slots that hold something, with their keys.
    fn iter(&self) -> impl Iterator<Item = (u64, Slot<'_>)> {
        (0..Self::SLOTS).filter_map(|n| {
            let (key, slot) = (self.keys.get(n), self.slot(n)?);
            (key != 0 && slot.value.load(Ordering::Relaxed) != 0).then_some((key, slot))
        })
    }
}

/// Two random numbers that keep a guest from choosing addresses which all fall into one place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u64, u64);

impl Seed {
    pub(crate) fn random() -> Self {
        use std::hash::BuildHasher;
        // The standard library's hasher is keyed from the system's random numbers.
        let source = std::hash::RandomState::new();
        Self(source.hash_one(1u8), source.hash_one(2u8))
    }

    /// Multiply and fold, keyed, once: for what does not count up in rows.
    #[inline]
    pub(crate) fn hash_once(self, a: u64, b: u64) -> usize {
        fold(a ^ self.0, b ^ self.1) as usize
    }

    /// Multiply and fold, keyed, twice: once leaves addresses that count up in rows, and rows are
    /// what linear probing suffers from.
    #[inline]
    pub(crate) fn hash(self, a: u64, b: u64) -> usize {
        let once = fold(a ^ self.0, b ^ self.1);
        fold(once ^ self.0, 0x9e37_79b9_7f4a_7c15) as usize
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ (wide >> 64) as u64
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Table {
    buckets: Box<[Bucket]>,
    seed: Seed,
    /// Slots with a key. Changed by the writer only.
    used: AtomicU64,
}

impl Table {
    const BUCKETS_MIN: usize = 16;
    /// A key is at most this many buckets from its place. With half the slots free and a keyed hash
    /// a longer run does not happen by chance; should it, the key is not stored, and another table
    /// has another seed.
    const PROBES_MAX: usize = 32;

    /// An empty table with room for `entries` keys before it is crowded, and as many again.
    pub(crate) fn with_room_for(entries: usize) -> Self {
        let buckets = entries.saturating_mul(4).div_ceil(Bucket::SLOTS).next_power_of_two();
        let mut empty = Vec::with_capacity(buckets.max(Self::BUCKETS_MIN));
        sys::prefer_huge_pages(empty.spare_capacity_mut());
        empty.resize_with(empty.capacity(), Bucket::default);
        Self { buckets: empty.into(), seed: Seed::random(), used: AtomicU64::new(0) }
    }

    #[inline]
    fn probe(&self, key: u64) -> impl Iterator<Item = &Bucket> {
        let mask = self.buckets.len() - 1;
        let home = self.seed.hash(key, 0);
        (0..Self::PROBES_MAX)
            .filter_map(move |step| self.buckets.get(home.wrapping_add(step) & mask))
    }

    /// Has the place where a key is, most probably, fetched.
    #[inline]
    pub(crate) fn fetch(&self, key: u64) {
        let place = self.seed.hash(key, 0) & (self.buckets.len() - 1);
        sys::prefetch::read(self.buckets.as_ptr().wrapping_add(place));
    }

    /// The slot of a key, 0 in its value if it was removed.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<Slot<'_>> {
        for bucket in self.probe(key) {
            if let Some(slot) = bucket.find(key) {
                return Some(slot);
            }
            if bucket.keys.find(0).is_some() {
                return None;
            }
        }
        None
    }

    /// Writer only: stores a value (not 0) and a stamp under a key (its lower half not 0). False if the table has no
    /// place for it.
    pub(crate) fn insert(&self, key: u64, value: u32, stamp: u32) -> bool {
        for bucket in self.probe(key) {
            if let Some(slot) = bucket.find(key) {
                slot.store(value, stamp);
                return true;
            }
            if let Some(free) = bucket.keys.find(0)
                && let Some(slot) = bucket.slot(free)
            {
                // Value before key: who sees the key sees this value or a later one.
                slot.store(value, stamp);
                bucket.keys.set(free, key);
                self.used.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// All keys with a value, and their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Slot<'_>)> {
        self.buckets.iter().flat_map(Bucket::iter)
    }

    fn slots(&self) -> usize {
        self.buckets.len() * Bucket::SLOTS
    }

    /// Half of the slots have keys: probes get longer from here on.
    pub(crate) fn is_crowded(&self) -> bool {
        self.used.load(Ordering::Relaxed) * 2 >= self.slots() as u64
    }

    /// Most of the way to being crowded, or much larger than `entries` need.
    pub(crate) fn wants_rebuild(&self, entries: usize) -> bool {
        let slots = self.slots();
        let used = self.used.load(Ordering::Relaxed);
        used * 8 >= slots as u64 * 3
            || (self.buckets.len() > Self::BUCKETS_MIN && entries.saturating_mul(32) < slots)
    }
}

#[cfg(test)]
mod tests;
