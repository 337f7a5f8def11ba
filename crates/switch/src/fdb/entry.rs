//! An entry of the MAC table: its key, and its value with its stamp.

use std::sync::atomic::Ordering;

use packet::Mac;

use super::REFRESH_MS;
use crate::PortId;
use crate::table::Slot;

/// A table key: address (its first byte in the lowest bits, as it is in a frame), FID, and a bit that
/// keeps it from being zero.
#[inline]
pub(crate) fn key(fid: u16, mac: Mac) -> u64 {
    let Mac([a, b, c, d, e, f]) = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | rest_of_key(fid)
}

/// What is in a key besides the address.
#[inline]
pub(crate) fn rest_of_key(fid: u16) -> u64 {
    u64::from(fid & 0xfff) << 48 | 1 << 60
}

/// The address in a key.
pub(crate) fn mac_of(key: u64) -> Mac {
    let [a, b, c, d, e, f, ..] = key.to_le_bytes();
    Mac([a, b, c, d, e, f])
}

/// The value of an entry: port (bits 0..16), live (16), static (17); and when it was heard of last, in
/// milliseconds, the low half: an entry is removed long before that comes round, after 49 days.
///
/// The stamp is apart, so that to refresh it takes a store and no exchange: a locked instruction waits
/// for all stores before it, and where there are many addresses every few frames refresh one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) word: u32,
    pub(super) stamp: u32,
}

impl Value {
    pub(super) const REMOVED: u32 = 0;

    pub(super) fn new(port: PortId, fixed: bool, now_ms: u64) -> Self {
        let word = u32::from(port.0) | 1 << 16 | u32::from(fixed) << 17;
        Self { word, stamp: now_ms as u32 }
    }

    #[inline]
    pub(super) fn of(slot: &Slot) -> Self {
        let word = slot.value.load(Ordering::Acquire);
        Self { word, stamp: slot.stamp.load(Ordering::Relaxed) }
    }

    pub(super) fn live(self) -> Option<Self> {
        (self.word >> 16 & 1 == 1).then_some(self)
    }

    pub(super) fn port(self) -> PortId {
        PortId(self.word as u16)
    }

    pub(super) fn fixed(self) -> bool {
        self.word >> 17 & 1 == 1
    }

    /// Since the stamp, in milliseconds; a stamp from another worker's later clock reading counts as
    /// now.
    pub(super) fn age(self, now_ms: u64) -> u64 {
        let age = (now_ms as u32).wrapping_sub(self.stamp).cast_signed();
        age.max(0).cast_unsigned().into()
    }
}

/// Whether a source is behind this port. It was seen now.
#[inline]
pub(crate) fn is_seen(slot: &Slot, port: PortId, now_ms: u64) -> bool {
    let value = Value::of(slot);
    let is = value.live().is_some() && value.port() == port;
    if is {
        refresh(slot, value, now_ms);
    }
    is
}

/// The port that the address of this slot is behind.
#[inline]
pub(crate) fn port_of(slot: &Slot) -> Option<PortId> {
    Value::of(slot).live().map(Value::port)
}

/// Stamps an entry that is in use, at most once in [`REFRESH_MS`]; returns the stamp it has now. If it
/// is removed meanwhile, the next frame makes it known again.
#[inline]
pub(super) fn refresh(slot: &Slot, value: Value, now_ms: u64) -> u32 {
    if value.fixed() {
        return now_ms as u32;
    }
    if value.age(now_ms) < REFRESH_MS {
        return value.stamp;
    }
    slot.stamp.store(now_ms as u32, Ordering::Relaxed);
    now_ms as u32
}
