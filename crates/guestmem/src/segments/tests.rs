use std::fs::File;
use std::os::fd::AsFd;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::{RegionFile, RegionSpec};

const SIZE: u64 = 1 << 16;

fn memory() -> (Arc<GuestMemory>, File) {
    let fd = memfd_create("segments", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, SIZE).unwrap();
    let file = File::from(fd.try_clone().unwrap());
    let spec = RegionSpec { guest_addr: 0, size: SIZE, user_addr: 0, mmap_offset: 0 };
    (Arc::new(GuestMemory::map(&[(spec, RegionFile::from(fd))]).unwrap()), file)
}

/// Pieces at these places.
fn segments(memory: &Arc<GuestMemory>, places: &[(u64, u32)]) -> Segments {
    let slices = places.iter().map(|(gpa, len)| memory.slice(*gpa, *len).unwrap());
    Segments::of(memory, slices).unwrap()
}

fn bytes(segments: &Segments) -> Vec<u8> {
    let mut out = vec![0; segments.len() as usize];
    assert_eq!(segments.copy_to(&mut out), out.len());
    out
}

proptest! {
    #[test]
    fn they_are_the_bytes_of_their_places(
        places in prop::collection::vec((0..SIZE - 600, 0..600u32), 0..20),
        taken in prop::collection::vec(0..900u64, 0..10),
    ) {
        let (memory, _file) = memory();
        let mut content: Vec<u8> = (0..SIZE).map(|at| (at ^ at >> 8) as u8).collect();
        memory.slice(0, SIZE as u32).unwrap().copy_from(&content);
        let mut segments = segments(&memory, &places);
        let mut model: Vec<u64> =
            places.iter().flat_map(|(gpa, len)| *gpa..gpa + u64::from(*len)).collect();
        prop_assert_eq!(segments.len(), model.len() as u64);
        for n in taken {
            segments.advance(n);
            model.drain(..model.len().min(n as usize));
            let expected: Vec<u8> = model.iter().map(|at| content[*at as usize]).collect();
            prop_assert_eq!(segments.len(), model.len() as u64);
            prop_assert_eq!(segments.is_empty(), model.is_empty());
            prop_assert_eq!(bytes(&segments), expected);
        }
        // Each place as often as it is listed: the last one counts.
        let new: Vec<u8> = (0..segments.len()).map(|n| (n * 7) as u8).collect();
        prop_assert_eq!(segments.copy_from(&new), new.len());
        for (at, byte) in model.iter().zip(&new) {
            content[*at as usize] = *byte;
        }
        let mut now = vec![0; SIZE as usize];
        memory.slice(0, SIZE as u32).unwrap().copy_to(&mut now);
        prop_assert_eq!(now, content);
    }
}

proptest! {
    #[test]
    fn parts_are_copied_across(
        from in prop::collection::vec((0..SIZE - 600, 0..600u32), 0..6),
        to in prop::collection::vec(0..600u32, 0..6),
        (at, n, before) in (0..2000u64, 0..2000u64, 0..2000u64),
    ) {
        let ((memory, _file), (other, _too)) = (memory(), self::memory());
        let content: Vec<u8> = (0..SIZE).map(|at| (at ^ at >> 8) as u8).collect();
        memory.slice(0, SIZE as u32).unwrap().copy_from(&content);
        let from = segments(&memory, &from);
        let all = bytes(&from);
        let (start, end) = (all.len().min(at as usize), all.len().min((at + n) as usize));
        let part = from.part(at, n);
        prop_assert_eq!(&bytes(&part), &all[start..end]);
        // One behind the other, with room between them.
        let places: Vec<_> = (0..).map(|place| place * 1000).zip(to).collect();
        let to = segments(&other, &places);
        let copied = part.copy_across(&to, before);
        prop_assert_eq!(copied, part.len().min(to.len().saturating_sub(before)));
        let there = bytes(&to);
        let first = there.len().min(before as usize);
        let last = first + copied as usize;
        prop_assert_eq!(&there[first..last], &all[start..start + copied as usize]);
        prop_assert!(there[..first].iter().chain(&there[last..]).all(|byte| *byte == 0));
        // Between pieces and bytes.
        let mut some = vec![0; end - start];
        prop_assert_eq!(from.read_at(&mut some, at), end - start);
        prop_assert_eq!(&some, &all[start..end]);
        let put = to.write_at(&some, before);
        prop_assert_eq!(put as u64, copied);
        prop_assert_eq!(bytes(&to), there);
    }
}

#[test]
fn what_follows_in_memory_is_one_piece() {
    let (memory, _file) = memory();
    let joined = segments(&memory, &[(0, 512), (512, 512), (4096, 512), (1024, 1)]);
    assert_eq!(joined.pieces.iter().map(|piece| piece.len).collect::<Vec<_>>(), [1024, 512, 1]);
    assert!(!joined.is_aligned(512));
    assert!(segments(&memory, &[(512, 512), (8192, 1024)]).is_aligned(512));
    assert!(!segments(&memory, &[(513, 512)]).is_aligned(512));
    assert!(segments(&memory, &[]).is_empty());
}

#[test]
fn anothers_memory_is_refused() {
    let ((memory, _a), (other, _b)) = (memory(), memory());
    assert!(Segments::of(&memory, [other.slice(0, 8).unwrap()].into_iter()).is_none());
}

#[test]
fn files_are_read_and_written_in_place() {
    let ((memory, _guest), (_other, file)) = (memory(), memory());
    memory.slice(0, 8).unwrap().copy_from(b"abcdefgh");
    let there = segments(&memory, &[(4, 4), (0, 4)]);
    assert_eq!(there.transfer(Access::Write, file.as_fd(), 100, false).unwrap(), 8);
    let back = segments(&memory, &[(1000, 3), (2000, 5)]);
    assert_eq!(back.transfer(Access::Read, file.as_fd(), 100, false).unwrap(), 8);
    assert_eq!(bytes(&back), b"efghabcd");
    assert_eq!(back.transfer(Access::Read, file.as_fd(), SIZE - 2, false).unwrap(), 2);
    assert!(back.transfer(Access::Read, file.as_fd(), u64::MAX, false).is_err());
}

#[test]
fn memory_that_has_vanished_is_an_error() {
    let ((memory, guest), (_other, file)) = (memory(), memory());
    let lost = segments(&memory, &[(8192, 16)]);
    guest.set_len(4096).unwrap();
    let error = lost.transfer(Access::Read, file.as_fd(), 0, false).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
}
