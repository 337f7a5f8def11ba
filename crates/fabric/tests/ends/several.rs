//! Several connections of one fabric, each with a thread of its own.

use std::net::SocketAddr;
use std::time::Instant;

use fabric::{Depth, Endpoint, Fabric, Listener, Rights, State};
use rustix::event::epoll;

use crate::{PATIENCE, memory, missing, open, pattern, step, woken};

/// A connection more: its two ends, that of the listener first. Nobody else is polled.
fn another(listener: &Listener, from: &Fabric) -> [Endpoint<u64>; 2] {
    let to: SocketAddr = listener.address();
    let mut client = from.connect(to, &[], Depth::default()).unwrap();
    let since = Instant::now();
    let request = loop {
        client.poll();
        if let Some(request) = listener.poll().unwrap() {
            break request;
        }
        assert!(since.elapsed() < PATIENCE);
    };
    let mut server = request.accept(Depth::default()).unwrap();
    while *server.state() != State::Connected || *client.state() != State::Connected {
        server.poll();
        client.poll();
        assert!(since.elapsed() < PATIENCE);
    }
    [server, client]
}

/// Who polls one connection may read what came for another one, whose thread sleeps: it is woken up.
#[test]
fn whoever_sleeps_is_woken_up_for_what_another_has_read() {
    if missing() {
        return;
    }
    let (ours, theirs) = (open().unwrap(), open().unwrap());
    let listener = ours.listen(0).unwrap();
    let [mut server, mut client] = another(&listener, &theirs);
    let (here, there) = (memory(1 << 20), memory(1 << 20));
    let from = ours.register(&here, Rights::Local).unwrap();
    let to = theirs.register(&there, Rights::Local).unwrap();
    let bed = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&bed, &client, epoll::EventData::new_u64(0), edges).unwrap();
    let since = Instant::now();
    // Something is sent and received while it is alone.
    server.receive(from.at(0, 4096).unwrap(), 0).unwrap();
    client.send(to.at(0, 4096).unwrap(), 0).unwrap();
    let (mut sent, mut received) = (false, false);
    while !(sent && received) {
        server.poll();
        client.poll();
        (sent, received) = (sent | client.ended().is_some(), received | server.ended().is_some());
        assert!(since.elapsed() < PATIENCE);
    }
    let mut others = Vec::new();
    // It sleeps when the second one comes, and with two of them.
    for number in 0..6 {
        client.receive(to.at(0, 4096).unwrap(), number).unwrap();
        loop {
            client.poll();
            woken(&bed);
            if client.may_sleep() {
                break;
            }
            assert!(since.elapsed() < PATIENCE);
        }
        if number % 3 == 0 {
            others.push(another(&listener, &theirs));
        }
        let message = from.at(0, 4096).unwrap();
        message.segments().copy_from(&pattern(number, 4096));
        server.send(message, number).unwrap();
        while server.ended().is_none() {
            step(&mut server);
            assert!(since.elapsed() < PATIENCE);
        }
        for _ in 0..10 {
            others.iter_mut().flatten().for_each(Endpoint::poll);
        }
        assert!(woken(&bed), "{number}: asleep beside a message");
        let came = loop {
            client.poll();
            if let Some(one) = client.ended() {
                break one;
            }
            assert!(since.elapsed() < PATIENCE);
        };
        assert_eq!((came.owner, came.result), (number, Ok(4096)));
        assert!(crate::bytes(came.local.segments()) == pattern(number, 4096));
    }
}
