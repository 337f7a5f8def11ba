//! What was written comes with a number, and not before.

use std::time::Instant;

use fabric::{Depth, Ended, Error, Remotes, Rights, State};

use crate::{PATIENCE, Pair, bytes, memory, missing, pair, pattern, segments};

/// Parts and places of a delivery, that most providers cut.
const PIECES: u32 = 23;

#[test]
fn a_number_comes_when_the_bytes_are_there() {
    if missing() {
        return;
    }
    let Pair { ours, theirs, mut server, mut client } = pair(Depth { transmits: 8, receives: 64 });
    if !ours.delivers() {
        eprintln!("not tested: the provider cannot");
        return;
    }
    let (here, there) = (memory(16 << 20), memory(16 << 20));
    let local = ours.register(&here, Rights::Local).unwrap();
    let inbox = theirs.register(&memory(64 << 10), Rights::Local).unwrap();
    let registered = theirs.register(&there, Rights::RemoteWrite).unwrap();
    for room in 0..64 {
        client.receive(inbox.at(room * 1024, 1024).unwrap(), room).unwrap();
    }
    // Deliveries of one piece and of many, small and large, one behind the other.
    let each = [512, 4096, 65_536, 20_000];
    let mut places = Vec::new();
    for number in 0..40u64 {
        let len = each[number as usize % each.len()];
        let at = number * 2 * u64::from(len);
        let pieces = if number % 3 == 0 { PIECES } else { 1 };
        let cut = len / pieces;
        let split: Vec<(u64, u32)> = (0..u64::from(pieces))
            .map(|n| (at + n * u64::from(cut) * 2 + ((n % 2) << 32), cut))
            .collect();
        let total = u64::from(cut * pieces);
        let from = local.at((number % 4) << 20, total as u32).unwrap();
        places.push((split, total));
        let (remote_of, total) = places.last().unwrap();
        from.segments().copy_from(&pattern(number, *total as usize));
        let remote = registered.remote(&segments(&there, remote_of)).unwrap();
        server.deliver(from, remote, 0xfffe_0000 + number as u32, number).unwrap();
        // The pattern is not overwritten before it was sent.
        let since = Instant::now();
        let (mut sent, mut told) = (None, None);
        while sent.is_none() || told.is_none() {
            server.poll();
            client.poll();
            sent = sent.or_else(|| server.ended());
            if let Some(said) = client.told() {
                assert_eq!(said, 0xfffe_0000 + number as u32);
                let arrived = bytes(&segments(&there, remote_of));
                assert!(arrived == pattern(number, *total as usize), "{number}");
                told = Some(said);
            }
            assert!(since.elapsed() < PATIENCE, "{number}: {sent:?} {told:?}");
        }
        assert_eq!(sent.unwrap().result, Ok(*total));
        // A provider may use up a receive for it.
        while let Some(Ended { owner, local, result }) = client.ended() {
            assert_eq!(result, Ok(0));
            client.receive(local, owner).unwrap();
        }
    }
    assert_eq!((client.told(), server.told()), (None, None));
}

#[test]
fn no_number_comes_with_what_may_not_be_written() {
    if missing() {
        return;
    }
    let mut pair = pair(Depth::default());
    if !pair.ours.delivers() {
        return;
    }
    let (here, there) = (memory(1 << 20), memory(1 << 20));
    let local = pair.ours.register(&here, Rights::Local).unwrap();
    let inbox = pair.theirs.register(&memory(4096), Rights::Local).unwrap();
    pair.client.receive(inbox.at(0, 4096).unwrap(), 0).unwrap();
    let registered = pair.theirs.register(&there, Rights::RemoteRead).unwrap();
    let remote = registered.remote(&segments(&there, &[(0, 4096)])).unwrap();
    local.at(0, 4096).unwrap().segments().copy_from(&[0xaa; 4096]);
    pair.server.deliver(local.at(0, 4096).unwrap(), remote, 7, 0).unwrap();
    let since = Instant::now();
    while !matches!(pair.server.state(), State::Ended(_)) {
        pair.server.poll();
        pair.client.poll();
        assert_eq!(pair.client.told(), None);
        assert!(since.elapsed() < PATIENCE);
    }
    assert!(!bytes(&segments(&there, &[(0, 4096)])).contains(&0xaa));
    let again = pair.server.deliver(local.at(0, 512).unwrap(), Remotes::new(), 8, 0);
    assert_eq!(again, Err((Error::Ended, 0)));
}
