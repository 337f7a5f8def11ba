use super::*;

fn ring() -> QueueConfig {
    QueueConfig {
        size: 8,
        packed: true,
        event_idx: false,
        indirect: false,
        in_order: false,
        desc: 0x1000,
        avail: 0x2000,
        used: 0x3000,
        base: 0x8000_8000,
    }
}

fn step(n: u16) -> Step {
    let word = u64::from(n) << 20;
    Step {
        before: n,
        after: n + 1,
        witness: n,
        count: n % 4 + 1,
        head: [word, word + 1],
        tail: [word + 2, word + 3],
    }
}

#[test]
fn a_successor_finds_the_latest_step() {
    let words = Words::private(Journal::WORDS);
    let mut journal = Journal::new(&words).unwrap();
    assert_eq!(journal.latest(&ring(), 7), None);
    journal.begin(&ring(), 7, &step(0));
    // Turns are counted modulo 16.
    for n in 1..40 {
        let next = |words| Journal::new(words).unwrap().latest(&ring(), 7);
        assert!(next(&words).is_some_and(|found| found.before == n - 1));
        journal.commit(&step(n));
        assert_eq!(next(&words), Some(step(n)));
        if n % 3 == 0 {
            journal.done(&step(n));
            assert_eq!(next(&words), Some(Step { count: 0, ..step(n) }));
        }
        if n % 5 == 0 {
            journal = Journal::new(&words).unwrap();
            assert!(journal.latest(&ring(), 7).is_some());
        }
    }
}

/// A kill between any two stores leaves the step before or the one being written.
#[test]
fn a_step_is_there_whole_or_not_at_all() {
    for stores in 0..8 {
        let words = Words::private(Journal::WORDS);
        let mut journal = Journal::new(&words).unwrap();
        journal.begin(&ring(), 7, &step(0));
        journal.commit(&step(1));
        fuse::set(Some(stores));
        journal.commit(&step(2));
        fuse::set(None);
        let found = Journal::new(&words).unwrap().latest(&ring(), 7);
        assert_eq!(found, Some(step(if stores < 5 { 1 } else { 2 })), "after {stores} stores");
    }
}

#[test]
fn a_journal_that_was_half_begun_is_void() {
    for stores in 0..16 {
        let words = Words::private(Journal::WORDS);
        Journal::new(&words).unwrap().begin(&ring(), 7, &step(1));
        fuse::set(Some(stores));
        Journal::new(&words).unwrap().begin(&ring(), 8, &step(2));
        fuse::set(None);
        let latest = |base| Journal::new(&words).unwrap().latest(&ring(), base);
        assert_eq!(latest(7).is_some(), stores == 0);
        assert!(latest(8).is_none_or(|found| found == step(2)));
        assert_eq!(latest(8).is_some(), stores >= 12, "after {stores} stores");
    }
}

#[test]
fn it_is_of_one_ring_and_one_base() {
    let words = Words::private(Journal::WORDS);
    let mut journal = Journal::new(&words).unwrap();
    journal.begin(&ring(), 7, &step(0));
    for other in [
        QueueConfig { size: 9, ..ring() },
        QueueConfig { desc: 0x1010, ..ring() },
        QueueConfig { avail: 0x2004, ..ring() },
        QueueConfig { used: 0x3004, ..ring() },
    ] {
        assert_eq!(journal.latest(&other, 7), None);
    }
    assert_eq!(journal.latest(&ring(), 8), None);
    assert!(journal.latest(&ring(), 7).is_some());
    journal.forget();
    assert_eq!(journal.latest(&ring(), 7), None);
    assert!(Journal::new(&Words::private(Journal::WORDS - 1)).is_none());
}
