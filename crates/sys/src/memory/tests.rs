use rustix::fs::fstat;

use super::*;

#[test]
fn has_its_size_for_good() {
    let fd = memfd("sys-test", 12_345, false).unwrap();
    assert_eq!(fstat(&fd).unwrap().st_size, 12_345);
    assert!(ftruncate(&fd, 0).is_err() && ftruncate(&fd, 20_000).is_err());
    assert_eq!(rustix::io::fcntl_getfd(&fd).unwrap(), rustix::io::FdFlags::CLOEXEC);
}

#[test]
fn huge_pages_come_whole() {
    // Creating the file takes no pages, so this works on a machine that has none reserved.
    let fd = memfd("sys-test", 4 << 20, true).unwrap();
    assert_eq!(fstat(&fd).unwrap().st_blksize, 2 << 20);
    assert!(ftruncate(&fd, 0).is_err());
    assert!(memfd("sys-test", 4096, true).is_err());
}

#[test]
fn memory_with_huge_pages_is_as_any_other() {
    for len in [0, 1, 1 << 18, (1 << 20) + 3] {
        let mut words = Vec::<u64>::with_capacity(len);
        prefer_huge_pages(words.spare_capacity_mut());
        words.extend(0..len as u64);
        assert!(words.iter().enumerate().all(|(n, word)| n as u64 == *word));
    }
}
