//! Two ends, in one process and in two: over the provider `tcp` on loopback, or where
//! `FABRIC_TEST=verbs:10.0.0.1` says.
//!
//! Without libfabric at build time there is nothing to test but that it is missed. `FABRIC_TEST_VERSION=2.1` says which
//! is expected, where `LD_LIBRARY_PATH` has another than the system's.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fabric::{Depth, Ended, Endpoint, Error, Fabric, Kind, Local, Remote, Remotes, Rights, State};
use guestmem::{GuestMemory, RegionFile, RegionSpec, Segments};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

mod numbers;
mod several;

/// What is tested, and where.
fn place() -> (Kind, IpAddr) {
    let Ok(place) = std::env::var("FABRIC_TEST") else {
        return (Kind::Tcp, Ipv4Addr::LOCALHOST.into());
    };
    let (kind, address) = place.split_once(':').unwrap();
    (kind.parse().unwrap(), address.parse().unwrap())
}

fn open() -> Result<Fabric, Error> {
    let (kind, address) = place();
    Fabric::open(kind, address)
}

/// What hangs is a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether there is a library; says so if not.
fn missing() -> bool {
    let missing = fabric::version().is_none();
    if missing {
        assert_eq!(open().unwrap_err(), Error::Missing);
        eprintln!("not tested: {}", Error::Missing);
    }
    missing
}

/// Two regions with a hole between them: of `size` bytes at 0, and at 4 GiB.
fn memory(size: u64) -> Arc<GuestMemory> {
    let file = RegionFile::from(sys::memfd("fabric", 2 * size, false).unwrap());
    let region = |guest_addr, mmap_offset| {
        (RegionSpec { guest_addr, size, user_addr: guest_addr, mmap_offset }, file.clone())
    };
    Arc::new(GuestMemory::map(&[region(0, 0), region(4 << 30, size)]).unwrap())
}

fn segments(memory: &Arc<GuestMemory>, places: &[(u64, u32)]) -> Segments {
    let slices = places.iter().map(|(gpa, len)| memory.slice(*gpa, *len).unwrap());
    Segments::of(memory, slices).unwrap()
}

/// Bytes that depend on their place and on a number.
fn pattern(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8 ^ number as u8).collect()
}

fn bytes(segments: &Segments) -> Vec<u8> {
    let mut bytes = vec![0; segments.len() as usize];
    segments.copy_to(&mut bytes);
    bytes
}

/// The two ends of a connection. `server` reaches into the memory of `client`.
struct Pair {
    ours: Fabric,
    theirs: Fabric,
    server: Endpoint<u64>,
    client: Endpoint<u64>,
}

fn pair(depth: Depth) -> Pair {
    let (ours, theirs) = (open(), open());
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    let listener = ours.listen(0).unwrap();
    let mut client = theirs.connect(listener.address(), b"hello", depth).unwrap();
    let since = Instant::now();
    let request = loop {
        if let Some(request) = listener.poll().unwrap() {
            break request;
        }
        client.poll();
        assert!(since.elapsed() < PATIENCE);
    };
    assert_eq!(request.greeting(), b"hello");
    let mut server = request.accept(depth).unwrap();
    while *server.state() != State::Connected || *client.state() != State::Connected {
        server.poll();
        client.poll();
        assert!(since.elapsed() < PATIENCE, "{:?} {:?}", server.state(), client.state());
    }
    Pair { ours, theirs, server, client }
}

impl Pair {
    /// What ends at the server, until so much has.
    fn server_ends(&mut self, count: usize) -> Vec<Ended<u64>> {
        let (mut all, since) = (Vec::new(), Instant::now());
        while all.len() < count {
            self.server.poll();
            self.client.poll();
            all.extend(std::iter::from_fn(|| self.server.ended()));
            assert!(since.elapsed() < PATIENCE, "{} of {count}", all.len());
        }
        all
    }
}

/// Polls, and sleeps when there is nothing to do.
fn step(endpoint: &mut Endpoint<u64>) {
    endpoint.poll();
    if endpoint.may_sleep() {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let mut fds = [PollFd::new(&*endpoint, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&second));
    }
}

/// What is tested here with another libfabric is not tested with the system's.
#[test]
fn the_library_is_the_one_that_is_expected() {
    assert_eq!(fabric::library().is_some_and(|file| file.is_file()), fabric::version().is_some());
    let Ok(expected) = std::env::var("FABRIC_TEST_VERSION") else { return };
    let (major, minor) = fabric::version().expect("built with libfabric");
    assert_eq!(format!("{major}.{minor}"), expected);
}

#[test]
fn bytes_arrive_both_ways() {
    if missing() {
        return;
    }
    let Pair { ours, theirs, mut server, mut client } = pair(Depth::default());
    let (here, there) = (memory(80 << 20), memory(80 << 20));
    let local = ours.register(&here, Rights::Local).unwrap();
    let registered = theirs.register(&there, Rights::RemoteReadWrite).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    // The owner of the memory only sleeps and polls.
    let owner = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                step(&mut client);
            }
            client
        }
    });
    for size in [512u32, 4096, 65536, 1 << 20, 4 << 20] {
        for depth in [1u64, 16] {
            // In three pieces here and two there, cut at other places, on both sides of the hole.
            let odd = size / 3 + 7;
            let places = |n: u64| {
                let at = n * u64::from(size);
                let here = [(at, 100), (at + 200, odd), ((4 << 30) + at, size - 100 - odd)];
                (here, [((4 << 30) + at, odd), (at, size - odd)])
            };
            for n in 0..depth {
                let (from, to) = places(n);
                let from = segments(&here, &from);
                from.copy_from(&pattern(n + 1, size as usize));
                let to = registered.remote(&segments(&there, &to)).unwrap();
                assert_eq!(to.len(), 2);
                server.write(local.local(from).unwrap(), to, n).unwrap();
            }
            let mut ended = Vec::new();
            while (ended.len() as u64) < depth {
                step(&mut server);
                ended.extend(std::iter::from_fn(|| server.ended()));
            }
            for one in ended {
                assert_eq!(one.result, Ok(u64::from(size)));
                // It is there as soon as it has ended.
                let to = segments(&there, &places(one.owner).1);
                assert!(bytes(&to) == pattern(one.owner + 1, size as usize), "write of {size}");
            }
            for n in 0..depth {
                let (to, from) = places(n);
                let from = segments(&there, &from);
                from.copy_from(&pattern(n + 100, size as usize));
                let from = registered.remote(&from).unwrap();
                let to = local.local(segments(&here, &to)).unwrap();
                server.read(to, from, n).unwrap();
            }
            let mut left = depth;
            while left > 0 {
                step(&mut server);
                while let Some(one) = server.ended() {
                    assert_eq!(one.result, Ok(u64::from(size)));
                    let got = bytes(one.local.segments());
                    assert!(got == pattern(one.owner + 100, size as usize), "read of {size}");
                    left -= 1;
                }
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    drop(server);
    let client = owner.join().unwrap();
    assert_eq!(client.in_flight(), 0);
}

/// Whether something has happened since this was asked.
fn woken(bed: &OwnedFd) -> bool {
    let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; 4];
    !epoll::wait(bed, &mut room, Some(&Timespec::default())).unwrap().0.is_empty()
}

/// Whoever hears of a change only, as a worker does, is not left asleep with bytes unread.
#[test]
fn nothing_is_left_behind_by_who_sleeps() {
    if missing() {
        return;
    }
    let Pair { ours, theirs, mut server, mut client } = pair(Depth::default());
    let (here, there) = (memory(4 << 20), memory(4 << 20));
    let local = ours.register(&here, Rights::Local).unwrap();
    let registered = theirs.register(&there, Rights::RemoteWrite).unwrap();
    let bed = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&bed, &client, epoll::EventData::new_u64(0), edges).unwrap();
    // Pages of a guest, which lie here and there: many messages, and nothing to be told of but the last.
    let pages: Vec<(u64, u32)> = (0..256).map(|n| (n * 8192, 4096)).collect();
    let to = segments(&there, &pages);
    for number in 0..20 {
        let from = local.at(0, 1 << 20).unwrap();
        from.segments().copy_from(&pattern(number, 1 << 20));
        server.write(from, registered.remote(&to).unwrap(), number).unwrap();
        let since = Instant::now();
        while server.ended().is_none() {
            server.poll();
            client.poll();
            // What comes after this is an edge.
            woken(&bed);
            if client.may_sleep() {
                let mut fds = [PollFd::new(&client, PollFlags::IN)];
                let left = poll(&mut fds, Some(&Timespec::default())).unwrap();
                assert!(left == 0 || woken(&bed), "{number}: asleep beside bytes");
            }
            assert!(since.elapsed() < PATIENCE);
        }
        assert!(bytes(&to) == pattern(number, 1 << 20), "{number}");
    }
}

#[test]
fn more_than_the_provider_takes_at_once_waits() {
    if missing() {
        return;
    }
    let mut pair = pair(Depth { transmits: 3, receives: 1 });
    let (here, there) = (memory(1 << 20), memory(1 << 20));
    let local = pair.ours.register(&here, Rights::Local).unwrap();
    let registered = pair.theirs.register(&there, Rights::RemoteReadWrite).unwrap();
    // A hundred pieces on either side, which do not begin or end together.
    let from: Vec<(u64, u32)> = (0..100).map(|n| (n * 1024, 512)).collect();
    let to: Vec<(u64, u32)> = (0..64).map(|n| (n * 2048, 800)).collect();
    let from = segments(&here, &from);
    from.copy_from(&pattern(9, 51_200));
    let to = segments(&there, &to);
    for n in 0..20 {
        let remote = registered.remote(&to).unwrap();
        assert_eq!(remote.len(), 64);
        pair.server.write(local.local(from.clone()).unwrap(), remote, n).unwrap();
    }
    assert!(pair.server_ends(20).iter().all(|one| one.result == Ok(51_200)));
    assert_eq!(pair.server.in_flight(), 0);
    assert!(bytes(&to) == pattern(9, 51_200));
}

#[test]
fn messages_arrive_in_order() {
    if missing() {
        return;
    }
    let mut pair = pair(Depth::default());
    let (here, there) = (memory(1 << 20), memory(1 << 20));
    let (from, to) = (
        pair.theirs.register(&there, Rights::Local).unwrap(),
        pair.ours.register(&here, Rights::Local).unwrap(),
    );
    for n in 0..50 {
        pair.server.receive(to.at(n * 4096, 4096).unwrap(), n).unwrap();
        let message = from.at(n * 4096, 100 + n as u32).unwrap();
        message.segments().copy_from(&pattern(n, 4096));
        pair.client.send(message, n).unwrap();
    }
    for (n, one) in pair.server_ends(50).into_iter().enumerate() {
        assert_eq!((one.owner, one.result), (n as u64, Ok(100 + n as u64)));
        assert_eq!(bytes(one.local.segments())[..100 + n], pattern(n as u64, 100 + n));
    }
    // One that does not fit is told, and nothing is written behind the memory for it.
    pair.server.receive(to.at(0, 512).unwrap(), 0).unwrap();
    to.memory().slice(512, 512).unwrap().copy_from(&[0xee; 512]);
    pair.client.send(from.at(0, 4096).unwrap(), 0).unwrap();
    let ended = pair.server_ends(1);
    assert!(ended[0].result.is_err(), "{ended:?}");
    let mut behind = [0; 512];
    to.memory().slice(512, 512).unwrap().copy_to(&mut behind);
    assert_eq!(behind, [0xee; 512]);
}

/// What becomes of one operation on memory that was registered with `rights`, told with `change`.
#[test]
fn messages_wait_for_receives() {
    if missing() {
        return;
    }
    let mut pair = pair(Depth::default());
    if !pair.ours.holds_back() {
        eprintln!("not tested: with this provider they do not");
        return;
    }
    let (here, there) = (memory(1 << 20), memory(1 << 20));
    let (from, to) = (
        pair.theirs.register(&there, Rights::Local).unwrap(),
        pair.ours.register(&here, Rights::Local).unwrap(),
    );
    let open = memory(4096);
    let registered = pair.ours.register(&open, Rights::RemoteWrite).unwrap();
    let all = segments(&open, &[(0, 4096)]);
    // Small ones and large ones, and numbers between them.
    let length = |n: u64| if n.is_multiple_of(2) { 100 } else { 12_000 };
    let mut numbers = 0;
    for n in 0..60 {
        let message = from.at(n * 12_288, length(n)).unwrap();
        message.segments().copy_from(&pattern(n, length(n) as usize));
        pair.client.send(message, n).unwrap();
        if n.is_multiple_of(7) && pair.theirs.delivers() {
            let local = from.at(0, 4096).unwrap();
            let remote = registered.remote(&all).unwrap();
            pair.client.deliver(local, remote, n as u32, n).unwrap();
            numbers += 1;
        }
    }
    // There are never more than three, and none at first.
    for _ in 0..1000 {
        pair.server.poll();
        pair.client.poll();
    }
    assert_eq!(pair.server.ended().map(|one| one.result), None);
    let room = |n: u64| to.at(n % 3 * 12_288, 12_288).unwrap();
    for n in 0..3 {
        pair.server.receive(room(n), n).unwrap();
    }
    let (mut told, since) = (0, Instant::now());
    let mut expected = 0;
    while expected < 60 {
        for one in pair.server_ends(1) {
            let n = expected;
            assert_eq!((one.owner, one.result), (n, Ok(u64::from(length(n)))));
            assert!(bytes(one.local.segments()).starts_with(&pattern(n, length(n) as usize)));
            pair.server.receive(room(n), n + 3).unwrap();
            expected += 1;
        }
    }
    while told < numbers {
        told += std::iter::from_fn(|| pair.server.told()).count();
        pair.server.poll();
        pair.client.poll();
        assert!(since.elapsed() < PATIENCE, "{told} of {numbers}");
    }
    assert_eq!(told, numbers);
}

fn attempt(rights: Rights, write: bool, change: impl FnOnce(Remote) -> Remote) -> Ended<u64> {
    let mut pair = pair(Depth::default());
    let (here, there) = (memory(1 << 20), memory(1 << 20));
    let local = pair.ours.register(&here, Rights::Local).unwrap();
    let registered = pair.theirs.register(&there, rights).unwrap();
    let remote = registered.remote(&segments(&there, &[(0, 4096)])).unwrap();
    let remote = Remotes::from([change(remote[0])]);
    let len = remote[0].length as u32;
    let from = local.at(0, len).unwrap();
    from.segments().copy_from(&vec![0xaa; len as usize]);
    if write {
        pair.server.write(from, remote, 0).unwrap();
    } else {
        pair.server.read(from, remote, 0).unwrap();
    }
    let ended = pair.server_ends(1).pop().unwrap();
    if ended.result.is_err() {
        // (A network card may have written what was allowed before it found what was not.)
        let touched = |at| bytes(&segments(&there, &[(at, 4096)])).contains(&0xaa);
        assert!(!touched(0) && !touched(4 << 30), "a refused write has written");
        assert!(bytes(ended.local.segments()).iter().all(|byte| *byte == 0xaa));
    }
    ended
}

#[test]
fn rights_are_enforced() {
    if missing() {
        return;
    }
    let same = |remote| remote;
    // What is allowed.
    for (rights, write) in [
        (Rights::RemoteRead, false),
        (Rights::RemoteWrite, true),
        (Rights::RemoteReadWrite, false),
        (Rights::RemoteReadWrite, true),
    ] {
        assert_eq!(attempt(rights, write, same).result, Ok(4096), "{rights:?} {write}");
    }
    // What is not.
    for (rights, write) in [(Rights::RemoteRead, true), (Rights::RemoteWrite, false)] {
        let ended = attempt(rights, write, same);
        assert!(matches!(ended.result, Err(Error::Provider { .. } | Error::Ended)), "{ended:?}");
    }
    // Past the end, before the beginning, and of another key.
    type Change = fn(Remote) -> Remote;
    let changes: [Change; 5] = [
        |remote| Remote { address: remote.address + (1 << 20) - 512, ..remote },
        |remote| Remote { address: remote.address + (1 << 20), ..remote },
        |remote| Remote { address: remote.address.wrapping_sub(4096), ..remote },
        |remote| Remote { key: remote.key ^ 1, ..remote },
        |remote| Remote { key: 1, ..remote },
    ];
    for (n, change) in changes.into_iter().enumerate() {
        for write in [false, true] {
            let ended = attempt(Rights::RemoteReadWrite, write, change);
            assert!(ended.result.is_err(), "change {n}, write {write}: {ended:?}");
        }
    }
}

#[test]
fn local_memory_is_shown_to_nobody() {
    if missing() {
        return;
    }
    let (ours, other) = (open(), open());
    let (ours, other) = (ours.unwrap(), other.unwrap());
    let (one, two) = (memory(1 << 20), memory(1 << 20));
    let registered = ours.register(&one, Rights::Local).unwrap();
    assert_eq!(registered.remote(&segments(&one, &[(0, 512)])), None);
    assert!(registered.local(segments(&two, &[(0, 512)])).is_none());
    assert!(registered.at((1 << 20) - 256, 512).is_none());
    // Two registrations of the same memory have different keys.
    let key = |fabric: &Fabric| {
        let registered = fabric.register(&one, Rights::RemoteRead).unwrap();
        registered.remote(&segments(&one, &[(0, 512)])).unwrap()[0].key
    };
    let keys = [key(&ours), key(&ours), key(&other)];
    assert!(keys[0] != keys[1] && keys[1] != keys[2]);
    // Memory of another fabric is refused.
    let mut pair = pair(Depth::default());
    let foreign: Local = registered.at(0, 512).unwrap();
    assert!(matches!(pair.server.send(foreign, 7), Err((Error::Argument(_), 7))));
}

#[test]
fn an_old_key_is_void_and_memory_stays_until_transfers_cannot_touch_it() {
    if missing() {
        return;
    }
    let mut pair = pair(Depth::default());
    let (here, there) = (memory(1 << 20), memory(1 << 20));
    let local = pair.ours.register(&here, Rights::Local).unwrap();
    let registered = pair.theirs.register(&there, Rights::RemoteReadWrite).unwrap();
    let remote = registered.remote(&segments(&there, &[(0, 4096)])).unwrap();
    let vanishing: Weak<GuestMemory> = Arc::downgrade(&there);
    drop((registered, there));
    // With `tcp` a transfer might have begun.
    assert_eq!(vanishing.upgrade().is_some(), place().0 == Kind::Tcp);
    pair.server.write(local.at(0, 4096).unwrap(), remote, 0).unwrap();
    let ended = pair.server_ends(1);
    assert!(ended[0].result.is_err(), "{ended:?}");
    drop(pair.client);
    assert!(vanishing.upgrade().is_none());
}

#[test]
fn refused_and_absent_peers_are_errors() {
    if missing() {
        return;
    }
    let fabric = open().unwrap();
    let listener = fabric.listen(0).unwrap();
    let ends = |address: SocketAddr, listener: Option<&fabric::Listener>| {
        let since = Instant::now();
        let mut client: Endpoint<u64> = match fabric.connect(address, &[], Depth::default()) {
            Ok(client) => client,
            Err(error) => return error,
        };
        loop {
            client.poll();
            if let Some(Ok(Some(request))) = listener.map(fabric::Listener::poll) {
                assert!(request.greeting().is_empty());
                drop(request);
            }
            if let State::Ended(error) = client.state() {
                return error.clone();
            }
            assert!(since.elapsed() < PATIENCE);
        }
    };
    let address = listener.address();
    eprintln!("refused: {}", ends(address, Some(&listener)));
    drop(listener);
    eprintln!("absent: {}", ends(address, None));
    assert!(matches!(
        fabric.connect::<u64>(address, &[0; 49], Depth::default()),
        Err(Error::Argument(_))
    ));
    // An address that this machine has not.
    let nowhere = Fabric::open(place().0, "192.0.2.77".parse().unwrap());
    assert!(nowhere.and_then(|fabric| fabric.listen(0)).is_err());
    assert!(matches!(
        Fabric::open(place().0, Ipv4Addr::UNSPECIFIED.into()),
        Err(Error::Argument(_))
    ));
}

#[test]
fn everything_may_be_dropped_in_any_order() {
    if missing() {
        return;
    }
    // A device that is emulated takes its time, for registrations too.
    for round in 0..if place().0 == Kind::Tcp { 100 } else { 14u64 } {
        let mut pair = pair(Depth { transmits: 8, receives: 8 });
        let (here, there) = (memory(4 << 20), memory(4 << 20));
        let local = pair.ours.register(&here, Rights::Local).unwrap();
        let messages = pair.theirs.register(&there, Rights::Local).unwrap();
        let registered = pair.theirs.register(&there, Rights::RemoteReadWrite).unwrap();
        let memories = [Arc::downgrade(&here), Arc::downgrade(&there)];
        for n in 0..12 {
            let remote = registered.remote(&segments(&there, &[(0, 1 << 20)])).unwrap();
            pair.server.write(local.at(0, 1 << 20).unwrap(), remote.clone(), n).unwrap();
            pair.server.read(local.at(0, 1 << 20).unwrap(), remote, n).unwrap();
            pair.client.receive(messages.at(n * 512, 512).unwrap(), n).unwrap();
        }
        for _ in 0..round % 7 {
            pair.server.poll();
            pair.client.poll();
        }
        let Pair { ours, theirs, server, client } = pair;
        // Each owner comes back once.
        let given_back = move || {
            let mut owners = [0; 12];
            let waiting = server.in_flight();
            let all = server.close();
            assert_eq!(all.len(), waiting);
            for one in all {
                owners[one.owner as usize] += 1;
            }
            assert!(owners.iter().all(|count| *count <= 2));
        };
        let mut drops: Vec<Box<dyn FnOnce()>> = vec![
            Box::new(given_back),
            Box::new(move || drop(client)),
            Box::new(move || drop(ours)),
            Box::new(move || drop(theirs)),
            Box::new(move || drop(local)),
            Box::new(move || drop(registered)),
            Box::new(move || drop(messages)),
            Box::new(move || drop((here, there))),
        ];
        // Another order in each round.
        let mut seed = round + 1;
        while !drops.is_empty() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            drops.swap_remove((seed >> 33) as usize % drops.len())();
        }
        assert!(memories.iter().all(|memory| memory.upgrade().is_none()), "round {round}");
    }
}

const CHILD: &str = "FABRIC_TEST_PEER";

/// The owner of memory in another process: says how to reach it, and polls until it is killed.
#[test]
fn peer() {
    let Ok(address) = std::env::var(CHILD) else { return };
    let fabric = open().unwrap();
    let there = memory(16 << 20);
    let registered = fabric.register(&there, Rights::RemoteReadWrite).unwrap();
    let remote = registered.remote(&segments(&there, &[(0, 16 << 20)])).unwrap()[0];
    let address = address.parse().unwrap();
    let mut client: Endpoint<u64> = fabric.connect(address, &[], Depth::default()).unwrap();
    println!("\nremote {} {} {}", remote.address, remote.key, remote.length);
    while !matches!(client.state(), State::Ended(_)) {
        step(&mut client);
    }
}

#[test]
fn a_peer_that_is_killed_ends_the_connection() {
    if missing() {
        return;
    }
    let fabric = open().unwrap();
    let listener = fabric.listen(0).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer", "--nocapture"])
        .env(CHILD, listener.address().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told = lines.map_while(Result::ok).find(|line| line.starts_with("remote ")).unwrap();
    let numbers: Vec<u64> = told.split(' ').filter_map(|word| word.parse().ok()).collect();
    let remote = Remote { address: numbers[0], key: numbers[1], length: numbers[2] };
    let since = Instant::now();
    let mut server: Endpoint<u64> = loop {
        assert!(since.elapsed() < PATIENCE);
        if let Some(request) = listener.poll().unwrap() {
            assert_eq!(request.peer().unwrap().ip(), place().1);
            break request.accept(Depth::default()).unwrap();
        }
    };
    let here = memory(16 << 20);
    let local = fabric.register(&here, Rights::Local).unwrap();
    // Bytes go to the other process and come back.
    let len = 1 << 20;
    let from = local.at(0, len).unwrap();
    from.segments().copy_from(&pattern(5, len as usize));
    let some = |n: u64| {
        Remotes::from([Remote {
            address: remote.address + (n << 20),
            length: len.into(),
            ..remote
        }])
    };
    server.write(from, some(3), 0).unwrap();
    let wait = |server: &mut Endpoint<u64>| loop {
        assert!(since.elapsed() < PATIENCE);
        step(server);
        if let Some(one) = server.ended() {
            break one;
        }
    };
    assert_eq!(wait(&mut server).result, Ok(len.into()));
    server.read(local.at(4 << 20, len).unwrap(), some(3), 1).unwrap();
    let ended = wait(&mut server);
    assert!(bytes(ended.local.segments()) == pattern(5, len as usize));
    // It dies with many under way.
    for n in 0..400 {
        server.write(local.at(0, len).unwrap(), some(n % 16), n).unwrap();
    }
    for _ in 0..20 {
        wait(&mut server);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut failed = 0;
    // Some network cards do all they are given at once: these are too late for any.
    for n in 0..20 {
        failed += usize::from(server.write(local.at(0, len).unwrap(), some(n % 16), n).is_err());
    }
    while !matches!(server.state(), State::Ended(_)) {
        assert!(since.elapsed() < PATIENCE, "{server:?}");
        step(&mut server);
        failed += std::iter::from_fn(|| server.ended()).filter(|one| one.result.is_err()).count();
    }
    eprintln!("{:?}", server.state());
    let rest = server.close();
    failed += rest.iter().filter(|one| one.result.is_err()).count();
    assert!(failed >= 20, "{failed}");
}
