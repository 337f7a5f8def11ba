use std::io::{Read, pipe};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;
use crate::region::{RegionFile, RegionSpec};

fn memory(pages: u64) -> (GuestMemory, RegionFile) {
    let fd: OwnedFd = memfd_create("guestmem-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, pages * 4096).unwrap();
    let file = RegionFile::from(fd);
    let spec = RegionSpec { guest_addr: 0, size: pages * 4096, user_addr: 0, mmap_offset: 0 };
    (GuestMemory::map(&[(spec, file.clone())]).unwrap(), file)
}

#[test]
fn one_write_in_order() {
    let (memory, _) = memory(4);
    let parts =
        [memory.slice(10, 3).unwrap(), memory.slice(0, 0).unwrap(), memory.slice(5000, 4).unwrap()];
    parts[0].copy_from(b"abc");
    parts[2].copy_from(b"defg");
    let (mut reader, writer) = pipe().unwrap();
    assert_eq!(write_vectored(writer.as_fd(), &[b"head", b"", b"er-"], &parts).unwrap(), 14);
    assert_eq!(write_vectored(writer.as_fd(), &[], &[]).unwrap(), 0);
    drop(writer);
    let mut out = String::new();
    reader.read_to_string(&mut out).unwrap();
    assert_eq!(out, "header-abcdefg");
}

#[test]
fn pieces_are_counted() {
    let (memory, _) = memory(1);
    let one = memory.slice(0, 1).unwrap();
    let (_reader, writer) = pipe().unwrap();
    assert_eq!(write_vectored(writer.as_fd(), &[b"x"], &[one; 1023]).unwrap(), 1024);
    let error = write_vectored(writer.as_fd(), &[b"x"], &[one; 1024]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    // Empty ones do not count.
    let none = memory.slice(0, 0).unwrap();
    assert_eq!(write_vectored(writer.as_fd(), &[b"x"], &[none; 2000]).unwrap(), 1);
}

#[test]
fn vanished_memory_is_an_error() {
    let (memory, file) = memory(2);
    let (_reader, writer) = pipe().unwrap();
    ftruncate(file.as_fd(), 0).unwrap();
    let error = write_vectored(writer.as_fd(), &[b"h"], &[memory.slice(0, 100).unwrap()]);
    // The kernel may have taken the head before it found out.
    assert!(
        matches!(&error, Ok(1))
            || error.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EFAULT))
    );
}

#[test]
fn what_was_there_already_may_stay() {
    let (memory, _) = memory(1);
    let header = memory.slice(52, 12).unwrap();
    assert!(header.skip(12).begins_line() && !header.begins_line());
    // Of the sixteen only the first twelve, or ten, count.
    let [word, other] = [*b"twelve bytes and", *b"other bytes! and"].map(u128::from_le_bytes);
    assert!(header.store_changed::<12>(word));
    assert_eq!(header.load(), Some(*b"twelve bytes"));
    assert!(header.store_changed::<12>(word));
    assert!(!memory.slice(52, 11).unwrap().store_changed::<12>(word), "no room");
    assert!(header.store_changed::<12>(other));
    assert_eq!(header.load(), Some(*b"other bytes!"));
    assert!(header.store_changed::<10>(word));
    assert_eq!(header.load(), Some(*b"twelve byts!"));
    let word = u128::from_le_bytes(*b"twelve byts!\0\0\0\0");
    assert_eq!(header.load_word::<12>(), Some(word));
    assert_eq!(header.load_word::<10>(), Some(word & ((1 << 80) - 1)));
    assert_eq!(memory.slice(52, 9).unwrap().load_word::<10>(), None, "too short");
}
