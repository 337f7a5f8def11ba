//! Stores that reach their guests' memory, over libfabric's provider `tcp`. Without libfabric at build time there
//! is nothing to test but that it is missed.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::store_control::Transport;
use dataplane::{HostError, StoreError, StoreTarget};
use testkit::block::{BlockDriver, Layout, Options, Request, SECTOR, Writer, status};

use crate::common::plane::Plane;
use crate::common::wait;
use crate::relay::{Relay, State};
use crate::rig::{SIZE, Store, add, away, connect, connections, target};

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

/// Goes on writing until so many more writes have ended.
fn write_more(writer: &mut Writer, more: u64) {
    let wanted = writer.ended()[0] + more;
    while writer.ended()[0] < wanted {
        writer.step().unwrap();
    }
}

/// Everything a guest can ask for, in small and in pieces longer than one request to the store.
#[test]
fn a_store_keeps_what_it_fetches() {
    if missing() {
        return;
    }
    for direct in [false, true] {
        let (store, plane) = (Store::new(direct), Plane::new());
        let id = add(&plane, "disk", far(store.address, 1)).unwrap();
        let status_of = plane.host.disk_status(id).unwrap();
        assert_eq!(status_of.store.unwrap().transport, Transport::Libfabric);
        let options = Options { size: 8, data: 3 << 20, ..Options::new(direct) };
        let mut guest = BlockDriver::connect(plane.socket("disk"), &options).unwrap();
        let mut run = |request: &Request| {
            let done = guest.run(request).unwrap();
            assert_eq!(done.status, Some(status::OK));
            done.data
        };
        let long: Vec<u8> = (0..(5 << 20) / 2).map(|at: u32| (at / 512) as u8 | 1).collect();
        run(&Request::write(16, &long));
        assert_eq!(run(&Request::read(16, long.len() as u32)), long);
        run(&Request::flush());
        let mut there = vec![0; long.len()];
        store.shelf.file.read_exact_at(&mut there, 16 * SECTOR).unwrap();
        assert_eq!(there, long);
        run(&Request::write_zeroes(24, 8, true));
        run(&Request::discard(32, 8));
        assert_eq!(run(&Request::read(24, 8 * SECTOR as u32)), vec![0; 4096]);
        drop(guest);
        plane.run(plane.host.remove_disk(id)).unwrap();
        wait(|| "nobody has it open".into(), || store.shelf.writers() == 0);
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

/// Many requests at once, of all queues, checked by who wrote them.
#[test]
fn a_busy_guest_finds_what_it_wrote() {
    if missing() {
        return;
    }
    for packed in [false, true] {
        let (store, plane) = (Store::new(!packed), Plane::new());
        let id = add(&plane, "disk", far(store.address, 1)).unwrap();
        let guest = connect(&plane, "disk", packed);
        let mut writer = Writer::new(guest, 2048, 32, 7).unwrap();
        write_more(&mut writer, 5000);
        writer.settle().unwrap();
        drop(writer);
        plane.run(plane.host.remove_disk(id)).unwrap();
        wait(|| "nobody has it open".into(), || store.shelf.writers() == 0);
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
    }
    let mut guest = connect(&plane, "disk", false);
    for round in 0..10u8 {
        let done = guest.run(&Request::read(round.into(), 512)).unwrap();
        assert_eq!(done.data, [round; 512]);
    }
    drop(guest);
    assert_eq!(plane.host.disk_status(id).unwrap().size, SIZE);
}
