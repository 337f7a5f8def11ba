//! Stores that are away, silent, or cannot do what they are asked for.

use std::thread;
use std::time::Duration;

use storeclient::{Error, Session, Target, Transport};

use crate::relay::{Relay, State};
use crate::rig::{Store, name, open, session, target, until};

#[test]
fn a_store_that_is_away_is_waited_for() {
    let store = Store::new();
    let relay = Relay::new(store.address);
    let session = session(relay.address);
    let image = open(&session, true);
    image.write_at(&[1; 700], 100).unwrap();
    relay.set(State::Refusing);
    relay.cut();
    thread::scope(|scope| {
        let writer = scope.spawn(|| image.write_at(&[2; 700], 100));
        let reader = scope.spawn(|| image.read_at(&mut [0; 100], 4096));
        thread::sleep(Duration::from_millis(500));
        assert!(!writer.is_finished() && !reader.is_finished());
        relay.set(State::Open);
        writer.join().unwrap().unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), 100);
    });
    let mut back = [0; 700];
    image.read_at(&mut back, 100).unwrap();
    assert_eq!(back, [2; 700]);
}

/// Bytes stop on their way, and nobody is told: it is noticed, and another way is taken.
#[test]
fn a_store_that_is_silent_is_given_up() {
    let store = Store::new();
    let relay = Relay::new(store.address);
    let ways = vec![relay.address.to_string(), store.address.to_string()];
    let session =
        Session::connect(Target { addresses: ways, ..target(store.address, Transport::Tcp) })
            .unwrap();
    let image = open(&session, true);
    image.write_at(&[1; 512], 0).unwrap();
    relay.set(State::Held);
    image.write_at(&[3; 512], 0).unwrap();
    assert!(image.connections() > 1);
    relay.set(State::Open);
    let mut back = [0; 512];
    image.read_at(&mut back, 0).unwrap();
    assert_eq!(back, [3; 512]);
}

#[test]
fn nobody_waits_longer_than_he_wants() {
    let store = Store::new();
    let relay = Relay::new(store.address);
    let patience = Some(Duration::from_millis(100));
    let target = Target { patience, ..target(relay.address, Transport::Tcp) };
    let session = Session::connect(target).unwrap();
    let image = open(&session, true);
    relay.set(State::Refusing);
    relay.cut();
    assert!(matches!(image.write_at(&[1; 512], 0), Err(Error::Away)));
    assert!(matches!(image.flush(), Err(Error::Away)));
    relay.set(State::Open);
    until("the store is back", || image.read_at(&mut [0; 512], 0).is_ok());
}

/// Who closes an image does not wait for a store that is away, and nobody else does.
#[test]
fn closing_ends_what_waits() {
    let store = Store::new();
    let relay = Relay::new(store.address);
    let session = session(relay.address);
    let image = open(&session, true);
    relay.set(State::Refusing);
    relay.cut();
    thread::scope(|scope| {
        let writer = scope.spawn(|| image.write_at(&[2; 700], 100));
        let upgrade = scope.spawn(|| image.flush());
        thread::sleep(Duration::from_millis(100));
        image.close();
        assert!(matches!(writer.join().unwrap(), Err(Error::Closed)));
        assert!(matches!(upgrade.join().unwrap(), Err(Error::Closed)));
    });
    assert!(matches!(image.read_at(&mut [0; 1], 0), Err(Error::Closed)));
    drop(image);
    relay.set(State::Open);
    open(&session, true).write_at(&[1], 0).unwrap();
}

#[test]
fn an_error_is_that_of_its_request() {
    let store = Store::new();
    let session = session(store.address);
    let image = session.open(&name("full"), true).unwrap();
    assert!(matches!(image.write_at(&[1; 512], 0), Err(Error::Failed(_))));
    assert!(matches!(image.write_at(&[1; 5], 600), Err(Error::Failed(_))));
    assert_eq!(image.read_at(&mut [0; 512], 0).unwrap(), 512);
    assert_eq!(image.connections(), 1);
}
