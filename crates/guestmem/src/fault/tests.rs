use super::*;

#[test]
fn slots_are_found_reused_and_forgotten() {
    let first = Registration::new(0x7000_0000_0000, 0x1000).unwrap();
    assert_eq!(first.0.range(), Some((0x7000_0000_0000, 0x7000_0000_1000)));
    first.0.faulted.store(true, Ordering::Relaxed);
    assert!(first.faulted());
    let slot: *const Slot = first.0;
    drop(first);
    // Other tests take slots too, so ours may be gone; but whoever gets a slot gets it unmarked.
    for _ in 0..10 {
        let again = Registration::new(0x7000_0000_0000, 0x2000).unwrap();
        assert!(!again.faulted());
        if std::ptr::eq(again.0, slot) {
            assert_eq!(again.0.range(), Some((0x7000_0000_0000, 0x7000_0000_2000)));
        }
    }
}

#[test]
fn an_entry_in_change_is_passed_over() {
    let slot = Slot {
        sequence: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        faulted: AtomicBool::new(false),
    };
    slot.set(1, 2);
    assert_eq!(slot.range(), Some((1, 2)));
    slot.sequence.fetch_add(1, Ordering::Relaxed);
    assert_eq!(slot.range(), None);
}

/// A reader never sees the start of one range with the end of another.
#[test]
fn ranges_are_never_mixed() {
    static SLOT: Slot = Slot {
        sequence: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        faulted: AtomicBool::new(false),
    };
    static STOP: AtomicBool = AtomicBool::new(false);
    let writer = std::thread::spawn(|| {
        for i in 1..200_000 {
            SLOT.set(i, i + 7);
        }
        STOP.store(true, Ordering::Relaxed);
    });
    while !STOP.load(Ordering::Relaxed) {
        if let Some((start, end)) = SLOT.range() {
            assert!(start == 0 || end == start + 7, "{start} {end}");
        }
    }
    writer.join().unwrap();
}

#[test]
fn addresses_of_nobody_are_not_ours() {
    install_fault_handler();
    assert!(!recover(0));
    assert!(!recover(usize::MAX));
    assert!(!recover(std::ptr::from_ref(&TABLE).addr()));
}
