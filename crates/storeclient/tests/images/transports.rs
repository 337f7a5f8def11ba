//! Which transport is taken, and what keeps one from being used.

use std::thread;
use std::time::Duration;

use storeclient::{Error, Session, Target, Transport};

use crate::certs::Certificates;
use crate::relay::{Relay, State};
use crate::rig::{Store, has_fabric, open, session_by, target, until};

/// A store on this machine shares memory, if nothing else is wished for.
#[test]
fn the_nearest_way_is_taken() {
    let store = Store::new();
    let image = open(&session_by(store.address, Transport::Auto), true);
    assert_eq!(image.transport(), Transport::Shm);
    image.write_at(&[5; 700], 300).unwrap();
    image.flush().unwrap();
    drop(image);
    let image = open(&session_by(store.address, Transport::Tcp), false);
    assert_eq!(image.transport(), Transport::Tcp);
    let mut back = [0; 700];
    image.read_at(&mut back, 300).unwrap();
    assert_eq!(back, [5; 700]);
    // Nobody writes who may only read, and what is asked for beside that goes on.
    let reader = open(&session_by(store.address, Transport::Shm), false);
    assert!(matches!(
        reader.write_at(&[1; 512], 0),
        Err(Error::Failed(storeclient::Status::ReadOnly))
    ));
    assert_eq!(reader.read_at(&mut back, 300).unwrap(), 700);
    assert_eq!(reader.connections(), 1);
}

#[test]
fn who_does_not_come_back_is_waited_for_no_longer_than_one_wants() {
    let fabric = has_fabric().then_some(Transport::Libfabric);
    for transport in [Transport::Shm].into_iter().chain(fabric) {
        let store = Store::new();
        let relay = Relay::new(store.address);
        let patience = Some(Duration::from_millis(100));
        let target = Target { patience, ..target(relay.address, transport) };
        let session = Session::connect(target).unwrap();
        let image = open(&session, true);
        image.write_at(&[1; 512], 0).unwrap();
        relay.set(State::Refusing);
        relay.cut();
        store.fence();
        assert!(matches!(image.write_at(&[2; 512], 0), Err(Error::Away)));
        relay.set(State::Open);
        until("the store is back", || image.write_at(&[3; 512], 0).is_ok());
        let mut back = [0; 512];
        image.read_at(&mut back, 0).unwrap();
        assert_eq!(back, [3; 512]);
        assert!(image.connections() > 1);
    }
}

#[test]
fn closing_does_not_wait_for_a_store_that_is_away() {
    let store = Store::new();
    let relay = Relay::new(store.address);
    let session = session_by(relay.address, Transport::Shm);
    let image = open(&session, true);
    relay.set(State::Refusing);
    store.fence();
    thread::scope(|scope| {
        // More than there is memory for: some wait for that.
        for at in 0..40 {
            let image = &image;
            scope.spawn(move || assert!(image.write_at(&[2; 700], at * 700).is_err()));
        }
        thread::sleep(Duration::from_millis(300));
        image.close();
    });
    drop(image);
    relay.set(State::Open);
    open(&session, true).write_at(&[1], 0).unwrap();
}

#[test]
fn certificates_are_asked_for() {
    let (own, others) = (Certificates::new(), Certificates::new());
    let store = Store::with(Some(&own), true);
    let with = |tls, transport| Target { tls, ..target(store.address, transport) };
    for tls in [None, Some(others.client())] {
        let refused = Session::connect(with(tls, Transport::Tcp)).unwrap_err();
        assert!(matches!(refused, Error::Connect { .. }), "{refused}");
    }
    let fabric = has_fabric().then_some(Transport::Libfabric);
    for transport in [Transport::Tcp, Transport::Shm].into_iter().chain(fabric) {
        let session = Session::connect(with(Some(own.client()), transport)).unwrap();
        let image = open(&session, true);
        assert_eq!(image.transport(), transport);
        let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 9) as u8 ^ at as u8).collect();
        image.write_at(&data, 12_345).unwrap();
        let mut back = vec![0; data.len()];
        assert_eq!(image.read_at(&mut back, 12_345).unwrap(), back.len());
        assert!(back == data);
        drop(image);
    }
}

#[test]
fn a_store_without_a_socket_shares_no_memory() {
    let store = Store::with(None, false);
    let error = Session::connect(target(store.address, Transport::Shm)).unwrap_err();
    assert!(matches!(error, Error::NotHere { .. }), "{error}");
    let image = open(&session_by(store.address, Transport::Auto), true);
    assert_eq!(image.transport(), Transport::Tcp);
}
