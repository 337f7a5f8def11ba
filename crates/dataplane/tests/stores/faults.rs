//! Connections that are cut, held or refused, and stores that are replaced, under a guest that
//! writes all the time and knows what must be there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::block::{Request, Writer, status};

use crate::common::plane::Plane;
use crate::common::wait;
use crate::data::Way;
use crate::relay::{Relay, State};
use crate::rig::{Store, add, away, connect, connections, target};

/// Goes on writing for a while.
fn write(writer: &mut Writer, long: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < long {
        writer.step().unwrap();
    }
}

/// Goes on writing until so many more writes have ended.
pub(crate) fn write_more(writer: &mut Writer, more: u64) {
    let wanted = writer.ended()[0] + more;
    while writer.ended()[0] < wanted {
        writer.step().unwrap();
    }
}

#[test]
fn nothing_is_lost_when_connections_are_cut() {
    let (store, plane) = (Store::new(false), Plane::new());
    let relay = Relay::new(store.address);
    let id = add(&plane, "disk", target(relay.address, 1)).unwrap();
    let mut writer = Writer::new(connect(&plane, "disk", false), 512, 16, 3).unwrap();
    for round in 0..30 {
        write(&mut writer, Duration::from_millis(5 + round % 7));
        match round % 3 {
            0 => relay.cut(),
            1 => relay.cut_near(),
            _ => {
                relay.set(State::Refusing);
                relay.cut();
                write(&mut writer, Duration::from_millis(20));
                relay.set(State::Open);
            }
        }
        write_more(&mut writer, 1);
    }
    writer.settle().unwrap();
    assert!(connections(&plane.host, id) >= 20, "{}", connections(&plane.host, id));
}

/// Bytes stop on their way, and nobody is told: the disk notices, and asks somebody else. Another
/// disk does not notice anything.
#[test]
fn a_wire_that_is_silent_is_given_up() {
    let (store, other, plane) = (Store::new(false), Store::new(false), Plane::new());
    let relay = Relay::new(store.address);
    let mut two_ways = target(relay.address, 1);
    two_ways.addresses.push(store.address.to_string());
    let id = add(&plane, "disk", two_ways).unwrap();
    add(&plane, "healthy", target(other.address, 2)).unwrap();
    let mut writer = Writer::new(connect(&plane, "disk", true), 512, 16, 3).unwrap();
    let mut healthy = Writer::new(connect(&plane, "healthy", false), 512, 16, 3).unwrap();
    write_more(&mut writer, 100);
    relay.set(State::Held);
    let before = connections(&plane.host, id);
    while connections(&plane.host, id) == before {
        writer.step().unwrap();
        write_more(&mut healthy, 10);
    }
    write_more(&mut writer, 100);
    // What was held arrives at last.
    relay.set(State::Open);
    write_more(&mut writer, 100);
    writer.settle().unwrap();
    healthy.settle().unwrap();
}

#[test]
fn another_store_with_the_same_images_takes_over() {
    let (mut store, plane) = (Store::new(true), Plane::new());
    let relay = Relay::new(store.address);
    let id = add(&plane, "disk", target(relay.address, 1)).unwrap();
    let mut writer = Writer::new(connect(&plane, "disk", false), 512, 16, 3).unwrap();
    for _ in 0..5 {
        write_more(&mut writer, 200);
        let next = Store::of(Arc::clone(&store.shelf));
        relay.lead(next.address);
        store.stop();
        write(&mut writer, Duration::from_millis(10));
        store = next;
    }
    write_more(&mut writer, 200);
    writer.settle().unwrap();
    assert_eq!(connections(&plane.host, id), 6);
}

/// A guest that is reset, or goes, does not wait for a store that is away.
#[test]
fn a_guest_can_stop_while_the_store_is_away() {
    let (store, plane) = (Store::new(false), Plane::new());
    let relay = Relay::new(store.address);
    let id = add(&plane, "disk", target(relay.address, 1)).unwrap();
    let mut writer = Writer::new(connect(&plane, "disk", false), 512, 16, 3).unwrap();
    write_more(&mut writer, 100);
    relay.set(State::Refusing);
    relay.cut();
    wait(|| "the store is away".into(), || away(&plane.host, id).is_some());
    writer.step().unwrap();
    assert!(writer.in_flight() > 0);
    for queue in 0..writer.driver.queues.len() as u16 {
        writer.driver.stop_queue(queue).unwrap();
    }
    for queue in 0..writer.driver.queues.len() as u16 {
        writer.driver.start_queue(queue).unwrap();
    }
    relay.set(State::Open);
    // What was in flight is carried out by whoever serves the queues now.
    write_more(&mut writer, 100);
    writer.settle().unwrap();
    relay.set(State::Refusing);
    relay.cut();
    wait(|| "the store is away".into(), || away(&plane.host, id).is_some());
    writer.step().unwrap();
    plane.run(plane.host.remove_disk(id)).unwrap();
}

/// With a limit, a guest is told in the end, and can go on when the store is back.
#[test]
fn a_guest_waits_no_longer_than_it_was_told_to() {
    let (store, plane) = (Store::new(false), Plane::new());
    let relay = Relay::new(store.address);
    let mut patient = target(relay.address, 1);
    patient.patience = Some(Duration::from_millis(100));
    let id = add(&plane, "disk", patient).unwrap();
    let mut guest = connect(&plane, "disk", false);
    let status = |done: testkit::block::Done| done.status;
    assert_eq!(status(guest.run(&Request::write(0, &[1; 512])).unwrap()), Some(status::OK));
    relay.set(State::Refusing);
    relay.cut();
    for request in [Request::write(0, &[2; 512]), Request::flush(), Request::read(0, 512)] {
        assert_eq!(status(guest.run(&request).unwrap()), Some(status::IOERR));
    }
    relay.set(State::Open);
    wait(|| "the store is back".into(), || away(&plane.host, id).is_none());
    assert_eq!(status(guest.run(&Request::read(0, 512)).unwrap()), Some(status::OK));
}

#[test]
fn workers_that_never_rest_hear_of_what_is_rare() {
    heard(target);
}

/// A guest that asks seldom is answered, and its store is not taken for dead meanwhile, by workers that have
/// something to do all the time.
pub(crate) fn heard(way: Way) {
    let (store, plane) = (Store::polling(), Plane::polling());
    let id = add(&plane, "disk", way(store.address, 1)).unwrap();
    let mut guest = connect(&plane, "disk", false);
    // Longer than a store may be silent.
    for round in 0..5u8 {
        std::thread::sleep(Duration::from_secs(1));
        let request = Request::write(round.into(), &[round; 512]);
        assert_eq!(guest.run(&request).unwrap().status, Some(status::OK));
    }
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(connections(&plane.host, id), 1);
    assert_eq!(guest.run(&Request::read(4, 512)).unwrap().data, [4; 512]);
}
