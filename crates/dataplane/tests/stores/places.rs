//! Guests whose store is on the same machine, and serves them itself.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use dataplane::store_control::Transport;
use dataplane::{DiskId, DiskSpec, HostError, OperationKind, PortState, StoreError, StoreTarget};
use remote::frame;
use testkit::block::{BlockDriver, Options, Request, Writer, device, status};

use crate::common::plane::Plane;
use crate::common::wait;
use crate::relay::Relay;
use crate::rig::{Store, add, away, connect, connections, spec, target};

fn near(store: &Store, session: u128) -> StoreTarget {
    StoreTarget { transport: Transport::Shm, ..target(store.address, session) }
}

/// Connects as soon as somebody serves it.
fn connect_soon(plane: &Plane, name: &str, packed: bool) -> BlockDriver {
    let mut guest = None;
    wait(
        || "the disk is served".into(),
        || {
            guest = BlockDriver::connect(plane.socket(name), &Options::new(packed)).ok();
            guest.is_some()
        },
    );
    guest.unwrap()
}

fn reconnect_soon(writer: &mut Writer, plane: &Plane, name: &str) {
    wait(
        || "the disk is served again".into(),
        || writer.driver.reconnect(plane.socket(name)).is_ok(),
    );
}

fn transport(plane: &Plane, id: DiskId) -> Transport {
    plane.host.disk_status(id).unwrap().store.unwrap().transport
}

#[test]
fn a_store_serves_the_guests_of_its_own_machine() {
    for packed in [false, true] {
        let (store, plane) = (Store::new(packed), Plane::new());
        let auto = StoreTarget { transport: Transport::Auto, ..target(store.address, 1) };
        let id = add(&plane, "disk", auto).unwrap();
        assert_eq!(transport(&plane, id), Transport::Shm);
        let mut guest = connect(&plane, "disk", packed);
        let done = guest.run(&Request::write(8, &[7; 512])).unwrap();
        assert_eq!(done.status, Some(status::OK));
        assert_eq!(guest.run(&Request::read(8, 512)).unwrap().data, [7; 512]);
        let mut there = [0; 512];
        store.shelf.file.read_exact_at(&mut there, 8 * 512).unwrap();
        assert_eq!(there, [7; 512]);
        let id_of = guest.run(&Request::get_id()).unwrap();
        assert!(id_of.data.starts_with(b"disk\0"), "{:?}", id_of.data);

        plane.run(plane.host.ask_stores());
        let seen = plane.host.disk_status(id).unwrap();
        assert_eq!(seen.state, PortState::Running);
        let count = |kind: OperationKind| seen.operations.kinds[kind as usize].operations();
        assert_eq!((count(OperationKind::Read), count(OperationKind::Write)), (1, 1));
        // This process had nothing to do with it.
        drop(guest);
        let mut writer = Writer::new(connect(&plane, "disk", packed), 2048, 32, 7).unwrap();
        while writer.ended()[0] < 3000 {
            writer.step().unwrap();
        }
        writer.settle().unwrap();
        plane.run(plane.host.remove_disk(id)).unwrap();
        wait(|| "nobody has it open".into(), || store.shelf.writers() == 0);
    }
}

/// Nothing is lost, and nothing done that is older than what the guest has seen.
#[test]
fn another_store_takes_over() {
    for packed in [false, true] {
        let (mut store, plane) = (Store::new(false), Plane::new());
        let relay = Relay::new(store.address);
        let there = StoreTarget { transport: Transport::Shm, ..target(relay.address, 1) };
        let id = add(&plane, "disk", there).unwrap();
        let mut writer = Writer::new(connect(&plane, "disk", packed), 512, 16, 3).unwrap();
        for round in 1..=5 {
            let wanted = writer.ended()[0] + 200;
            while writer.ended()[0] < wanted {
                writer.step().unwrap();
            }
            let next = Store::of(Arc::clone(&store.shelf));
            relay.lead(next.address);
            store.stop();
            // It goes on asking, and nobody answers.
            writer.step().unwrap();
            store = next;
            wait(|| "it is open again".into(), || connections(&plane.host, id) > round);
            reconnect_soon(&mut writer, &plane, "disk");
        }
        writer.settle().unwrap();
        assert_eq!(transport(&plane, id), Transport::Shm);
    }
}

/// While there is no store, whoever connects is told so at once, instead of waiting for an answer.
#[test]
fn nobody_is_let_in_while_the_store_is_away() {
    let (mut store, plane) = (Store::new(false), Plane::new());
    let id = add(&plane, "disk", near(&store, 1)).unwrap();
    drop(connect(&plane, "disk", false));
    store.stop();
    wait(|| "it is away".into(), || away(&plane.host, id).is_some());
    wait(|| "nobody listens".into(), || UnixStream::connect(plane.socket("disk")).is_err());
    // It can be removed all the same.
    plane.run(plane.host.remove_disk(id)).unwrap();
}

/// A guest that waits too long is served here, and told that its requests failed; when the store is
/// back, it goes on over TCP.
#[test]
fn a_guest_waits_no_longer_than_it_was_told_to() {
    let (mut store, plane) = (Store::new(false), Plane::new());
    let relay = Relay::new(store.address);
    let mut there = StoreTarget { transport: Transport::Auto, ..target(relay.address, 1) };
    there.patience = Some(std::time::Duration::from_millis(100));
    let id = add(&plane, "disk", there).unwrap();
    drop(connect(&plane, "disk", false));
    store.stop();
    let mut guest = connect_soon(&plane, "disk", false);
    assert_eq!(guest.run(&Request::read(0, 512)).unwrap().status, Some(status::IOERR));
    let next = Store::of(Arc::clone(&store.shelf));
    relay.lead(next.address);
    wait(|| "the store is back".into(), || away(&plane.host, id).is_none());
    // The worker hears of it a moment later.
    let again = |guest: &mut BlockDriver| guest.run(&Request::read(0, 512)).unwrap().status;
    wait(|| "requests succeed again".into(), || again(&mut guest) == Some(status::OK));
    assert_eq!(transport(&plane, id), Transport::Tcp);
}

/// The same disk elsewhere takes the image: nothing of the guest that lost it lands any more.
#[test]
fn who_lost_the_image_is_hung_up_on() {
    let (store, old, new) = (Store::new(false), Plane::new(), Plane::new());
    let relay = Relay::new(store.address);
    let there = StoreTarget { transport: Transport::Shm, ..target(relay.address, 1) };
    let held = add(&old, "held", there).unwrap();
    let mut late = connect(&old, "held", false);
    assert_eq!(late.run(&Request::write(0, &[1; 512])).unwrap().status, Some(status::OK));
    // It finds no store again: being the same disk, it would take the image back.
    relay.lead(TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    add(&new, "held", near(&store, 1)).unwrap();
    wait(|| "it is taken".into(), || away(&old.host, held).is_some());
    old.run(old.host.remove_disk(held)).unwrap();
    let request = Request::write(0, &[2; 512]);
    late.submit(0, &request, &testkit::block::Layout::usual(&request)).unwrap();
    late.kick(0);
    let mut guest = connect_soon(&new, "held", false);
    assert_eq!(guest.run(&Request::read(0, 512)).unwrap().data, [1; 512]);
    assert_eq!(late.outstanding(0), 1);
}

/// As with any other disk, over a restart of this program.
#[test]
fn the_cache_mode_is_kept() {
    let (store, plane) = (Store::new(false), Plane::new());
    let kept = plane.socket("mode").with_extension("writethrough");
    let wanted = |name: &str| DiskSpec {
        writethrough: Some(kept.clone()),
        ..spec(&plane, name, near(&store, 1))
    };
    let id = plane.run(plane.host.add_disk(&wanted("disk"))).unwrap();
    let mut guest = connect(&plane, "disk", false);
    guest.frontend.set_config(device::CONFIG_WRITEBACK, &[0]).unwrap();
    wait(|| "it is kept".into(), || kept.exists());
    drop(guest);
    plane.run(plane.host.remove_disk(id)).unwrap();
    let id = plane.run(plane.host.add_disk(&wanted("disk"))).unwrap();
    let mut guest = connect(&plane, "disk", false);
    plane.run(plane.host.ask_stores());
    assert!(!plane.host.disk_status(id).unwrap().writeback);
    guest.frontend.set_config(device::CONFIG_WRITEBACK, &[1]).unwrap();
    wait(|| "it is forgotten".into(), || !kept.exists());
}

/// A second front end is turned away, and the first one goes on.
#[test]
fn there_is_one_front_end() {
    let (store, plane) = (Store::new(false), Plane::new());
    add(&plane, "disk", near(&store, 1)).unwrap();
    let mut guest = connect(&plane, "disk", false);
    assert!(BlockDriver::connect(plane.socket("disk"), &Options::new(false)).is_err());
    assert_eq!(guest.run(&Request::write(0, &[2; 512])).unwrap().status, Some(status::OK));
    // What it leaves behind is served as soon as it has left.
    drop(guest);
    let mut guest = connect(&plane, "disk", false);
    assert_eq!(guest.run(&Request::read(0, 512)).unwrap().data, [2; 512]);
}

#[test]
fn a_store_elsewhere_cannot_serve_it() {
    let (store, plane) = (Store::new(false), Plane::new());
    std::fs::remove_file(store.plane.socket("store")).unwrap();
    let refused = add(&plane, "disk", near(&store, 1)).unwrap_err();
    assert!(matches!(refused, HostError::Store(StoreError::NotHere { .. })), "{refused}");
    assert_eq!(store.shelf.writers(), 0);
    let auto = StoreTarget { transport: Transport::Auto, ..target(store.address, 1) };
    let id = add(&plane, "disk", auto).unwrap();
    assert_eq!(transport(&plane, id), Transport::Tcp);
}

/// Who comes to the Unix socket with anything but a place is hung up on, and nobody notices.
#[test]
fn strangers_find_no_place() {
    let (store, plane) = (Store::new(false), Plane::new());
    add(&plane, "disk", near(&store, 1)).unwrap();
    let mut guest = connect(&plane, "disk", false);
    let said = |json: &str| {
        let mut bytes = Vec::new();
        frame::control(&mut bytes, json.as_bytes());
        bytes
    };
    let guess = r#"{"say":"place","place":"00000000000000000000000000000001","guest":{"disk":"a","queues":1,"features_off":0,"writethrough":false}}"#;
    for bytes in [vec![0xa5; 100], said("{}"), said(r#"{"say":"front-end"}"#), said(guess)] {
        let mut stranger = UnixStream::connect(store.plane.socket("store")).unwrap();
        let descriptors = [stranger.as_fd()];
        sys::scm::send(&stranger, &bytes[..1], &descriptors).unwrap();
        stranger.write_all(&bytes[1..]).unwrap();
        stranger.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let mut answer = Vec::new();
        if let Err(error) = stranger.read_to_end(&mut answer) {
            assert_ne!(error.kind(), ErrorKind::WouldBlock, "it is not closed");
        }
        assert!(!String::from_utf8_lossy(&answer).contains("placed"));
    }
    assert_eq!(guest.run(&Request::write(0, &[2; 512])).unwrap().status, Some(status::OK));
}
