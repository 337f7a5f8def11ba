//! What is written is read, and is what the store's file has: at any offset, in any length.

use std::os::unix::fs::FileExt;
use std::thread;

use proptest::prelude::*;
use storeclient::{Error, RemoteImage, Transport, Why};

use crate::relay::Relay;
use crate::rig::{SIZE, Store, has_fabric, name, open, session, session_by, until};

/// One call.
#[derive(Clone, Debug)]
enum Call {
    Read(u64, usize),
    Write(u64, usize, u8),
    Clear(u64, u64),
    Flush,
    /// The connection ends.
    Cut,
}

/// Around places where sectors, requests and the image begin and end, and anywhere.
fn offset() -> impl Strategy<Value = u64> {
    let edge = |at: u64| (0..=600u64).prop_map(move |by| (at + by).saturating_sub(300));
    prop_oneof![0..SIZE + 10, edge(0), edge(1 << 20), edge(2 << 20), edge(SIZE)]
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![0..2000usize, Just(512), Just(4096), 0..(5usize << 19), Just(1 << 20)]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => (offset(), length()).prop_map(|(at, length)| Call::Read(at, length)),
        6 => (offset(), length(), 1..=255u8).prop_map(|(at, length, seed)| Call::Write(at, length, seed)),
        2 => (offset(), length()).prop_map(|(at, length)| Call::Clear(at, length as u64)),
        1 => Just(Call::Flush),
        1 => Just(Call::Cut),
    ]
}

/// Bytes of which no sector is like another.
fn pattern(at: u64, length: usize, seed: u8) -> Vec<u8> {
    let byte = |at: u64| (at ^ (at >> 9)) as u8 ^ seed;
    (at..).take(length).map(byte).collect()
}

/// Where a change goes in the model; `None`: nowhere, it has to be refused.
fn place(model: &mut [u8], at: u64, length: u64) -> Option<&mut [u8]> {
    model.get_mut(usize::try_from(at).ok()?..usize::try_from(at + length).ok()?)
}

fn play(image: &RemoteImage, cut: impl Fn(), model: &mut [u8], calls: &[Call]) {
    for call in calls {
        match *call {
            Call::Read(at, length) => {
                let mut data = vec![0xee; length];
                let count = image.read_at(&mut data, at).unwrap();
                let begin = (at as usize).min(model.len());
                let wanted = &model[begin..(begin + length).min(model.len())];
                assert!(data[..count] == *wanted, "{call:?}");
                assert!(data[count..].iter().all(|byte| *byte == 0xee), "{call:?}");
            }
            Call::Write(at, length, seed) => {
                let data = pattern(at, length, seed);
                let done = image.write_at(&data, at);
                match place(model, at, length as u64) {
                    Some(place) => place.copy_from_slice(&data),
                    None => assert!(matches!(done, Err(Error::Failed(_))), "{call:?}"),
                }
            }
            Call::Clear(at, length) => {
                let done = image.clear(at, length);
                match place(model, at, length) {
                    Some(place) => place.fill(0),
                    None => assert!(matches!(done, Err(Error::Failed(_))), "{call:?}"),
                }
            }
            Call::Flush => image.flush().unwrap(),
            Call::Cut => cut(),
        }
    }
}

/// Plays all this against a model.
fn is_an_array(calls: &[Call], transport: Transport) {
    let store = Store::new();
    let relay = Relay::new(store.address);
    let session = session_by(relay.address, transport);
    let image = open(&session, true);
    assert_eq!(image.transport(), transport);
    let mut model = vec![0; SIZE as usize];
    play(&image, || cut(&store, &relay, transport), &mut model, calls);
    drop(image);
    let mut there = vec![0; SIZE as usize];
    store.disk.read_exact_at(&mut there, 0).unwrap();
    assert!(there == model);
}

/// Ends the connection. What is in memory does not go through the relay.
fn cut(store: &Store, relay: &Relay, transport: Transport) {
    match transport {
        Transport::Shm => store.fence(),
        _ => relay.cut(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn an_image_is_an_array_of_bytes(calls in prop::collection::vec(call(), 1..40)) {
        is_an_array(&calls, Transport::Tcp);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 15, ..ProptestConfig::default() })]

    #[test]
    fn an_image_in_shared_memory_is_an_array_of_bytes(calls in prop::collection::vec(call(), 1..40)) {
        is_an_array(&calls, Transport::Shm);
    }

    #[test]
    fn an_image_behind_a_fabric_is_an_array_of_bytes(calls in prop::collection::vec(call(), 1..30)) {
        if has_fabric() {
            is_an_array(&calls, Transport::Libfabric);
        }
    }
}

/// Threads that change bytes of the same sectors, and of no byte two of them, while connections are
/// cut: each finds its own bytes, and all are there in the end.
#[test]
fn neighbours_in_a_sector_lose_nothing() {
    neighbours(Transport::Tcp);
}

#[test]
fn neighbours_in_shared_memory_lose_nothing() {
    neighbours(Transport::Shm);
}

#[test]
fn neighbours_behind_a_fabric_lose_nothing() {
    if has_fabric() {
        neighbours(Transport::Libfabric);
    }
}

fn neighbours(transport: Transport) {
    const THREADS: usize = 8;
    const BYTES: usize = 6000;
    let store = Store::new();
    let relay = Relay::new(store.address);
    let session = session_by(relay.address, transport);
    let image = open(&session, true);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (image, store, relay) = (&image, &store, &relay);
            scope.spawn(move || {
                for round in 0..30u8 {
                    // Every piece of 97 bytes belongs to the thread of its number.
                    for (piece, at) in (0..BYTES).step_by(97).enumerate() {
                        if piece % THREADS == number {
                            let data = [round ^ number as u8; 97];
                            image.write_at(&data, at as u64).unwrap();
                            let mut back = [0; 97];
                            assert_eq!(image.read_at(&mut back, at as u64).unwrap(), 97);
                            assert_eq!(back, data);
                        }
                    }
                    if round % 10 == number as u8 {
                        cut(store, relay, transport);
                    }
                }
            });
        }
    });
    image.flush().unwrap();
    let mut there = vec![0; BYTES];
    store.disk.read_exact_at(&mut there, 0).unwrap();
    for (at, byte) in there.iter().enumerate() {
        assert_eq!(usize::from(*byte), 29 ^ (at / 97 % THREADS), "{at}");
    }
    assert!(image.connections() > 1);
}

/// Long reads and writes of many threads at once are more than a store allows to be under way.
#[test]
fn more_is_asked_for_than_may_be_under_way() {
    let fabric = has_fabric().then_some(Transport::Libfabric);
    [Transport::Tcp, Transport::Shm].into_iter().chain(fabric).for_each(ask_for_more);
}

fn ask_for_more(transport: Transport) {
    let store = Store::new();
    let session = session_by(store.address, transport);
    let image = open(&session, true);
    thread::scope(|scope| {
        for number in 0..16u8 {
            let image = &image;
            scope.spawn(move || {
                let length = SIZE as usize / 16;
                let at = u64::from(number) * length as u64;
                for round in 0..4 {
                    let data = pattern(at, length, number * 8 + round);
                    image.write_at(&data, at).unwrap();
                    let mut all = vec![0; SIZE as usize];
                    assert_eq!(image.read_at(&mut all, 0).unwrap(), all.len());
                    assert!(all[at as usize..][..length] == data);
                }
            });
        }
    });
}

#[test]
fn images_have_names_sizes_and_one_writer() {
    let store = Store::new();
    let (one, other) = (session(store.address), session(store.address));
    assert_eq!(one.list().unwrap(), [(name("disk"), SIZE), (name("full"), SIZE)]);
    let refusal = |error: Error| match error {
        Error::Refused { source, .. } => source.why,
        other => panic!("{other}"),
    };
    assert_eq!(refusal(one.open(&name("none"), false).unwrap_err()), Why::NoSuchImage);
    let reader = open(&one, false);
    assert_eq!((reader.size(), reader.is_writable()), (SIZE, false));
    assert!(matches!(one.open(&name("disk"), false), Err(Error::Open(_))));
    assert!(reader.write_at(&[1], 0).is_err());
    // A second reader is in the way of a writer.
    let second = open(&other, false);
    assert_eq!(refusal(reader.make_writable().unwrap_err()), Why::InUse);
    assert_eq!(reader.read_at(&mut [0; 9], 3).unwrap(), 9);
    drop(second);
    until("it can be written", || reader.make_writable().is_ok());
    reader.write_at(&[7; 9], 3).unwrap();
    reader.flush().unwrap();
    assert_eq!(refusal(other.open(&name("disk"), false).unwrap_err()), Why::InUse);
    // Who closes an image can open it at once, whether the store has noticed or not.
    drop(reader);
    for write in [true, false].into_iter().cycle().take(20) {
        let mut back = [0; 9];
        open(&one, write).read_at(&mut back, 3).unwrap();
        assert_eq!(back, [7; 9]);
    }
    until("nobody has it open", || store.users() == (0, 0));
}
