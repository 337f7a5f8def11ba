use crate::ring::tests::memory;

use super::*;

#[test]
fn only_a_power_of_two_that_is_all_inside() {
    let memory = memory();
    let new = |gpa, entries, tail| {
        RingEntries::<4, 8, 4>::new(Arc::clone(&memory), gpa, entries, tail).is_some()
    };
    assert!(new(0x10000, 512, 0) && new(0x10000, 1, 8180) && new(0x11ff4, 1, 0));
    assert!(!new(0x10000, 1024, 0) && !new(0x10000, 1, 8181) && !new(0x10000, 1, u32::MAX));
    assert!(!new(0x10000, 0, 0) && !new(0x10000, 3, 0) && !new(0x10002, 1, 0));
}

/// Every number, each entry where the specification has it, nothing beside them.
#[test]
fn numbers_go_round() {
    let memory = memory();
    let at = |offset| memory.slice(0x10100 + offset, 8).unwrap();
    let bytes = |offset| {
        let mut bytes = [0; 8];
        at(offset).copy_to(&mut bytes);
        bytes
    };
    let used = RingEntries::<4, 8, 4>::new(Arc::clone(&memory), 0x10100, 4, 2).unwrap();
    for n in 0..=u16::MAX {
        used.store_u32s(n, n.into(), !u32::from(n));
        let expected = [u32::from(n), !u32::from(n)].map(u32::to_le_bytes);
        assert_eq!(bytes(4 + 8 * u64::from(n % 4)), expected.as_flattened());
        used.prefetch_write(n);
    }
    assert_eq!((bytes(0)[..4].to_vec(), bytes(36)), (vec![0; 4], [0; 8]));

    let avail = RingEntries::<4, 2, 2>::new(Arc::clone(&memory), 0x10200, 8, 2).unwrap();
    (0..11).for_each(|n| avail.area().store_u16(2 * n, n as u16));
    assert!((0..=u16::MAX).all(|n| avail.load_u16(n) == 2 + n % 8));

    let desc = RingEntries::<0, 16, 16>::new(memory, 0x10300, 2, 0).unwrap();
    (0..4).for_each(|n| desc.area().store_u64(8 * n, n as u64));
    assert_eq!([7, 8].map(|n| desc.load_desc(n)), [[2, 3], [0, 1]]);
}
