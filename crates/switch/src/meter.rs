//! How much may pass: a rate with a burst.
//!
//! The generic cell rate algorithm (ITU-T I.371): one word says when all that passed would have
//! been sent at the rate. Any number of workers share a meter; time is an argument, in nanoseconds
//! of a clock that all of them share. What is over the rate does not pass: nothing waits here.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
pub struct Meter {
    /// Mbit/s.
    rate: u64,
    /// How far `due` may be ahead of the time, in parts of a nanosecond.
    burst: u64,
    /// When the last that passed is over at this rate, in parts of a nanosecond.
    due: AtomicU64,
}

/// Parts of a nanosecond: at 1 Tbit/s a byte takes a third of one.
const PARTS: u64 = 16;

impl Meter {
    /// Highest rate, Mbit/s.
    pub const RATE_MAX: u32 = 1_000_000;
    /// After a pause so much passes at once as takes this long at the rate, nanoseconds.
    pub const BURST_NS: u64 = 20_000_000;

    /// A meter of so many Mbit/s (1 to [`Meter::RATE_MAX`]).
    #[must_use]
    pub fn new(rate: u32) -> Self {
        let rate = u64::from(rate.clamp(1, Self::RATE_MAX));
        Self { rate, burst: Self::BURST_NS * PARTS, due: AtomicU64::new(0) }
    }

    /// Whether `bytes` may pass now; they are on the account then. The last of a burst may be of any
    /// length: what it is over the burst, those after it wait for.
    #[inline]
    pub fn take(&self, bytes: usize, now_ns: u64) -> bool {
        let now = now_ns.saturating_mul(PARTS);
        let cost = (bytes as u64 * 8 * 1000 * PARTS + self.rate / 2) / self.rate;
        let pass = |due: u64| {
            (due <= now.saturating_add(self.burst)).then(|| due.max(now).saturating_add(cost))
        };
        self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pass).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// As a bucket that is filled at the rate, up to a burst, and may be overdrawn by one frame.
        #[test]
        fn it_is_a_bucket_of_tokens(
            rate in prop_oneof![1u32..100, 1u32..=Meter::RATE_MAX],
            frames in prop::collection::vec(
                (prop_oneof![0u64..1000, 0u64..30_000_000], 60usize..65_600), 1..400),
        ) {
            let meter = Meter::new(rate);
            let rate = i128::from(rate);
            // Thousandths of a bit: so many come in a nanosecond as the rate is.
            let full = i128::from(Meter::BURST_NS) * rate;
            // Not from the beginning of time: there is a burst for everybody.
            let (mut now, mut tokens, mut unsure) = (1_000_000_000, full, rate);
            for (wait, bytes) in frames {
                now += wait;
                tokens = full.min(tokens + i128::from(wait) * rate);
                let passes = meter.take(bytes, now);
                prop_assert!(
                    passes == (tokens >= 0) || tokens.abs() <= unsure,
                    "{passes} with {tokens}, {bytes} bytes",
                );
                if passes {
                    tokens -= bytes as i128 * 8000;
                    unsure += rate;
                }
            }
        }
    }

    #[test]
    fn a_frame_longer_than_the_burst_passes_and_is_paid_for() {
        let meter = Meter::new(1);
        let second = 1_000_000_000;
        assert!(meter.take(65_535, second));
        // Half a second at 1 Mbit/s, less the burst.
        assert!(!meter.take(60, second + 500_000_000));
        assert!(meter.take(60, second + 505_000_000));
    }

    #[test]
    fn the_end_of_time_is_no_fault() {
        let meter = Meter::new(u32::MAX);
        assert!(meter.take(usize::MAX >> 20, u64::MAX));
        assert!(meter.take(60, u64::MAX));
    }
}
