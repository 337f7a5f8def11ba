//! When a worker that finds nothing goes on polling, and when it sleeps.
//!
//! A pure function of what was observed: time comes in, a decision goes out. Polling goes on for a
//! bounded time after the last frame (the next one usually follows soon, and a wake-up costs tens
//! of microseconds); after that the worker arms notifications and sleeps.

use std::time::{Duration, Instant};

/// What an idle worker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Look again.
    Poll,
    /// Arm notifications and sleep.
    Sleep,
}

/// Polling state of one worker.
#[derive(Debug)]
pub(crate) struct Pace {
    budget: Duration,
    idle_since: Option<Instant>,
}

impl Pace {
    /// Polls for `budget` after the last frame.
    pub(crate) fn new(budget: Duration) -> Self {
        Self { budget, idle_since: None }
    }

    /// A pass found work.
    #[inline]
    pub(crate) fn busy(&mut self) {
        self.idle_since = None;
    }

    /// A pass at `now` found nothing.
    #[inline]
    pub(crate) fn idle(&mut self, now: Instant) -> Idle {
        let since = *self.idle_since.get_or_insert(now);
        if now.duration_since(since) < self.budget { Idle::Poll } else { Idle::Sleep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_for_the_budget_and_then_sleeps() {
        let mut pace = Pace::new(Duration::from_micros(50));
        let start = Instant::now();
        assert_eq!(pace.idle(start), Idle::Poll);
        assert_eq!(pace.idle(start + Duration::from_micros(49)), Idle::Poll);
        assert_eq!(pace.idle(start + Duration::from_micros(50)), Idle::Sleep);
    }

    #[test]
    fn work_starts_the_budget_anew() {
        let mut pace = Pace::new(Duration::from_micros(50));
        let start = Instant::now();
        assert_eq!(pace.idle(start), Idle::Poll);
        pace.busy();
        assert_eq!(pace.idle(start + Duration::from_micros(60)), Idle::Poll);
        assert_eq!(pace.idle(start + Duration::from_micros(110)), Idle::Sleep);
    }

    #[test]
    fn without_a_budget_it_sleeps_at_once() {
        assert_eq!(Pace::new(Duration::ZERO).idle(Instant::now()), Idle::Sleep);
    }
}
