use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::region::{RegionFile, RegionSpec};

pub(super) fn memory() -> Arc<GuestMemory> {
    let fd: OwnedFd = memfd_create("guestmem-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, 8192).unwrap();
    let spec = RegionSpec { guest_addr: 0x10000, size: 8192, user_addr: 0, mmap_offset: 0 };
    Arc::new(GuestMemory::map(&[(spec, RegionFile::from(fd))]).unwrap())
}

#[test]
fn only_inside_and_aligned() {
    let memory = memory();
    fn new<const ALIGN: usize>(memory: &Arc<GuestMemory>, gpa: u64, len: u32) -> bool {
        RingArea::<ALIGN>::new(Arc::clone(memory), gpa, len).is_some()
    }
    let page = new::<4096>(&memory, 0x10000, 8192);
    assert!(page && new::<16>(&memory, 0x11ff0, 16) && new::<2>(&memory, 0x10002, 6));
    assert!(!new::<16>(&memory, 0x10000, 8193) && !new::<16>(&memory, 0xfff0, 32));
    assert!(!new::<1>(&memory, 0x12000, 1));
    assert!(!new::<16>(&memory, 0x10008, 16) && !new::<2>(&memory, 0x10001, 2));
}

/// Accesses larger than what the start is aligned to: where they are is looked at each time.
#[test]
fn larger_accesses_are_checked_by_their_address() {
    let memory = memory();
    let area = RingArea::<2>::new(Arc::clone(&memory), 0x10002, 16).unwrap();
    area.store_u32(2, 0x1122_3344);
    assert_eq!((area.load_u32(2), area.load_u16(2)), (0x1122_3344, 0x3344));
    let mistake = || area.load_u32(4);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(mistake));
    assert_eq!(result.ok(), if cfg!(debug_assertions) { None } else { Some(0) });
}

#[test]
fn little_endian_in_memory() {
    let memory = memory();
    let area = RingArea::<16>::new(Arc::clone(&memory), 0x10100, 64).unwrap();
    area.store_u16(0, 0x1122);
    area.store_u16_release(2, 0x3344);
    area.store_u32(4, 0x5566_7788);
    area.store_u64(8, 0x99aa_bbcc_ddee_ff00);
    let mut raw = [0; 16];
    memory.slice(0x10100, 16).unwrap().copy_to(&mut raw);
    let expected = [
        0x22, 0x11, 0x44, 0x33, 0x88, 0x77, 0x66, 0x55, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa,
        0x99,
    ];
    assert_eq!(raw, expected);
    assert_eq!((area.load_u16(0), area.load_u16_acquire(2)), (0x1122, 0x3344));
    assert_eq!((area.load_u32(4), area.load_u32_acquire(4)), (0x5566_7788, 0x5566_7788));
    assert_eq!(area.load_u64(8), area.load_u64_acquire(8));
    assert_eq!(area.load_desc(0), [0x5566_7788_3344_1122, 0x99aa_bbcc_ddee_ff00]);
    area.store_u32_release(60, 5);
    area.store_u64_release(48, 6);
    assert_eq!((area.load_u32(60), area.load_u64(48), area.load_u16(62)), (5, 6, 0));
}

/// Calls that a debug build reports, and that must do nothing at all otherwise.
fn mistakes(area: &RingArea<16>) -> Vec<Box<dyn Fn() -> u64 + '_>> {
    let mut calls: Vec<Box<dyn Fn() -> u64 + '_>> = Vec::new();
    for off in [63, 64, 65, usize::MAX - 1, usize::MAX, 1] {
        calls.push(Box::new(move || u64::from(area.load_u16(off))));
        calls.push(Box::new(move || {
            area.store_u16(off, u16::MAX);
            0
        }));
    }
    for off in [57, 60, 64, usize::MAX - 7, 4] {
        calls.push(Box::new(move || area.load_u64(off)));
        calls.push(Box::new(move || {
            area.store_u64_release(off, u64::MAX);
            0
        }));
    }
    for off in [49, 56, usize::MAX - 15, 4] {
        calls.push(Box::new(move || area.load_desc(off)[1]));
    }
    calls
}

#[test]
fn mistakes_are_harmless() {
    let memory = memory();
    let around = memory.slice(0x10000, 8192).unwrap();
    around.copy_from(&[0xee; 8192]);
    let area = RingArea::<16>::new(Arc::clone(&memory), 0x10100, 64).unwrap();
    for call in mistakes(&area) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
        if cfg!(debug_assertions) {
            assert!(result.is_err());
        } else {
            assert_eq!(result.ok(), Some(0));
        }
    }
    let mut after = [0; 8192];
    around.copy_to(&mut after);
    assert_eq!(after, [0xee; 8192]);
}

#[test]
fn keeps_the_memory() {
    let area = RingArea::<16>::new(memory(), 0x10000, 16).unwrap();
    area.store_u64(8, 77);
    assert_eq!((area.load_u64(8), area.len(), area.is_empty()), (77, 16, false));
    assert!(!area.memory().faulted());
}
