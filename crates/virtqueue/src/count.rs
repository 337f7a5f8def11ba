//! Sixteen-bit counts that are as wide as a register.

/// A free-running 16-bit count, kept in 32 bits.
///
/// Compilers load a 16-bit field together with its neighbour, as 32 bits. Behind a store to either
/// of the two a processor cannot take such a load's value from the store: it waits until that store
/// is in the cache, behind all those to guest memory before it. docs/performance.md has what that
/// cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(u32);

impl Count {
    #[inline(always)]
    pub(crate) fn new(count: u16) -> Self {
        Self(count.into())
    }

    #[inline(always)]
    pub(crate) fn get(self) -> u16 {
        self.0 as u16
    }

    /// One more.
    #[inline(always)]
    pub(crate) fn step(&mut self) {
        *self = Self::new(self.get().wrapping_add(1));
    }
}
