use super::*;

#[test]
fn ticks_go_on_and_their_rate_is_a_rate() {
    let first = ticks();
    std::thread::sleep(Duration::from_millis(1));
    assert!(ticks() > first);
    let rate = ticks_per_second();
    assert!(rate > 1e6 && rate < 1e11, "{rate}");
    assert_eq!(rate.to_bits(), ticks_per_second().to_bits(), "measured once");
}

#[test]
fn the_kernels_clock_is_that_of_instants() {
    let (before, start) = (monotonic_ns(), Instant::now());
    std::thread::sleep(Duration::from_millis(2));
    let (passed, after) = (start.elapsed(), monotonic_ns());
    assert!(u128::from(after - before) >= passed.as_nanos());
}
