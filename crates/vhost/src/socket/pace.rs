//! How often something may happen: a token bucket, told the time.

use std::time::{Duration, Instant};

/// Tokens that refill steadily.
#[derive(Debug)]
pub(super) struct Bucket {
    burst: u32,
    /// Time in which one token grows back.
    every: Duration,
    /// When the bucket was, or will be, empty: what has grown since is what there is.
    empty_at: Instant,
}

impl Bucket {
    /// A full bucket of `burst` tokens, `per_second` of which grow back in a second.
    pub(super) fn new(burst: u32, per_second: u32, now: Instant) -> Bucket {
        let every = Duration::from_secs(1) / per_second.max(1);
        let full = every * burst;
        Bucket { burst, every, empty_at: now.checked_sub(full).unwrap_or(now) }
    }

    /// Whether a token is there, or how long until one is.
    pub(super) fn peek(&self, now: Instant) -> Result<(), Duration> {
        let age = now.saturating_duration_since(self.empty_at);
        if age >= self.every { Ok(()) } else { Err(self.every - age) }
    }

    /// Takes a token, or says how long until there is one.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        self.peek(now)?;
        let fullest = now.checked_sub(self.every * self.burst).unwrap_or(self.empty_at);
        self.empty_at = self.empty_at.max(fullest) + self.every;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate_holds() {
        let start = Instant::now();
        let mut bucket = Bucket::new(3, 10, start);
        for _ in 0..3 {
            assert_eq!(bucket.take(start), Ok(()));
        }
        assert_eq!(bucket.take(start), Err(Duration::from_millis(100)));
        let later = start + Duration::from_millis(100);
        assert_eq!(bucket.take(later), Ok(()));
        assert!(bucket.take(later).is_err());
    }

    #[test]
    fn silence_fills_it_no_higher_than_the_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::new(2, 10, start);
        let later = start + Duration::from_secs(1000);
        assert_eq!((bucket.take(later), bucket.take(later)), (Ok(()), Ok(())));
        assert!(bucket.take(later).is_err());
    }
}
