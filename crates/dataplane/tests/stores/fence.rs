//! Who has an image, and that nobody else can touch it.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;

use dataplane::HostError;
use dataplane::store_control::Why;
use testkit::block::{Layout, Request, status};

use crate::common::plane::Plane;
use crate::common::wait;
use crate::relay::{Relay, State};
use crate::rig::{Store, add, connect, target};

/// Why a store refused.
fn refusal(error: HostError) -> Why {
    match error {
        HostError::Store(dataplane::StoreError::Refused { source, .. }) => source.why,
        other => panic!("{other}"),
    }
}

#[test]
fn an_image_has_one_writer() {
    let (store, plane) = (Store::new(false), Plane::new());
    let first = add(&plane, "first", target(store.address, 1)).unwrap();
    let second = || add(&plane, "second", target(store.address, 2));
    assert_eq!(refusal(second().unwrap_err()), Why::InUse);
    let mut unknown = target(store.address, 3);
    unknown.image = "other".parse().unwrap();
    assert_eq!(refusal(add(&plane, "third", unknown).unwrap_err()), Why::NoSuchImage);
    plane.run(plane.host.remove_disk(first)).unwrap();
    wait(|| "the first one is gone".into(), || store.shelf.writers() == 0);
    second().unwrap();
}

/// A disk is removed at once; its store closes the image when it hears of that.
#[test]
fn an_image_that_was_just_let_go_can_be_opened() {
    let (store, plane) = (Store::new(false), Plane::new());
    let first = add(&plane, "first", target(store.address, 1)).unwrap();
    store.shelf.slow.store(true, SeqCst);
    plane.run(plane.host.remove_disk(first)).unwrap();
    add(&plane, "second", target(store.address, 2)).unwrap();
}

/// A write that was on its way when its sender lost the image does not land, however late it
/// arrives.
#[test]
fn a_late_write_of_the_fenced_does_not_land() {
    let (store, old, new) = (Store::new(false), Plane::new(), Plane::new());
    let relay = Relay::new(store.address);
    let held = add(&old, "held", target(relay.address, 1)).unwrap();
    let mut late = connect(&old, "held", false);
    assert_eq!(late.run(&Request::write(0, &[1; 512])).unwrap().status, Some(status::OK));
    relay.set(State::Held);
    let request = Request::write(0, &[2; 512]);
    late.submit(0, &request, &Layout::usual(&request)).unwrap();
    late.kick(0);
    wait(|| "it is on its way".into(), || old.host.disk_status(held).unwrap().in_flight == 1);
    // The same disk elsewhere: the daemon was started anew, or moved.
    add(&new, "held", target(store.address, 1)).unwrap();
    let mut guest = connect(&new, "held", false);
    assert_eq!(guest.run(&Request::write(0, &[3; 512])).unwrap().status, Some(status::OK));
    // It finds no store again: being the same disk, it would take the image back.
    relay.lead(std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    relay.set(State::Open);
    wait(
        || "its connection has ended".into(),
        || old.host.disk_status(held).unwrap().store.unwrap().away.is_some(),
    );
    let mut there = [0; 512];
    store.shelf.file.read_exact_at(&mut there, 0).unwrap();
    assert_eq!(there, [3; 512]);
    assert_eq!(guest.run(&Request::read(0, 512)).unwrap().data, [3; 512]);
}
