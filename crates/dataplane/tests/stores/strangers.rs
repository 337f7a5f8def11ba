//! Clients that do not keep to the protocol.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use dataplane::store_control::{Session, ToClient, ToStore, Why, decode, encode};
use guestmem::Segments;
use line::Conduit;
use remote::frame::{self, Item};
use remote::{Operation, Request, Status};
use rustix::fs::{SealFlags, fcntl_add_seals};
use testkit::block::{Request as Block, status};

use crate::common::plane::Plane;
use crate::common::wait;
use crate::rig::{SIZE, Store, add, away, connect, connections, target};

/// Until the store has answered.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client by hand.
pub(crate) struct Client {
    stream: TcpStream,
    arrived: Vec<u8>,
}

impl Client {
    pub(crate) fn new(store: &Store) -> Client {
        let stream = TcpStream::connect(store.address).unwrap();
        // What never comes ends the test.
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream, arrived: Vec::new() }
    }

    fn say(&mut self, message: &ToStore) {
        let mut bytes = Vec::new();
        frame::control(&mut bytes, &encode(message));
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next item as this makes of it; `None`: the store closed the connection.
    fn next<T>(&mut self, take: impl Fn(Item<'_>) -> T) -> Option<T> {
        loop {
            if let Some((item, used)) = frame::parse(&self.arrived).unwrap() {
                let taken = take(item);
                self.arrived.drain(..used);
                return Some(taken);
            }
            let mut more = [0; 4096];
            match self.stream.read(&mut more) {
                Ok(count @ 1..) => self.arrived.extend(&more[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no answer came"),
                _ => return None,
            }
        }
    }

    fn hear(&mut self) -> Option<ToClient> {
        self.next(|item| match item {
            Item::Control(json) => decode(json).unwrap(),
            other => panic!("{other:?}"),
        })
    }

    /// Opens the image; its handle.
    fn open(store: &Store, write: bool) -> (Client, u32) {
        match Client::new(store).try_open("hand", write, false) {
            (client, Some(ToClient::Opened(opened))) => (client, opened.handle),
            (_, other) => panic!("{other:?}"),
        }
    }

    /// Says who it is and asks for the image; what the store answers.
    fn try_open(self, name: &str, write: bool, fence: bool) -> (Client, Option<ToClient>) {
        self.open_by(name, (write, fence), &[])
    }

    /// The same by one of these fabrics.
    pub(crate) fn open_by(
        mut self,
        name: &str,
        (write, fence): (bool, bool),
        fabrics: &[&str],
    ) -> (Client, Option<ToClient>) {
        let fabrics = fabrics.iter().map(|&name| name.to_owned()).collect();
        self.say(&ToStore::Hello { version: 1, client: name.to_owned() });
        assert!(matches!(self.hear(), Some(ToClient::Welcome { version: 1, .. })));
        let (image, session) = ("disk".parse().unwrap(), Session(99));
        self.say(&ToStore::Open { image, write, session, fence, in_place: false, fabrics });
        let answer = self.hear();
        (self, answer)
    }

    fn ask(&mut self, tag: u64, request: &Request, data: &[u8]) {
        let mut bytes = Vec::new();
        frame::request(&mut bytes, tag, request);
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes).unwrap();
    }

    fn answer(&mut self) -> Option<(u64, Status, u32)> {
        self.next(|item| match item {
            Item::Reply { tag, status, data } => (tag, status, data),
            other => panic!("{other:?}"),
        })
    }
}

impl Client {
    /// So many bytes of data behind an answer.
    fn data(&mut self, size: usize) -> Vec<u8> {
        let mut data: Vec<u8> = self.arrived.drain(..size.min(self.arrived.len())).collect();
        let there = data.len();
        data.resize(size, 0);
        self.stream.read_exact(&mut data[there..]).unwrap();
        data
    }
}

pub(crate) fn ask(operation: Operation, handle: u32, offset: u64, length: u64) -> Request {
    let (stable, unmap, buffers) = (false, false, remote::Buffers::new());
    Request { operation, stable, unmap, handle, offset, length, buffers }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let store = Store::new(false);
    let (mut client, handle) = Client::open(&store, false);
    let read = |handle, offset, length| ask(Operation::Read, handle, offset, length);
    for (number, (request, wanted)) in [
        (read(handle, SIZE - 512, 1024), Status::OutOfRange),
        (read(handle + 1, 0, 512), Status::WrongHandle),
        (ask(Operation::WriteZeroes, handle, 0, 512), Status::ReadOnly),
        (ask(Operation::Discard, handle, 0, 512), Status::ReadOnly),
    ]
    .into_iter()
    .enumerate()
    {
        client.ask(number as u64, &request, &[]);
        assert_eq!(client.answer(), Some((number as u64, wanted, 0)));
    }
    client.ask(10, &ask(Operation::Write, handle, 0, 512), &[5; 512]);
    assert_eq!(client.answer(), Some((10, Status::ReadOnly, 0)));
    // It is a good client otherwise.
    client.ask(11, &read(handle, 0, 512), &[]);
    assert_eq!(client.answer(), Some((11, Status::Ok, 512)));
}

/// Much data of an image in memory goes from its file to the connection by itself.
#[test]
fn much_data_comes_to_its_place_and_back() {
    let store = Store::new(false);
    let (mut client, handle) = Client::open(&store, true);
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    for (tag, size) in [(1, 65_536), (2, 1 << 20), (3, 100_352)] {
        let offset = tag * 512;
        let request = |operation| ask(operation, handle, offset, size as u64);
        client.ask(tag, &request(Operation::Write), &data[..size]);
        assert_eq!(client.answer(), Some((tag, Status::Ok, 0)));
        let mut there = vec![0; size];
        store.shelf.file.read_exact_at(&mut there, offset).unwrap();
        assert!(there == data[..size], "{size} bytes in the image");
        client.ask(tag, &request(Operation::Read), &[]);
        assert_eq!(client.answer(), Some((tag, Status::Ok, size as u32)));
        assert!(client.data(size) == data[..size], "{size} bytes read");
    }
    // A part of the image that is not there any more.
    store.shelf.file.set_len(SIZE - 512).unwrap();
    client.ask(5, &ask(Operation::Read, handle, SIZE - (1 << 20), 1 << 20), &[]);
    assert_eq!(client.answer(), Some((5, Status::Failed, 0)));
    client.ask(6, &ask(Operation::Read, handle, 512, 65_536), &[]);
    assert_eq!(client.answer(), Some((6, Status::Ok, 65_536)));
}

/// Data that comes in more pieces than the kernel holds for the store goes to its place all the same.
#[test]
fn data_in_very_many_pieces_comes_to_its_place() {
    const LENGTH: usize = 1 << 20;
    const PIECE: u32 = 256;
    let store = Store::new(false);
    let (mut client, handle) = Client::open(&store, true);
    let (_, memory) = line::memory("pieces", 2 * LENGTH as u64).unwrap();
    let data: Vec<u8> = (0..2 * LENGTH).map(|at| (at % 251) as u8).collect();
    memory.slice(0, 2 * LENGTH as u32).unwrap().copy_from(&data);
    let starts = (0..2 * LENGTH).step_by(2 * PIECE as usize);
    let slices = starts.clone().map(|at| memory.slice(at as u64, PIECE).unwrap());
    let pieces = Segments::of(&memory, slices).unwrap();
    let data: Vec<u8> = starts.flat_map(|at| &data[at..][..PIECE as usize]).copied().collect();
    let mut conduit = Conduit::new().unwrap();
    for (tag, size) in [(1, LENGTH), (2, LENGTH), (3, 65_536), (4, LENGTH)] {
        let offset = tag * 1024;
        client.ask(tag, &ask(Operation::Write, handle, offset, size as u64), &[]);
        let mut left = pieces.first(size as u64);
        while !left.is_empty() {
            left.advance(conduit.lend(&left).unwrap() as u64);
            while conduit.held() > 0 {
                conduit.send(&client.stream).unwrap();
            }
        }
        assert_eq!(client.answer(), Some((tag, Status::Ok, 0)));
        let mut there = vec![0; size];
        store.shelf.file.read_exact_at(&mut there, offset).unwrap();
        assert!(there == data[..size], "{size} bytes in the image");
    }
}

/// What the image does not take fails, and nothing else.
#[test]
fn much_data_for_which_there_is_no_room_fails() {
    let store = Store::new(false);
    let (mut client, handle) = Client::open(&store, true);
    store.shelf.file.set_len(1 << 19).unwrap();
    fcntl_add_seals(&store.shelf.file, SealFlags::GROW).unwrap();
    let data = vec![7; 1 << 20];
    let mut write = |tag, offset, size: usize| {
        client.ask(tag, &ask(Operation::Write, handle, offset, size as u64), &data[..size]);
        client.answer()
    };
    assert_eq!(write(1, 0, 1 << 20), Some((1, Status::Failed, 0)));
    assert_eq!(write(2, 1 << 20, 1 << 20), Some((2, Status::Failed, 0)));
    assert_eq!(write(3, 512, 1 << 18), Some((3, Status::Ok, 0)));
    let mut there = vec![0; 1 << 18];
    store.shelf.file.read_exact_at(&mut there, 512).unwrap();
    assert!(there.iter().all(|byte| *byte == 7));
}

/// A write is carried out when all of it is there: nothing is torn by a client that ends in the middle.
#[test]
fn a_write_of_which_a_part_has_come_changes_nothing() {
    let store = Store::new(false);
    let (mut client, handle) = Client::open(&store, true);
    client.ask(1, &ask(Operation::Write, handle, 0, 1 << 20), &vec![7; (1 << 19) + 100]);
    drop(client);
    wait(|| "it is closed".into(), || store.shelf.writers() == 0);
    let mut there = vec![0; 1 << 20];
    store.shelf.file.read_exact_at(&mut there, 0).unwrap();
    assert!(there.iter().all(|byte| *byte == 0));
}

/// Who may not have an image cannot take it from who has it either.
#[test]
fn only_who_may_have_an_image_can_take_it() {
    let (store, plane) = (Store::new(false), Plane::new());
    let id = add(&plane, "disk", target(store.address, 1)).unwrap();
    let mut guest = connect(&plane, "disk", false);
    let refused = |(_, answer)| match answer {
        Some(ToClient::Refused(refused)) => refused.why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(Client::new(&store).try_open("banned", true, true)), Why::Forbidden);
    assert_eq!(refused(Client::new(&store).try_open("hand", true, false)), Why::InUse);
    assert_eq!(guest.run(&Block::write(0, &[1; 512])).unwrap().status, Some(status::OK));
    assert_eq!((connections(&plane.host, id), store.shelf.writers()), (1, 1));

    let (mut taker, answer) = Client::new(&store).try_open("hand", true, true);
    let Some(ToClient::Opened(opened)) = answer else { panic!("{answer:?}") };
    taker.ask(1, &ask(Operation::Write, opened.handle, 0, 512), &[2; 512]);
    assert_eq!(taker.answer(), Some((1, Status::Ok, 0)));
    wait(|| "it is fenced off".into(), || away(&plane.host, id).is_some());
    assert_eq!(store.shelf.writers(), 1);
}

/// Answers nobody takes are not kept without end.
#[test]
fn who_asks_and_never_listens_is_hung_up_on() {
    let store = Store::new(false);
    let (mut client, _) = Client::open(&store, true);
    let mut pings = Vec::new();
    for tag in 0..10_000 {
        frame::ping(&mut pings, tag);
    }
    while client.stream.write_all(&pings).is_ok() {}
    wait(|| "it is closed".into(), || store.shelf.writers() == 0);
}

/// Each ends its own connection, and no other disk notices.
#[test]
fn who_does_not_speak_the_protocol_is_hung_up_on() {
    let (store, plane) = (Store::new(false), Plane::new());
    let other = Store::new(false);
    add(&plane, "disk", target(other.address, 1)).unwrap();
    let mut guest = connect(&plane, "disk", false);
    let mut garbage = Client::new(&store);
    let _ = garbage.stream.write_all(&[0xa5; 100]);
    assert_eq!(garbage.next(|_| ()), None);
    let mut rude = Client::new(&store);
    rude.say(&ToStore::List);
    assert!(matches!(rude.hear(), Some(ToClient::Refused(why)) if why.why == Why::BadMessage));
    assert_eq!(rude.hear(), None);
    let mut old = Client::new(&store);
    old.say(&ToStore::Hello { version: 0, client: String::new() });
    assert!(matches!(old.hear(), Some(ToClient::Refused(why)) if why.why == Why::Version));
    let mut curious = Client::new(&store);
    curious.say(&ToStore::Hello { version: 7, client: String::new() });
    assert!(matches!(curious.hear(), Some(ToClient::Welcome { version: 1, .. })));
    curious.say(&ToStore::List);
    assert!(matches!(curious.hear(), Some(ToClient::Images { images }) if images.len() == 1));

    // After an image was opened.
    let (mut garbage, _) = Client::open(&store, true);
    garbage.stream.write_all(&[0xa5; 100]).unwrap();
    assert_eq!(garbage.answer(), None);
    wait(|| "it is closed".into(), || store.shelf.writers() == 0);
    let (mut chatty, _) = Client::open(&store, true);
    chatty.say(&ToStore::List);
    assert_eq!(chatty.answer(), None);
    wait(|| "it is closed".into(), || store.shelf.writers() == 0);
    let (mut greedy, handle) = Client::open(&store, true);
    let mut bytes = Vec::new();
    for tag in 0..1000 {
        frame::request(&mut bytes, tag, &ask(Operation::Read, handle, 0, 1 << 20));
    }
    // Who takes its answers at once may never have too much under way.
    greedy.stream.write_all(&bytes).unwrap();
    wait(|| "it is closed".into(), || store.shelf.writers() == 0);
    assert_eq!(guest.run(&Block::write(0, &[1; 512])).unwrap().status, Some(status::OK));
}

/// An image that cannot be opened for a while takes nobody else's place, however many ask for it.
#[test]
fn an_image_that_is_stuck_holds_nobody_else_up() {
    let store = Store::new(false);
    let stuck = store.shelf.stuck.lock().unwrap();
    for number in 0..300 {
        let mut client = Client::new(&store);
        client.say(&ToStore::Hello { version: 1, client: number.to_string() });
        assert!(matches!(client.hear(), Some(ToClient::Welcome { .. })));
        let (image, session) = ("stuck".parse().unwrap(), Session(number));
        let (write, fence, in_place, fabrics) = (true, false, false, Vec::new());
        client.say(&ToStore::Open { image, write, session, fence, in_place, fabrics });
    }
    let (_client, answer) = Client::new(&store).try_open("hand", true, false);
    assert!(matches!(answer, Some(ToClient::Opened(_))), "{answer:?}");
    drop(stuck);
}
