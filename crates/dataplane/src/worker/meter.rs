//! How long a worker has been busy.
//!
//! Busy is the time from the last look that found nothing to the next one that does. The clock is
//! read anyway when a pass finds nothing and at housekeeping, so a pass with frames costs one store.

use crate::counters::Counter;

/// Measures one worker. Times are nanoseconds since any start.
#[derive(Debug)]
pub(super) struct Meter {
    /// Up to here all is counted.
    mark: u64,
    busy: bool,
}

impl Meter {
    pub(super) fn new(now: u64) -> Self {
        Self { mark: now, busy: false }
    }

    /// A pass found frames.
    #[inline]
    pub(super) fn busy(&mut self) {
        self.busy = true;
    }

    /// A pass found nothing: what has passed was busy if an earlier pass found frames.
    #[inline]
    pub(super) fn idle(&mut self, now: u64, total: &Counter) {
        self.settle(now, total);
        self.busy = false;
    }

    /// Counts what has passed while the worker goes on as it does.
    #[inline]
    pub(super) fn settle(&mut self, now: u64, total: &Counter) {
        if self.busy {
            total.add(now.saturating_sub(self.mark));
        }
        self.mark = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_with_frames_counts() {
        let total = Counter::default();
        let mut meter = Meter::new(100);
        meter.idle(200, &total);
        assert_eq!(total.get(), 0, "nothing was found yet");
        meter.busy();
        meter.busy();
        meter.settle(260, &total);
        assert_eq!(total.get(), 60, "a worker that never rests is seen as well");
        meter.busy();
        meter.idle(300, &total);
        assert_eq!(total.get(), 100);
        // It sleeps.
        meter.settle(10_000, &total);
        meter.busy();
        meter.idle(10_007, &total);
        assert_eq!(total.get(), 107);
        // The clock may be read a little late.
        meter.busy();
        meter.idle(10_000, &total);
        assert_eq!(total.get(), 107);
    }
}
