//! The clock that all workers share.

use sys::clock::monotonic_ns;

/// Counts nanoseconds from the start of a data plane, by `CLOCK_MONOTONIC`.
///
/// One number, where [`std::time::Instant`] has two that are subtracted, borrowed and carried: a worker looks at it
/// several times for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: u64,
}

impl Clock {
    /// It is zero now.
    pub(crate) fn start() -> Clock {
        Clock { start: monotonic_ns() }
    }

    /// Nanoseconds since its start: for five centuries.
    #[inline]
    pub(crate) fn now(self) -> u64 {
        monotonic_ns() - self.start
    }
}
