//! Counters with one writer.
//!
//! Every block has exactly one writer at a time: the worker that owns the queue, or whoever holds
//! the queue's lock. So a counter is advanced by a load and a store, which costs what an ordinary
//! addition costs; readers on any thread see whole, slightly old values.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use switch::DropReason;

use crate::status::Traffic;

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the block's one writer calls this.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Becomes `n`. Only the block's one writer calls this.
    #[inline]
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Number of drop reasons.
const REASONS: usize = DropReason::ALL.len();

/// Counters of one queue of a port, on its own cache lines.
#[repr(align(128))]
#[derive(Debug, Default)]
pub(crate) struct QueueCounters {
    pub(crate) frames: Counter,
    pub(crate) bytes: Counter,
    pub(crate) gso_frames: Counter,
    pub(crate) csum_completed: Counter,
    pub(crate) segmented: Counter,
    pub(crate) segments: Counter,
    pub(crate) flood_copies: Counter,
    pub(crate) kicks: Counter,
    pub(crate) interrupts: Counter,
    pub(crate) deferred: Counter,
    drops: [Counter; REASONS],
}

impl QueueCounters {
    /// Counts `n` frames not delivered for `reason`.
    #[inline]
    pub(crate) fn drop(&self, reason: DropReason, n: u64) {
        if let Some(counter) = self.drops.get(reason as usize) {
            counter.add(n);
        }
    }

    /// Frames not delivered for `reason`.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.get(reason as usize).map_or(0, Counter::get)
    }

    /// Adds what was counted here to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Traffic) {
        sum.frames += self.frames.get();
        sum.bytes += self.bytes.get();
        sum.gso_frames += self.gso_frames.get();
        sum.csum_completed += self.csum_completed.get();
        sum.segmented += self.segmented.get();
        sum.segments += self.segments.get();
    }
}
