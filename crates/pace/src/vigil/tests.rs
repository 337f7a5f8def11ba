use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Rests `per_second` times a second for a second from `start`; what was said last.
fn second(vigil: &mut Vigil, start: u64, per_second: u64) -> bool {
    (0..per_second).fold(false, |_, n| vigil.rest(start + n * SECOND / per_second))
}

#[test]
fn it_begins_with_the_traffic_and_ends_after_it() {
    let mut vigil = Vigil::default();
    assert!(!second(&mut vigil, SECOND, 800));
    assert!(second(&mut vigil, 2 * SECOND, 10_000));
    assert!(second(&mut vigil, 3 * SECOND, 800), "it does not come and go");
    assert!(!second(&mut vigil, 4 * SECOND, 100));
    assert!(second(&mut vigil, 5 * SECOND, 1_100));
    // The last frame; the rest that is ended after REST_MAX; the next one.
    let end = 6 * SECOND;
    vigil.rest(end);
    vigil.rest(end + Vigil::REST_MAX);
    assert!(!vigil.rest(end + 2 * Vigil::REST_MAX));
}

#[test]
fn a_few_frames_are_no_traffic() {
    let mut vigil = Vigil::default();
    for n in 0..9 {
        assert!(!vigil.rest(SECOND + n * 1_000));
    }
    assert!(!vigil.rest(2 * SECOND));
}

proptest! {
    /// Whatever it saw, after two rests of the longest kind it is over; and it does not change more
    /// often than it says.
    #[test]
    fn it_ends_with_silence(gaps in prop::collection::vec(0u64..5_000_000, 1..2_000)) {
        let mut vigil = Vigil::default();
        let (mut now, mut was, mut began) = (SECOND, false, 0);
        for gap in gaps {
            now += gap;
            let on = vigil.rest(now);
            if on && !was {
                began = now;
            }
            prop_assert!(on || !was || now - began >= WATCHED.1);
            was = on;
        }
        vigil.rest(now + Vigil::REST_MAX);
        prop_assert!(!vigil.rest(now + 2 * Vigil::REST_MAX));
    }
}
