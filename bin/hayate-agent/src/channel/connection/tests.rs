use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

use super::*;

#[test]
fn lines_arrive_whole_and_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let now = Instant::now();
    let mut connection = Connection::new(path.clone(), now);
    // Nobody is there: later, and later again.
    assert!(!connection.open(now));
    assert_eq!(connection.deadline(), Some(now + WAIT_MIN));
    assert!(!connection.open(now + WAIT_MIN / 2));
    assert!(!connection.open(now + WAIT_MIN));
    assert_eq!(connection.deadline(), Some(now + WAIT_MIN * 3));

    let listener = UnixListener::bind(&path).unwrap();
    assert!(connection.open(now + WAIT_MAX));
    let (mut daemon, _) = listener.accept().unwrap();
    assert_eq!(connection.receive().unwrap(), None);
    daemon.write_all(b"one\ntwo\nthr").unwrap();
    assert_eq!(connection.receive().unwrap().unwrap(), b"one");
    assert_eq!(connection.receive().unwrap().unwrap(), b"two");
    assert_eq!(connection.receive().unwrap(), None);
    daemon.write_all(b"ee\n").unwrap();
    assert_eq!(connection.receive().unwrap().unwrap(), b"three");

    connection.send(b"line\n").unwrap();
    let mut line = [0; 5];
    daemon.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"line\n");

    let writer = std::thread::spawn(move || daemon.write_all(&vec![b'x'; 2 * LINE_MAX]));
    let end = loop {
        match connection.receive() {
            Ok(line) => assert_eq!(line, None),
            Err(end) => break end,
        }
    };
    assert!(end.to_string().contains("longer"), "{end}");
    connection.close(now, end.to_string());
    // Whether all of it was written does not matter.
    let _ = writer.join().unwrap();
}

#[test]
fn an_end_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let mut connection = Connection::new(path, Instant::now());
    assert!(connection.open(Instant::now()));
    drop(listener.accept().unwrap());
    assert!(connection.receive().is_err());
}
