//! How fast a disk may be used: token buckets for operations and for bytes.
//!
//! A pure function of the time it is given, in nanoseconds since any start. Exact: it counts in
//! billionths of a token, of which a rate of one a second brings one a nanosecond.
//!
//! **Owner.** One [`Limiter`] per disk; who admits for several workers does so under a lock.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

/// Tokens are counted in this many parts.
const PARTS: i128 = 1_000_000_000;

/// A limit: so many a second, and so many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Operations or bytes a second.
    pub per_second: NonZeroU64,
    /// Most that come at once. A single operation with more than that is not refused: it waits
    /// until the bucket is full, and those behind it until it is paid for. So in any time there are
    /// at most `per_second` times the time and this, or and the largest operation if that is more.
    pub burst: NonZeroU64,
}

/// Whether an operation may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may, and is counted.
    Now,
    /// Not before this time, in nanoseconds; it may then, unless another one was admitted first.
    At(u64),
}

/// The limits of one disk.
#[derive(Clone, Debug)]
pub struct Limiter {
    operations: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Limiter {
    /// Limits that begin at `now`, with full buckets; `None`: unlimited.
    #[must_use]
    pub fn new(operations: Option<Rate>, bytes: Option<Rate>, now: u64) -> Limiter {
        let bucket = |rate| Bucket::new(rate, now);
        Limiter { operations: operations.map(bucket), bytes: bytes.map(bucket) }
    }

    /// Whether an operation on so many bytes may start at `now`. It takes from both buckets, or
    /// from none. Flushes and discards move no bytes.
    pub fn admit(&mut self, now: u64, bytes: u64) -> Admission {
        let costs = [(&mut self.operations, 1), (&mut self.bytes, bytes)];
        let mut buckets = costs.map(|(bucket, cost)| bucket.as_mut().map(|bucket| (bucket, cost)));
        let mut start = now;
        for (bucket, cost) in buckets.iter_mut().flatten() {
            start = start.max(bucket.when(now, *cost));
        }
        if start > now {
            return Admission::At(start);
        }
        for (bucket, cost) in buckets.iter_mut().flatten() {
            bucket.take(*cost);
        }
        Admission::Now
    }
}

#[derive(Clone, Debug)]
struct Bucket {
    rate: Rate,
    /// What is in it, in parts; below zero after an operation larger than the burst.
    level: i128,
    /// When that was.
    then: u64,
}

impl Bucket {
    fn new(rate: Rate, now: u64) -> Self {
        Self { rate, level: parts(rate.burst.get()), then: now }
    }

    /// The earliest time, from `now` on, when it has enough. A time before the last one is that.
    fn when(&mut self, now: u64, cost: u64) -> u64 {
        let rate = self.rate.per_second.get();
        let full = parts(self.rate.burst.get());
        let passed = now.saturating_sub(self.then);
        let gained = u128::from(passed) * u128::from(rate);
        let missing = (full - self.level).unsigned_abs();
        self.level = if gained >= missing { full } else { self.level + gained.cast_signed() };
        self.then = self.then.max(now);
        let lacking = parts(cost).min(full) - self.level;
        if lacking <= 0 {
            return now;
        }
        let wait = lacking.unsigned_abs().div_ceil(u128::from(rate));
        self.then.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    fn take(&mut self, cost: u64) {
        self.level -= parts(cost);
    }
}

fn parts(tokens: u64) -> i128 {
    i128::from(tokens) * PARTS
}

#[cfg(test)]
mod tests;
