use packet::Mac;

use super::*;
use crate::fdb;

#[test]
fn finds_what_was_inserted_and_nothing_else() {
    let table = Table::with_room_for(1000);
    for key in 1..=1000u64 {
        assert!(table.insert(key, key as u32 * 3, 0));
    }
    for key in 1..=1000u64 {
        assert_eq!(table.get(key).unwrap().value.load(Ordering::Relaxed), key as u32 * 3);
    }
    assert!((1001..2000).all(|key| table.get(key).is_none()));
    assert_eq!(table.iter().count(), 1000);
}

#[test]
fn a_removed_key_keeps_its_slot_and_comes_back_in_it() {
    let table = Table::with_room_for(4);
    assert!(table.insert(7, 1, 0));
    table.get(7).unwrap().value.store(0, Ordering::Relaxed);
    assert_eq!(table.iter().count(), 0);
    assert!(table.insert(7, 2, 0));
    assert_eq!(table.used.load(Ordering::Relaxed), 1);
    assert_eq!(table.get(7).unwrap().value.load(Ordering::Relaxed), 2);
}

/// A guest fleet's addresses count up: no table may take that badly, whatever its seed.
#[test]
fn addresses_in_a_row_do_not_make_long_runs() {
    for table in (0..50).map(|_| Table::with_room_for(1000)) {
        // As full as a table gets: half of its slots.
        for key in 0..2048u64 {
            assert!(table.insert(fdb::key(0, Mac::from_u64(0x5254_0000_0000 + key * 2)), 1, 0));
        }
        let place = |key| table.probe(key).position(|bucket| bucket.find(key).is_some());
        let far: usize = table.iter().filter_map(|(key, _)| place(key)).sum();
        // Expected with a random hash: two in a bucket of four, and one key in forty a step away.
        assert!(far < 2048 / 10, "{far} steps for 2048 keys");
    }
}

#[test]
fn a_full_table_refuses_instead_of_looking_forever() {
    let table = Table::with_room_for(0);
    let stored = (1..=1000).filter(|key| table.insert(*key, 1, 0)).count();
    assert_eq!(stored, Table::BUCKETS_MIN * Bucket::SLOTS);
    assert!(table.is_crowded());
    assert!(table.get(5000).is_none());
}
