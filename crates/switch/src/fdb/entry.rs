//! An entry of the MAC table: its key, and its value with its stamp.

use std::sync::atomic::Ordering;

use packet::Mac;

use super::REFRESH_MS;
use crate::PortId;
use crate::table::Slot;

/// A table key: address (its first byte in the lower bits, as it is in a frame), and below it FID and a
/// bit that keeps the lower half from being zero.
#[inline]
pub(crate) fn key(fid: u16, mac: Mac) -> u64 {
    let Mac([a, b, c, d, e, f]) = mac;
    u64::from_le_bytes([0, 0, a, b, c, d, e, f]) | u64::from(fid & 0xfff) | 1 << 12
}

/// The address in a key.
pub(crate) fn mac_of(key: u64) -> Mac {
    let [_, _, a, b, c, d, e, f] = key.to_le_bytes();
    Mac([a, b, c, d, e, f])
}

/// The FID in a key.
pub(super) fn fid_of(key: u64) -> u16 {
    key as u16 & 0xfff
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
    const LIVE: u32 = 1 << 16;
    const FIXED: u32 = 1 << 17;

    pub(super) fn new(port: PortId, fixed: bool, now_ms: u64) -> Self {
        let fixed = if fixed { Self::FIXED } else { 0 };
        Self { word: u32::from(port.0) | Self::LIVE | fixed, stamp: now_ms as u32 }
    }

    #[inline]
    pub(super) fn of(slot: Slot<'_>) -> Self {
        let word = slot.value.load(Ordering::Acquire);
        Self { word, stamp: slot.stamp.load(Ordering::Relaxed) }
    }

    pub(super) fn live(self) -> Option<Self> {
        (self.word & Self::LIVE != 0).then_some(self)
    }

    /// Whether it is live, and this is its port.
    #[inline]
    pub(super) fn is_behind(self, port: PortId) -> bool {
        self.word & (Self::LIVE | 0xffff) == Self::LIVE | u32::from(port.0)
    }

    pub(super) fn port(self) -> PortId {
        PortId(self.word as u16)
    }

    pub(super) fn fixed(self) -> bool {
        self.word & Self::FIXED != 0
    }

    /// Since the stamp, in milliseconds; a stamp from another worker's later clock reading counts as
    /// now.
    pub(super) fn age(self, now_ms: u64) -> u64 {
        let age = (now_ms as u32).wrapping_sub(self.stamp).cast_signed();
        age.max(0).cast_unsigned().into()
    }
}

/// Stamps an entry that is in use, at most once in [`REFRESH_MS`]; returns the stamp it has now. If it
/// is removed meanwhile, the next frame makes it known again. A static one has no age: its stamp, which may
/// be older than stamps can tell, counts as now.
#[inline]
pub(super) fn refresh(slot: Slot<'_>, value: Value, now_ms: u64) -> u32 {
    if value.fixed() {
        return now_ms as u32;
    }
    if value.age(now_ms) < REFRESH_MS {
        return value.stamp;
    }
    slot.stamp.store(now_ms as u32, Ordering::Relaxed);
    now_ms as u32
}
