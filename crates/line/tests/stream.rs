//! A stream's frames and data, in pieces of every size, with a look at the socket only where it can have something.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use guestmem::{GuestMemory, Segments};
use line::{Conduit, Held, LARGE, Pipe, Wire, WireError};
use proptest::prelude::*;
use remote::frame::{self, Item};
use remote::{Operation, Request, Status};
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

/// Reads so many bytes meanwhile.
fn read(mut far: TcpStream, length: usize) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut got = vec![0; length];
        far.read_exact(&mut got).unwrap();
        got
    })
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
    let reader = read(far, wanted.len());
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
    assert!(reader.join().unwrap() == wanted);
}

/// What a request brings, in one piece or in more than the kernel takes at once, beside other frames. Until it is read it is
/// what it is now: nobody has copied it.
#[test]
fn what_is_lent_is_looked_at_where_it_is() {
    let (mut wire, far) = pair();
    let memory = memory(4 << 20);
    let mut bytes = pattern(4 << 20);
    let all = memory.slice(0, 4 << 20).unwrap();
    let request = |offset, length| Request {
        operation: Operation::Write,
        stable: false,
        unmap: false,
        handle: 1,
        offset,
        length,
        buffers: remote::Buffers::new(),
    };
    let whole: Vec<(u64, u32)> = vec![(5, 700_001)];
    let pages = (256..1024).step_by(2).map(|page| (page * 4096, 4096)).collect();
    let small = vec![(3 << 20, LARGE as u32 - 1)];
    let mut lent = Vec::new();
    for (tag, pieces) in [whole, pages, small.clone()].into_iter().enumerate() {
        let slices = pieces.iter().map(|&(at, length)| memory.slice(at, length).unwrap());
        let data = Segments::of(&memory, slices).unwrap();
        let request = request(tag as u64, data.len());
        wire.frame(|to| frame::request(to, tag as u64, &request));
        wire.lend(tag as u64, data);
        lent.push((tag as u64, request, pieces));
    }
    wire.frame(|to| frame::ping(to, 3));
    all.copy_from(&bytes);
    wire.flush().unwrap();
    // The first is under way, and the socket takes no more than it has room for.
    let changed = 100..200;
    bytes[changed.clone()].fill(0xee);
    memory.slice(100, 100).unwrap().copy_from(&bytes[changed]);
    let mut wanted = Vec::new();
    for (tag, request, pieces) in lent {
        frame::request(&mut wanted, tag, &request);
        for (at, length) in pieces {
            wanted.extend(&bytes[at as usize..][..length as usize]);
        }
    }
    frame::ping(&mut wanted, 3);
    let reader = read(far, wanted.len());
    while wire.is_behind() {
        poll(&mut [PollFd::new(&wire.as_fd(), PollFlags::OUT)], None).unwrap();
        wire.flush().unwrap();
    }
    assert!(reader.join().unwrap() == wanted);
    let sent: Vec<u64> = std::iter::from_fn(|| wire.sent_data()).collect();
    assert!(!sent.contains(&0) && !sent.contains(&1), "answers say when it is looked at no more");
}

/// What the socket had no room for, or had not sent, is not sent when nobody waits for an answer any more.
#[test]
fn what_was_lent_is_not_sent_after_the_connection_was_given_up() {
    const SIZE: u32 = 64 << 20;
    let (mut wire, mut far) = pair();
    let memory = memory(SIZE.into());
    wire.lend(1, segments(&memory, SIZE));
    wire.flush().unwrap();
    assert!(wire.is_behind(), "there is more than it takes");
    wire.abandon();
    drop(wire);
    let mut got = Vec::new();
    let end = far.read_to_end(&mut got);
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(got.len() < SIZE as usize);
}

/// What arrived is memory of the one who sent it, if both are on one machine.
#[test]
fn who_takes_what_was_lent_is_told_that_the_connection_was_given_up() {
    const SIZE: u32 = LARGE as u32;
    let (mut wire, far) = pair();
    let (lent, taken) = (memory(SIZE.into()), memory(SIZE.into()));
    wire.lend(1, segments(&lent, SIZE));
    let mut far = Wire::new(Pipe::new(far, None), &[]);
    let mut missing = segments(&taken, SIZE);
    // All of it is sent, and some of it stays there.
    while wire.is_behind() || missing.len() == LARGE {
        wire.flush().unwrap();
        let mut some = missing.first(1024);
        let wanted = some.len();
        far.data(&mut some).unwrap();
        missing.advance(wanted - some.len());
    }
    assert!(!missing.is_empty());
    far.check().unwrap();
    wire.abandon();
    drop(wire);
    assert!(far.data(&mut missing).unwrap(), "all of it had arrived");
    assert!(far.check().is_err());
}

/// From memory to a file, whatever comes before it in the same packets, and though the peer sends small packets.
#[test]
fn what_arrives_is_held_until_all_of_it_is_there() {
    const SIZE: usize = 1 << 20;
    let bytes = pattern(SIZE);
    for small in [false, true] {
        let (mut wire, far) = pair();
        let mut conduit = Conduit::new().unwrap();
        let file = file(&[]);
        let sender = std::thread::spawn({
            let bytes = bytes.clone();
            move || {
                let memory = memory(SIZE as u64);
                memory.slice(0, SIZE as u32).unwrap().copy_from(&bytes);
                let mut far = far;
                let mut ping = Vec::new();
                frame::ping(&mut ping, 7);
                for _ in 0..4 {
                    far.write_all(&ping).unwrap();
                    if small {
                        far.write_all(&bytes).unwrap();
                        continue;
                    }
                    let mut wire = Wire::new(Pipe::new(far.try_clone().unwrap(), None), &[]);
                    wire.lend(1, segments(&memory, SIZE as u32));
                    wire.flush().unwrap();
                    while wire.is_behind() {
                        poll(&mut [PollFd::new(&wire.as_fd(), PollFlags::OUT)], None).unwrap();
                        wire.flush().unwrap();
                    }
                }
                far
            }
        });
        for _ in 0..4 {
            while wire.item(ping).unwrap().is_none() {
                wait(&wire);
            }
            loop {
                match wire.hold(&mut conduit, SIZE as u64).unwrap() {
                    Held::All => break,
                    Held::Missing => wait(&wire),
                    Held::Full => panic!("{} bytes are held", conduit.held()),
                }
            }
            let mut at = 0;
            while conduit.held() > 0 {
                at += conduit.store(&file, at).unwrap() as u64;
            }
            let mut got = vec![0; SIZE];
            file.read_exact_at(&mut got, 0).unwrap();
            assert!(got == bytes);
            file.write_all_at(&[0; SIZE], 0).unwrap();
        }
        drop(sender.join().unwrap());
    }
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
