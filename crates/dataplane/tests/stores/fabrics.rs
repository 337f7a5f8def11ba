//! Stores that reach their guests' memory, over libfabric's provider `tcp`. Without libfabric at build time there
//! is nothing to test but that it is missed.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::store_control::{ToClient, Transport};
use dataplane::{HostError, StoreError, StoreTarget};
use fabric::{Depth, Endpoint, Fabric, Kind, Registration, Remote, Rights};
use guestmem::{GuestMemory, RegionFile, RegionSpec, Segments};
use remote::frame::{self, Item};
use remote::{Buffer, Operation, Status};
use rustix::event::{PollFd, PollFlags, Timespec};
use testkit::block::{BlockDriver, Layout, Options, Request, Writer, status};

use crate::common::plane::Plane;
use crate::common::wait;
use crate::data;
use crate::faults::{heard, write_more};
use crate::relay::{Relay, State};
use crate::rig::{SIZE, Store, add, away, connect, connections, target};
use crate::strangers::{Client, ask};

fn far(address: std::net::SocketAddr, session: u128) -> StoreTarget {
    StoreTarget { transport: Transport::Libfabric, ..target(address, session) }
}

/// Whether there is no libfabric; it is refused then.
fn missing() -> bool {
    let missing = fabric::version().is_none();
    if missing {
        let (store, plane) = (Store::new(false), Plane::new());
        let refused = add(&plane, "disk", far(store.address, 1)).unwrap_err();
        assert!(matches!(refused, HostError::Store(StoreError::NoFabric { .. })), "{refused}");
        eprintln!("not tested: there is no libfabric");
    }
    missing
}

#[test]
fn a_store_keeps_what_it_fetches() {
    if !missing() {
        data::keeps(far);
    }
}

#[test]
fn a_busy_guest_finds_what_it_wrote() {
    if !missing() {
        data::finds(far);
    }
}

#[test]
fn workers_that_never_rest_hear_of_what_is_rare() {
    if !missing() {
        heard(far);
    }
}

/// As many small pieces of memory as a request may have.
#[test]
fn memory_may_be_in_many_pieces() {
    if missing() {
        return;
    }
    let (store, plane) = (Store::new(false), Plane::new());
    add(&plane, "disk", far(store.address, 1)).unwrap();
    let options = Options { size: 256, ..Options::new(false) };
    let mut guest = BlockDriver::connect(plane.socket("disk"), &options).unwrap();
    let data: Vec<u8> = (0..40_960u32).map(|at| (at / 7) as u8).collect();
    for (request, direction) in [(Request::write(0, &data), 0), (Request::read(0, 40_960), 1)] {
        let mut layout = Layout::usual(&request);
        layout.cuts[direction].extend((1..120).map(|n| 16 + n * 200));
        layout.gap = 8;
        let done = guest.run_as(0, &request, &layout).unwrap();
        assert_eq!(done.status, Some(status::OK));
        if direction == 1 {
            assert_eq!(done.data, data);
        }
    }
}

/// They are sent from the image itself, as far as it is there, and no further than it goes.
#[test]
fn large_reads_come_from_the_image() {
    const MIB: u64 = 1 << 20;
    if missing() {
        return;
    }
    let (store, plane) = (Store::new(false), Plane::new());
    add(&plane, "disk", far(store.address, 1)).unwrap();
    let options = Options { size: 8, data: MIB as u32, ..Options::new(false) };
    let mut guest = BlockDriver::connect(plane.socket("disk"), &options).unwrap();
    let mut read = |at: u64| guest.run(&Request::read(at / 512, MIB as u32)).unwrap();
    let file = &store.shelf.file;
    let pattern: Vec<u8> = (0..MIB as u32).map(|at| (at / 512) as u8 | 1).collect();
    file.write_all_at(&pattern, MIB).unwrap();
    for _ in 0..3 {
        assert!(read(MIB).data == pattern);
        assert!(read(2 * MIB).data == vec![0; MIB as usize]);
    }
    assert_eq!(file.metadata().unwrap().blocks(), MIB / 512, "holes are read without filling them");
    // What somebody else writes is there at once.
    file.write_all_at(&[9; 512], MIB).unwrap();
    assert_eq!(read(MIB).data[..1024], [[9; 512], [1; 512]].concat());
    file.set_len(MIB + 4096).unwrap();
    assert_eq!(read(MIB).status, Some(status::IOERR));
    file.set_len(SIZE).unwrap();
    let done = read(MIB);
    assert_eq!(done.status, Some(status::OK));
    assert!(
        done.data[4096..] == vec![0; MIB as usize - 4096]
            && done.data[512..4096] == pattern[512..4096]
    );
}

/// Small ones, too: what was cut off is found out before any of it is sent, and disturbs nothing else.
#[test]
fn small_reads_come_from_the_image() {
    const PAGE: u64 = 4096;
    if missing() {
        return;
    }
    let (store, plane) = (Store::new(false), Plane::new());
    let id = add(&plane, "disk", far(store.address, 1)).unwrap();
    let mut guest = BlockDriver::connect(plane.socket("disk"), &Options::new(false)).unwrap();
    let mut read = |at: u64| guest.run(&Request::read(at / 512, PAGE as u32)).unwrap();
    let file = &store.shelf.file;
    let pattern: Vec<u8> = (0..PAGE).map(|at| (at / 512) as u8 | 1).collect();
    file.write_all_at(&pattern, 8 * PAGE).unwrap();
    let blocks = file.metadata().unwrap().blocks();
    for _ in 0..3 {
        assert_eq!(read(8 * PAGE).data, pattern);
        assert_eq!(read(9 * PAGE).data, [0; PAGE as usize]);
    }
    assert_eq!(file.metadata().unwrap().blocks(), blocks, "holes are read without filling them");
    // What somebody else writes is there at once.
    file.write_all_at(&[9; 512], 8 * PAGE).unwrap();
    assert_eq!(read(8 * PAGE).data[..1024], [[9; 512], [1; 512]].concat());
    file.set_len(2 * PAGE).unwrap();
    assert_eq!(read(8 * PAGE).status, Some(status::IOERR));
    assert_eq!(read(PAGE).status, Some(status::OK));
    assert_eq!(connections(&plane.host, id), 1, "the connection goes on");
    file.set_len(SIZE).unwrap();
    for _ in 0..3 {
        let done = read(8 * PAGE);
        assert_eq!((done.status, done.data), (Some(status::OK), vec![0; PAGE as usize]));
    }
}

/// More than is fetched at once, with small ones between them.
#[test]
fn large_writes_wait_for_their_turn() {
    const LARGE: usize = 768 << 10;
    if missing() {
        return;
    }
    let (store, plane) = (Store::new(false), Plane::new());
    add(&plane, "disk", far(store.address, 1)).unwrap();
    let options = Options { size: 64, data: LARGE as u32, ..Options::new(false) };
    let mut guest = BlockDriver::connect(plane.socket("disk"), &options).unwrap();
    let mut wanted = vec![0; SIZE as usize];
    for round in 0..20u8 {
        let mut at = 0;
        for (number, bytes) in [LARGE, LARGE, 16384, LARGE, 512, LARGE, 32768].iter().enumerate() {
            let data = vec![round * 7 + number as u8 + 1; *bytes];
            let request = Request::write(at as u64 / 512, &data);
            guest.submit(0, &request, &Layout::usual(&request)).unwrap();
            wanted[at..at + bytes].copy_from_slice(&data);
            at += bytes;
        }
        guest.kick(0);
        for (_, done) in guest.drain().unwrap() {
            assert_eq!(done.status, Some(status::OK));
        }
        let mut there = vec![0; SIZE as usize];
        store.shelf.file.read_exact_at(&mut there, 0).unwrap();
        assert!(there == wanted, "round {round}");
    }
}

/// The first connection is the lifeline of the other.
#[test]
fn nothing_is_lost_when_lifelines_are_cut() {
    if missing() {
        return;
    }
    let (store, plane) = (Store::new(false), Plane::new());
    let relay = Relay::new(store.address);
    let id = add(&plane, "disk", far(relay.address, 1)).unwrap();
    let mut writer = Writer::new(connect(&plane, "disk", false), 512, 16, 3).unwrap();
    for round in 0..20 {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(5 + round % 7) {
            writer.step().unwrap();
        }
        let before = connections(&plane.host, id);
        relay.cut();
        while connections(&plane.host, id) == before {
            writer.step().unwrap();
        }
        write_more(&mut writer, 1);
    }
    writer.settle().unwrap();
}

#[test]
fn another_store_takes_over() {
    if missing() {
        return;
    }
    let (mut store, plane) = (Store::new(true), Plane::new());
    let relay = Relay::new(store.address);
    let id = add(&plane, "disk", far(relay.address, 1)).unwrap();
    let mut writer = Writer::new(connect(&plane, "disk", true), 512, 16, 3).unwrap();
    for _ in 0..5 {
        write_more(&mut writer, 200);
        let next = Store::of(Arc::clone(&store.shelf));
        relay.lead(next.address);
        store.stop();
        writer.step().unwrap();
        store = next;
    }
    write_more(&mut writer, 200);
    writer.settle().unwrap();
    assert_eq!(connections(&plane.host, id), 6);
}

/// A guest that goes takes its memory with it; another one brings its own.
#[test]
fn guests_come_and_go() {
    if missing() {
        return;
    }
    let (store, plane) = (Store::new(false), Plane::new());
    let relay = Relay::new(store.address);
    let id = add(&plane, "disk", far(relay.address, 1)).unwrap();
    for round in 0..10u8 {
        let before = connections(&plane.host, id);
        let mut guest = connect(&plane, "disk", round % 2 == 0);
        let done = guest.run(&Request::write(u64::from(round), &[round; 512])).unwrap();
        assert_eq!(done.status, Some(status::OK));
        // With requests on their way, and once while nobody answers.
        let request = Request::read(0, 4096);
        guest.submit(0, &request, &Layout::usual(&request)).unwrap();
        guest.kick(0);
        if round == 5 {
            relay.set(State::Refusing);
            relay.cut();
            wait(|| "the store is away".into(), || away(&plane.host, id).is_some());
            relay.set(State::Open);
        }
        drop(guest);
        // A connection that has reached its memory is not gone on with.
        wait(|| "its memory is left".into(), || connections(&plane.host, id) > before);
    }
    let mut guest = connect(&plane, "disk", false);
    for round in 0..10u8 {
        let done = guest.run(&Request::read(round.into(), 512)).unwrap();
        assert_eq!(done.data, [round; 512]);
    }
    drop(guest);
    assert_eq!(plane.host.disk_status(id).unwrap().size, SIZE);
}

/// A client by hand.
struct Hand {
    endpoint: Endpoint<bool>,
    fabric: Fabric,
    /// Messages, and what is to be read and written.
    memory: Arc<GuestMemory>,
    own: Registration,
    handle: u32,
    _first: Client,
}

/// Where in its memory.
const SENT: u64 = 0;
const RECEIVED: u64 = 4096;
const DATA: u64 = 8192;
/// Of its requests.
const TAG: u64 = (5 << 32) + 1;

impl Hand {
    /// Opens the image; `greet` makes what is said at the fabric of what was to be said.
    fn open(store: &Store, greet: impl Fn(u128) -> u128) -> Hand {
        let (first, answer) = Client::new(store).open_by("hand", (true, false), &["tcp"]);
        let Some(ToClient::Opened(opened)) = answer else { panic!("{answer:?}") };
        let at = opened.fabric.unwrap();
        assert_eq!(at.provider, "tcp");
        let fabric = Fabric::open(Kind::Tcp, at.address.ip()).unwrap();
        let file = RegionFile::from(sys::memfd("hand", 1 << 16, false).unwrap());
        let spec = RegionSpec { guest_addr: 0, size: 1 << 16, user_addr: 0, mmap_offset: 0 };
        let memory = Arc::new(GuestMemory::map(&[(spec, file)]).unwrap());
        let own = fabric.register(&memory, Rights::Local).unwrap();
        let greeting = greet(at.place.0).to_be_bytes();
        let mut endpoint = fabric.connect(at.address, &greeting, Depth::default()).unwrap();
        endpoint.receive(own.at(RECEIVED, 4096).unwrap(), true).unwrap();
        Hand { endpoint, fabric, memory, own, handle: opened.handle, _first: first }
    }

    fn share(&self) -> Registration {
        self.fabric.register(&self.memory, Rights::RemoteReadWrite).unwrap()
    }

    fn segments(&self, at: u64, len: u32) -> Segments {
        Segments::of(&self.memory, std::iter::once(self.memory.slice(at, len).unwrap())).unwrap()
    }

    fn say(&mut self, bytes: &[u8]) {
        self.segments(SENT, bytes.len() as u32).copy_from(bytes);
        let local = self.own.at(SENT, bytes.len() as u32).unwrap();
        let _ = self.endpoint.send(local, false);
    }

    /// The next answer; `None`: it was hung up on.
    fn hear(&mut self) -> Option<Status> {
        let begin = Instant::now();
        loop {
            self.endpoint.poll();
            if let Some(told) = self.endpoint.told() {
                assert_eq!(told, TAG as u32);
                return Some(Status::Ok);
            }
            while let Some(ended) = self.endpoint.ended() {
                let Ok(len) = ended.result else { continue };
                if !ended.owner {
                    continue;
                }
                let mut bytes = vec![0; len as usize];
                ended.local.segments().copy_to(&mut bytes);
                self.endpoint.receive(self.own.at(RECEIVED, 4096).unwrap(), true).unwrap();
                match frame::parse(&bytes).unwrap() {
                    Some((Item::Reply { status, data: 0, .. }, _)) => return Some(status),
                    other => panic!("{other:?}"),
                }
            }
            if matches!(self.endpoint.state(), fabric::State::Ended(_)) {
                return None;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing comes");
        }
    }

    fn ask(&mut self, operation: Operation, offset: u64, buffers: &[Remote]) -> Option<Status> {
        self.begin(operation, offset, buffers);
        self.hear()
    }

    fn begin(&mut self, operation: Operation, offset: u64, buffers: &[Remote]) {
        let one = |&Remote { address, key, length }: &Remote| Buffer { address, key, length };
        let length = buffers.iter().map(|one| one.length).sum();
        let buffers = buffers.iter().map(one).collect();
        let request = remote::Request { buffers, ..ask(operation, self.handle, offset, length) };
        let mut bytes = Vec::new();
        frame::request(&mut bytes, TAG, &request);
        self.say(&bytes);
    }
}

/// A store reaches what it is told while that is registered, and nothing else; whoever tells it something
/// wrong harms nobody else.
#[test]
fn memory_that_is_not_there_is_not_reached() {
    if missing() {
        return;
    }
    let (store, plane) = (Store::new(false), Plane::new());
    let other = Store::new(false);
    add(&plane, "disk", far(other.address, 1)).unwrap();
    let mut guest = connect(&plane, "disk", false);

    let mut hand = Hand::open(&store, |place| place);
    let shared = hand.share();
    let data = shared.remote(&hand.segments(DATA, 512)).unwrap();
    hand.segments(DATA, 512).copy_from(&[7; 512]);
    assert_eq!(hand.ask(Operation::Write, 0, &data), Some(Status::Ok));
    hand.segments(DATA, 512).copy_from(&[0; 512]);
    assert_eq!(hand.ask(Operation::Read, 0, &data), Some(Status::Ok));
    let mut read = [0; 512];
    hand.segments(DATA, 512).copy_to(&mut read);
    assert_eq!(read, [7; 512]);
    assert_eq!(hand.ask(Operation::Read, SIZE, &data), Some(Status::OutOfRange));
    hand.handle += 1;
    assert_eq!(hand.ask(Operation::Write, 0, &data), Some(Status::WrongHandle));
    hand.handle -= 1;
    // A key that was good a moment ago; one that never was; and memory beyond what is registered.
    let beyond = [Remote { address: data[0].address + (1 << 40), ..data[0] }];
    let never = [Remote { key: !data[0].key, ..data[0] }];
    drop(shared);
    for wrong in [&data[..], &never, &beyond] {
        let mut hand = Hand::open(&store, |place| place);
        hand.segments(DATA, 512).copy_from(&[9; 512]);
        for operation in [Operation::Write, Operation::Read] {
            // A provider may end the connection for it.
            let answer = hand.ask(operation, 0, wrong);
            assert!(matches!(answer, None | Some(Status::Unreachable)), "{answer:?}");
        }
        hand.segments(DATA, 512).copy_to(&mut read);
        assert_eq!(read, [9; 512]);
    }
    // The wrong number of bytes, none at all, and what is no request.
    for bytes in [&data[..0], &[data[0], data[0]]] {
        let mut hand = Hand::open(&store, |place| place);
        let buffers = bytes.iter().map(|one| Buffer { address: one.address, key: 1, length: 512 });
        let request = ask(Operation::Read, hand.handle, 0, 512);
        let request = remote::Request { buffers: buffers.collect(), ..request };
        let mut frame = Vec::new();
        frame::request(&mut frame, 1, &request);
        hand.say(&frame);
        assert_eq!(hand.hear(), None);
    }
    // Data that goes with a write, and some that does not.
    for (sent, answer) in [(512, Some(Status::Ok)), (511, None), (0, None)] {
        let mut hand = Hand::open(&store, |place| place);
        let mut frame = Vec::new();
        let request = ask(Operation::Write, hand.handle, 512, 512);
        frame::request(&mut frame, TAG, &request);
        frame.resize(frame.len() + sent, 6);
        hand.say(&frame);
        assert_eq!(hand.hear(), answer, "{sent}");
    }
    let mut hand = Hand::open(&store, |place| place);
    hand.say(&[0xa5; 100]);
    assert_eq!(hand.hear(), None);
    // Who does not know the secret is not let in.
    assert_eq!(Hand::open(&store, |place| place ^ 1).hear(), None);

    let mut there = [0; 1024];
    store.shelf.file.read_exact_at(&mut there, 0).unwrap();
    assert_eq!(there, [[7; 512], [6; 512]].concat()[..]);
    assert_eq!(guest.run(&Request::write(0, &[1; 512])).unwrap().status, Some(status::OK));
}

/// A write whose data the store was fetching when the image was taken from its sender does not land, however
/// late the data comes.
#[test]
fn data_that_is_held_back_does_not_land() {
    if missing() {
        return;
    }
    let (store, plane) = (Store::new(false), Plane::new());
    let mut hand = Hand::open(&store, |place| place);
    let shared = hand.share();
    let data = shared.remote(&hand.segments(DATA, 4096)).unwrap();
    hand.segments(DATA, 4096).copy_from(&[1; 4096]);
    assert_eq!(hand.ask(Operation::Write, 0, &data), Some(Status::Ok));
    hand.segments(DATA, 4096).copy_from(&[2; 4096]);
    hand.begin(Operation::Write, 0, &data);
    // The store asks for it, and over `tcp` gets it only when the owner of the memory lets it.
    let mut arrived = [PollFd::new(&hand.endpoint, PollFlags::IN)];
    let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut arrived, Some(&patience)), Ok(1));
    // The same disk elsewhere: it gets the image when nothing of the other is under way.
    add(&plane, "disk", far(store.address, 99)).unwrap();
    let mut guest = connect(&plane, "disk", false);
    assert_eq!(guest.run(&Request::write(0, &[3; 4096])).unwrap().status, Some(status::OK));
    assert_eq!(hand.hear(), None);
    let mut there = [0; 4096];
    store.shelf.file.read_exact_at(&mut there, 0).unwrap();
    assert_eq!(there, [3; 4096]);
    assert_eq!(guest.run(&Request::read(0, 4096)).unwrap().data, [3; 4096]);
}
