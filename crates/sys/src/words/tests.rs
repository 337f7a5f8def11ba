use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::Ordering::Relaxed;
use std::{fs, io};

use super::*;

fn store(words: &Words, index: usize, value: u64) {
    words.get(index).unwrap().store(value, Relaxed);
}

fn load(words: &Words, index: usize) -> u64 {
    words.get(index).unwrap().load(Relaxed)
}

#[test]
fn private_words_are_zero_and_shared_by_clones_and_parts() {
    let words = Words::private(8);
    assert!((0..8).all(|index| load(&words, index) == 0));
    let part = words.clone().part(3, 5).unwrap();
    store(&part, 4, 7);
    assert_eq!((load(&words, 7), part.len()), (7, 5));
    assert!(words.get(8).is_none() && part.get(5).is_none());
    assert!(words.part(4, 5).is_none() && words.part(usize::MAX, 2).is_none());
    assert!(words.part(8, 0).is_some_and(|none| none.is_empty() && none.get(0).is_none()));
    drop(words);
    assert_eq!(load(&part, 4), 7, "kept by the part");
}

#[test]
fn words_of_a_file_are_there_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("words");
    assert!(Words::open(&path, 1024).unwrap().is_none());
    let words = Words::create(&path, 1024).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read(&path).unwrap(), [0; 8192]);
    store(&words, 1023, 42);
    // Still mapped here, as by a process that was killed: nobody has to write anything back.
    let next = Words::open(&path, 1024).unwrap().unwrap();
    assert_eq!(load(&next, 1023), 42);
    let part = words.part(512, 512).unwrap();
    drop(words);
    store(&part, 511, 43);
    assert_eq!(load(&next, 1023), 43);
    assert_eq!(Words::create(&path, 1024).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn what_is_no_such_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    drop(Words::create(&path("words"), 8).unwrap());
    for len in [7, 9, 1 << 20] {
        let error = Words::open(&path("words"), len).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{len}");
    }
    symlink(path("words"), path("link")).unwrap();
    assert!(Words::open(&path("link"), 8).is_err());
    assert!(Words::create(&path("link"), 8).is_err());
    fs::create_dir(path("dir")).unwrap();
    assert!(Words::open(&path("dir"), 8).is_err());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    assert!(Words::open(&path("fifo"), 8).is_err());
    fs::hard_link(path("words"), path("second")).unwrap();
    assert!(Words::open(&path("words"), 8).is_err(), "another name leads to it");
    for len in [0, usize::MAX] {
        assert!(Words::open(&path("second"), len).is_err());
    }
}
