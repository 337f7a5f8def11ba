//! An entry of the MAC table: its key and its value, each a word.

use std::sync::atomic::{AtomicU64, Ordering};

use packet::Mac;

use super::REFRESH_MS;
use crate::PortId;

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

/// The value word of an entry: port (bits 0..16), live (16), static (17), stamp in milliseconds
/// (24..64: thirty years).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Value(pub(super) u64);

impl Value {
    pub(super) const REMOVED: Self = Self(0);

    pub(super) fn new(port: PortId, fixed: bool, stamp: u64) -> Self {
        Self(u64::from(port.0) | 1 << 16 | u64::from(fixed) << 17 | stamp << 24)
    }

    pub(super) fn live(self) -> Option<Self> {
        (self.0 >> 16 & 1 == 1).then_some(self)
    }

    pub(super) fn port(self) -> PortId {
        PortId(self.0 as u16)
    }

    pub(super) fn fixed(self) -> bool {
        self.0 >> 17 & 1 == 1
    }

    pub(super) fn stamp(self) -> u64 {
        self.0 >> 24
    }

    /// Since the stamp; a stamp from another worker's later clock reading counts as now.
    pub(super) fn age(self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.stamp())
    }
}

/// Whether a source is behind this port. It was seen now.
#[inline]
pub(crate) fn is_seen(word: &AtomicU64, port: PortId, now_ms: u64) -> bool {
    let value = Value(word.load(Ordering::Acquire));
    let is = value.live().is_some() && value.port() == port;
    if is {
        refresh(word, value, now_ms);
    }
    is
}

/// The port that the address of this word is behind.
#[inline]
pub(crate) fn port_of(word: &AtomicU64) -> Option<PortId> {
    Value(word.load(Ordering::Acquire)).live().map(Value::port)
}

/// Stamps an entry that is in use, at most once in [`REFRESH_MS`]; returns the stamp it has now.
#[inline]
pub(super) fn refresh(word: &AtomicU64, value: Value, now_ms: u64) -> u64 {
    if value.age(now_ms) < REFRESH_MS || value.fixed() {
        return if value.fixed() { now_ms } else { value.stamp() };
    }
    let fresh = Value::new(value.port(), false, now_ms);
    // If it changed meanwhile, whoever changed it knew better.
    let _ = word.compare_exchange(value.0, fresh.0, Ordering::AcqRel, Ordering::Relaxed);
    now_ms
}
