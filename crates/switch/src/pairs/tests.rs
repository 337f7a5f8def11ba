use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::key::Front;
use crate::{PortId, Verdict, VlanEdit};

/// Of a frame from station `src` behind this port to `dst`.
fn key(port: u16, dst: u8, src: u8) -> Key {
    let mut front = [0; 18];
    (front[0], front[5], front[6], front[11]) = (2, dst, 2, src);
    Front::of(&front).key(PortId(port)).unwrap()
}

fn to(port: u16) -> Packed {
    Packed::pack(Verdict::Forward { port: PortId(port), edit: VlanEdit::Keep }).unwrap()
}

fn pairs(verdicts: usize) -> Pairs {
    Pairs::new(Room::new(verdicts))
}

#[test]
fn four_verdicts_are_a_cache_line() {
    assert_eq!((size_of::<Set>(), align_of::<Set>(), Set::PLACES), (64, 64, 4));
    for (asked, room) in [(0, 4), (4, 4), (5, 8), (8192, 8192), (usize::MAX, Room::MOST)] {
        assert_eq!(pairs(asked).room(), room);
    }
}

#[test]
fn a_fifth_verdict_takes_the_place_of_one_that_counts() {
    let mut pairs = pairs(4);
    let mut remember = |n: u8, generation, now| {
        pairs.remember(pairs.plan().spot(key(1, n, n)), generation, to(2), (now, now))
    };
    for n in 1..=4 {
        assert_eq!(remember(n, 1, 0), Kept::Room);
        assert_eq!(remember(n, 1, 0), Kept::Again);
    }
    assert_eq!(remember(5, 1, 0), Kept::Instead);
    // One that is of the past does not count.
    assert_eq!(remember(6, 1, 2000), Kept::Room);
    assert_eq!(remember(7, 2, 2000), Kept::Room);
}

/// Whatever changes how often, and however many ways there are.
#[test]
fn nothing_counts_under_another_generation() {
    let mut pairs = pairs(1024);
    let (first, other) = (key(1, 1, 1), key(1, 2, 2));
    pairs.remember(pairs.plan().spot(other), 1, to(2), (0, 0));
    for generation in 2..3 * u64::from(What::EPOCHS) {
        pairs.remember(pairs.plan().spot(first), generation, to(2), (0, 0));
        assert_eq!(pairs.get(&pairs.plan().spot(first), generation, 0), Some(to(2)));
        assert_eq!(pairs.get(&pairs.plan().spot(first), generation - 1, 0), None);
        for under in [1, generation] {
            assert_eq!(pairs.get(&pairs.plan().spot(other), under, 0), None);
        }
    }
}

/// However many ports talk with each other, a way has one number as long as its network does not change.
#[test]
fn a_way_keeps_its_number() {
    let mut pairs = pairs(1 << 18);
    for _ in 0..20 {
        for (from, onto) in (0..100).flat_map(|from| (0..100).map(move |onto| (from, onto))) {
            pairs.remember(pairs.plan().spot(key(from, onto as u8, 1)), 1, to(onto), (0, 0));
        }
    }
    assert_eq!(pairs.ways.len(), 1 + 100 * 100);
}

#[test]
fn when_there_are_too_many_ways_all_are_forgotten() {
    let mut pairs = pairs(1 << 18);
    let of = |n: usize| (key((n / 4) as u16, 1, 1), to((n % 4) as u16));
    for n in 0..2 * What::WAYS {
        let (key, verdict) = of(n);
        pairs.remember(pairs.plan().spot(key), 1, verdict, (0, 0));
        assert_eq!(pairs.get(&pairs.plan().spot(key), 1, 0), Some(verdict));
    }
    assert!(pairs.ways.len() <= What::WAYS);
    let known = (0..2 * What::WAYS).filter(|n| {
        let (key, verdict) = of(*n | 3);
        let found = pairs.get(&pairs.plan().spot(key), 1, 0);
        assert!(found.is_none() || found == Some(verdict));
        found.is_some()
    });
    assert!(known.count() > 0);
}

#[derive(Clone, Debug)]
enum Op {
    Remember(Key, Packed),
    Get(Key),
    Change,
    Advance(u64),
    Furnish(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || (0..2u16, 1..6u8, 1..6u8).prop_map(|(port, dst, src)| key(port, dst, src));
    prop_oneof![
        20 => (key(), 0..3u16).prop_map(|(key, port)| Op::Remember(key, to(port))),
        20 => key().prop_map(Op::Get),
        2 => Just(Op::Change),
        4 => (0..3000u64).prop_map(Op::Advance),
        1 => (1..64usize).prop_map(Op::Furnish),
    ]
}

proptest! {
    /// What is found is what was remembered last, under this generation and for some time; and with room
    /// enough it is found.
    #[test]
    fn what_is_found_was_remembered(
        ops in prop::collection::vec(op(), 1..200),
        room in prop_oneof![Just(1), Just(16), Just(Pairs::FEW), Just(2 * Pairs::FEW)],
    ) {
        let mut pairs = pairs(room);
        let (mut now, mut generation) = (5_000_000_000, 7);
        let mut known: HashMap<_, (Packed, u64, u64)> = HashMap::new();
        // Until they are so old that stamps come round.
        let end = now + What::UNIT_MS * u64::from(What::STAMPS - 2);
        for op in ops {
            match op {
                Op::Remember(key, verdict) => {
                    pairs.remember(pairs.plan().spot(key), generation, verdict, (now, now));
                    prop_assert_eq!(pairs.get(&pairs.plan().spot(key), generation, now), Some(verdict));
                    known.insert(key.halves(), (verdict, generation, now));
                }
                Op::Get(key) => {
                    let found = pairs.get(&pairs.plan().spot(key), generation, now);
                    let counts = known.get(&key.halves()).filter(|known| known.1 == generation);
                    let age = counts.map_or(0, |known| now - known.2);
                    if let Some(verdict) = found {
                        prop_assert_eq!(counts.map(|known| known.0), Some(verdict));
                        prop_assert!(age <= pairs.stay_ms() + 2 * What::UNIT_MS);
                    } else if pairs.room() >= Pairs::FEW {
                        prop_assert!(counts.is_none() || age >= pairs.stay_ms());
                    }
                }
                Op::Change => generation += 1,
                Op::Advance(ms) => now = end.min(now + ms),
                Op::Furnish(verdicts) => {
                    pairs.furnish(Room::new(verdicts));
                    known.clear();
                }
            }
        }
    }
}
