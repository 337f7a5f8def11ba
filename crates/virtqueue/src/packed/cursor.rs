//! Where in a packed ring something is, and whose turn a descriptor there is.

use super::MARKS;
use crate::desc::{AVAIL, DESC_SIZE, USED};

/// Where the wrap counter is in a 16-bit position, here and in the vring base.
const WRAP: u16 = 1 << 15;

/// A place in the ring: a slot, and the marks that descriptors made available in this lap carry.
///
/// One word, stored and loaded as a whole: see [`crate::count`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor(pub(super) u32);

impl Cursor {
    #[inline]
    pub(super) fn new(index: u16, mark: u16) -> Self {
        Self(u32::from(index) | u32::from(mark) << 16)
    }

    #[inline]
    pub(super) fn from_bits(bits: u16) -> Self {
        Self::new(bits & !WRAP, if bits & WRAP != 0 { AVAIL } else { USED })
    }

    #[inline]
    pub(super) fn bits(self) -> u16 {
        // AVAIL, which is set with wrap counter 1, is bit 7.
        self.index() | (self.mark() & AVAIL) << 8
    }

    #[inline]
    pub(super) fn index(self) -> u16 {
        self.0 as u16
    }

    /// [`AVAIL`] with wrap counter 1, [`USED`] with 0.
    #[inline]
    pub(super) fn mark(self) -> u16 {
        (self.0 >> 16) as u16
    }

    #[inline]
    pub(super) fn wrap(self) -> bool {
        self.mark() == AVAIL
    }

    #[inline]
    pub(super) fn offset(self) -> usize {
        usize::from(self.index()) * DESC_SIZE
    }

    /// `count` slots on, at most one lap.
    #[inline]
    pub(super) fn advanced(self, count: u16, size: u16) -> Self {
        // Nothing is carried to the mark: both are at most 2^15, and the slot is less than that.
        let on = Self(self.0 + u32::from(count));
        if on.index() < size { on } else { Self(on.0 - u32::from(size)).next_lap() }
    }

    /// The same slot, one lap on.
    #[inline]
    pub(super) fn next_lap(self) -> Self {
        Self(self.0 ^ u32::from(MARKS) << 16)
    }

    /// The slot before.
    pub(super) fn preceding(self, size: u16) -> Self {
        match self.index().checked_sub(1) {
            Some(index) => Self::new(index, self.mark()),
            None => Self::new(size - 1, self.mark() ^ MARKS),
        }
    }

    /// Whether flags are those of a descriptor made available in this lap.
    #[inline]
    pub(super) fn is_available(self, flags: u16) -> bool {
        flags & MARKS == self.mark()
    }

    /// Flags of a descriptor used in this lap.
    #[inline]
    pub(super) fn used_flags(self) -> u16 {
        if self.wrap() { MARKS } else { 0 }
    }
}
