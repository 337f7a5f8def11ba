//! A stream's frames and data, in pieces of every size, with a look at the socket only where it can have something.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use guestmem::{GuestMemory, Segments};
use line::{Pipe, Wire, WireError};
use proptest::prelude::*;
use remote::Status;
use remote::frame::{self, Item};
use rustix::event::{PollFd, PollFlags, poll};

/// Both ends of a connection: one that is looked at, and one that is written to.
fn pair() -> (Wire, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nodelay(true).unwrap();
    (Wire::new(Pipe::new(near, None), &[]), far)
}

/// Waits until something has arrived.
fn wait(wire: &Wire) {
    poll(&mut [PollFd::new(&wire.as_fd(), PollFlags::IN)], None).unwrap();
}

fn ping(item: Item<'_>) -> u64 {
    match item {
        Item::Ping(tag) => tag,
        other => panic!("{other:?}"),
    }
}

/// Of a reply: its tag, and how much data follows.
fn reply(item: Item<'_>) -> (u64, u32) {
    match item {
        Item::Reply { tag, data, .. } => (tag, data),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_socket_that_gave_all_it_had_is_not_asked_again_at_once() {
    let (mut wire, mut far) = pair();
    let say = |far: &mut TcpStream, tag| {
        let mut bytes = Vec::new();
        frame::ping(&mut bytes, tag);
        far.write_all(&bytes).unwrap();
    };
    say(&mut far, 1);
    wait(&wire);
    assert_eq!(wire.item(ping).unwrap(), Some(1));
    // It has come meanwhile, and is found by the look after the next.
    say(&mut far, 2);
    wait(&wire);
    assert_eq!(wire.item(ping).unwrap(), None);
    assert_eq!(wire.item(ping).unwrap(), Some(2));
}

/// A peer's end comes with its last bytes: whoever is woken up by changes only has to have seen it.
#[test]
fn nobody_sleeps_before_the_socket_has_said_that_there_is_nothing() {
    let (mut wire, mut far) = pair();
    assert!(!wire.may_sleep());
    let mut bytes = Vec::new();
    frame::ping(&mut bytes, 1);
    far.write_all(&bytes).unwrap();
    wait(&wire);
    assert_eq!(wire.item(ping).unwrap(), Some(1));
    assert!(!wire.may_sleep());
    assert_eq!(wire.item(ping).unwrap(), None);
    assert!(!wire.may_sleep());
    assert_eq!(wire.item(ping).unwrap(), None);
    assert!(wire.may_sleep());
    far.write_all(&bytes).unwrap();
    drop(far);
    wait(&wire);
    assert_eq!(wire.item(ping).unwrap(), Some(1));
    assert_eq!(wire.item(ping).unwrap(), None);
    assert!(!wire.may_sleep());
    assert!(matches!(wire.item(ping), Err(WireError::Closed)));
}

/// Where data goes.
fn memory(size: u64) -> Arc<GuestMemory> {
    line::memory("line-test", size).unwrap().1
}

fn segments(memory: &Arc<GuestMemory>, length: u32) -> Segments {
    let slice = memory.slice(0, length).into_iter();
    Segments::of(memory, slice).unwrap()
}

/// A file in memory of so many bytes.
fn file(bytes: &[u8]) -> Arc<File> {
    let file = File::from(sys::memfd("line-test", 1 << 20, false).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    Arc::new(file)
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 13 + at / 251) as u8).collect()
}

#[test]
fn a_part_of_a_file_is_sent_in_its_turn() {
    let (mut wire, far) = pair();
    let bytes = pattern(1 << 20);
    let file = file(&bytes);
    let reply = |wire: &mut Wire, tag, at: usize, size: usize| {
        wire.frame(|to| frame::reply(to, tag, Status::Ok, size as u32));
        wire.push_file(tag, Arc::clone(&file), at as u64, size as u64);
    };
    reply(&mut wire, 1, 5, 900_000);
    reply(&mut wire, 2, 100_000, 70_000);
    wire.frame(|to| frame::ping(to, 3));
    let mut wanted = Vec::new();
    for (tag, at, size) in [(1, 5, 900_000), (2, 100_000, 70_000)] {
        frame::reply(&mut wanted, tag, Status::Ok, size as u32);
        wanted.extend(&bytes[at..at + size]);
    }
    frame::ping(&mut wanted, 3);
    let length = wanted.len();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; length];
        (&far).read_exact(&mut got).unwrap();
        (far, got)
    });
    let mut sent = Vec::new();
    loop {
        wire.flush().unwrap();
        sent.extend(std::iter::from_fn(|| wire.sent_data()));
        if !wire.is_behind() {
            break;
        }
        poll(&mut [PollFd::new(&wire.as_fd(), PollFlags::OUT)], None).unwrap();
    }
    assert_eq!(sent, [1, 2]);
    assert!(reader.join().unwrap().1 == wanted);
}

/// A reply that has begun cannot say that the file is shorter by now.
#[test]
fn a_file_that_ends_too_early_ends_the_connection() {
    let (mut wire, _far) = pair();
    wire.push_file(1, file(&[]), (1 << 20) - 10, 100);
    assert!(
        matches!(wire.flush(), Err(WireError::Io(error)) if error.kind() == ErrorKind::UnexpectedEof)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever the sizes of replies and of the pieces in which they arrive, each byte comes to its place, once.
    #[test]
    fn replies_arrive_whole(
        sizes in prop::collection::vec(prop_oneof![0..64u32, 4000..5000u32, 30_000..300_000u32], 1..12),
        piece in prop_oneof![16..600usize, 4096..100_000usize],
    ) {
        let (mut wire, mut far) = pair();
        let byte = |tag: usize, at: usize| (tag * 7 + at * 13 + at / 251) as u8;
        let data = |tag: usize, size: u32| (0..size as usize).map(move |at| byte(tag, at));
        let mut bytes = Vec::new();
        for (tag, &size) in sizes.iter().enumerate() {
            frame::reply(&mut bytes, tag as u64, Status::Ok, size);
            bytes.extend(data(tag, size));
        }
        let sender = std::thread::spawn(move || {
            bytes.chunks(piece).for_each(|piece| far.write_all(piece).unwrap());
            far
        });
        let memory = memory(1 << 20);
        for (tag, &size) in sizes.iter().enumerate() {
            let head = loop {
                if let Some(head) = wire.item(reply).unwrap() {
                    break head;
                }
                wait(&wire);
            };
            prop_assert_eq!(head, (tag as u64, size));
            let mut got = vec![0; size as usize];
            let mut missing = segments(&memory, size);
            while !wire.data(&mut missing).unwrap() {
                wait(&wire);
            }
            segments(&memory, size).copy_to(&mut got);
            prop_assert!(got.into_iter().eq(data(tag, size)), "data of reply {tag}");
        }
        drop(sender.join().unwrap());
    }
}
