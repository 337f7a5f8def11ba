//! What is counted of a queue.
//!
//! Every block has exactly one writer at a time: the worker that owns the queue. So a counter is
//! advanced by a load and a store; readers on any thread see whole, slightly old values. They sum
//! the queues of a disk up in [`Totals`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::request::{Command, Refusal};

/// Upper bounds of the latency buckets, in microseconds, inclusive; one more bucket is for all above.
pub const LATENCY_BOUNDS_US: [u64; 20] = [
    5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];
/// Buckets of a latency histogram.
pub const BUCKETS: usize = LATENCY_BOUNDS_US.len() + 1;
const KINDS: usize = Kind::ALL.len();
const REASONS: usize = Refusal::ALL.len();

/// What operations are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// VIRTIO_BLK_T_IN.
    Read,
    /// VIRTIO_BLK_T_OUT.
    Write,
    /// VIRTIO_BLK_T_FLUSH.
    Flush,
    /// VIRTIO_BLK_T_DISCARD.
    Discard,
    /// VIRTIO_BLK_T_WRITE_ZEROES.
    WriteZeroes,
    /// VIRTIO_BLK_T_GET_ID.
    GetId,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 6] =
        [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes, Self::GetId];

    /// The stable, kebab-case name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write-zeroes",
            Self::GetId => "get-id",
        }
    }
}

impl Command<'_, '_> {
    /// What it is counted by.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Read { .. } => Kind::Read,
            Self::Write { .. } => Kind::Write,
            Self::Flush => Kind::Flush,
            Self::Discard { .. } => Kind::Discard,
            Self::WriteZeroes { .. } => Kind::WriteZeroes,
            Self::GetId { .. } => Kind::GetId,
        }
    }

    /// Bytes it moves, reads, or clears: for [`Counters::done`].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Read { data, .. } | Self::Write { data, .. } | Self::GetId { data } => data.len(),
            Self::Flush => 0,
            Self::Discard { ranges } | Self::WriteZeroes { ranges, .. } => {
                ranges.iter().map(|range| u64::from(range.sectors) * crate::SECTOR).sum()
            }
        }
    }
}

/// One counter.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the block's one writer calls this.
    #[inline]
    fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Of one kind of operation.
#[derive(Debug, Default)]
struct PerKind {
    bytes: Counter,
    failed: Counter,
    latency_ns: Counter,
    /// Their sum is the number of operations.
    latency: [Counter; BUCKETS],
}

/// Counters of one queue of a disk, on its own cache lines.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Counters {
    kinds: [PerKind; KINDS],
    refused: [Counter; REASONS],
}

impl Counters {
    /// An operation on so many bytes ended, well or not, so many nanoseconds after its chain was
    /// popped. Bytes of those that failed do not count.
    pub fn done(&self, kind: Kind, bytes: u64, latency_ns: u64, ok: bool) {
        let Some(of) = self.kinds.get(kind as usize) else { return };
        if ok {
            of.bytes.add(bytes);
        } else {
            of.failed.add(1);
        }
        of.latency_ns.add(latency_ns);
        if let Some(bucket) = of.latency.get(bucket(latency_ns)) {
            bucket.add(1);
        }
    }

    /// A request was refused.
    pub fn refused(&self, why: Refusal) {
        if let Some(counter) = self.refused.get(why as usize) {
            counter.add(1);
        }
    }

    /// Adds what was counted here to `sum`.
    pub fn add_to(&self, sum: &mut Totals) {
        for (of, sum) in self.kinds.iter().zip(&mut sum.kinds) {
            sum.bytes += of.bytes.get();
            sum.failed += of.failed.get();
            sum.latency_ns = sum.latency_ns.wrapping_add(of.latency_ns.get());
            for (bucket, sum) in of.latency.iter().zip(&mut sum.latency) {
                *sum += bucket.get();
            }
        }
        for (counter, sum) in self.refused.iter().zip(&mut sum.refused) {
            *sum += counter.get();
        }
    }
}

/// The bucket of a latency: the first whose bound is not below it.
fn bucket(latency_ns: u64) -> usize {
    LATENCY_BOUNDS_US.partition_point(|bound| bound * 1_000 < latency_ns)
}

/// Sums over the queues of a disk, since they started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// By [`Kind::ALL`].
    pub kinds: [KindTotals; KINDS],
    /// Requests not carried out, by [`Refusal::ALL`].
    pub refused: [u64; REASONS],
}

/// Sums over one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindTotals {
    /// Bytes moved, discarded or cleared by those that succeeded.
    pub bytes: u64,
    /// Operations that the image could not carry out.
    pub failed: u64,
    /// Time from pop to completion, all together, in nanoseconds.
    pub latency_ns: u64,
    /// Operations, failed ones too, by time: bucket `i` up to [`LATENCY_BOUNDS_US`]`[i]`, the last
    /// for all above. Not cumulative.
    pub latency: [u64; BUCKETS],
}

impl KindTotals {
    /// Operations that ended, failed ones too.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.latency.iter().sum()
    }
}

#[cfg(test)]
mod tests;
