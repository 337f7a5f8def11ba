use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use super::*;

const SECTOR: u64 = 512;
const SECTORS: u64 = 8 * 80 + 3;

fn file(size: u64) -> File {
    let file = File::from(memfd_create("image", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(size).unwrap();
    file
}

fn guest() -> Arc<GuestMemory> {
    let size = 4 * SECTORS * SECTOR / PAGE * PAGE;
    let spec = RegionSpec { guest_addr: 0, size, user_addr: 0, mmap_offset: 0 };
    let file = RegionFile::from(sys::memfd("guest", size, false).unwrap());
    Arc::new(GuestMemory::map(&[(spec, file)]).unwrap())
}

/// Two pieces of the guest's memory.
fn segments(guest: &Arc<GuestMemory>, len: u64) -> Segments {
    let half = (len / 2) as u32;
    let pieces = [guest.slice(100, half), guest.slice(200_000, len as u32 - half)];
    Segments::of(guest, pieces.into_iter().flatten()).unwrap()
}

/// As a worker does it; whether the mapping did.
fn transfer(
    mapped: &Mapped,
    file: &File,
    access: Access,
    offset: u64,
    segments: &Segments,
) -> bool {
    if let Some(moved) = mapped.transfer(access, offset, segments) {
        assert_eq!(moved.unwrap(), segments.len());
        return true;
    }
    let moved = segments.transfer(access, file.as_fd(), offset, false).unwrap();
    assert_eq!(moved, segments.len());
    mapped.learn(access, offset, moved);
    false
}

fn bytes(segments: &Segments) -> Vec<u8> {
    let mut bytes = vec![0; segments.len() as usize];
    segments.copy_to(&mut bytes);
    bytes
}

#[derive(Clone, Debug)]
enum Op {
    Read(u64, u64),
    Write(u64, u64, u8),
    /// Whether it is told.
    Clear(u64, u64, bool),
}

fn op() -> impl Strategy<Value = Op> {
    let range = || (0..SECTORS, 1..200u64).prop_map(|(at, some)| (at, some.min(SECTORS - at)));
    prop_oneof![
        4 => range().prop_map(|(at, some)| Op::Read(at, some)),
        4 => (range(), any::<u8>()).prop_map(|((at, some), with)| Op::Write(at, some, with)),
        1 => (range(), any::<bool>()).prop_map(|((at, some), told)| Op::Clear(at, some, told)),
    ]
}

proptest! {
    /// What is read is what was written, by whatever way, and what is in the file.
    #[test]
    fn both_ways_see_the_same(ops in vec(op(), 1..60)) {
        let (file, guest) = (file(SECTORS * SECTOR), guest());
        let mapped = Mapped::of(&file).unwrap();
        let mut model = vec![0u8; (SECTORS * SECTOR) as usize];
        for op in ops {
            match op {
                Op::Read(at, some) => {
                    let to = segments(&guest, some * SECTOR);
                    to.copy_from(&vec![0xee; to.len() as usize]);
                    transfer(&mapped, &file, Access::Read, at * SECTOR, &to);
                    let at = (at * SECTOR) as usize;
                    prop_assert!(bytes(&to) == model[at..at + to.len() as usize]);
                }
                Op::Write(at, some, with) => {
                    let from = segments(&guest, some * SECTOR);
                    let pattern: Vec<u8> = (0..from.len()).map(|n| (n / 7) as u8 ^ with).collect();
                    from.copy_from(&pattern);
                    transfer(&mapped, &file, Access::Write, at * SECTOR, &from);
                    let at = (at * SECTOR) as usize;
                    model[at..at + pattern.len()].copy_from_slice(&pattern);
                }
                Op::Clear(at, some, told) => {
                    let (at, len) = (at * SECTOR, some * SECTOR);
                    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&file, mode, at, len).unwrap();
                    if told {
                        mapped.forget(at..at + len);
                    }
                    model[at as usize..(at + len) as usize].fill(0);
                }
            }
        }
        let mut all = vec![0; model.len()];
        file.read_exact_at(&mut all, 0).unwrap();
        prop_assert!(all == model);
    }

    #[test]
    fn pages_are_counted_right(offset in 0u64..1 << 21, len in prop_oneof![Just(0), 1u64..1 << 20]) {
        let mut all = Vec::new();
        for (word, bits) in pages(offset, len) {
            all.extend((0..64).filter(|bit| bits >> bit & 1 != 0).map(|bit| word as u64 * 64 + bit));
        }
        let end = if len == 0 { offset / PAGE } else { (offset + len - 1) / PAGE + 1 };
        prop_assert!(all.into_iter().eq(offset / PAGE..end));
    }
}

#[test]
fn holes_are_read_without_filling_them_and_what_is_there_without_the_kernel() {
    let (file, guest) = (file((1 << 20) + 8192), guest());
    let mapped = Mapped::of(&file).unwrap();
    let to = segments(&guest, 64 << 10);
    for _ in 0..3 {
        assert!(!transfer(&mapped, &file, Access::Read, 0, &to));
    }
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    assert!(!transfer(&mapped, &file, Access::Write, 4096, &to));
    assert!(transfer(&mapped, &file, Access::Write, 4096, &to));
    assert!(transfer(&mapped, &file, Access::Read, 4096, &to));
    assert!(!transfer(&mapped, &file, Access::Read, 0, &to));
    assert_eq!(file.metadata().unwrap().blocks(), (64 << 10) / 512);
    // What was there before it is found out at the first look at its neighbourhood.
    file.write_all_at(&[7; 64 << 10], 640 << 10).unwrap();
    file.write_all_at(&[7; 8192], 1 << 20).unwrap();
    assert!(!transfer(&mapped, &file, Access::Read, 512 << 10, &to));
    assert!(transfer(&mapped, &file, Access::Read, 640 << 10, &to));
    let end = segments(&guest, 4096);
    assert!(!transfer(&mapped, &file, Access::Read, 1 << 20, &end));
    assert!(transfer(&mapped, &file, Access::Read, (1 << 20) + 4096, &end));
    mapped.forget(704 << 10..u64::MAX);
    assert!(transfer(&mapped, &file, Access::Read, 640 << 10, &to));
    mapped.forget(700 << 10..701 << 10);
    assert!(!transfer(&mapped, &file, Access::Read, 640 << 10, &to));
    assert_eq!(file.metadata().unwrap().blocks(), (136 << 10) / 512);
}

#[test]
fn what_nothing_was_moved_of_is_not_there() {
    let (file, guest) = (file(1 << 20), guest());
    let mapped = Mapped::of(&file).unwrap();
    mapped.learn(Access::Write, 512, 0);
    let to = segments(&guest, 4096);
    assert!(mapped.transfer(Access::Read, 0, &to).is_none());
    assert_eq!(file.metadata().unwrap().blocks(), 0);
}

#[test]
fn a_file_that_was_cut_is_left_to_the_kernel() {
    let (file, guest) = (file(1 << 20), guest());
    let mapped = Mapped::of(&file).unwrap();
    let from = segments(&guest, 8192);
    from.copy_from(&[5; 8192]);
    for at in [0, 512 << 10] {
        assert!(!transfer(&mapped, &file, Access::Write, at, &from));
    }
    file.set_len(4096).unwrap();
    assert!(mapped.transfer(Access::Write, 512 << 10, &from).is_none());
    // Also for what is still there: some of the mapping is not the file's any more.
    assert!(mapped.transfer(Access::Read, 0, &from).is_none());
    assert_eq!(file.metadata().unwrap().len(), 4096);
    // A write that the kernel takes makes the file as long as it was, and is there.
    assert!(!transfer(&mapped, &file, Access::Write, 512 << 10, &from));
    let mut back = [0; 8192];
    file.read_exact_at(&mut back, 512 << 10).unwrap();
    assert_eq!(back, [5; 8192]);
}

#[test]
fn memory_of_a_guest_that_vanished_is_an_error() {
    let file = file(1 << 20);
    let mapped = Mapped::of(&file).unwrap();
    let memory = self::file(1 << 20);
    let spec = RegionSpec { guest_addr: 0, size: 1 << 20, user_addr: 0, mmap_offset: 0 };
    let table = [(spec, RegionFile::from(rustix::io::dup(&memory).unwrap()))];
    let guest = Arc::new(GuestMemory::map(&table).unwrap());
    let from = segments(&guest, 8192);
    assert!(!transfer(&mapped, &file, Access::Write, 0, &from));
    memory.set_len(0).unwrap();
    assert!(mapped.transfer(Access::Write, 0, &from).unwrap().is_err());
}

#[test]
fn files_that_are_only_read_or_have_no_page_are_not_mapped() {
    assert!(Mapped::of(&file(4095)).is_none());
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("image");
    std::fs::write(&path, [0; 8192]).unwrap();
    assert!(Mapped::of(&File::open(&path).unwrap()).is_none());
    let both = File::options().read(true).write(true).open(&path).unwrap();
    assert!(Mapped::of(&both).is_some());
}
