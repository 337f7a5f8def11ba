//! What a generator's queue does, of either ring format.
//!
//! A queue has one descriptor for each entry, written once and published again and again: entry `s`
//! is always buffer `s`. That works because every device here uses buffers in the order they were made available, which is checked: one that
//! does not is a [`RingFault`].

use std::sync::Arc;

use guestmem::{GuestMemory, RingArea};
use testkit::driver::{DriverError, RingSpec};

use super::buffers::Buffers;

/// What a device did that ends the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// Another buffer than the oldest.
    #[error(
        "the switch used buffer {got} where {expected} was next; the generator needs buffers back in order"
    )]
    OutOfOrder {
        /// What came.
        got: u32,
        /// What should have come.
        expected: u16,
    },
    /// More buffers than it had.
    #[error("the switch used {count} buffers while it had {outstanding}")]
    TooMany {
        /// Buffers it claims to have used.
        count: u16,
        /// Buffers it had.
        outstanding: u16,
    },
}

/// The driver side of one virtqueue with static descriptors.
pub trait Ring: Sized {
    /// Lays the ring out, all buffers with the driver.
    ///
    /// # Errors
    /// The ring is not in guest memory.
    fn new(mem: &Arc<GuestMemory>, spec: &RingSpec, buffers: Buffers) -> Result<Self, DriverError>;

    /// Whether the buffer after `ahead` others has been used: one look, in one cache line.
    fn used(&self, ahead: u16) -> bool;

    /// Takes back at most `max` used buffers. For each, `each` is called with the ring entry and
    /// the bytes the device wrote. What the device did wrong is in [`Ring::fault`] from then on.
    fn reap(&mut self, max: u16, each: impl FnMut(u16, u32)) -> u16;

    /// Makes the next `count` buffers available, at most [`Ring::free`].
    fn publish(&mut self, count: u16);

    /// Entry that is published next, and entry that is reaped next.
    fn position(&self) -> (u16, u16);

    /// Buffers with the driver.
    fn free(&self) -> u16;

    /// Which buffer is published after `ahead` others.
    fn upcoming(&self, ahead: u16) -> u16;

    /// Whether the device asks for a kick. To be certain, call it behind a full barrier.
    fn wants_kick(&self) -> bool;

    /// What the device did wrong.
    fn fault(&self) -> Option<RingFault>;

    /// Where the buffers are.
    fn buffers(&self) -> &Buffers;
}

/// A part of a ring.
pub(super) fn area<const ALIGN: usize>(
    mem: &Arc<GuestMemory>,
    gpa: u64,
    len: u32,
) -> Result<RingArea<ALIGN>, DriverError> {
    RingArea::new(Arc::clone(mem), gpa, len).ok_or(DriverError::Outside { gpa })
}
