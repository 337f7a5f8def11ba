use std::fs::{File, OpenOptions};

use super::*;

fn open(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_lock_excludes_other_descriptions_and_lasts_as_long_as_any_duplicate() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (first, second) = (open(file.path()), open(file.path()));
    assert!(try_lock(&first, Kind::Exclusive, Range::ALL).unwrap());
    assert!(try_lock(&first, Kind::Exclusive, Range::ALL).unwrap(), "it is ours already");
    assert!(!try_lock(&second, Kind::Shared, Range::byte(101)).unwrap());
    assert_eq!(
        holder(&second, Kind::Shared, Range::byte(7)).unwrap(),
        Some(Kind::Exclusive),
        "far behind the end of the file, too"
    );

    let duplicate = first.try_clone().unwrap();
    drop(first);
    assert!(!try_lock(&second, Kind::Exclusive, Range::ALL).unwrap(), "a duplicate holds it");
    drop(duplicate);
    assert!(try_lock(&second, Kind::Exclusive, Range::ALL).unwrap());
}

#[test]
fn shared_locks_do_not_conflict_with_each_other_and_bytes_are_apart() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (first, second) = (open(file.path()), open(file.path()));
    assert!(try_lock(&first, Kind::Shared, Range::byte(1)).unwrap());
    assert!(try_lock(&second, Kind::Shared, Range::byte(1)).unwrap());
    assert!(!try_lock(&second, Kind::Exclusive, Range::byte(1)).unwrap());
    assert!(try_lock(&second, Kind::Exclusive, Range::byte(2)).unwrap());
    assert_eq!(holder(&first, Kind::Exclusive, Range::byte(1)).unwrap(), Some(Kind::Shared));
    assert_eq!(holder(&first, Kind::Exclusive, Range::byte(3)).unwrap(), None);
}

#[test]
fn a_directory_takes_a_shared_lock() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (File::open(dir.path()).unwrap(), File::open(dir.path()).unwrap());
    assert!(try_lock(&first, Kind::Shared, Range::ALL).unwrap());
    assert_eq!(holder(&second, Kind::Exclusive, Range::ALL).unwrap(), Some(Kind::Shared));
    drop(first);
    assert_eq!(holder(&second, Kind::Exclusive, Range::ALL).unwrap(), None);
}

#[test]
fn waiting_ends_when_the_holder_lets_go() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (first, second) = (open(file.path()), open(file.path()));
    lock(&first, Kind::Exclusive, Range::ALL).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| lock(&second, Kind::Exclusive, Range::ALL).unwrap());
        drop(first);
        waiter.join().unwrap();
    });
}

#[test]
fn a_descriptor_open_the_wrong_way_is_an_error_not_a_conflict() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let reader = File::open(file.path()).unwrap();
    assert!(try_lock(&reader, Kind::Exclusive, Range::ALL).is_err());
}
