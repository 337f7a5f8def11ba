use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn rate(per_second: u64, burst: u64) -> Rate {
    let some = |n| NonZeroU64::new(n).unwrap();
    Rate { per_second: some(per_second), burst: some(burst) }
}

fn rates() -> impl Strategy<Value = Option<Rate>> {
    let few = || prop_oneof![1u64..20, 1u64..5_000_000, Just(u64::MAX)];
    prop::option::of((few(), few()).prop_map(|(per_second, burst)| rate(per_second, burst)))
}

/// Whether so many tokens in so much time are within a rate, the largest taken at once being this.
fn within(rate: Rate, tokens: u128, time: u64, largest: u64) -> bool {
    let burst = u128::from(rate.burst.get().max(largest));
    tokens.saturating_sub(burst) * 1_000_000_000
        <= u128::from(rate.per_second.get()) * u128::from(time)
}

proptest! {
    /// In no span of time is there more than rate * time + burst; and who is told to wait is
    /// admitted when told, and not a nanosecond earlier.
    #[test]
    fn never_too_much_and_never_too_late(
        operations in rates(),
        bytes in rates(),
        start in prop_oneof![Just(0), any::<u32>().prop_map(u64::from)],
        asked in prop::collection::vec((0u64..SECOND, 0u64..3_000_000), 1..60),
    ) {
        let mut limiter = Limiter::new(operations, bytes, start);
        let mut now = start;
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for (pause, cost) in asked {
            now += pause;
            if let Admission::At(then) = limiter.admit(now, cost) {
                prop_assert!(then > now);
                let early = limiter.clone().admit(then - 1, cost);
                prop_assert_eq!(early, Admission::At(then), "the same, asked shortly before");
                prop_assert_eq!(limiter.admit(then, cost), Admission::Now);
                now = then;
            }
            admitted.push((now, cost));
        }
        for (first, &(from, _)) in admitted.iter().enumerate() {
            let (mut sum, mut largest) = (0, 0);
            for (count, &(until, cost)) in (1..).zip(&admitted[first..]) {
                sum += u128::from(cost);
                largest = largest.max(cost);
                let time = until - from;
                prop_assert!(operations.is_none_or(|rate| within(rate, count, time, 1)));
                prop_assert!(bytes.is_none_or(|rate| within(rate, sum, time, largest)));
            }
        }
    }

    /// Nobody waits while there are tokens: who always has something to do gets rate * time + burst,
    /// to the last token.
    #[test]
    fn all_there_is_is_given_out(per_second in 1u64..100_000, burst in 1u64..1000) {
        let mut limiter = Limiter::new(Some(rate(per_second, burst)), None, 7);
        let (mut now, mut count) = (7, 0u64);
        while count < burst + 500 {
            match limiter.admit(now, 0) {
                Admission::Now => count += 1,
                Admission::At(then) => {
                    let earned = u128::from(now - 7) * u128::from(per_second) / 1_000_000_000;
                    prop_assert_eq!(u128::from(count), u128::from(burst) + earned);
                    now = then;
                }
            }
        }
    }
}

#[test]
fn no_limits_let_everything_through() {
    let mut limiter = Limiter::new(None, None, 0);
    assert!((0..1000).all(|_| limiter.admit(0, u64::MAX) == Admission::Now));
}

#[test]
fn an_operation_larger_than_the_burst_is_paid_for_afterwards() {
    let mut limiter = Limiter::new(None, Some(rate(1000, 100)), 0);
    assert_eq!(limiter.admit(0, 1100), Admission::Now);
    assert_eq!(limiter.admit(0, 1), Admission::At(SECOND + SECOND / 1000));
    assert_eq!(limiter.admit(SECOND, 1100), Admission::At(SECOND + SECOND / 10));
}

#[test]
fn what_one_limit_refuses_costs_nothing_in_the_other() {
    let mut limiter = Limiter::new(Some(rate(1, 2)), Some(rate(1000, 10)), 0);
    assert_eq!(limiter.admit(0, 10), Admission::Now);
    for _ in 0..5 {
        assert_eq!(limiter.admit(0, 10), Admission::At(SECOND / 100));
    }
    assert_eq!(limiter.admit(SECOND / 100, 10), Admission::Now, "the second operation of two");
    assert_eq!(limiter.admit(SECOND / 100, 0), Admission::At(SECOND));
}

#[test]
fn time_that_goes_back_brings_nothing() {
    let mut limiter = Limiter::new(Some(rate(1, 1)), None, 5 * SECOND);
    assert_eq!(limiter.admit(5 * SECOND, 0), Admission::Now);
    assert_eq!(limiter.admit(0, 0), Admission::At(6 * SECOND));
    assert_eq!(limiter.admit(5 * SECOND, 0), Admission::At(6 * SECOND));
}
