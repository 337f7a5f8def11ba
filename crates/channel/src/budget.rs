//! How much of the control thread's time one VM may take.

use std::time::{Duration, Instant};

/// Time spent that was not made up for yet. So the time spent since the beginning is never more than
/// a share of the time that passed, and a burst, and what was begun before the burst was used up.
#[derive(Debug)]
pub struct Budget {
    owed: Duration,
    at: Instant,
}

impl Budget {
    /// One part in so many: a quarter of one CPU.
    pub const SHARE: u32 = 4;
    /// What a change counts for, whatever time it took: with it workers forget the ways of packets in
    /// all networks that the router is connected with, and have to work them out anew. So there are
    /// 50 a second at most, in the long run; how much changes with each does not matter.
    pub const CHANGE: Duration = Duration::from_millis(5);
    /// Time that may be spent ahead.
    pub const BURST: Duration = Duration::from_secs(2);

    /// Nothing spent yet.
    pub fn new(now: Instant) -> Self {
        Self { owed: Duration::ZERO, at: now }
    }

    /// Notes time that was spent until `now`.
    pub fn spend(&mut self, time: Duration, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.owed = self.owed.saturating_sub(passed / Self::SHARE).saturating_add(time);
        self.at = self.at.max(now);
    }

    /// When more may be spent; it may be past.
    pub fn ready(&self) -> Instant {
        self.at + self.owed.saturating_sub(Self::BURST).saturating_mul(Self::SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_a_quarter() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let (work, mut now, mut spent) = (Duration::from_millis(10), start, Duration::ZERO);
        // Whoever is always busy.
        while now < start + Duration::from_secs(100) {
            now = now.max(budget.ready()) + work;
            budget.spend(work, now);
            spent += work;
            let most = (now - start) / Budget::SHARE + Budget::BURST + work;
            assert!(spent <= most, "{spent:?} of {:?}", now - start);
        }
        assert!(spent > Duration::from_secs(26), "{spent:?}");
    }

    #[test]
    fn silence_gives_the_burst_back_and_no_more() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        budget.spend(Duration::from_secs(3), start);
        assert_eq!(budget.ready(), start + Duration::from_secs(4));
        let later = start + Duration::from_secs(1000);
        budget.spend(Budget::BURST, later);
        assert_eq!(budget.ready(), later);
        budget.spend(Duration::from_secs(1), later);
        assert_eq!(budget.ready(), later + Duration::from_secs(4));
    }
}
