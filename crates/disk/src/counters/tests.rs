use super::*;

#[test]
fn numbers_are_places_in_the_lists() {
    assert!(Kind::ALL.iter().enumerate().all(|(index, kind)| *kind as usize == index));
    assert!(Refusal::ALL.iter().enumerate().all(|(index, why)| *why as usize == index));
}

#[test]
fn a_latency_is_in_the_first_bucket_that_holds_it() {
    for (latency_ns, index) in [(0, 0), (5_000, 0), (5_001, 1), (10_000, 1), (10_001, 2)] {
        assert_eq!(bucket(latency_ns), index, "{latency_ns}");
    }
    assert_eq!(bucket(10_000_000_000), BUCKETS - 2);
    assert_eq!(bucket(10_000_000_001), BUCKETS - 1);
    assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    assert!(LATENCY_BOUNDS_US.is_sorted());
}

#[test]
fn queues_are_summed_up() {
    let (one, other) = (Counters::default(), Counters::default());
    one.done(Kind::Read, 4096, 7_000, true);
    one.done(Kind::Read, 512, 11_000_000_000, true);
    other.done(Kind::Read, 512, 7_000, false);
    other.done(Kind::Flush, 0, 1, true);
    other.refused(Refusal::BeyondEnd);
    other.refused(Refusal::BeyondEnd);
    let mut sum = Totals::default();
    one.add_to(&mut sum);
    other.add_to(&mut sum);
    let read = &sum.kinds[Kind::Read as usize];
    assert_eq!((read.operations(), read.bytes, read.failed), (3, 4608, 1));
    assert_eq!(read.latency_ns, 11_000_014_000);
    assert_eq!((read.latency[1], read.latency[BUCKETS - 1]), (2, 1));
    assert_eq!(sum.kinds[Kind::Flush as usize].operations(), 1);
    assert_eq!(sum.kinds[Kind::Write as usize], KindTotals::default());
    assert_eq!(sum.refused[Refusal::BeyondEnd as usize], 2);
    assert_eq!(sum.refused.iter().sum::<u64>(), 2);
}
